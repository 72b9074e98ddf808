"""A pass whose batches another process makes: this one takes them from the same slots.

The plan runs here, too, so this process has its own position and states.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from slipring._core.codec._shared cimport SharedBatch, SharedReader
from slipring._core.passes._inflight cimport Position, Task
from slipring._core.passes._pass cimport Pass
from slipring._core.passes._plan cimport listed
from slipring._core.ring._segment cimport clock

from slipring._core.codec._codec import COPY
from slipring._core.passes._inflight import WorkerPosition
from slipring._core.passes.engine import exiting, stay_if_exiting
from slipring._core.passes.sharing import CHECK_S
from slipring._core.workers import error_record
from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, DescriptorClosed, LoaderTimeout, ended_meanwhile

cdef object _exiting = exiting  # see slipring._core.passes.engine


@cython.auto_pickle(False)
cdef class SharedIteration(Pass):
    """The iterator of a loader whose batches another process makes.

    Parameters
    ----------
    options : Options
    reading : ReaderPass
        The pass's part of the connection to the lead.
    seed, plan, position, on_end, hooks
        See `Iteration`.
    """

    cdef object reading
    cdef SharedReader reader
    cdef SharedBatch batch   # of `received`, until its indices have been compared
    cdef dict planned        # sequence number -> indices, of a map dataset's tasks that have not been received
    cdef uint64_t prefetch_depth  # how many the lead plans in advance; so many are planned here
    cdef bint planning, stopped, no_timeout
    cdef int copy, death_fd
    cdef uint64_t spent_from  # when the loop took its last batch, or began

    def __init__(self, options, reading, seed, plan, position, on_end, **hooks):
        self.begin(options, reading, seed, plan, position, on_end, **hooks)

    @cython.critical_section
    def begin(self, options, reading, seed, plan, Position position not None, on_end, *, rebuild=error_record.rebuild,
              reword=None, no_timeout=False, tuner=None, **hooks):
        """Begin a pass; the parameters are those of the class. Any earlier pass has been closed."""
        self.put_hooks(on_end, rebuild, **hooks)
        self.begin_plan(options, plan, position)
        self.ring, self.meter = reading.ring, reading.meter
        self.reader, self.death_fd = reading.reader, reading.death_fd
        self.planned, self.batch, self.planning, self.stopped = {}, None, False, False
        self.prefetch_depth, self.copy = options.prefetch_depth, COPY[options.memory.copy]
        self.no_timeout, self.spent_from = no_timeout, clock()
        if self.streams is not None and position.workers is None:
            position.workers = [WorkerPosition() for _ in self.streams.pending]
        if self.streams is None and position.workers is not None:
            self.indices = {}
        self.reading = self._engine = reading
        try:
            reading.take_part(options, seed, position)
            self.dispatch(False)
        except BaseException:
            self.close()
            raise

    cdef int check_process(self) except -1:
        self.ring.usable()
        return 0

    # ---- the plan

    cdef int dispatch(self, bint may_wait) except -1:
        """Plan as many tasks as the lead: a Stateful sampler is then as far here as there."""
        if self.planning or self.streams is not None:
            return 0
        self.planning = True
        try:
            while not self.exhausted and <uint64_t> len(self.planned) < self.prefetch_depth:
                self.plan_one()
        finally:
            self.planning = False
        return 0

    @cython.final
    cdef int plan_one(self) except -1:
        """Plan the next task, if there is one."""
        if self.due is None and not self.plan_next():
            return 0
        indices, error = attempt(listed, self.due) if self.slices is not None or self.indices is not None else (
            self.due, None
        )
        if error is not None:
            self.end_with(error)
            return 0
        # No Python code runs below.
        self.planned[self.next_seq] = indices
        if self.indices is not None:
            self.indices[self.next_seq] = indices
        self.due = None
        self.next_seq += 1
        return 0

    # ---- delivery

    cdef Task receive(self):
        cdef Task task = self.received
        if task is not None and task.kind != 0:
            return task
        try:
            if task is None:
                if not self.await_batch():
                    return None
                task = self.take_batch()
            if self.batch is not None:
                self.compare()
            return self.unpacked(task, self.copy)
        except Closed:
            if not self.restarting:
                raise
            self.gives_way = True
            return None
        except DescriptorClosed as error:
            stay_if_exiting()
            self.fail(error)
            raise

    @cython.final
    cdef Task take_batch(self):
        """Take the batch that has come. No Python code runs until it is stored where the next call finds it."""
        cdef Task task = Task.__new__(Task)
        cdef SharedBatch batch = self.reader.take()
        cdef uint64_t there = clock()
        self.meter.spent_ns += there - self.spent_from
        self.spent_from = there
        self.lease, self.batch, self.received = batch.lease, batch, task
        task.seq, task.sequence, task.slot = batch.seq, batch.sequence, batch.lease.slot
        task.worker = None if batch.worker < 0 else batch.worker
        return task

    @cython.final
    cdef int compare(self) except -1:
        """Check that the batch was made of the indices that this process has planned; then drop them."""
        cdef uint64_t seq = self.batch.seq
        if self.streams is None:
            while seq not in self.planned and not self.exhausted:  # the lead has been resized
                self.plan_one()
            differs, _ = attempt(self.batch.differs, self.planned.get(seq, ()))
            if differs:
                error = ValueError(
                    f"batch {seq} was made of other indices than this rank's sampler gives: the samplers of all ranks "
                    "of share= must give the same, so give them the same seed, rank and epoch (set_epoch)"
                )
                self.reading.refuse_next(error)
                self.fail(error)
                raise error
            self.planned.pop(seq, None)
        self.batch = None
        return 0

    @cython.final
    cdef bint await_batch(self) except -1:
        """Wait for the next batch; return False at the end."""
        cdef uint64_t began = clock(), give_up = began + <uint64_t> (min(self.options.timeout, 1e9) * 1e9)
        self.dispatch(True)
        try:
            while True:
                if self.streams is None and not self.planned:
                    return False
                if self.streams is not None and not self.streams.rotation:
                    return self.await_last()
                if self.wait(CHECK_S):
                    return True
                if self.reading.has_ended():
                    return self.wait(0) or self.ended_early()
                if self.options.timeout and not self.no_timeout and clock() >= give_up:
                    raise self.timed_out()
        finally:
            self.meter.wait_ns += clock() - began

    @cython.final
    cdef bint await_last(self) except -1:
        """After the ends of all streams, wait for the lead's end; return whether another result has come."""
        while not self.reading.has_ended():
            if self.wait(0):
                return True
            self.reading.await_message()
        return self.wait(0)

    @cython.final
    cdef bint wait(self, double seconds) except -1:
        """Wait for the next batch for so long; return whether it is there."""
        try:
            found = self.reader.wait(seconds, self.death_fd)
        except Closed:
            found = False  # or the lead has died: has_ended() tells
        if self.stopped or self._engine is None or self.reader.left:
            stay_if_exiting()
            by_next = self._engine is not None and self.reader.left
            raise Closed("the next iter() of the loader has ended this iterator") if by_next else ended_meanwhile()
        return found

    @cython.final
    cdef bint ended_early(self) except -1:
        """Raise the exception with which the lead has ended the pass, or let it be raised at the end."""
        error, is_fatal = self.reading.end()
        if is_fatal or isinstance(error, Closed):
            self.fail(error)
            raise error
        self.planned.clear()
        self.end_with(error)
        return False

    def hand_over_timeout(self):
        self.no_timeout = True
        return self.options.timeout

    def timed_out(self):
        """Return the exception for a wait that has taken `timeout` seconds."""
        return LoaderTimeout(
            f"no batch within timeout={self.options.timeout} s from {self.reading.owner.connection.name}, which makes"
            " the batches of share=: raise timeout, or look at what that process does"
        )

    def record_copy(self, uint32_t slot, double seconds):
        """Record nothing: the slot's times are the lead's."""

    @property
    def inherited(self):
        engine = self.engine
        return engine is not None and engine.inherited

    # ---- the end

    @cython.critical_section
    def fail(self, error):
        """End the iteration: it cannot continue."""
        self.close()
        self.error = error

    @cython.nonecheck(True)
    def interrupt(self, bint on=True):
        """Make the current next() in another thread, and later ones, raise `Closed`; with `on` false, undo that."""
        self.stopped = on
        self.ring.interrupt(on)

    @cython.critical_section
    def drain(self, uint64_t upto=0):
        """Draw the indices of all tasks below `upto`, as the lead does before it ends the pass early."""
        while self._engine is not None and self.streams is None and self.next_seq < upto and not self.exhausted:
            self.plan_one()

    @cython.critical_section
    def close(self, reason=None):
        if not self.at_end:
            self._reason = reason or self._reason
        reading, self._engine = self._engine, None
        if reading is None:
            return
        if not reading.inherited:
            self.received = self.lease = self.value = self.state = self.batch = None
            reading.leave()
            self.on_end(reading)
            if self.would_wait is not None:
                self.draw.close()

    def __del__(self):
        if self._engine is not None and not _exiting():
            self.close()
