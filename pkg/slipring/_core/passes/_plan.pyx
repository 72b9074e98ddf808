"""The next task of a pass.

A plan yields the indices of each task, or which worker is next. If the user's sampler raised an exception, it yields a
`Failed`. If a plan itself raises an exception, it has lost nothing, and the call can be repeated.
"""

cimport cython

from slipring._core.ring._order cimport Slices
from slipring._core.ring._ring cimport Pickled

from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, LoaderTimeout, ended_by


class Interrupted(Closed):
    """Why a plan has ended before its sampler did."""


cdef object END = object()  # in place of an item: there is none


@cython.final
@cython.auto_pickle(False)
cdef class Failed:
    """The end of a plan: the user's sampler has raised `error`."""

    def __init__(self, error):
        self.error = error


cdef class SamplerDraws:
    """A sampler's iterator as a plan uses it: an exception of the iterator ends it, and is stored in `failed`.

    `KeyboardInterrupt` and the like are raised at once, and end it, too.
    """

    def __init__(self, iterator):
        self.iterator = iterator

    def __iter__(self):
        return self

    cpdef bint take(self, list items, Py_ssize_t n) except -1:
        """Append items to a list until it has `n`; return False if the iterator ended earlier."""
        while len(items) < n:
            item = self.draw()
            if item is END:
                return False
            items.append(item)
        return True

    cdef object draw(self):
        """Return the next item, `END` at the end."""
        try:
            return next(self.iterator, END)
        except Exception as error:
            self.fail(error)
            return END
        except BaseException as error:
            self.interrupted(error)
            raise

    def fail(self, error):
        """End the iterator with an exception."""
        self.iterator, self.failed = iter(()), Failed(error)

    cdef int interrupted(self, error) except -1:
        """End the iterator after Ctrl-C: it may have lost what it was drawing."""
        self.fail(Interrupted(ended_by(error, "the sampler")))
        self.is_interrupted = True
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class Grouped(SamplerDraws):
    """Lists of `size` items. The last list has the items that are left, or with `drop_last` is dropped.

    If the iterator fails, its exception is raised; with `is_plan`, the `Failed` is the last item.
    """

    cdef Py_ssize_t size
    cdef bint drop_last, is_plan

    def __init__(self, items, size, drop_last=False, is_plan=False):
        self.iterator, self.is_plan = iter(items), is_plan
        self.size, self.drop_last = min(size, 1 << 62), bool(drop_last)

    def __next__(self):
        cdef list group = []
        if not self.take(group, self.size):
            if self.failed is not None and self.is_plan:
                return self.failed
            if self.failed is not None:
                failed, self.failed = self.failed, None
                raise (<Failed> failed).error
            if not group or self.drop_last:
                raise StopIteration
        return group


@cython.final
@cython.auto_pickle(False)
cdef class Listed(SamplerDraws):
    """The batches of a sampler, each as a list; `check` is called with the length of each.

    `as_given`: batches with a length are not converted to lists.
    """

    cdef object check, end
    cdef bint as_given
    cdef readonly object would_wait  # whether the next batch must be waited for; None: never, or not known

    def __init__(self, batches, check=None, as_given=False):
        self.iterator, self.check, self.as_given = batches, check, as_given
        self.would_wait = getattr(batches, "would_wait", None)
        self.end = getattr(batches, "close", None)

    def __next__(self):
        indices = self.draw()
        if indices is not END:
            try:
                if not (self.as_given and hasattr(indices, "__len__")):
                    indices = list(indices)
                if self.check is not None:
                    self.check(len(indices))
            except Exception as error:
                self.fail(error)
            except BaseException as error:
                self.interrupted(error)
                raise
        if self.failed is not None:
            return self.failed
        if indices is END:
            raise StopIteration
        return indices

    cdef object draw(self):
        if self.would_wait is None:
            return SamplerDraws.draw(self)
        item, error = attempt(next, self.iterator, END)
        if error is None:
            return item
        if isinstance(error, LoaderTimeout):
            raise error  # it can be asked again
        self.fail(error)
        return END

    def close(self):
        """Close the sampler, which may make its batches in a thread."""
        if self.end is not None:
            self.end()


cdef class StreamPlan:
    """The order in which workers make batches of an iterable dataset; each worker makes its own batches.

    `in_order`: they take turns, beginning with worker `first`. Otherwise the least busy worker is next, so that a slow
    worker does not end up with all tasks.
    """

    def __init__(self, num_workers, in_order, first=0):
        self.rotation = [(first + k) % num_workers for k in range(num_workers)]
        self.sequence = [0] * num_workers
        self.pending = [0] * num_workers
        self.in_order = bool(in_order)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.rotation:
            raise StopIteration
        worker = self.rotation[0]
        if not self.in_order:
            for other in self.rotation:
                if self.pending[other] < self.pending[worker]:
                    worker = other
        self.rotation.remove(worker)
        self.rotation.append(worker)
        self.sequence[worker] += 1
        self.pending[worker] += 1
        return worker, self.sequence[worker] - 1

    cdef int came(self, worker) except -1:
        """Record that a batch (or an error, or the end) has come from the worker."""
        self.pending[worker] -= 1
        return 0

    cdef int ended(self, worker) except -1:
        """Record the end of the worker's stream."""
        if worker in self.rotation:
            self.rotation.remove(worker)
        return 0


cdef list listed(indices):
    """Return the indices of a task as a list."""
    if isinstance(indices, Slices):
        return (<Slices> indices).indices.part((<Slices> indices).first, (<Slices> indices).n).tolist()
    return list((<Pickled> indices).indices if isinstance(indices, Pickled) else indices)
