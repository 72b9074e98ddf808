"""A process's part in the batches that the consumer of another process shares: it takes them from the same slots."""

import os

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyTypeObject, newfunc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from slipring._core.codec._codec cimport state_in, unpack
from slipring._core.ring._ring cimport Ring
from slipring._core.ring._segment cimport (
    SINGLE, SR_FOREVER, SR_TASK_INDICES, SR_TASK_OBJECT, clock, forks, sr_shared, sr_task,
)
from slipring._core.ring._slot cimport Lease, refuse_to_make, take_shared

import pickle

from slipring._core.ring.text import not_a_reader, owned_by_another


def attached_ring(int fd, int record=-1):
    """Return a handle on the segment of a process that is no parent of this one, from descriptors that it has sent.

    A segment of another user is refused, because its batches may contain pickles.
    """
    for given in (fd, record):
        if given >= 0 and os.fstat(given).st_uid != os.geteuid():
            raise owned_by_another(os.fstat(given).st_uid)
    return Ring(fd=fd, record=record)


@cython.final
@cython.auto_pickle(False)
cdef class SharedBatch:
    """A batch that a reader has taken: its lease ends with this object and the last view of the value.

    Attributes
    ----------
    number : int
        Its number among all that the consumer has shared.
    iteration, epoch, seq, sequence : int
        Of the batch's task. `seq` of an end mark is the number of results in the iteration.
    kind : int
        One of `enum sr_kind`.
    is_end : bool
        No batch: the iteration has ended.
    worker : int
        The number of the worker that had to make it; -1: any.
    """

    def value(self, int copy):
        """Return the value, as `receive` does; raise CorruptBatch."""
        return unpack(self.lease, copy)

    def state(self):
        """Return the state of the worker's dataset after the batch, as bytes; None if the batch has none."""
        return state_in(self.lease.payload, self.lease.limit, &self.lease.result)

    def indices(self):
        """Return the batch's indices; None for a batch of a stream, or an end mark."""
        cdef const sr_task *task = self.lease.ring.task_of(self.lease.slot)
        cdef const int64_t *at = <const int64_t *> self.lease.ring.task_area(self.lease.slot)
        cdef uint32_t i
        if task.kind == SR_TASK_OBJECT:
            return pickle.loads(PyBytes_FromStringAndSize(<const char *> at, task.bytes))
        return [at[i] for i in range(task.rows)] if task.kind == SR_TASK_INDICES else None

    def differs(self, indices):
        """Return whether the batch was made of other indices than these."""
        cdef const sr_task *task = self.lease.ring.task_of(self.lease.slot)
        cdef const int64_t *at = <const int64_t *> self.lease.ring.task_area(self.lease.slot)
        cdef uint32_t i
        if task.kind != SR_TASK_INDICES:
            return bool(indices != self.indices())
        if len(indices) != task.rows:
            return True
        for i in range(task.rows):
            if indices[i] != at[i]:
                return True
        return False


(<PyTypeObject *> SharedBatch).tp_new = <newfunc> refuse_to_make


@cython.final
@cython.auto_pickle(False)
cdef class SharedReader:
    """One reader of a segment. It takes part from its construction on until `leave`, or until it is deleted.

    Parameters
    ----------
    ring : Ring
        Made in this process: inherited from the consumer and taken over (`in_child`), or by `attached_ring`.
    number : int
        Below `ring.n_readers`. Two processes never have the same one.
    """

    def __cinit__(self, Ring ring not None, uint32_t number):
        self.left = True
        if number >= ring.n_readers:
            raise not_a_reader(number, ring.n_readers)
        self.ring, self.participant = ring, ring.n_participants + number
        ring.begin_reading(self.participant)
        self.generation, self.left = forks(), False

    cpdef bint wait(self, double seconds, int death_fd=-1) except -1:
        """Wait for the next batch, without a limit if `seconds` is negative; return False when the time is up.

        `death_fd` is the pidfd of the consumer. Raise Closed if the segment is closed or the consumer has died, and no
        shared batch is left.
        """
        cdef uint64_t deadline = SR_FOREVER
        if 0 <= seconds < 1e9:
            deadline = clock() + <uint64_t> (seconds * 1e9) if seconds else 0
        return self.ring.await_shared(self.participant, deadline, death_fd) == 1

    cpdef SharedBatch take(self):
        """Return the next batch as a `SharedBatch`, or None if there is none yet."""
        cdef sr_shared batch
        cdef const sr_task *task
        cdef SharedBatch made
        memset(&batch, 0, sizeof(batch))
        cdef Lease lease = take_shared(self.ring, self.participant, &batch)
        if lease is None:
            return None
        task = self.ring.task_of(batch.slot)
        made = SharedBatch.__new__(SharedBatch)
        made.lease, made.number, made.iteration, made.seq = lease, batch.number, batch.iteration, batch.seq
        made.epoch, made.sequence, made.rows = task.epoch, task.sequence, task.rows
        made.worker = <int> task.addressee - 2 if task.addressee else -1
        made.kind, made.is_end, made.single = batch.result.kind, batch.is_end, bool(task.flags & SINGLE)
        return made

    def leave(self):
        """Take part no longer. The batches that it has taken stay valid."""
        if not self.left and self.generation == forks():
            self.ring.end_reading(self.participant)
        self.left = True

    def __dealloc__(self):
        if not self.left and self.generation == forks():
            self.ring.end_reading(self.participant)
