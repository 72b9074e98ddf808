# Part of _iteration.pyx: the progress of a pass. It knows the next task, the tasks in flight, and which thread may
# continue.

import queue

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport uint32_t, uint64_t

cdef object END = object()


# ---- the next task
#
# A plan yields the next task's indices, or a `Failed` if the user's sampler raised an exception. An exception that a
# plan raises comes from a signal handler in other code: the plan has lost nothing, and the call can be repeated.


@cython.final
@cython.auto_pickle(False)
cdef class Failed:
    """The end of a plan: the user's sampler has raised `error`."""

    def __init__(self, error):
        self.error = error


cdef class SamplerDraws:
    """A sampler's iterator as a plan uses it: an exception of the iterator ends it, and is stored in `failed`.

    `KeyboardInterrupt` and the like are raised. If one of them ends a generator, `failed` says so.
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
            ended = generator_ended(self.iterator, error)
            if ended is not None:
                self.fail(ended)
            raise

    def fail(self, error):
        """End the iterator with an exception."""
        self.iterator, self.failed = iter(()), Failed(error)


@cython.final
@cython.auto_pickle(False)
cdef class Grouped(SamplerDraws):
    """Lists of `size` items. The last list has the items that are left, or with `drop_last` is dropped.

    If the iterator fails, its exception is raised; with `is_plan`, the `Failed` is the last item.
    """

    cdef list group
    cdef Py_ssize_t size
    cdef bint drop_last, is_plan

    def __init__(self, items, size, drop_last=False, is_plan=False):
        self.iterator, self.is_plan = iter(items), is_plan
        self.group, self.size, self.drop_last = [], min(size, 1 << 62), bool(drop_last)

    def __next__(self):
        cdef list group
        if not self.take(self.group, self.size):
            if self.failed is not None and self.is_plan:
                return self.failed
            if self.failed is not None:
                failed, self.failed, self.group = self.failed, None, []
                raise (<Failed> failed).error
            if not self.group or self.drop_last:
                raise StopIteration
        group, self.group = self.group, []
        return group


@cython.final
@cython.auto_pickle(False)
cdef class Listed(SamplerDraws):
    """The batches of a sampler, each as a list; `check` is called with the length of each.

    `as_given`: batches with a length are not converted to lists.
    """

    cdef object check, batch, end
    cdef bint as_given
    cdef readonly object would_wait  # whether the next batch must be waited for; None: never, or not known

    def __init__(self, batches, check=None, as_given=False):
        self.iterator, self.check, self.as_given = batches, check, as_given
        self.would_wait = getattr(batches, "would_wait", None)
        self.end = getattr(batches, "close", None)

    def __next__(self):
        if self.batch is None:
            self.batch = self.draw()
        indices, self.batch = self.batch, None
        if indices is not END:
            try:
                if not (self.as_given and hasattr(indices, "__len__")):
                    indices = list(indices)
                if self.check is not None:
                    self.check(len(indices))
            except Exception as error:
                self.fail(error)
            except BaseException:
                self.batch = indices
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


cdef list listed(indices):
    """Return the indices of a task as a list."""
    if isinstance(indices, Slices):
        return (<Slices> indices).indices.part((<Slices> indices).first, (<Slices> indices).n).tolist()
    return list((<Pickled> indices).indices if isinstance(indices, Pickled) else indices)


# ---- tasks in flight
#
# A linked list through the slots. A dict by sequence number would run about forty more cache lines of code per batch,
# which no other code has loaded.


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


cdef int least_busy(InFlight tasks, uint32_t workers) except -1:
    """Return the least busy of the workers. If they took turns, all tasks would pile up at a slow one."""
    cdef list busy = [0] * workers
    cdef Task task
    for task in tasks.all():
        busy[task.worker] += 1
    return busy.index(min(busy))


# ---- the thread that may use an iterator
#
# A separate reentrant lock. A signal handler may acquire it again in the same thread, and without contention, the
# usual case, it only writes one word.


@cython.final
@cython.auto_pickle(False)
cdef class ReentrantLock:
    """A lock for one thread at a time.

    Under the GIL, no other thread runs between a look at the holder and taking its place.
    """

    def __init__(self):
        self.queue = queue.SimpleQueue()  # written in C: no signal handler runs between its steps

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
        except BaseException:  # Ctrl-C may have consumed a wake-up that another thread needs
            self.queue.put(None)
            raise
        finally:
            self.waiting -= 1
        return 0


# ---- waits

# ns; how often a waiting consumer checks its workers: without and with a `death_fd`, which ends the wait at a death.
cdef uint64_t IDLE = 100_000_000, SELDOM = 500_000_000
cdef double SECOND = 1e9  # ns
cdef uint64_t NEVER = SR_FOREVER


cdef uint64_t limit_of(double seconds) noexcept:
    """Return seconds in ns; 0 stands for no limit."""
    return <uint64_t> (min(seconds, 1e9) * SECOND) if seconds else SR_FOREVER


cdef uint64_t after(uint64_t began, uint64_t limit) noexcept:
    """Return the end of a time that began then; `SR_FOREVER`: it has none."""
    return SR_FOREVER if limit > SR_FOREVER - began else began + limit


def log_wait(ring, seq, waited):
    """Log a long wait. The import waits until then, because most programs never need it."""
    from slipring._core.passes import reporting

    reporting.log_wait(ring, seq, waited)
