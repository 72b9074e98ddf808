"""The binding of the C ring.

`Ring` is the whole handle on a segment. Its parts are modules: `_check` (error codes as exceptions), `_segment` (the
calls of the C ring), `_slot` (leases and slot writers), `_order` and `_fd` (file descriptors).
"""

import copyreg
import io
import pickle

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from slipring._core.ring._order cimport Slices
from slipring._core.ring._segment cimport (
    SINGLE, SR_FINISH, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED, SR_MAX_PARTICIPANTS, SR_MAX_RANGES, SR_MAX_SLOTS,
    SR_PARTICIPANT_JOINED, SR_PARTICIPANT_SERVING, SR_TASK_INDICES, SR_TASK_NEXT, SR_TASK_OBJECT, SR_WHOLE, Segment,
    claim_any, clock, sr_served, sr_task,
)
from slipring._core.ring._slot cimport make_writer

from slipring.errors import shown, message_of
from slipring._core.ring.text import task_too_large

# Type -> function, as in `copyreg.dispatch_table`: reduces values of other libraries among indices.
reducers = {}

FINISH = SR_FINISH
WHOLE = SR_WHOLE
DIRECT = SR_LAYOUT_DIRECT
STAGED = SR_LAYOUT_STAGED
JOINED, SERVING = SR_PARTICIPANT_JOINED, SR_PARTICIPANT_SERVING
MAX_RANGES = SR_MAX_RANGES  # of a cooperative batch
MAX_SLOTS = SR_MAX_SLOTS
MAX_WORKERS = SR_MAX_PARTICIPANTS - 1
TASK_NEXT = SR_TASK_NEXT
EPOCH_BITS = 32  # the low bits of a task's epoch are its number; the others may have a position, see `seeding.Share`


def mix(*words):
    """Return a 64-bit hash of integers: the seed of a range of rows.

    Steps of splitmix64, chained (G. L. Steele, D. Lea and C. H. Flood, Fast splittable pseudorandom number generators,
    OOPSLA 2014).

    The same words give the same seed on every machine and in every process.
    """
    cdef uint64_t h = 0x9E3779B97F4A7C15, z
    for word in words:
        z = (<uint64_t> (word & 0xFFFFFFFFFFFFFFFF)) + h
        z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
        h = (z ^ (z >> 31)) + <uint64_t> 0x9E3779B97F4A7C15
    return h


def pickled(value):
    """Return the pickle of indices, or of one of them."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    if reducers:
        pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
    pickler.dump(value)
    return stream.getvalue()


def unpicklable(indices, error):
    """Return the exception for indices of a batch that cannot be pickled; all indices but ints must be."""
    which = "a batch of the sampler"
    for index in indices:
        try:
            pickled(index)
        except Exception as own:
            which, error = shown(index), own
            break
    kind = type(error) if type(error) in (AttributeError, TypeError) else pickle.PicklingError
    return kind(
        f"{which} cannot be pickled, but must be to reach a worker: {message_of(error)}. Define functions and "
        "classes at the top level of a module; functools.partial replaces a closure"
    )


@cython.final
@cython.auto_pickle(False)
cdef class Pickled:
    """Indices that are not all ints of 64 bits, pickled so that they arrive with their own types.

    The pickle is made before a slot is picked for it: pickling runs users' code, in which another task may take the
    slot.
    """

    def __init__(self, indices):
        self.indices, self.rows = indices, len(indices)
        try:
            self.data = pickled(indices)
        except Exception as error:
            raise unpicklable(indices, error) from error


cdef class Ring(Segment):
    """A segment with its tasks; see `Segment` for the parameters."""

    @property
    def circulating(self):
        """int: slots neither leased nor kept by worker code."""
        self.made()
        return self.in_circulation(<int> self.n_slots)

    def slot_memory(self, uint32_t slot):
        """Return (address, bytes) of the committed part of a slot's payload."""
        self.made()
        return <uint64_t> self.payload(slot), self.committed(slot)

    cpdef uint64_t dispatch(self, uint32_t slot, indices, uint64_t iteration, uint64_t epoch, uint64_t seq,
                            uint64_t seed, uint64_t sequence, uint32_t addressee, uint32_t range_rows,
                            bint single) except? 0:
        """Put a task into a free slot and wake a worker; return the slot's generation.

        It runs no Python code, so a slot that was free is still free when it gets the task. `indices` is a list, a
        `Pickled`, `Slices` that are positioned at the batch, or None for 'your next'. The result is `NOT_FREE` if the
        slot's memory is being given back, and `NOT_INTS` if a list has anything but ints of 64 bits: pass it as
        `Pickled`.
        """
        cdef sr_task task
        self.usable()
        memset(&task, 0, sizeof(task))
        task.iteration, task.epoch, task.seq, task.seed = iteration, epoch, seq, seed
        task.sequence, task.addressee, task.flags = sequence, addressee, SINGLE if single else 0
        if indices is None:
            task.kind = SR_TASK_NEXT
        elif type(indices) is Slices:
            self.write_slice(slot, <Slices> indices, &task)
        elif type(indices) is Pickled:
            self.write_pickle(slot, <Pickled> indices, &task)
        elif type(indices) is not list or not self.write_ints(slot, <list> indices, &task):
            return NOT_INTS
        if 0 < range_rows < task.rows:
            task.range_rows = range_rows
            task.n_ranges = (task.rows + range_rows - 1) // range_rows
        return self.put_task(slot, &task)

    cdef int write_slice(self, uint32_t slot, Slices indices, sr_task *task) except -1:
        if indices.n > UINT32_MAX:  # a task has 32 bits for its rows
            raise task_too_large(8 * int(indices.n), 8 * int(UINT32_MAX), self.capacity, None)
        task.kind, task.rows, task.bytes = SR_TASK_INDICES, <uint32_t> indices.n, indices.n * 8
        indices.write(<int64_t *> self.task_memory(slot, task.bytes))
        return 0

    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1:
        """Write the task; return 0 if there is anything but ints of 64 bits."""
        cdef Py_ssize_t i, n = len(indices)
        cdef int64_t *out = <int64_t *> self.task_memory(slot, n * 8)
        cdef int overflow = 0
        for i in range(n):
            if not PyLong_CheckExact(indices[i]):
                return 0
            out[i] = PyLong_AsLongLongAndOverflow(indices[i], &overflow)
            if overflow:
                return 0
        task.kind, task.rows, task.bytes = SR_TASK_INDICES, <uint32_t> n, n * 8
        return 1

    cdef int write_pickle(self, uint32_t slot, Pickled indices, sr_task *task) except -1:
        task.kind, task.rows, task.bytes = SR_TASK_OBJECT, <uint32_t> indices.rows, len(indices.data)
        memcpy(self.task_memory(slot, task.bytes), PyBytes_AS_STRING(indices.data), task.bytes)
        self.meter.pickled_tasks += 1
        return 0

    def in_flight(self, uint32_t participant):
        """Return [(seq, indices)] of the tasks that a worker has claimed or that are addressed to it.

        The lowest `seq` comes first. The indices are a list, or None for a stream.
        """
        cdef uint32_t slot = 0
        cdef list found = []
        self.made()
        while self.find_owned(participant, &slot):
            writer = make_writer(self, participant, slot, SR_WHOLE, 0)
            found.append((writer.seq, None if writer.kind == SR_TASK_NEXT else list(writer.indices())))
            slot += 1
        return sorted(found, key=lambda pair: pair[0])

    def claim(self, uint32_t participant, double seconds):
        """Wait for a task and claim it; a negative `seconds` waits without a limit.

        Return None if the time is up, or the segment is closed.
        """
        cdef uint32_t slot = 0, range_no = 0
        cdef uint64_t gen = 0
        if self.ptr == NULL:
            self.made()
        if not self.claim_task(participant, seconds, &slot, &range_no, &gen):
            return None
        return make_writer(self, participant, slot, range_no, gen)

    def claim_free(self, uint32_t participant, double seconds):
        """Queue mode: wait for a free slot and claim it; None when the time is up."""
        cdef uint32_t slot = 0
        cdef uint64_t gen = 0
        cdef uint64_t deadline = clock() + <uint64_t> (seconds * 1e9) if 0 <= seconds < 1e9 else <uint64_t> -1
        self.made()
        if not self.claim_slot(participant, deadline, &slot, &gen):
            return None
        return make_writer(self, participant, slot, SR_WHOLE, gen)


@cython.final
@cython.auto_pickle(False)
cdef class ServedRings:
    """The segments that a worker of a pool serves; `participant` is its number in all of them.

    Iterate over `rings` for the segments. Each has the pool's wake file.
    """

    cdef readonly list rings
    cdef sr_served *served
    cdef uint32_t participant, last

    def __cinit__(self, uint32_t participant):
        self.rings, self.participant = [], participant

    def __dealloc__(self):
        free(self.served)

    def add(self, Ring ring not None):
        """Serve a segment, too."""
        ring.made()
        self.put([*self.rings, ring])

    def remove(self, Ring ring not None):
        """Serve a segment no longer."""
        self.put([each for each in self.rings if each is not ring])

    cdef int put(self, list rings) except -1:
        cdef Ring ring
        cdef size_t i
        cdef sr_served *served = <sr_served *> realloc(self.served, (len(rings) + 1) * sizeof(sr_served))
        if served == NULL:
            raise MemoryError
        memset(served, 0, (len(rings) + 1) * sizeof(sr_served))
        for i, ring in enumerate(rings):
            served[i].ring = ring.ptr
        self.served, self.rings, self.last = served, rings, 0
        return 0

    def wake_count(self):
        """Return how often the worker was woken so far; read it before other messages, for `claim`."""
        return self.rings[0].wake_count(self.participant)

    def claim(self, uint32_t seen):
        """Wait for a task of any segment and claim it; return (segment, slot writer).

        The segment whose consumer would run dry first comes first. Return None if the worker has been woken since
        `seen`, the result of `wake_count`, and there is no task.
        """
        cdef uint32_t slot = 0, range_no = 0
        cdef uint64_t gen = 0
        if not self.rings:
            raise RuntimeError("the worker serves no segment")
        if not claim_any(self.served, <uint32_t> len(self.rings), self.participant, seen, &self.last, &slot, &range_no,
                         &gen):
            return None
        ring = self.rings[self.last]
        return ring, make_writer(ring, self.participant, slot, range_no, gen)
