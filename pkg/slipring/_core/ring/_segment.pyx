"""A process's handle on a segment. Only this module calls the C ring.

`Segment` has the calls of participants and the consumer, and those that leases and slot writers (`_slot`) need. `Ring`
(`_ring`) is the whole handle.
"""

import contextlib
import functools
import logging
import os

cimport cython
from libc.errno cimport EAGAIN, EBUSY, EINTR, ENOSPC, ENOSYS, EPERM, EPROTO, ESHUTDOWN, ETIMEDOUT
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from slipring._core.ring cimport _cring as c
from slipring._core.ring._check cimport check, refuse

cdef extern from "<errno.h>" nogil:
    enum:
        ECANCELED
        EEXIST
        EMEDIUMTYPE
        EOWNERDEAD
        EUSERS

cdef extern from *:
    """
    #ifndef SR_BUILD
    #define SR_BUILD "unknown"
    #endif
    #ifdef __clang__
    #define SR_COMPILER __VERSION__
    #else
    #define SR_COMPILER "gcc " __VERSION__
    #endif
    """
    const char *SR_BUILD
    const char *SR_COMPILER

cdef extern from *:
    """
    static inline void relax(void) /* lets the core's other thread run */
    {
    #if defined(__x86_64__)
        __builtin_ia32_pause();
    #else
        __asm__ volatile("yield");
    #endif
    }
    """
    void relax() nogil

from slipring._core.ring._check import BACKING_NAMES, BACKINGS, COPY_WAYS, LIMITS
from slipring.errors import Closed, CorruptBatch
from slipring._core.ring.text import (
    batch_too_large,
    descriptor_closed,
    not_in_memory,
    reader_is_taken,
    task_too_large,
    too_many_processes,
)


def build():
    """Return the kind of build, as setup.py names it, and the compiler."""
    return SR_BUILD.decode(), SR_COMPILER.decode(errors="replace")


def memory_available(root=""):
    """Return (free, size, limit, file) of the memory that processes may still use; None if nothing limits it.

    `free` is the bytes left, `size` the limit's own bytes, `limit` its name, `file` the file that states it. `root` is
    put before /proc and /sys.
    """
    cdef c.sr_memory_info available
    directory = os.fsencode(root)
    check(c.sr_process_memory_available(<const char *> directory, &available))
    if available.limit == c.SR_LIMIT_NONE:
        return None
    return available.free, available.size, LIMITS[available.limit], os.fsdecode(available.file)


cdef uint64_t deadline_in(double seconds) noexcept:
    """Return the time `seconds` from now; never, for a negative or enormous number."""
    if not 0 <= seconds < 1e9:
        return c.SR_FOREVER
    return c.sr_now() + <uint64_t> (seconds * 1e9)


cdef uint64_t forks() noexcept:
    """Return a number that a process shares with its parent until it is forked."""
    return c.sr_fork_generation()


cdef void copy_large(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept nogil:
    """Copy pieces one after the other; together they exceed the caches."""
    c.sr_copy_rows(to, sources, n, nbytes)


cdef void copy_by(uint32_t way, void *to, const void *source, uint64_t nbytes) noexcept nogil:
    c.sr_copy_by(way, to, source, nbytes)


cdef uint32_t copy_widest() noexcept nogil:
    return c.sr_copy_widest()


def copy_ways():
    """Return the names of this processor's ways to copy large batches; `copy_bytes` takes one."""
    return COPY_WAYS[1 : copy_widest() + 1]


def copy_bytes(unsigned char[::1] to, const unsigned char[::1] source, way):
    """Copy bytes as collation does, for benchmarks and tests."""
    cdef uint64_t n = min(to.shape[0], source.shape[0])
    if way not in copy_ways():
        raise ValueError(f"this processor copies by {', '.join(copy_ways())}, not {way!r}")
    cdef uint32_t number = COPY_WAYS.index(way)
    with nogil:
        copy_by(number, &to[0], &source[0], n)


cdef uint64_t clock() noexcept nogil:
    return c.sr_now()


cdef uint64_t coarse_clock() noexcept:
    return c.sr_now_coarse()


@contextlib.contextmanager
def forking_worker():
    """Mark the processes that this thread forks in the block as slipring's workers: they need no copies of batches."""
    c.sr_fork_of_worker(True)
    try:
        yield
    finally:
        c.sr_fork_of_worker(False)


def warn_of_record(path, error):
    """Warn that there will be no record file."""
    import warnings

    why = "the file exists, and is not a record of slipring" if error == EEXIST else os.strerror(error)
    warnings.warn(f"SLIPRING_RECORD: nothing is recorded in {path!r}: {why}", RuntimeWarning, stacklevel=2)


@functools.cache
def log_unplaced(node, error):
    """Log, once for each reason, that slots could not be placed on a NUMA node."""
    remedy = "; in a container, add the capability SYS_NICE" if error in (EPERM, ENOSYS) else ""
    logging.getLogger("slipring").warning(
        "slots are not placed on NUMA node %d, but where the kernel puts them: mbind: %s%s. "
        "Workers(numa=None) asks for no node", node, os.strerror(error), remedy
    )


def now():
    """Return CLOCK_MONOTONIC in nanoseconds, the clock of all stamps."""
    return c.sr_now()


cdef class Meter:
    """Counters of the batches that the consumer has taken; stats() reads them."""

    def add_read(self, uint32_t outcome, uint64_t n_bytes, uint64_t ns):
        """Count a remote read outside of any segment; see `Segment.add_read`."""
        cdef uint32_t at = c.SR_READ_LOST_NS if outcome else c.SR_READ_NS
        if outcome >= c.SR_READ_BYTES:
            raise ValueError(f"no outcome of a read is {outcome}")
        before = self.remote[outcome]
        if outcome:
            self.remote[c.SR_READS] += 1
        self.remote[outcome] += 1
        self.remote[c.SR_READ_BYTES] += n_bytes
        self.remote[at] += ns
        return before

    @property
    def reads(self):
        """dict: the counts of remote reads, by the names in `READ_COUNTS`."""
        return read_counts(self.remote)


# The names of `sr_read_count`.
READ_COUNTS = ("attempts", "timeouts", "broken", "refused", "rejected", "bytes", "ns", "lost_ns")
assert len(READ_COUNTS) == c.SR_READ_COUNTS


cdef dict read_counts(const uint64_t *counts):
    return {name: counts[at] for at, name in enumerate(READ_COUNTS)}


cdef inline bint is_usable(Segment ring) noexcept:
    """Return whether the handle has been made in this process. Inline, because it runs once per batch."""
    return ring.ptr != NULL and ring.fork_generation == c.sr_fork_generation()


cdef class Segment:
    """One process's handle on a segment.

    It has `slots` slots, and `participants` is the number of workers + 1. `backing` is 'auto', 'shm', 'memfd', or the
    absolute path of a directory on a tmpfs. `capacity` is the payload bytes to reserve per slot, committed as needed;
    0 reserves as much as fits, at most 16 GiB. `push`: producers claim free slots themselves (Queue); otherwise a
    consumer dispatches tasks (Loader). `label` is the name that observers show. `readers`: how many other processes, at
    most 40, may take the batches that the consumer shares. `node` is the NUMA node from which memory is taken, as long
    as it has some; None: the kernel chooses.

    If not even the control pages can be committed, or nothing can be reserved, the constructor raises SegmentFull. If
    `backing` is a directory on a disk, it raises ValueError. Other errors of the system are OSErrors.
    """

    def __cinit__(self):
        self.ptr = NULL
        self.own_number = -1
        self.meter = Meter()
        self.poison = os.environ.get("SLIPRING_DEBUG", "0") not in ("", "0")
        self.fork_generation = c.sr_fork_generation()

    def __init__(self, uint32_t slots=0, uint32_t participants=2, backing="auto", uint64_t capacity=0,
                 bint push=False, label="", *, uint32_t readers=0, node=None, int fd=-1, int record=-1):
        cdef c.sr_options o
        cdef c.sr_alloc_error why
        cdef c.sr_info info
        cdef int rc
        if self.ptr != NULL:
            raise RuntimeError("a Ring is made once")
        memset(&why, 0, sizeof(why))
        if fd >= 0:
            rc = c.sr_attach(fd, record, &self.ptr)
            if rc == -EPROTO:
                raise CorruptBatch("the file descriptor is not a slipring segment of this version")
            check(rc)
        else:
            directory = None if backing in BACKINGS else os.fsencode(backing)
            memset(&o, 0, sizeof(o))
            o.n_slots, o.n_participants, o.capacity = slots, participants + readers, capacity
            o.n_readers, o.node = readers, 0 if node is None else node + 1
            o.flags, o.task_capacity = push * c.SR_SEG_QUEUE, push  # 0: the default; 1: least
            o.backing = BACKINGS.get(backing, c.SR_BACKING_DIR)
            o.dir = <const char *> directory if directory is not None else NULL
            encoded = label.encode(errors="replace")
            o.label = <const char *> encoded
            path = os.environ.get("SLIPRING_RECORD")
            file = os.fsencode(path) if path else None
            o.record = <const char *> file if file is not None else NULL
            rc = c.sr_create(&o, &self.ptr, &why)
            if rc < 0 and why.limit != c.SR_LIMIT_NONE:
                refuse(rc, &why, slots)
            if rc == -EMEDIUMTYPE:
                raise not_in_memory("/dev/shm" if directory is None else os.fsdecode(directory))
            check(rc)
        check(c.sr_describe(self.ptr, &info))
        if info.record < 0:
            warn_of_record(path, -info.record)
        if info.node < 0:
            log_unplaced(node, -info.node)
        self.node = node if info.node == 0 else None
        self.n_slots, self.n_readers, self.capacity = info.n_slots, info.n_readers, info.capacity
        self.n_participants = info.n_participants - info.n_readers
        self.limited_by = info.limited_by.decode() if info.limited_by else None
        self.own_number = 0 if push and fd < 0 else -1

    def __dealloc__(self):
        # Leases and slot writers refer to their ring, so no code of this process uses the mapping any more.
        if self.ptr != NULL:
            if self.own_number >= 0 and self.fork_generation == c.sr_fork_generation():
                c.sr_release_free(self.ptr, self.own_number)  # without effect if there are other participants
                c.sr_leave(self.ptr, self.own_number)
            c.sr_destroy(self.ptr)

    def __reduce__(self):
        # Only while a process is being started: the descriptor is sent, never a name.
        from multiprocessing.context import assert_spawning
        from multiprocessing.reduction import DupFd

        assert_spawning(self)
        cdef int record = c.sr_record_fd(self.ptr)
        return attach, (type(self), DupFd(self.fd), DupFd(record) if record >= 0 else None, self.limited_by)

    cdef int made(self) except -1:
        if self.ptr == NULL:
            raise RuntimeError("the Ring has not been made")
        return 0

    cdef int usable(self) except -1:
        return 0 if is_usable(self) else self.refuse_use()

    cdef int refuse_use(self) except -1:
        self.made()
        raise Closed("this iterator belongs to the parent process; make a new one after fork")

    def in_child(self):
        """Take over the inherited handle after a fork. The worker calls it once."""
        self.made()
        if self.fork_generation != c.sr_fork_generation():
            check(c.sr_after_fork(self.ptr))
            self.own_number = -1
            self.fork_generation = c.sr_fork_generation()

    @property
    def forked(self):
        """Return whether this handle was inherited by a fork and not taken over."""
        return self.fork_generation != c.sr_fork_generation()

    @property
    def fd(self):
        self.made()
        cdef int fd = c.sr_fd(self.ptr)
        if fd < 0:
            raise descriptor_closed("a segment")
        return fd

    @property
    def controls(self):
        """int: the descriptor of the file that has everything but the slots."""
        self.made()
        cdef int fd = c.sr_record_fd(self.ptr)
        return fd if fd >= 0 else self.fd

    @property
    def info(self):
        """dict: backing, reason, capacity, wanted, limited_by, reserved, committed (bytes), large_copies, reads."""
        self.made()
        cdef c.sr_info info
        check(c.sr_describe(self.ptr, &info))
        c.sr_copy_choose(info.copies)  # workers that this process forks later need not measure again
        return {
            "backing": BACKING_NAMES[info.backing],
            "reason": info.reason.decode(),
            "capacity": info.capacity,
            "wanted": info.wanted,
            "limited_by": self.limited_by,
            "reserved": info.total,
            "committed": c.sr_committed(self.ptr),
            "large_copies": COPY_WAYS[info.copies] if info.copies < c.SR_COPY_WAYS else None,
            "reads": read_counts(info.reads),
        }

    @property
    def slot_nodes(self):
        """list of int: the NUMA node of each slot that this process has used; empty if the kernel does not tell."""
        self.made()
        nodes = [c.sr_slot_node(self.ptr, slot) for slot in range(self.n_slots)]
        return [node for node in nodes if node >= 0]

    # ---- participants

    def join(self, uint32_t participant):
        self.made()
        check(c.sr_join(self.ptr, participant))

    def serve(self, uint32_t participant):
        self.made()
        check(c.sr_serve(self.ptr, participant))

    def watch_consumer(self):
        self.made()
        check(c.sr_watch_consumer(self.ptr))

    @property
    def record_number(self):
        """int: 1 if the record file has the requested name, n if ".n" is appended to it, 0 if there is none."""
        self.made()
        cdef c.sr_info info
        check(c.sr_describe(self.ptr, &info))
        return info.record_number

    def participant(self, uint32_t participant):
        """Return (pid, status) of a participant."""
        self.made()
        cdef int pid = 0
        cdef uint32_t status = 0
        check(c.sr_participant_info(self.ptr, participant, &pid, &status))
        return pid, status

    def wait_serving(self, uint32_t participant, double seconds):
        """Wait until a worker is ready to claim; return False when the time is up."""
        self.made()
        cdef uint64_t deadline = deadline_in(seconds)
        cdef int rc
        while True:
            with nogil:
                rc = c.sr_wait_serving(self.ptr, participant, deadline)
            if rc == -ETIMEDOUT:
                return False
            check(rc)
            if rc == 0:
                return True

    def retire(self, uint32_t participant):
        """Make a worker leave after its current task; its number is free again after `recover`."""
        self.made()
        check(c.sr_retire(self.ptr, participant))

    def keep(self, uint32_t participant):
        """Cancel the retirement of a worker; return False if it has left already."""
        self.made()
        return c.sr_cancel_retirement(self.ptr, participant) == 0

    def recover(self, uint32_t participant, bint thread=False):
        """Release a dead participant's slots; return how many tasks will be redone. A thread's arrays stay valid."""
        self.made()
        return check((c.sr_recover_thread if thread else c.sr_recover)(self.ptr, participant))

    # ---- queue mode: processes come and go

    cdef int number(self) except -1:
        """Return this process's participant number, which it takes at its first use of the segment."""
        cdef uint32_t participant = 0
        cdef int rc
        with cython.critical_section(self):
            if self.own_number < 0 or self.fork_generation != c.sr_fork_generation():
                self.made()
                self.in_child()
                rc = c.sr_enter(self.ptr, &participant)
                if rc == -EUSERS:
                    raise too_many_processes(self.n_participants)
                self.own_number = check(rc) or <int> participant
            return self.own_number

    @cython.critical_section
    def leave(self):
        """Release the participant number unless it still has slots; the next use takes a number again."""
        if self.own_number >= 0 and not self.forked and c.sr_leave(self.ptr, self.own_number) == 0:
            self.own_number = -1

    cdef int recover_dead(self) noexcept:
        return c.sr_recover_dead(self.ptr, False)

    cdef void count(self, uint32_t *ready, uint32_t *free_slots) noexcept:
        c.sr_count(self.ptr, ready, free_slots)

    cdef bint polled(self, bint from_now_on=False) noexcept:
        return c.sr_set_polled(self.ptr) == 0 if from_now_on else c.sr_polled(self.ptr)

    def reopen(self):
        """Undo `close` after every worker has ended: the segment serves the next workers."""
        self.made()
        check(c.sr_reopen(self.ptr))

    def close(self):
        """End all waiting, for every participant."""
        self.made()
        check(c.sr_close(self.ptr))

    def release_free(self):
        """Release the memory of all slots for good, now or when the last view of a batch is deleted.

        The consumer calls it after `close`, when the workers have ended. Children of workers may live on and still map
        the segment.
        """
        self.usable()
        self.over = True
        check(c.sr_release_free(self.ptr, c.SR_CONSUMER))

    @property
    def closed(self):
        self.made()
        return c.sr_closed(self.ptr)

    # ---- the consumer's side

    def begin_iteration(self, uint64_t iteration):
        self.usable()
        self.meter.taken_at, self.meter.recorded_wait_ns = 0, self.meter.wait_ns
        check(c.sr_begin_iteration(self.ptr, iteration))

    cpdef int pick_free(self) except -2:
        """Return the slot to dispatch into, or -1."""
        cdef uint32_t slot = 0
        if self.ptr == NULL:
            self.made()
        return -1 if c.sr_pick_free(self.ptr, &slot) < 0 else <int> slot

    cdef int in_circulation(self, int enough) noexcept:
        return c.sr_circulating(self.ptr, enough)

    cdef int fillable(self, int enough) noexcept:
        return c.sr_fillable(self.ptr, enough)

    @property
    def budget(self):
        """int: bytes that the segment may take; 0: no limit but the machine's."""
        self.made()
        return c.sr_budget(self.ptr)

    @property
    def usage(self):
        """dict: used, fixed, largest (bytes); see `sr_usage`."""
        cdef c.sr_usage usage
        self.made()
        c.sr_usage_of(self.ptr, &usage)
        return usage

    def set_budget(self, uint32_t participant, uint64_t nbytes):
        """Let the segment take `nbytes` from now on; return its `usage`. See `sr_set_budget`."""
        cdef c.sr_usage usage
        self.made()
        c.sr_set_budget(self.ptr, participant, nbytes, &usage)
        return usage

    def cancel(self, uint32_t slot, uint64_t gen):
        """Take a task back; return False if a worker has it already."""
        self.usable()
        return c.sr_cancel(self.ptr, slot, gen) == 0

    def discard(self, uint32_t slot):
        self.usable()
        return c.sr_discard(self.ptr, slot) == 0

    def wait_ready(self, int slot, double seconds):
        """Wait for `slot` (-1: any) to hold a batch; return the slot, or -1 when the time is up."""
        return self.await_ready(slot, deadline_in(seconds) if seconds > 0 else 0, -1)

    cdef int await_ready(self, int slot, uint64_t deadline, int death_fd) except -2:
        """Do the same until a time of `clock` (0: do not wait), or until the descriptor `death_fd` is readable."""
        cdef uint32_t found = 0, wanted = c.SR_ANY if slot < 0 else <uint32_t> slot
        cdef int rc = -EINTR
        if not is_usable(self):
            self.refuse_use()
        if deadline == 0:
            rc = c.sr_wait_ready(self.ptr, wanted, 0, &found)
        while rc == -EINTR:
            with nogil:
                rc = c.sr_wait_ready_or_death(self.ptr, wanted, deadline, death_fd, &found)
            if rc < 0 and rc != -ETIMEDOUT and rc != -ECANCELED:
                check(rc)
        return -1 if rc < 0 else <int> found

    def wait_free(self, double seconds, int death_fd=-1):
        """Wait for a free slot, without a limit if `seconds` is negative; return the slot.

        Return -1 when the time is up, or soon after `death_fd` becomes readable.
        """
        return self.await_free(deadline_in(seconds) if seconds else 0, death_fd)

    cdef int await_free(self, uint64_t deadline, int death_fd) except -2:
        """Do the same until a time of `clock` (0: do not wait)."""
        cdef uint32_t slot = 0
        cdef int rc = -EINTR
        if not is_usable(self):
            self.refuse_use()
        while rc == -EINTR:
            with nogil:
                rc = c.sr_wait_free(self.ptr, deadline, death_fd, &slot)
            if rc < 0 and rc != -ETIMEDOUT and rc != -ECANCELED:
                check(rc)
        return -1 if rc < 0 else <int> slot

    cdef int interrupt(self, bint on) except -1:
        """Make `await_ready`, `await_free` and `await_shared` return at once from now on; if not `on`, undo that."""
        return check(c.sr_interrupt(self.ptr, on))

    # ---- shared batches

    cdef int share(self, uint32_t slot, uint64_t gen) except -1:
        """Give each reader a lease of a slot that the consumer has leased; return how many readers got one."""
        return check(c.sr_share(self.ptr, slot, gen))

    def share_end(self, uint32_t slot, uint64_t iteration, uint64_t seq):
        """Share the mark that an iteration ends with `seq` results, in a free slot.

        Return False if the slot's memory is being given back: then choose another one.
        """
        self.usable()
        cdef int rc = c.sr_share_end(self.ptr, slot, iteration, seq)
        return rc != -EAGAIN and check(rc) == 0

    @property
    def lent(self):
        """int: slots that only readers keep, because the consumer has released them."""
        self.made()
        return c.sr_lent(self.ptr)

    cdef int begin_reading(self, uint32_t participant) except -1:
        cdef int rc
        self.usable()
        rc = c.sr_begin_reading(self.ptr, participant)
        if rc == -EBUSY:
            raise reader_is_taken(participant - self.n_participants)
        return check(rc)

    cdef int end_reading(self, uint32_t participant) noexcept:
        return c.sr_end_reading(self.ptr, participant)

    cdef int await_shared(self, uint32_t participant, uint64_t deadline, int death_fd) except -1:
        """Wait for a reader's next batch until a time of `clock` (0: do not wait); return 1 if it is there, else 0."""
        cdef int rc = -EINTR
        if not is_usable(self):
            self.refuse_use()
        while rc == -EINTR:
            with nogil:
                rc = c.sr_wait_shared(self.ptr, participant, deadline, death_fd)
            if rc == -EOWNERDEAD:
                raise Closed("the process that shares its batches has died, and no batch of it is left")
            if rc < 0 and rc != -ETIMEDOUT and rc != -ECANCELED:
                check(rc)
        return rc == 0

    cdef int spin_shared(self, uint32_t participant, uint64_t deadline) noexcept:
        """Check for a reader's next batch without sleeping until a time of `clock`; return 1 if it is there."""
        cdef int rc = -ETIMEDOUT
        with nogil:
            while rc == -ETIMEDOUT and c.sr_now() < deadline:
                relax()
                rc = c.sr_wait_shared(self.ptr, participant, 0, -1)
        return rc == 0

    cdef int unkept(self, int enough) noexcept:
        return c.sr_unkept(self.ptr, enough)

    cdef int reader_info(self, uint32_t participant, c.sr_reader_info *info) except -1:
        return check(c.sr_reader_info_of(self.ptr, participant, info))

    def kept_by_readers(self):
        """Return (batches that it keeps, shared batches that it has not taken) of each reader."""
        cdef c.sr_reader_info info
        cdef uint32_t number
        found = []
        self.made()
        for number in range(self.n_readers):
            self.reader_info(self.n_participants + number, &info)
            found.append((info.leases, info.lag))
        return found

    cdef bint has_ended(self, uint32_t participant) noexcept:
        """Return whether the participant's process has ended, or runs another program."""
        return c.sr_participant_ended(self.ptr, participant) == 1

    cdef int take_shared(self, uint32_t participant, c.sr_shared *batch) except -1:
        """Take a reader's next batch and count it; return 0 if there is none."""
        cdef Meter meter = self.meter
        if not is_usable(self):
            self.refuse_use()
        cdef int rc = c.sr_take_shared(self.ptr, participant, batch)
        if rc == -EAGAIN:
            return 0
        if rc == -EPROTO:
            raise CorruptBatch("the log of shared batches is damaged")
        check(rc)
        c.sr_ref(self.ptr, batch.slot)
        if batch.result.kind == c.SR_BATCH:
            meter.batches += 1
            meter.bytes += batch.result.bytes
            meter.pickled_leaves += batch.result.pickled
            c.sr_populate(self.ptr, batch.slot, batch.result.bytes)
        return 1

    cdef void release_shared(self, uint32_t participant, uint32_t slot, uint64_t gen) noexcept:
        """End the lease that `take_shared` began."""
        if c.sr_unref(self.ptr, slot):
            c.sr_release_shared(self.ptr, participant, slot, gen)

    # ---- calls of the C ring for Ring, leases and slot writers

    cdef char *task_memory(self, uint32_t slot, uint64_t nbytes) except NULL:
        """Return a free slot's task area, with `nbytes` of it committed."""
        cdef c.sr_alloc_error why
        memset(&why, 0, sizeof(why))
        cdef int rc = c.sr_commit_task(self.ptr, c.SR_CONSUMER, slot, nbytes, &why)
        if rc < 0:
            if why.limit == c.SR_LIMIT_CAPACITY:
                limited_by = self.limited_by if why.free < c.SR_TASK_DEFAULT else None
                raise task_too_large(why.needed, why.free, self.capacity, limited_by)
            refuse(rc, &why, self.n_slots)
        return c.sr_task_area(self.ptr, slot)

    cdef uint64_t put_task(self, uint32_t slot, const c.sr_task *task) except? 0:
        """Move a slot from FREE to TASK or SHARED; return its generation.

        Return NOT_FREE if its memory is being given back.
        """
        cdef uint64_t gen = 0
        cdef int rc = c.sr_dispatch(self.ptr, slot, task, &gen)
        if rc == -EAGAIN:
            return NOT_FREE
        check(rc)
        return gen

    cdef const c.sr_task *task_of(self, uint32_t slot) noexcept:
        return c.sr_task_of(self.ptr, slot)

    cdef uint64_t claimed_at(self, uint32_t slot) noexcept:
        cdef c.sr_stamps stamps
        c.sr_stamps_of(self.ptr, slot, &stamps)
        return stamps.claimed_at

    cdef char *task_area(self, uint32_t slot) noexcept:
        return c.sr_task_area(self.ptr, slot)

    cdef char *payload(self, uint32_t slot) noexcept:
        return c.sr_payload(self.ptr, slot)

    cdef uint64_t committed(self, uint32_t slot) noexcept:
        """Return the usable bytes of the payload: never more than are mapped, even if the shared word is wrong."""
        return min(c.sr_slot_committed(self.ptr, slot), self.capacity)

    cdef const c.sr_result *result_of(self, uint32_t slot, uint32_t range_no) noexcept:
        return c.sr_result_of(self.ptr, slot, range_no)

    cdef bint find_owned(self, uint32_t participant, uint32_t *slot) noexcept:
        return c.sr_find_owned(self.ptr, participant, slot) == 0

    cdef int take(self, uint32_t participant, uint32_t slot, uint64_t *gen, c.sr_result *result) except -1:
        """Move a slot from READY to LEASED and count the batch. Queue mode: return 0 if another was faster."""
        cdef c.sr_stamps stamps
        cdef Meter meter = self.meter
        if not is_usable(self):
            self.refuse_use()
        cdef int rc = c.sr_take(self.ptr, participant, slot, gen, result)
        if rc == -EBUSY and self.own_number >= 0:
            return 0
        if rc == -EBUSY and self.over:
            rc = -ESHUTDOWN
        check(rc)
        c.sr_record_take(self.ptr, slot, meter.wait_ns - meter.recorded_wait_ns, meter.taken_at, &stamps)
        with cython.critical_section(meter):  # several threads take messages from one queue
            meter.recorded_wait_ns = meter.wait_ns
            meter.fetch_ns += stamps.fetch_ns
            meter.collate_ns += stamps.collate_ns
            meter.idle_ns += stamps.idle_ns
            meter.skipped_samples += stamps.skipped
            meter.last_ready_ns, meter.taken_at = stamps.taken_at - stamps.published_at, stamps.taken_at
            if result.kind == c.SR_BATCH:
                meter.batches += 1
                meter.bytes += result.bytes
                meter.pickled_leaves += result.pickled
                meter.kept_batches += (result.flags & SET_APART) != 0
        if result.kind == c.SR_BATCH:
            c.sr_populate(self.ptr, slot, result.bytes)
        c.sr_ref(self.ptr, slot)
        return 1

    cdef void release(self, uint32_t slot, uint64_t gen) noexcept:
        """End the lease that `take` began."""
        if c.sr_unref(self.ptr, slot):
            c.sr_release(self.ptr, slot, gen)
            if self.over:
                c.sr_release_free(self.ptr, c.SR_CONSUMER)

    cdef void ref(self, uint32_t slot) noexcept:
        """Declare that there are arrays in a slot from now on: a forked child must get a copy of them."""
        c.sr_ref(self.ptr, slot)

    cdef bint unref(self, uint32_t slot) noexcept:
        """Declare that there are no arrays any more; return False if the slot must stay as it is.

        This is the case if a child has the arrays, and no copy of them.
        """
        return c.sr_unref(self.ptr, slot)

    cdef bint pinned_after_fork(self, uint32_t slot) noexcept:
        return c.sr_pinned_after_fork(self.ptr, slot)

    cdef void unpin(self, uint32_t participant, uint32_t slot, uint64_t gen) noexcept:
        c.sr_unpin(self.ptr, participant, slot, gen)
        if self.over:
            c.sr_release_free(self.ptr, c.SR_CONSUMER)

    cdef int claim_task(self, uint32_t participant, double seconds, uint32_t *slot, uint32_t *range_no,
                        uint64_t *gen) except -1:
        """Wait for a task and claim it; return 0 when the time is up or the segment is closed."""
        cdef uint64_t deadline = deadline_in(seconds)
        cdef int rc
        while True:
            with nogil:
                rc = c.sr_claim(self.ptr, participant, deadline, slot, range_no, gen)
            if rc == 0:
                return 1
            if rc == -ETIMEDOUT or rc == -ESHUTDOWN:
                return 0
            check(rc)

    def use_wake_file(self, int fd):
        """Use a pool's wake file in this handle; see `sr_use_wake_file`."""
        self.made()
        check(c.sr_use_wake_file(self.ptr, fd))

    def wake_count(self, uint32_t participant):
        self.made()
        return c.sr_wake_count(self.ptr, participant)

    def wake_worker(self, uint32_t participant):
        """Make the worker's current or next wait for a task of several segments return."""
        self.made()
        check(c.sr_wake_worker(self.ptr, participant))

    @property
    def is_starving(self):
        """bool: whether the consumer waits for a batch that no worker has begun."""
        self.made()
        return c.sr_is_starving(self.ptr)

    cdef int claim_slot(self, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen) except -1:
        """Queue mode: claim a free slot; wait until a time of `clock` (0: do not wait). Return 0 if there is none."""
        cdef int rc = c.sr_claim_free(self.ptr, participant, 0, slot, gen)
        if rc == -ETIMEDOUT and deadline > 0:
            rc = -EINTR
            while rc == -EINTR:
                with nogil:
                    rc = c.sr_claim_free(self.ptr, participant, deadline, slot, gen)
                if rc == -EINTR:
                    check(rc)
        if rc == -ETIMEDOUT:
            return 0
        check(rc)
        return 1

    cdef uint64_t alloc(self, uint32_t participant, uint32_t slot, uint64_t nbytes, uint64_t align) except? 1:
        """Allocate and commit `nbytes` of a slot's payload; return their offset."""
        cdef c.sr_alloc_error why
        cdef uint64_t offset = 0
        memset(&why, 0, sizeof(why))
        cdef int rc = c.sr_alloc(self.ptr, participant, slot, nbytes, align, &offset, &why)
        if rc == -ENOSPC:
            rc = self.commit_later(participant, slot, offset + nbytes, &why)
        if rc < 0:
            if why.limit == c.SR_LIMIT_CAPACITY:
                raise batch_too_large(why.needed, self.capacity, self.limited_by)
            refuse(rc, &why, self.n_slots)
        return offset

    cdef int commit_later(self, uint32_t participant, uint32_t slot, uint64_t nbytes, c.sr_alloc_error *why) except 1:
        """Commit memory that was refused, as soon as used slots release theirs; return 0 or a negative code."""
        cdef uint64_t waited = 0
        cdef int rc
        try:
            while True:
                if self.before_wait is not None:
                    self.before_wait()
                with nogil:
                    rc = c.sr_wait_memory(self.ptr, participant, slot, why, &waited)
                if rc == -EINTR:
                    check(rc)
                elif rc < 0 and (why.limit != c.SR_LIMIT_BUDGET or self.ask_for_memory is None):
                    return rc
                elif rc < 0:
                    self.ask_for_memory(nbytes, why.needed, why.free)
                rc = c.sr_commit(self.ptr, participant, slot, nbytes, why)
                if rc != -ENOSPC:
                    return rc
        finally:
            c.sr_end_wait_memory(self.ptr, participant)

    def add_read(self, uint32_t outcome, uint64_t n_bytes, uint64_t ns):
        """Count an attempt to read a remote file; `outcome` is 0 for success, or a failure's index in `READ_COUNTS`.

        Return the number of earlier attempts with this outcome, in all processes. A forked child counts in its parent's
        segment.
        """
        if outcome >= c.SR_READ_BYTES:
            raise ValueError(f"no outcome of a read is {outcome}")
        return 0 if self.ptr == NULL else c.sr_add_read(self.ptr, outcome, n_bytes, ns)

    def is_short(self, uint32_t participant):
        """Return whether a worker waits for memory."""
        self.made()
        return c.sr_needs_memory(self.ptr, participant)

    def pin(self, uint32_t slot):
        """Pin a slot that this process holds, because a device reads from it: its memory stays."""
        self.made()
        check(c.sr_set_registered(self.ptr, slot))

    cdef int rewind(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1:
        return check(c.sr_rewind(self.ptr, participant, slot, gen))

    cdef void record_times(self, uint32_t slot, uint64_t begun, uint64_t fetched, uint64_t skipped) noexcept:
        c.sr_add_times(self.ptr, slot, fetched - begun, c.sr_now() - fetched, skipped)

    cdef void record_parts(self, uint32_t slot, const c.sr_parts *parts) noexcept:
        c.sr_add_parts(self.ptr, slot, parts)

    cdef void record_row(self, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since) noexcept:
        c.sr_set_row(self.ptr, participant, slot, row, since)

    def record_copy(self, uint32_t slot, double seconds):
        """Record how long the copy of a batch to a device took; this process has the slot."""
        self.made()
        c.sr_set_copy_time(self.ptr, slot, <uint64_t> (seconds * 1e9))

    def record_loop(self, double wait, double step):
        """Record the seconds of a step of the loop, and how long it waited in the step for a batch from a thread."""
        self.made()
        c.sr_add_loop_step(self.ptr, <uint64_t> (wait * 1e9), <uint64_t> (step * 1e9))

    cdef int publish(self, uint32_t participant, uint32_t slot, uint64_t gen, const c.sr_result *result,
                     bint held) except -1:
        return check(c.sr_publish(self.ptr, participant, slot, gen, result, held))

    cdef int abort(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1:
        return check(c.sr_abort(self.ptr, participant, slot, gen))

    cdef int park(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1:
        return check(c.sr_park(self.ptr, participant, slot, gen))

    cdef int range_done(self, uint32_t participant, uint32_t slot, uint32_t range_no, uint64_t gen,
                        const c.sr_result *result) except -1:
        return check(c.sr_range_done(self.ptr, participant, slot, range_no, gen, result))

    cdef int propose(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1:
        """Return 0 if this participant decides on the rows' layout; else DIRECT or STAGED."""
        cdef int rc = -ETIMEDOUT
        while rc == -ETIMEDOUT or rc == -EINTR:
            with nogil:
                rc = c.sr_layout_propose(self.ptr, participant, slot, gen, c.sr_now() + <uint64_t> 500000000)
            if rc != -ETIMEDOUT:
                check(rc)
        return rc

    cdef int settle(self, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                    const c.sr_result *result) except -1:
        return check(c.sr_layout_settle(self.ptr, participant, slot, gen, layout, result))


cdef int claim_any(c.sr_served *served, uint32_t n, uint32_t participant, uint32_t seen, uint32_t *which,
                   uint32_t *slot, uint32_t *range, uint64_t *gen) except -1:
    """Wait for a task of several segments and claim it; return 0 if the worker was woken and there is none."""
    cdef int rc = -EINTR
    while rc == -EINTR:
        with nogil:
            rc = c.sr_claim_any(served, n, participant, seen, which, slot, range, gen)
        if rc == -EAGAIN:
            return 0
        check(rc)
    return 1


def attach(cls, duplicate, record, limited_by):
    """Make a handle from the descriptors that a new process has received."""
    cdef Segment segment
    fd = duplicate.detach()
    also = -1
    try:
        also = -1 if record is None else record.detach()
        segment = cls(fd=fd, record=also)
    finally:
        os.close(fd)
        if also >= 0:
            os.close(also)
    segment.limited_by = limited_by
    return segment
