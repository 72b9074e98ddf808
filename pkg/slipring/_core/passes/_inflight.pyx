"""What a pass has dispatched and delivered: its tasks in flight, and its position.

`Pass.commit` and `Pass.commit_upto` alone move the position.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from slipring._core.ring._segment cimport SR_END


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
        task.before, task.after = self.last, -1
        if self.last < 0:
            self.first = <int> task.slot
        else:
            (<Task> self.by_slot[self.last]).after = <int> task.slot
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
            self.first = task.after
        else:
            (<Task> self.by_slot[task.before]).after = task.after
        if task.after < 0:
            self.last = task.before
        else:
            (<Task> self.by_slot[task.after]).before = task.before
        self.by_slot[slot] = None
        self.n -= 1
        return task

    cdef Task oldest(self):
        """Return the task that was dispatched first; None if there is none."""
        return None if self.first < 0 else <Task> self.by_slot[self.first]

    cpdef list all(self):
        """Return all tasks as a new list."""
        cdef list found = []
        cdef int slot = self.first
        while slot >= 0:
            found.append(self.by_slot[slot])
            slot = (<Task> self.by_slot[slot]).after
        return found


cdef int least_busy(InFlight tasks, uint32_t workers) except -1:
    """Return the least busy of the workers. If they took turns, all tasks would pile up at a slow one."""
    cdef list busy = [0] * workers
    cdef Task task
    for task in tasks.all():
        busy[task.worker] += 1
    return busy.index(min(busy))


# ---- the position


@cython.final
@cython.auto_pickle(False)
cdef class WorkerPosition:
    """How far one worker has come in a pass.

    Attributes
    ----------
    batches : int
        Batches, and exceptions in their place, that have been delivered.
    state : object
        The newest states of the worker's dataset and iterator: bytes from the worker, or a loaded dict. None: neither
        is Stateful.
    since : int
        How many of `batches` were delivered after `state`.
    again : list
        [sequence number, indices] of each of these batches, for a map dataset whose worker must read them again.
    at : int
        Batches of this iteration up to `state`; -1: the state is of an earlier one.
    before : bool
        `state` is from the end of the previous pass.
    ended : bool
        The worker's stream is at its end.
    """

    def __init__(self, batches=0, state=None, since=0, again=(), before=False):
        self.batches, self.state, self.since, self.again, self.before = batches, state, since, list(again), before
        self.at = -1

    def copy(self):
        """Return a copy, which does not change."""
        return WorkerPosition(self.batches, self.state, self.since, self.again, self.before)

    cdef int put(self, object state, int64_t at) except -1:
        """Make this the newest state."""
        self.state, self.at, self.since, self.before = state, at, 0, False
        if self.again:
            self.again = []
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class Position:
    """The delivered part of a pass. States contain it, and an iteration begins at a position.

    Attributes
    ----------
    epoch : int
        The epoch word of the tasks; with the seed and a sequence number it seeds a batch.
    delivered : int
        All sequence numbers below it have been delivered.
    beyond : set of int
        Sequence numbers above `delivered` that have been delivered, too.
    workers : list of WorkerPosition, or None
        None: batches do not depend on the worker that makes them, or states are not kept.
    next_worker : int
        The worker whose turn is next, if workers take turns.
    finished : bool
        All of the pass has been delivered.
    """

    def __init__(self, epoch=0, delivered=0, beyond=(), workers=None, next_worker=0):
        self.epoch, self.delivered, self.beyond = epoch, delivered, set(beyond)
        self.workers, self.next_worker = workers, next_worker

    @cython.critical_section
    def copy(self):
        """Return a copy of one moment; another thread may be in next()."""
        cdef Position copied
        cdef uint64_t changes
        while True:
            changes = self.changes
            workers = None if self.workers is None else [worker.copy() for worker in self.workers]
            copied = Position(self.epoch, self.delivered, self.beyond, workers, self.next_worker)
            copied.finished = self.finished
            if changes == self.changes:
                return copied

    def before(self, seq):
        """Lower `delivered` to `seq`, move the later delivered batches to `beyond`, and return this position."""
        if self.delivered > seq:
            self.beyond.update(range(seq, self.delivered))
            self.delivered = seq
        return self

    @cython.critical_section
    cdef int add(self, Task task, object state, dict indices) except -1:
        """Count a task whose batch, exception or end of a stream is delivered. This runs no Python code.

        `state` came with it. `indices` has those of the tasks in flight, if workers may have to read them again.
        """
        cdef WorkerPosition worker
        self.changes += 1
        if task.seq != self.delivered:
            self.beyond.add(task.seq)
        else:
            self.delivered += 1
            while self.beyond and self.delivered in self.beyond:
                self.beyond.discard(self.delivered)
                self.delivered += 1
        if self.workers is None or task.worker is None:
            return 0
        worker = <WorkerPosition> self.workers[task.worker]
        if task.kind == SR_END:
            worker.ended = True
            if state is not None:
                worker.put(state, <int64_t> task.sequence + 1)
            return 0
        self.next_worker = (<int> task.worker + 1) % len(self.workers)
        worker.batches += 1
        if state is not None:
            worker.put(state, <int64_t> task.sequence + 1)
            return 0
        worker.since += 1
        if indices is not None:
            worker.again.append([task.seq, indices.get(task.seq)])
        return 0

    @cython.critical_section
    cdef int put(self, object state, bint is_of_all=False) except -1:
        """Store the state of a dataset of this process, or why there is none. `is_of_all`: it has made all batches."""
        cdef WorkerPosition worker = <WorkerPosition> self.workers[0]
        if is_of_all:
            worker.batches = self.delivered
        worker.put(state, 0)
        return 0
