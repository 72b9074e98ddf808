"""Handles, leases and fills: the only place where Python meets the C ring."""

import os
import pickle

cimport cython
from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.ref cimport PyObject, Py_REFCNT
from libc.errno cimport EAGAIN, EBUSY, EFBIG, EINTR, ENOMEM, ENOSPC, EPROTO, ESHUTDOWN, ESTALE, ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from slipring cimport _cring as c

from slipring.errors import BatchTooLarge, Closed, CorruptBatch, SegmentFull, SlotsExhausted

cdef extern from *:
    """
    /* The fill that the calling thread works on: what slipring.empty() allocates from. Borrowed. */
    static __thread PyObject *slipring_current_fill = NULL;
    """
    PyObject *slipring_current_fill

BACKINGS = {"auto": c.SR_BACKING_AUTO, "shm": c.SR_BACKING_SHM, "memfd": c.SR_BACKING_MEMFD}
BACKING_NAMES = {
    c.SR_BACKING_AUTO: "attached",
    c.SR_BACKING_SHM: "shm",
    c.SR_BACKING_MEMFD: "memfd",
    c.SR_BACKING_DIR: "dir",
}
LIMITS = {
    c.SR_LIMIT_NONE: "the system",
    c.SR_LIMIT_FILESYSTEM: "the file system that holds the segment",
    c.SR_LIMIT_CGROUP: "the memory cgroup (the container's limit)",
    c.SR_LIMIT_MEMORY: "the machine's available memory",
    c.SR_LIMIT_FILESIZE: "the limit on file size (RLIMIT_FSIZE, ulimit -f)",
    c.SR_LIMIT_CAPACITY: "the slot's reserved capacity",
}
POISON = 0xDB
SINGLE = 1      # sr_task.flags: one sample, not a list of them (batch_size=None)
USER_SEEDED = 1  # sr_party.flags: worker_init_fn seeded a generator itself
cdef uint64_t NS = 1000000000

FINISH = c.SR_FINISH
WHOLE = c.SR_WHOLE
DIRECT = c.SR_LAYOUT_DIRECT
STAGED = c.SR_LAYOUT_STAGED
SERVING = c.SR_PARTY_SERVING
MAX_RANGES = c.SR_MAX_RANGES
MAX_WORKERS = c.SR_MAX_PARTIES - 1
TASK_NEXT = c.SR_TASK_NEXT


def megabytes(n):
    """`n` bytes as people read them: '38.5 MB'."""
    return f"{n / 1e6:,.1f} MB" if n >= 100_000 else f"{n:,} bytes"


cdef int check(int rc) except -1:
    """Turn a return code of the ring into an exception; -EINTR into a look at the signals."""
    if rc >= 0:
        return rc
    if rc == -EINTR:
        PyErr_CheckSignals()
        return 0
    if rc == -ESHUTDOWN:
        raise Closed("the segment has been closed; make a new loader, or a new iterator of it")
    if rc == -ESTALE:
        raise SlotsExhausted("the slot has gone on to another batch: it was taken from a worker thought dead")
    raise OSError(-rc, os.strerror(-rc))


cdef int refuse(int rc, c.sr_shortage *why, uint64_t capacity, const char *limited_by, int slots) except -1:
    """Turn a refusal of memory into SegmentFull or BatchTooLarge, with the numbers and the remedy."""
    if rc == -EFBIG and why.limit == c.SR_LIMIT_CAPACITY:
        shrunk = f" (reserved less than asked for because of {limited_by.decode()})" if limited_by else ""
        raise BatchTooLarge(
            f"a batch of at least {megabytes(why.needed)} does not fit a slot of {megabytes(capacity)}{shrunk}; "
            f"raise slot_bytes= to at least {why.needed}, or make the batch smaller",
            needed=why.needed, limit=capacity,
        )
    if rc in (-ENOSPC, -EFBIG, -ENOMEM):
        limit = LIMITS.get(why.limit, LIMITS[c.SR_LIMIT_NONE])
        raise SegmentFull(
            f"no memory for a batch: {megabytes(why.needed)} ({why.needed} bytes) more are needed, "
            f"{megabytes(why.free)} ({why.free} bytes) are free within {limit}; use fewer slots (slots={slots} "
            "now), a smaller batch_size or prefetch_factor, raise that limit, or choose another backing=",
            needed=why.needed, free=why.free, limit=limit,
        )
    return check(rc)


def mix(*words):
    """Return a 64-bit hash of integers (splitmix64 chained): the seed of a range of rows.

    Same words, same seed, on every machine and in every process.
    """
    cdef uint64_t h = 0x9E3779B97F4A7C15, z
    for word in words:
        z = (<uint64_t> (word & 0xFFFFFFFFFFFFFFFF)) + h
        z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
        h = (z ^ (z >> 31)) + <uint64_t> 0x9E3779B97F4A7C15
    return h


def now():
    """CLOCK_MONOTONIC in nanoseconds, the clock of all stamps."""
    return c.sr_now()


cdef class Meter:
    """What the consumer has taken so far; stats() reads it."""


cdef class Ring:
    """One process's handle on a segment.

    Parameters
    ----------
    slots, parties : int
        Slots, and workers + 1.
    backing : {'auto', 'shm', 'memfd'} or str
        Where the memory comes from; an absolute path names a directory on a tmpfs.
    capacity : int
        Payload bytes to reserve per slot; 0 for as much as fits, at most 16 GiB. Memory is committed as needed.
    push : bool
        Producers claim free slots themselves (Queue); else a consumer dispatches tasks (Loader).

    Raises
    ------
    SegmentFull
        Not even the control pages can be committed, or nothing can be reserved.
    OSError
        What the system says: no descriptors left, no such directory, ...
    """

    def __cinit__(self):
        self.ptr = NULL
        self.meter = Meter()
        self.poison = os.environ.get("SLIPRING_DEBUG", "0") not in ("", "0")
        self.fork_generation = c.sr_fork_generation()

    def __init__(self, uint32_t slots=0, uint32_t parties=2, backing="auto", uint64_t capacity=0,
                 bint push=False, *, int fd=-1):
        cdef c.sr_options o
        cdef c.sr_shortage why
        cdef c.sr_info info
        cdef int rc
        if self.ptr != NULL:
            raise RuntimeError("a Ring is made once")
        memset(&why, 0, sizeof(why))
        if fd >= 0:
            rc = c.sr_attach(fd, &self.ptr)
            if rc == -EPROTO:
                raise CorruptBatch("the file descriptor is not a slipring segment of this version")
            check(rc)
        else:
            directory = None if backing in BACKINGS else os.fsencode(backing)
            memset(&o, 0, sizeof(o))
            o.n_slots, o.n_parties, o.capacity = slots, parties, capacity
            o.flags = c.SR_SEG_PUSH if push else 0
            o.backing = BACKINGS.get(backing, c.SR_BACKING_DIR)
            o.dir = <const char *> directory if directory is not None else NULL
            rc = c.sr_create(&o, &self.ptr, &why)
            if rc < 0 and why.limit != c.SR_LIMIT_NONE:
                refuse(rc, &why, capacity, NULL, slots)
            check(rc)
        check(c.sr_describe(self.ptr, &info))
        self.n_slots, self.n_parties = info.n_slots, info.n_parties

    def __dealloc__(self):
        # Leases and fills refer to their ring, so nobody in this process uses the mapping any more.
        if self.ptr != NULL:
            c.sr_destroy(self.ptr)

    def __reduce__(self):
        # Only while a process is being started: the descriptor travels, never a name.
        from multiprocessing.reduction import DupFd

        return _attach, (DupFd(c.sr_fd(self.ptr)),)

    cdef int usable(self) except -1:
        if self.fork_generation != c.sr_fork_generation():
            raise Closed("this iterator belongs to the parent process; make a new one after fork")
        return 0

    def in_child(self):
        """Take over the inherited handle after a fork: the worker calls it once."""
        if self.fork_generation != c.sr_fork_generation():
            check(c.sr_after_fork(self.ptr))
            self.fork_generation = c.sr_fork_generation()

    @property
    def forked(self):
        """Whether this handle was inherited by a fork and not taken over."""
        return self.fork_generation != c.sr_fork_generation()

    @property
    def fd(self):
        return c.sr_fd(self.ptr)

    @property
    def info(self):
        """dict: backing, reason, capacity, wanted, limited_by, reserved, committed (bytes)."""
        cdef c.sr_info info
        check(c.sr_describe(self.ptr, &info))
        return {
            "backing": BACKING_NAMES[info.backing],
            "reason": info.reason.decode(),
            "capacity": info.capacity,
            "wanted": info.wanted,
            "limited_by": info.limited_by.decode() if info.limited_by else None,
            "reserved": info.total,
            "committed": c.sr_committed(self.ptr),
        }

    # ---- parties

    def join(self, uint32_t party):
        check(c.sr_join(self.ptr, party))

    def serve(self, uint32_t party, uint32_t flags=0):
        check(c.sr_serve(self.ptr, party, flags))

    def watch_consumer(self):
        check(c.sr_watch_consumer(self.ptr))

    def party(self, uint32_t party):
        """Return (pid, status, flags) of a party."""
        cdef int pid = 0
        cdef uint32_t status = 0, flags = 0
        check(c.sr_party_info(self.ptr, party, &pid, &status, &flags))
        return pid, status, flags

    def wait_serving(self, uint32_t party, double seconds):
        """Wait until a worker is ready to claim; False when the time is up."""
        cdef uint64_t deadline = c.sr_now() + <uint64_t> (seconds * NS)
        cdef int rc
        while True:
            with nogil:
                rc = c.sr_wait_serving(self.ptr, party, deadline)
            if rc == -ETIMEDOUT:
                return False
            check(rc)
            if rc == 0:
                return True

    def recover(self, uint32_t party):
        """Give back what a dead party held; returns the number of tasks that will be done again."""
        return check(c.sr_recover(self.ptr, party))

    def in_flight(self, uint32_t party):
        """Return the indices of the tasks that a worker has claimed or that are addressed to it, by ticket.

        Returns
        -------
        list of (int, list or None)
            Ticket and indices (None for a stream), lowest ticket first.
        """
        cdef uint32_t slot = 0
        cdef list found = []
        while c.sr_find_owned(self.ptr, party, &slot) == 0:
            fill = make_fill(self, party, slot, c.SR_WHOLE, 0)
            found.append((fill.ticket, None if fill.kind == c.SR_TASK_NEXT else fill.indices()))
            slot += 1
        return sorted(found, key=lambda pair: pair[0])

    def reopen(self):
        """Take a close back, once every worker has gone: the segment serves the next ones."""
        check(c.sr_reopen(self.ptr))

    def close(self):
        """End all waiting, for every party."""
        check(c.sr_close(self.ptr))

    @property
    def closed(self):
        return c.sr_closed(self.ptr)

    # ---- the consumer's side

    def begin_run(self, uint64_t run):
        self.usable()
        check(c.sr_begin_run(self.ptr, run))

    def pick_free(self):
        """Return the slot to dispatch into, or -1."""
        cdef uint32_t slot = 0
        return -1 if c.sr_pick_free(self.ptr, &slot) < 0 else <int> slot

    @property
    def circulating(self):
        """int: slots neither leased nor kept by worker code."""
        return c.sr_circulating(self.ptr)

    def dispatch(self, uint32_t slot, indices, uint64_t run, uint64_t epoch, uint64_t ticket, uint64_t seed,
                 uint64_t sequence, uint32_t addressee, uint32_t chunk, bint single):
        """Put a task into a free slot and wake a worker; returns the slot's generation.

        `indices` is a list, an int64 array, or None ('your next'). Lists of exact ints travel binary, anything
        else as a pickle, so that it arrives as the very type it was.
        """
        cdef c.sr_task task
        cdef uint64_t gen = 0
        memset(&task, 0, sizeof(task))
        task.run, task.epoch, task.ticket, task.seed = run, epoch, ticket, seed
        task.sequence, task.addressee, task.flags = sequence, addressee, SINGLE if single else 0
        if indices is None:
            task.kind = c.SR_TASK_NEXT
        elif type(indices) is not list:
            self._write_buffer(slot, indices, &task)
        elif not self._write_ints(slot, <list> indices, &task):
            self._write_pickle(slot, <list> indices, &task)
        if 0 < chunk < task.rows:
            task.chunk = chunk
            task.n_ranges = (task.rows + chunk - 1) // chunk
        check(c.sr_dispatch(self.ptr, slot, &task, &gen))
        return gen

    cdef char *_task_room(self, uint32_t slot, uint64_t nbytes) except NULL:
        cdef c.sr_shortage why
        cdef int rc = c.sr_commit_task(self.ptr, c.SR_CONSUMER, slot, nbytes, &why)
        if rc < 0:
            refuse(rc, &why, why.free, NULL, self.n_slots)
        return c.sr_task_area(self.ptr, slot)

    cdef int _write_buffer(self, uint32_t slot, indices, c.sr_task *task) except -1:
        cdef const int64_t[::1] view = indices
        task.kind, task.rows, task.bytes = c.SR_TASK_INDICES, <uint32_t> view.shape[0], view.shape[0] * 8
        cdef char *room = self._task_room(slot, task.bytes)
        if view.shape[0]:
            memcpy(room, &view[0], task.bytes)
        return 0

    cdef int _write_ints(self, uint32_t slot, list indices, c.sr_task *task) except -1:
        cdef Py_ssize_t i, n = len(indices)
        cdef int64_t *out = <int64_t *> self._task_room(slot, n * 8)
        for i in range(n):
            if not PyLong_CheckExact(indices[i]):
                return 0
            try:
                out[i] = PyLong_AsLongLong(indices[i])
            except OverflowError:
                return 0
        task.kind, task.rows, task.bytes = c.SR_TASK_INDICES, <uint32_t> n, n * 8
        return 1

    cdef int _write_pickle(self, uint32_t slot, list indices, c.sr_task *task) except -1:
        cdef bytes data = pickle.dumps(indices, pickle.HIGHEST_PROTOCOL)
        task.kind, task.rows, task.bytes = c.SR_TASK_OBJECT, <uint32_t> len(indices), len(data)
        memcpy(self._task_room(slot, task.bytes), PyBytes_AS_STRING(data), task.bytes)
        self.meter.pickled_tasks += 1
        return 0

    def cancel(self, uint32_t slot, uint64_t gen):
        """Take a task back; False if a worker has it already."""
        return c.sr_cancel(self.ptr, slot, gen) == 0

    def discard(self, uint32_t slot):
        return c.sr_discard(self.ptr, slot) == 0

    def wait_ready(self, int slot, double seconds):
        """Wait for `slot` (-1: any) to hold a batch; returns the slot, or -1 when the time is up."""
        cdef uint32_t found = 0, wanted = c.SR_ANY if slot < 0 else <uint32_t> slot
        cdef uint64_t deadline
        cdef int rc = c.sr_wait_ready(self.ptr, wanted, 0, &found)
        if rc == -ETIMEDOUT and seconds > 0:
            deadline = c.sr_now() + <uint64_t> (seconds * NS)
            while True:
                with nogil:
                    rc = c.sr_wait_ready(self.ptr, wanted, deadline, &found)
                if rc != -EINTR:
                    break
                check(rc)
        if rc == -ETIMEDOUT:
            return -1
        check(rc)
        return <int> found

    # ---- the worker's side

    def claim(self, uint32_t party, double seconds):
        """Wait for a task and claim it.

        Returns
        -------
        Fill or None
            None when the time is up or the segment is closed.
        """
        cdef uint32_t slot = 0, which = 0
        cdef uint64_t gen = 0
        cdef uint64_t deadline = c.SR_FOREVER if seconds < 0 else c.sr_now() + <uint64_t> (seconds * NS)
        cdef int rc
        while True:
            with nogil:
                rc = c.sr_claim(self.ptr, party, deadline, &slot, &which, &gen)
            if rc == 0:
                return make_fill(self, party, slot, which, gen)
            if rc == -ETIMEDOUT or rc == -ESHUTDOWN:
                return None
            check(rc)

    def claim_free(self, uint32_t party, double seconds):
        """Push mode: wait for a free slot and claim it; None when the time is up."""
        cdef uint32_t slot = 0
        cdef uint64_t gen = 0
        cdef uint64_t deadline = c.SR_FOREVER if seconds < 0 else c.sr_now() + <uint64_t> (seconds * NS)
        cdef int rc
        while True:
            with nogil:
                rc = c.sr_claim_free(self.ptr, party, deadline, &slot, &gen)
            if rc == 0:
                return make_fill(self, party, slot, c.SR_WHOLE, gen)
            if rc == -ETIMEDOUT:
                return None
            check(rc)


def _attach(duplicate):
    fd = duplicate.detach()
    try:
        return Ring(fd=fd)
    finally:
        os.close(fd)


# ---- leases: the consumer's hold on a slot ----------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class Lease:
    """The base object of every view on a slot; its end is the slot's release."""

    cdef int release(self) except -1:
        if self.active:
            self.active = False
            # A forked child holds a copy of this object, but the lease is its parent's.
            if self.fork_generation == c.sr_fork_generation():
                if self.ring.poison:
                    memset(self.payload, POISON, self.result.bytes if self.result.bytes < self.limit else self.limit)
                c.sr_release(self.ring.ptr, self.slot, self.gen)
        return 0

    def __dealloc__(self):
        if self.active and self.fork_generation == c.sr_fork_generation():
            if self.ring.poison:
                memset(self.payload, POISON, self.result.bytes if self.result.bytes < self.limit else self.limit)
            c.sr_release(self.ring.ptr, self.slot, self.gen)


cdef Lease take(Ring ring, uint32_t slot):
    """READY -> LEASED; adds the batch to the ring's meter."""
    cdef Lease lease = Lease.__new__(Lease)
    cdef c.sr_stamps stamps
    cdef Meter meter = ring.meter
    ring.usable()
    lease.ring, lease.slot = ring, slot
    check(c.sr_take(ring.ptr, c.SR_CONSUMER, slot, &lease.gen, &lease.result))
    lease.fork_generation = c.sr_fork_generation()
    lease.active = True
    lease.payload = c.sr_payload(ring.ptr, slot)
    lease.limit = c.sr_slot_committed(ring.ptr, slot)
    c.sr_stamps_of(ring.ptr, slot, &stamps)
    meter.fetch_ns += stamps.fetch_ns
    meter.collate_ns += stamps.collate_ns
    meter.idle_ns += stamps.idle_ns
    if lease.result.kind == SR_BATCH:
        meter.batches += 1
        meter.bytes += lease.result.bytes
        meter.pickled_leaves += lease.result.pickled
        if lease.result.bytes <= lease.limit:
            c.sr_populate(ring.ptr, slot, lease.result.bytes)
    return lease


# ---- fills: a worker's hold on a slot ---------------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class Hold:
    """The base object of arrays that worker code got inside a slot.

    If one of them outlives the publish, the slot does not circulate until the last has gone.
    """

    def __dealloc__(self):
        if self.published and self.fork_generation == c.sr_fork_generation():
            c.sr_unhold(self.ring.ptr, self.party, self.slot, self.gen)


cdef Fill make_fill(Ring ring, uint32_t party, uint32_t slot, uint32_t which, uint64_t gen):
    cdef Fill fill = Fill.__new__(Fill)
    fill.ring, fill.party, fill.slot, fill.range, fill.gen = ring, party, slot, which, gen
    fill.task = c.sr_task_of(ring.ptr, slot)
    fill.payload = c.sr_payload(ring.ptr, slot)
    return fill


@cython.final
cdef class Fill:
    """A claimed slot, or a claimed range of its rows."""

    def __enter__(self):
        global slipring_current_fill
        slipring_current_fill = <PyObject *> self
        return self

    def __exit__(self, *exc):
        global slipring_current_fill
        slipring_current_fill = NULL

    @property
    def range(self):
        """int or None: the claimed range; None for a whole slot, FINISH when all ranges are done."""
        return None if self.range == c.SR_WHOLE else self.range

    @property
    def run(self):
        return self.task.run

    @property
    def epoch(self):
        return self.task.epoch

    @property
    def ticket(self):
        return self.task.ticket

    @property
    def seed(self):
        return self.task.seed

    @property
    def sequence(self):
        return self.task.sequence

    @property
    def kind(self):
        return self.task.kind

    @property
    def single(self):
        return bool(self.task.flags & SINGLE)

    @property
    def n_rows(self):
        """int: rows of the whole batch."""
        return self.task.rows

    @property
    def n_ranges(self):
        return self.task.n_ranges

    def rows_of(self, uint32_t which):
        """Return (first, end): the rows of a range."""
        first = which * self.task.chunk
        return first, min(first + self.task.chunk, self.task.rows)

    def indices(self):
        """Return the indices of this slot or range as a list of what the sampler gave."""
        cdef const int64_t *at = <const int64_t *> c.sr_task_area(self.ring.ptr, self.slot)
        cdef uint32_t i, first = 0, end = self.task.rows
        if self.range < c.SR_MAX_RANGES:
            first, end = self.rows_of(self.range)
        if self.task.kind == c.SR_TASK_OBJECT:
            rows = pickle.loads(PyBytes_FromStringAndSize(<char *> at, self.task.bytes))
            self.rows = rows if len(rows) == end - first else rows[first:end]
        else:
            self.rows = [at[i] for i in range(first, end)]
        return self.rows

    @property
    def asked_for(self):
        """list or None: the indices, once they have been read."""
        return self.rows

    # ---- memory

    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL:
        """Return `nbytes` of this slot's payload, committed."""
        cdef c.sr_shortage why
        cdef c.sr_info info
        cdef uint64_t offset = 0
        cdef int rc = c.sr_alloc(self.ring.ptr, self.party, self.slot, nbytes, align, &offset, &why)
        if rc < 0:
            check(c.sr_describe(self.ring.ptr, &info))
            refuse(rc, &why, info.capacity, info.limited_by, self.ring.n_slots)
        return self.payload + offset

    cdef uint64_t offset_of(self, const void *data, uint64_t nbytes) noexcept:
        """Where `data` lies in this payload; UINT64_MAX if it does not lie there wholly."""
        cdef uint64_t at = <uint64_t> data, base = <uint64_t> self.payload
        if at < base or at + nbytes > base + self.limit():
            return <uint64_t> -1
        return at - base

    cdef uint64_t limit(self) noexcept:
        return c.sr_slot_committed(self.ring.ptr, self.slot)

    cdef Hold holder(self):
        cdef Hold hold = self.hold
        if hold is None:
            hold = Hold.__new__(Hold)
            hold.ring, hold.party, hold.slot, hold.gen = self.ring, self.party, self.slot, self.gen
            hold.fork_generation = c.sr_fork_generation()
            self.hold = hold
        return hold

    def rewind(self):
        """Forget what was allocated; arrays in it must not be used any more."""
        check(c.sr_rewind(self.ring.ptr, self.party, self.slot, self.gen))

    cdef void note(self, uint64_t begun, uint64_t fetched) noexcept:
        """Add the times of fetching and collating, up to now, to the slot's."""
        c.sr_note_times(self.ring.ptr, self.slot, fetched - begun, c.sr_now() - fetched)

    # ---- the end of a fill

    cdef int publish(self, const sr_result *result) except -1:
        # Whoever still refers to the hold, besides this fill, is an array that worker code kept.
        cdef Hold hold = self.hold
        self.hold = None
        cdef bint held = hold is not None and Py_REFCNT(hold) > 1
        if held:
            hold.published = True
        check(c.sr_publish(self.ring.ptr, self.party, self.slot, self.gen, result, held))
        return 0

    def abort(self):
        """Give the slot back; nothing is published."""
        check(c.sr_abort(self.ring.ptr, self.party, self.slot, self.gen))

    # ---- cooperative slots

    cdef const sr_result *result_of(self, uint32_t which) noexcept:
        return c.sr_result_of(self.ring.ptr, self.slot, which)

    cdef int settle(self, int layout, const sr_result *result) except -1:
        return check(c.sr_layout_settle(self.ring.ptr, self.party, self.slot, self.gen, layout, result))

    cdef int range_done(self, const sr_result *result) except -1:
        """End this range; 1 if this worker must now finish the whole slot."""
        cdef int rc = check(c.sr_range_done(self.ring.ptr, self.party, self.slot, self.range, self.gen, result))
        if rc == 1:
            self.range = c.SR_FINISH
        return rc

    def propose_layout(self):
        """Return 0 if this worker decides how the rows lie, else DIRECT or STAGED."""
        cdef int rc = -ETIMEDOUT
        while rc == -ETIMEDOUT or rc == -EINTR:
            with nogil:
                rc = c.sr_layout_propose(self.ring.ptr, self.party, self.slot, self.gen, c.sr_now() + NS // 2)
            if rc != -ETIMEDOUT:
                check(rc)
        return rc


cdef Fill current_fill():
    return None if slipring_current_fill == NULL else <Fill> slipring_current_fill


def current():
    """Return the fill that this thread works on, or None."""
    return current_fill()


cdef void copy_streaming(void *to, const void *source, uint64_t nbytes) noexcept nogil:
    """Copy past the caches: for batches larger than they are."""
    c.sr_copy_streaming(to, source, nbytes)


def copy_bytes(unsigned char[::1] to, const unsigned char[::1] source, bint streaming):
    """Copy as collation does; the benchmark of both ways calls it."""
    cdef uint64_t n = min(to.shape[0], source.shape[0])
    with nogil:
        if streaming:
            c.sr_copy_streaming(&to[0], &source[0], n)
        else:
            memcpy(&to[0], &source[0], n)
