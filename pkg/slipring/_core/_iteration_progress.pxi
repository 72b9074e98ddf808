# Part of _iteration.pyx: the progress of a pass. It knows the next task, the tasks in flight, and which thread may
# continue.

import queue
import types

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t

cdef object END = object()


# ---- what comes next
#
# Plans lose nothing to an exception from outside: what has been drawn stays until it is given. A signal's handler
# runs between two instructions of Python code and may raise there; in compiled code there is no such place. What
# the user's own sampler loses nobody can bring back: that is said.


cdef int ended_by(iterator, error) except -1:
    """Return whether an exception from outside has ended a generator, so that it yields nothing more."""
    return type(iterator) is types.GeneratorType and iterator.gi_frame is None


cdef object broken_off(iterator, error):
    """Return the exception for later requests to that generator."""
    return RuntimeError(
        f"the generator {iterator.__qualname__} was ended by the {type(error).__name__} that came while it "
        "was asked, and gives nothing more: begin a new iteration; an iterator that is an object with "
        "__next__ can go on"
    )


cdef class Drawn:
    """A user's iterator, wrapped so that iteration can continue after an exception as far as possible."""

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
    """Lists of `size` items. The last list has the items that are left, or with `drop_last` is dropped."""

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
    """The batches of a sampler, each as a list; `check` is called with the length of each."""

    cdef object check, batch
    cdef readonly object would_wait  # whether the next batch must be waited for; None: never, or not known

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
        """Close the sampler, which may make its batches in a thread."""
        end = getattr(self.iterator, "close", None)
        if end is not None:
            end()


cdef class StreamPlan:
    """The order of the workers, of which each makes its own batches of an iterable dataset.

    `in_order`: they take turns, beginning with worker `first`. Otherwise the least busy worker is next, so that a slow
    worker does not end up with all tasks.
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
        """Record that a batch (or an error, or the end) has come from the worker."""
        self.pending[worker] -= 1
        return 0

    cdef int ended(self, worker) except -1:
        """Record the end of the worker's stream."""
        if worker in self.turn:
            self.turn.remove(worker)
        return 0


# ---- what has been dispatched and not yet delivered
#
# A chain through the slots: a dict by sequence number costs a batch some forty lines of code that nobody else has in
# the caches.


@cython.final
@cython.no_gc
@cython.freelist(16)
@cython.auto_pickle(False)
cdef class Task:
    """One dispatched task."""


@cython.final
@cython.auto_pickle(False)
cdef class InFlight:
    """The `n` tasks in flight, in the order in which they were dispatched; `slots` is the segment's number of slots."""

    def __init__(self, slots):
        self.by_slot = [None] * slots
        self.first = self.last = -1

    cdef int add(self, Task task) except -1:
        """Add the task that has just been dispatched."""
        task.before, task.behind = self.last, -1
        if self.last < 0:
            self.first = <int> task.slot
        else:
            (<Task> self.by_slot[self.last]).behind = <int> task.slot
        self.last = <int> task.slot
        self.by_slot[task.slot] = task
        self.n += 1
        return 0

    cdef Task remove(self, uint32_t slot):
        """Remove and return the task that lies in a slot; None if there is none."""
        cdef Task task = <Task> self.by_slot[slot]
        if task is None:
            return None
        if task.before < 0:
            self.first = task.behind
        else:
            (<Task> self.by_slot[task.before]).behind = task.behind
        if task.behind < 0:
            self.last = task.before
        else:
            (<Task> self.by_slot[task.behind]).before = task.before
        self.by_slot[slot] = None
        self.n -= 1
        return task

    cdef Task oldest(self):
        """Return the task that was dispatched first; None if there is none."""
        return None if self.first < 0 else <Task> self.by_slot[self.first]

    cdef list all(self):
        """Return all tasks as a new list."""
        cdef list found = []
        cdef int slot = self.first
        while slot >= 0:
            found.append(self.by_slot[slot])
            slot = (<Task> self.by_slot[slot]).behind
        return found


# ---- which thread may go on, of those that ask one iterator
#
# A reentrant lock, but not the system's: the thread that holds it already (a signal's handler asks in the midst) goes
# on, and where nobody else asks, which is nearly always, it costs two words.


@cython.final
@cython.auto_pickle(False)
cdef class ReentrantLock:
    """A lock for one thread at a time.

    Under the GIL, no other thread runs between a look at the holder and taking its place.
    """

    def __init__(self):
        self.queue = queue.SimpleQueue()  # in C: nothing comes between its steps

    cdef unsigned long acquire(self) except? 1:
        """Wait until no other thread holds the lock; return the argument for `release`."""
        return self.acquire_as(PyThread_get_thread_ident())

    cdef unsigned long acquire_as(self, unsigned long me) except? 1:
        """Do the same for the calling thread, which is `me`."""
        cdef unsigned long before = self.holder
        if before != 0 and before != me:
            self.wait()
            before = 0
        self.holder = me
        return before

    cdef bint is_mine(self) noexcept:
        """Return whether the calling thread holds the lock."""
        return self.holder == PyThread_get_thread_ident()

    cdef int release(self, unsigned long before) except -1:
        """Let another thread have the lock."""
        self.holder = before
        if before == 0 and self.waiting > 0:
            self.queue.put(None)
        return 0

    cdef int wait(self) except -1:
        self.waiting += 1
        try:
            while self.holder != 0:
                self.queue.get()
        except BaseException:  # Ctrl-C may have come with a wake-up that is another's now
            self.queue.put(None)
            raise
        finally:
            self.waiting -= 1
        return 0
