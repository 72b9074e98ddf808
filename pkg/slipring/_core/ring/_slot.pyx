"""The two ways to own a slot: a consumer's lease, and a worker's slot writer (`SlotWriter`)."""

import pickle

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyTypeObject, newfunc
from cpython.ref cimport PyObject, Py_REFCNT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from slipring._core.ring._segment cimport (
    HELD, SET_APART, SINGLE, SR_FINISH, SR_MAX_RANGES, SR_TASK_OBJECT, SR_WHOLE, WITH_STATE, Segment, clock,
    coarse_clock, forks, sr_parts, sr_result, sr_shared,
)


cdef extern from *:
    """
    /* The slot writer that the calling thread works on, and slipring.empty() allocates from. Borrowed. */
    static __thread PyObject *slipring_current_writer = NULL;
    /* Duration of a sample of the thread's last batch. Fast ones are timed by the coarse clock. */
    static __thread uint64_t slipring_sample_ns = UINT64_MAX;
    /* The sample that the calling thread reads for a batch that another thread makes. Borrowed. */
    static __thread PyObject *slipring_current_reading = NULL;
    """
    PyObject *slipring_current_writer
    PyObject *slipring_current_reading
    uint64_t slipring_sample_ns

cdef extern from *:
    const uint64_t NO_INDEX "(UINT64_C(1) << 63)"  # marks a row in place of an index

POISON = 0xDB
cdef uint64_t PRECISE_NS = 2000  # for faster samples, the precise clock would cost too much
READ, DECODE, RESIZE, USER = range(4)  # parts of fetching, for `spent`


# ---- leases: batches that the consumer has -----------------------------------------------------------------


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Lease:
    """The base object of every view on a slot; when it is freed, the slot is released."""

    cdef void release(self) noexcept:
        # A forked child holds a copy of this object, but the lease is its parent's.
        if self.active and self.fork_generation == forks():
            # Arrays that worker code keeps are not poisoned: they belong to it.
            if self.ring.poison and not self.shared and not self.result.flags & HELD:
                memset(self.payload, POISON, min(self.result.bytes, self.limit))
            if self.reader:
                self.ring.release_shared(self.reader, self.slot, self.gen)
            else:
                self.ring.release(self.slot, self.gen)
        self.active = False

    def __dealloc__(self):
        self.release()


cdef Lease take(Segment ring, uint32_t participant, uint32_t slot):
    """Move a slot from READY to LEASED; return None if another consumer was faster (queue mode)."""
    cdef Lease lease = Lease.__new__(Lease)
    lease.ring, lease.slot = ring, slot
    if not ring.take(participant, slot, &lease.gen, &lease.result):
        return None
    lease.fork_generation = ring.fork_generation  # this process's, or take() would have failed
    lease.active = True
    lease.payload = ring.payload(slot)
    lease.limit = ring.committed(slot)
    return lease


cdef int share(Lease lease) except -1:
    """Give each reader a lease of the same slot; return how many readers got one. The lease is the consumer's."""
    lease.shared = True  # first: from then on its bytes are not its own
    return lease.ring.share(lease.slot, lease.gen)


cdef Lease take_shared(Segment ring, uint32_t participant, sr_shared *batch):
    """Take a reader's next batch; return None if there is none."""
    cdef Lease lease = Lease.__new__(Lease)
    lease.ring, lease.reader, lease.shared = ring, participant, True
    if not ring.take_shared(participant, batch):
        return None
    lease.slot, lease.gen, lease.result = batch.slot, batch.gen, batch.result
    lease.fork_generation = ring.fork_generation
    lease.active = True
    lease.payload = ring.payload(lease.slot)
    lease.limit = ring.committed(lease.slot)
    return lease


# ---- slot writers: a worker's claim of a slot ---------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class SlotPin:
    """The base object of arrays that worker code got inside a slot.

    If one of them outlives the publish, the slot does not circulate until the last is dropped.
    """

    def __dealloc__(self):
        if self.fork_generation == forks() and self.ring.unref(self.slot) and self.published:
            self.ring.unpin(self.participant, self.slot, self.gen)


cdef SlotWriter make_writer(Segment ring, uint32_t participant, uint32_t slot, uint32_t range_no, uint64_t gen):
    cdef SlotWriter writer = SlotWriter.__new__(SlotWriter)
    writer.ring, writer.participant, writer.slot, writer.range, writer.gen = ring, participant, slot, range_no, gen
    writer.fork_generation = forks()
    writer.task = ring.task_of(slot)
    writer.payload = ring.payload(slot)
    return writer


cdef object part_of(rows, uint32_t first, uint32_t end):
    """Return a range of a batch's indices; a list if they have no slices, as a set."""
    try:
        return rows[first:end]
    except (TypeError, KeyError):
        return list(rows)[first:end]


@cython.auto_pickle(False)
cdef class WriteTarget:
    """Memory that a value is written to, piece by piece."""

    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL:
        """Return `nbytes` of it; they stay where they are until the next call."""
        raise TypeError("a WriteTarget itself has no memory")

    cdef uint64_t offset_of(self, const void *data, uint64_t nbytes) noexcept:
        """Return the offset of `data` in it; UINT64_MAX if not all of `data` lies in it."""
        return <uint64_t> -1


@cython.final
cdef class SlotWriter(WriteTarget):
    """A claimed slot, or a claimed range of its rows."""

    def __enter__(self):
        global slipring_current_writer
        # A dataset may iterate a loader without workers: then one writer is used inside another.
        self.outer = current_writer()
        slipring_current_writer = <PyObject *> self
        return self

    def __exit__(self, *exc):
        global slipring_current_writer
        slipring_current_writer = <PyObject *> self.outer if self.outer is not None else NULL
        self.outer = None

    @property
    def range(self):
        """int or None: the claimed range; None for a whole slot, FINISH when all ranges are done."""
        return None if self.range == SR_WHOLE else self.range

    cdef bint whole(self) noexcept:
        """Return whether this worker alone has the slot, not one of its ranges."""
        return self.range == SR_WHOLE or self.range == SR_FINISH

    @property
    def iteration(self):
        return self.task.iteration

    @property
    def epoch(self):
        return self.task.epoch

    @property
    def seq(self):
        return self.task.seq

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
    def claimed_at(self):
        """int: when the slot, or the first of its ranges, was claimed; ns of `now`."""
        return self.ring.claimed_at(self.slot)

    @property
    def single(self):
        return bool(self.task.flags & SINGLE)

    @property
    def n_rows(self):
        """int: rows of the whole batch."""
        return self.task.rows

    @property
    def used(self):
        """int: bytes of the slot that this worker has taken."""
        return self.end

    @property
    def n_ranges(self):
        return self.task.n_ranges

    def rows_of(self, uint32_t range_no):
        """Return (first, end): the rows of a range."""
        first = range_no * self.task.range_rows
        return first, min(first + self.task.range_rows, self.task.rows)

    def indices(self):
        """Return the indices of this slot or range: the sampler's own object, or a part of it."""
        cdef const int64_t *at = <const int64_t *> self.ring.task_area(self.slot)
        cdef uint32_t i, first = 0, end = self.task.rows
        if self.range < SR_MAX_RANGES:
            first, end = self.rows_of(self.range)
        if self.task.kind == SR_TASK_OBJECT:
            rows = pickle.loads(PyBytes_FromStringAndSize(<char *> at, self.task.bytes))
            self.rows = rows if self.range >= SR_MAX_RANGES else part_of(rows, first, end)
        else:
            self.rows = [None] * (end - first)
            for i in range(first, end):
                self.rows[i - first] = at[i]
        return self.rows

    @property
    def asked_for(self):
        """list or None: the indices, after they have been read."""
        return None if self.rows is None else list(self.rows)

    cdef int check(self) except -1:
        """Refuse a forked child's access to its parent's slot."""
        if self.fork_generation != forks():
            raise RuntimeError(
                "this process has been forked while its parent was making a batch or putting a message, "
                "which is the parent's alone: end such a child with os._exit()"
            )
        return 0

    # ---- memory

    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL:
        """Return `nbytes` of this slot's payload, committed."""
        self.check()
        cdef uint64_t offset = self.ring.alloc(self.participant, self.slot, nbytes, align)
        self.end = max(self.end, offset + nbytes)
        return self.payload + offset

    cdef uint64_t offset_of(self, const void *data, uint64_t nbytes) noexcept:
        cdef uint64_t at = <uint64_t> data, base = <uint64_t> self.payload
        if at < base or at + nbytes > base + self.limit():
            return <uint64_t> -1
        return at - base

    cdef bint is_kept(self) noexcept:
        """Return whether any code has an array of this slot, or a view of one."""
        cdef SlotPin pin = self.pin
        return pin is not None and Py_REFCNT(pin) > 2  # one reference is this function's, one this writer's

    @property
    def is_pinned(self):
        """bool: see `is_kept`."""
        return self.is_kept()

    cdef uint64_t limit(self) noexcept:
        return self.ring.committed(self.slot)

    cdef SlotPin slot_pin(self):
        cdef SlotPin pin = self.pin
        if pin is None:
            pin = SlotPin.__new__(SlotPin)
            pin.ring, pin.participant, pin.slot, pin.gen = self.ring, self.participant, self.slot, self.gen
            pin.fork_generation = forks()
            self.ring.ref(self.slot)
            self.pin = pin
        return pin

    def rewind(self, bint hard=False):
        """Forget all allocations, to write an error in place of a batch.

        Arrays that worker code keeps stay as they are, unless `hard`: then they must not be used any more, and there is
        room for the error even if no memory is left.
        """
        self.check()
        cdef SlotPin pin = self.pin
        # Two references are this function's and this writer's own.
        cdef bint kept = not hard and pin is not None and Py_REFCNT(pin) > 2
        cdef uint32_t range_no
        cdef uint64_t limit = self.limit()
        if kept and self.range == SR_FINISH:
            # Another worker may have staged the memory of these arrays.
            for range_no in range(self.task.n_ranges):
                self.end = max(self.end, min(self.result_of(range_no).bytes, limit))
        self.ring.rewind(self.participant, self.slot, self.gen)
        if not kept:
            self.end = 0
        if self.end:
            self.ring.alloc(self.participant, self.slot, self.end, 1)

    cdef void record_times(self, uint64_t begun, uint64_t fetched) noexcept:
        """Add the times of fetching and collating, up to now, and the skipped samples to the slot's."""
        global slipring_sample_ns
        slipring_sample_ns = (fetched - begun) // max(<uint64_t> 1, <uint64_t> self.task.rows)
        self.ring.record_times(self.slot, begun, fetched, self.skipped)
        self.ring.record_parts(self.slot, &self.parts)

    cdef void begin_row(self, uint32_t row, object index) noexcept:
        """Record that reading the sample of a row (of the slot or the range) begins."""
        cdef uint64_t now = tick()
        self.end_row(now)
        row = self.of_batch(row)
        self.row_since, self.row_index = now, self.shown_index(row, index)
        self.ring.record_row(self.participant, self.slot, row, now)

    cdef uint32_t of_batch(self, uint32_t row) noexcept:
        """Return the row of the whole batch."""
        return row + self.range * self.task.range_rows if self.range < SR_MAX_RANGES else row

    cdef int64_t shown_index(self, uint32_t row, object index) noexcept:
        """Return an index as it is recorded; the row of the batch if it is not an int of 64 bits."""
        cdef int64_t shown = <int64_t> (NO_INDEX | row)
        if PyLong_CheckExact(index):
            shown = PyLong_AsLongLongAndOverflow(index, &self.overflow)
            if self.overflow:
                shown = <int64_t> (NO_INDEX | row)
        return shown

    cdef void end_row(self, uint64_t now) noexcept:
        if self.row_since != 0 and now - self.row_since > self.parts.slowest_ns:
            self.parts.slowest_ns, self.parts.slowest_index = now - self.row_since, self.row_index

    cdef void end_rows(self) noexcept:
        """Record that all samples have been read."""
        cdef uint64_t now
        if self.row_since != 0:
            now = tick()
            self.end_row(now)
            self.row_since = 0
            self.ring.record_row(self.participant, self.slot, SR_WHOLE, now)

    # ---- the end of a writer

    cdef int publish(self, sr_result *result) except -1:
        self.check()
        # All other references to the pin come from arrays that worker code keeps.
        cdef SlotPin pin = self.pin
        self.pin = None
        cdef bint held = pin is not None and (Py_REFCNT(pin) > 1 or self.ring.pinned_after_fork(self.slot))
        result.flags = (result.flags & (SET_APART | WITH_STATE)) | (HELD if held else 0)
        self.ring.publish(self.participant, self.slot, self.gen, result, held)
        self.done = True
        # Only now: this pin must not release a slot that was not published.
        if held:
            pin.published = True
        return 0

    def __dealloc__(self):
        global slipring_current_writer
        if slipring_current_writer == <PyObject *> self:  # its block was never left
            slipring_current_writer = NULL

    def abort(self):
        """Give the slot back; nothing is published, and arrays in it must not be used any more."""
        self.check()
        self.ring.abort(self.participant, self.slot, self.gen)
        self.done = True

    cdef int release(self) except -1:
        """Release the slot as `abort` does, but arrays that code has kept stay valid as long as they live (queue mode).

        In a forked child it does nothing: the slot is its parent's.
        """
        cdef SlotPin pin = self.pin
        self.pin = None
        if self.fork_generation != forks():
            return 0
        if pin is None or (Py_REFCNT(pin) == 1 and not self.ring.pinned_after_fork(self.slot)):
            return self.ring.abort(self.participant, self.slot, self.gen)
        self.ring.park(self.participant, self.slot, self.gen)
        pin.published = True
        return 0

    # ---- cooperative slots

    cdef const sr_result *result_of(self, uint32_t range_no) except NULL:
        """Return the staged result of a range; SR_WHOLE: the settled layout."""
        if range_no != SR_WHOLE and range_no >= self.task.n_ranges:
            raise IndexError(f"range {range_no} of {self.task.n_ranges}")
        return self.ring.result_of(self.slot, range_no)

    cdef int settle(self, int layout, const sr_result *result) except -1:
        self.check()
        return self.ring.settle(self.participant, self.slot, self.gen, layout, result)

    cdef int range_done(self, const sr_result *result) except -1:
        """End this range; return 1 if this worker must now finish the whole slot."""
        self.check()
        cdef int rc = self.ring.range_done(self.participant, self.slot, self.range, self.gen, result)
        if rc == 1:
            self.range = SR_FINISH
        else:
            self.done = True
        return rc

    def propose_layout(self):
        """Return 0 if this worker decides on the rows' layout, else DIRECT or STAGED."""
        self.check()
        return self.ring.propose(self.participant, self.slot, self.gen)


cdef SlotWriter current_writer():
    """Return the `SlotWriter` that this thread works on, or None. A forked child must not use its parent's."""
    cdef SlotWriter writer
    if slipring_current_writer == NULL:
        return None
    writer = <SlotWriter> slipring_current_writer
    return writer if writer.fork_generation == forks() else None


cdef bint has_slow_samples() noexcept:
    """Return whether a sample of this thread's last batch took so long that the precise clock costs little."""
    return slipring_sample_ns > PRECISE_NS


cdef uint64_t tick() noexcept:
    """Return the time, from the coarse clock if samples are fast."""
    return clock() if has_slow_samples() else coarse_clock()


cdef sr_parts *current_parts() noexcept:
    """Return the record for the times of this thread's sample; NULL if it reads for no batch."""
    cdef SlotWriter writer = current_writer()
    if writer is not None:
        return &writer.parts
    return NULL if slipring_current_reading == NULL else &(<Reading> slipring_current_reading).parts


def skip():
    """Count a sample that the dataset skips, for the batch that this thread makes; return False if it makes none."""
    cdef SlotWriter writer = current_writer()
    cdef Reading reading
    if writer is not None:
        writer.skipped += 1
        return True
    if slipring_current_reading == NULL:
        return False
    reading = <Reading> slipring_current_reading
    reading.skipped += 1
    return True


# ---- samples that other threads read, concurrently, for the thread that makes the batch


@cython.final
@cython.auto_pickle(False)
cdef class Reading:
    """A context in which the calling thread reads one sample; it records how long that takes.

    It may be entered several times, one after the other, for the steps of a coroutine.
    """

    def __enter__(self):
        global slipring_current_reading
        if self.begun == 0:
            self.begun = clock()
        slipring_current_reading = <PyObject *> self
        return self

    def __exit__(self, *exc):
        global slipring_current_reading
        slipring_current_reading = NULL
        self.ended = clock()


def wait_for_row(uint32_t row, index):
    """Report to observers that this is the first sample of the batch which is still missing."""
    cdef SlotWriter writer = current_writer()
    if writer is not None:
        writer.row_since = 0  # the row's `Reading` measures the time
        writer.begin_row(row, index)


def end_reading(list asked, list readings, uint64_t since):
    """Record how long reading the samples of this thread's batch took, from `since` to now.

    Stages that ran concurrently are recorded as their parts of that time. Return how many samples were skipped, if no
    batch is made in a slot.
    """
    cdef SlotWriter writer = current_writer()
    cdef Reading reading
    cdef uint64_t took, total = 0, skipped = 0
    cdef uint64_t spent[5]
    cdef uint32_t row = 0
    cdef double part
    memset(spent, 0, sizeof(spent))
    for row in range(<uint32_t> len(readings)):
        reading = readings[row]
        skipped += reading.skipped
        if writer is None or reading.ended == 0:
            continue
        took = reading.ended - reading.begun
        total += took
        if took > writer.parts.slowest_ns:
            writer.parts.slowest_ns = took
            writer.parts.slowest_index = writer.shown_index(writer.of_batch(row), asked[row])
        spent[0] += reading.parts.read_ns
        spent[1] += reading.parts.decode_ns
        spent[2] += reading.parts.resize_ns
        spent[3] += reading.parts.augment_ns
        spent[4] += reading.parts.user_ns
        writer.parts.hits += reading.parts.hits
        writer.parts.misses += reading.parts.misses
    if writer is None:
        return skipped
    writer.skipped += skipped
    part = min(1.0, <double> (clock() - since) / total) if total else 0.0
    writer.parts.read_ns += <uint64_t> (part * spent[0])
    writer.parts.decode_ns += <uint64_t> (part * spent[1])
    writer.parts.resize_ns += <uint64_t> (part * spent[2])
    writer.parts.augment_ns += <uint64_t> (part * spent[3])
    writer.parts.user_ns += <uint64_t> (part * spent[4])
    writer.row_since = 0
    writer.ring.record_row(writer.participant, writer.slot, SR_WHOLE, clock())
    return 0


def at_row(uint32_t row, index):
    """Record the row that a dataset with batches of its own reads; `index` None: it has read all rows."""
    cdef SlotWriter writer = current_writer()
    if writer is None:
        return
    if index is None:
        writer.end_rows()
    else:
        writer.begin_row(row, index)


cdef uint64_t part_clock(const sr_parts *parts) noexcept:
    """Return the time without the parts of fetching so far: a clock that stands still during each part."""
    if parts == NULL:
        return clock()
    return clock() - parts.read_ns - parts.decode_ns - parts.resize_ns - parts.augment_ns - parts.user_ns


def part_begun():
    """Return when a part of fetching begins, for `spent`. Parts may lie within one another."""
    return part_clock(current_parts())


def spent(int part, uint64_t begun):
    """Add the time since `begun` to a part of fetching: READ, DECODE, RESIZE or USER.

    `begun` is the result of `part_begun`. The time of parts that began and ended since then is not counted again.
    """
    cdef sr_parts *parts = current_parts()
    if parts == NULL:
        return
    cdef uint64_t ns = part_clock(parts) - begun
    if part == 0:
        parts.read_ns += ns
    elif part == 1:
        parts.decode_ns += ns
    elif part == 2:
        parts.resize_ns += ns
    else:
        parts.user_ns += ns


cdef int augmented(uint64_t ns) noexcept:
    """Add the time of operations on an image to that part of fetching."""
    cdef sr_parts *parts = current_parts()
    if parts != NULL:
        parts.augment_ns += ns
    return 0


cdef int looked_up(bint hit) noexcept:
    """Count a cache hit or miss of a sample, for the batch that this thread makes."""
    cdef sr_parts *parts = current_parts()
    if parts != NULL:
        parts.hits += hit
        parts.misses += not hit
    return 0


def current():
    """Return the `SlotWriter` that this thread works on, or None."""
    return current_writer()


# ---- no other code may construct them: without a slot, each method would need a check


cdef object refuse_to_make(type kind, PyObject *arguments, PyObject *named):
    raise TypeError(f"a {kind.__name__} cannot be constructed: it is made when a slot is taken or claimed")


(<PyTypeObject *> Lease).tp_new = <newfunc> refuse_to_make
(<PyTypeObject *> SlotPin).tp_new = <newfunc> refuse_to_make
(<PyTypeObject *> SlotWriter).tp_new = <newfunc> refuse_to_make
