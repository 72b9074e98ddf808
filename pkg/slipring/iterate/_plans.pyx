"""Plans that lose nothing to an exception from outside: what has been drawn stays until it is given.

A signal's handler runs between two instructions of Python code and may raise there; in compiled code there
is no such place. What the user's own sampler loses nobody can bring back: that is said.
"""

import types

cimport cython

cdef object END = object()


cdef int ended_by(iterator, error) except -1:
    """Whether an exception from outside has ended a generator, so that nothing more comes of it."""
    return type(iterator) is types.GeneratorType and iterator.gi_frame is None


cdef object broken_off(iterator, error):
    """The exception for whoever asks on."""
    return RuntimeError(
        f"the generator {iterator.__qualname__} was ended by the {type(error).__name__} that came while it "
        "was asked, and gives nothing more: begin a new iteration; an iterator that is an object with "
        "__next__ can go on"
    )


cdef class Drawn:
    """An iterator of the user's that is asked on after an exception, as far as it can be."""

    cdef object iterator, broken

    def __init__(self, iterator):
        self.iterator = iterator

    cdef object draw(self):
        """Return the next item, `END` at the end."""
        if self.broken is not None:
            error, self.broken, self.iterator = self.broken, None, iter(())
            raise error
        try:
            return next(self.iterator, END)
        except BaseException as error:
            if ended_by(self.iterator, error):
                self.broken = broken_off(self.iterator, error)
            raise


@cython.final
@cython.auto_pickle(False)
cdef class Grouped(Drawn):
    """Lists of `size` items, at last of those that are left.

    Parameters
    ----------
    items : iterable
    size : int
    drop_last : bool
        Not those that are left.
    """

    cdef list group
    cdef Py_ssize_t size
    cdef bint drop_last

    def __init__(self, items, size, drop_last=False):
        Drawn.__init__(self, iter(items))
        self.group, self.size, self.drop_last = [], min(size, 1 << 62), bool(drop_last)

    def __iter__(self):
        return self

    def __next__(self):
        cdef list group
        while len(self.group) < self.size:
            item = self.draw()
            if item is END:
                if not self.group or self.drop_last:
                    self.group = []
                    raise StopIteration
                break
            self.group.append(item)
        group, self.group = self.group, []
        return group


@cython.final
@cython.auto_pickle(False)
cdef class Listed(Drawn):
    """The batches of a sampler, each as a list.

    Parameters
    ----------
    batches : iterator
    check : callable
        Called with the length of each.

    Attributes
    ----------
    would_wait : callable or None
        Whether the next one would have to be waited for; None: it never must, or does not say so.
    """

    cdef object check, batch
    cdef readonly object would_wait

    def __init__(self, batches, check):
        Drawn.__init__(self, batches)
        self.check = check
        self.would_wait = getattr(batches, "would_wait", None)

    def __iter__(self):
        return self

    def __next__(self):
        cdef list indices
        if self.batch is None:
            self.batch = self.draw()
        if self.batch is END:
            self.batch = None
            raise StopIteration
        indices = list(self.batch)
        if indices is not self.batch:
            self.batch = indices  # what gives its indices once has been asked for them
        try:
            self.check(len(indices))
        except ValueError:
            self.batch = None
            raise
        self.batch = None
        return indices

    def close(self):
        """Nobody asks any more: they may be made in a thread."""
        end = getattr(self.iterator, "close", None)
        if end is not None:
            end()


cdef class StreamPlan:
    """Whose turn it is: each worker makes its own batches of an iterable dataset.

    Parameters
    ----------
    num_workers : int
    in_order : bool
        In turn; else whoever has least to do, so that a slow worker does not end up with all tasks.
    first : int
        Whose turn is the first.
    """

    def __cinit__(self, *_, **__):
        self.turn, self.sequence, self.pending = [], [], []

    def __init__(self, num_workers, in_order, first=0):
        self.turn = [(first + k) % num_workers for k in range(num_workers)]
        self.sequence = [0] * num_workers
        self.pending = [0] * num_workers
        self.in_order = bool(in_order)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.turn:
            raise StopIteration
        worker = self.turn[0]
        if not self.in_order:
            for other in self.turn:
                if self.pending[other] < self.pending[worker]:
                    worker = other
        self.turn.remove(worker)
        self.turn.append(worker)
        self.sequence[worker] += 1
        self.pending[worker] += 1
        return worker, self.sequence[worker] - 1

    cdef int came(self, worker) except -1:
        """A batch (or an error, or the end) has come from the worker."""
        self.pending[worker] -= 1
        return 0

    def ended(self, worker, last):
        """The worker's stream is at its end; `last`: what `StreamFetcher.last` has sent with it."""
        if worker in self.turn:
            self.turn.remove(worker)
