"""One pass with workers: dispatch tasks in advance, deliver batches in order.

This module is compiled because all of it runs once per batch in the training process. After a sleep the CPU's caches
are cold, so interpreted code costs several times as much here as in a tight loop. What runs a few times a second is in
`slipring._core.passes.supervisor`.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from slipring._core.codec._codec cimport state_in
from slipring._core.passes._inflight cimport InFlight, Position, Task, least_busy
from slipring._core.passes._pass cimport Pass
from slipring._core.passes._plan cimport listed
from slipring._core.ring._ring cimport NOT_INTS, Pickled
from slipring._core.ring._segment cimport FREE_THREADED, NOT_FREE, SR_CONSUMER, SR_FOREVER
from slipring._core.ring._segment cimport SR_WHOLE, clock, sr_result
from slipring._core.ring._slot cimport share, take

from slipring._core.codec._codec import COPY
from slipring._core.passes._inflight import WorkerPosition
from slipring._core.passes.engine import exiting, stay_if_exiting
from slipring._core.passes.supervisor import Supervisor
from slipring._core.ring.signals import settle
from slipring._core.ring.text import slots_held, timed_out
from slipring._core.workers import error_record
from slipring._core.workers.stateful import attempt
from slipring.errors import BatchTooLarge, Closed, CorruptBatch, DescriptorClosed, LoaderTimeout, ended_meanwhile
from slipring.errors import SegmentFull, WorkerDied

cdef object _exiting = exiting  # see slipring._core.passes.engine

# ns; how often a waiting consumer checks its workers: without and with a `death_fd`, which ends the wait at a death.
cdef uint64_t IDLE = 100_000_000, SELDOM = 500_000_000
cdef uint64_t LATE = 1_000_000_000  # ns; so long a slot may take to be free after its batch was dropped
cdef double SECOND = 1e9  # ns
cdef uint64_t NEVER = SR_FOREVER


cdef uint64_t limit_of(double seconds) noexcept:
    """Return seconds in ns; 0 stands for no limit."""
    return <uint64_t> (min(seconds, 1e9) * SECOND) if seconds else SR_FOREVER


cdef uint64_t after(uint64_t began, uint64_t limit) noexcept:
    """Return the end of a time that began then; `SR_FOREVER`: it has none."""
    return SR_FOREVER if limit > SR_FOREVER - began else began + limit


@cython.auto_pickle(False)
cdef class Iteration(Pass):
    """The iterator of a loader with workers. Its first tasks are in flight when it is made.

    Several threads may call next(): each batch goes to one of them. A forked child must not use it.

    A task stays in flight until `commit`.

    Parameters
    ----------
    options : Options
    engine : Engine
    seed : int
        The iteration's base seed of 64 bits, to which workers add their number.
    plan : iterator
        See `Pass`.
    position : Position
    on_end : callable
        Called with the engine when the iteration is over.
    rebuild : callable
        Turns an error record into an exception.
    finish : callable, optional
        Called with each batch before it is delivered; it returns the batch to deliver. It is called again if a signal
        handler raises.
    reword : callable, optional
        Returns the exception to raise for a `WorkerDied` or `LoaderTimeout` of this iteration.
    dispatch_before_return : bool
        Dispatch the next task before a batch is returned, not when the next batch is requested. If a loop ends early,
        the workers have then made as many batches as with torch.
    no_timeout : bool
        Wait for a batch without a limit, because other code handles `timeout`.
    before_return : callable, optional
        Called once before each batch is returned. If it raises an exception, the next call returns the batch.
    is_recorded, recording : callable, optional
        If ``is_recorded()``, the next batch is received in the context ``recording()``.
    tuner : Tuner, optional
        Changes the number of workers during the iteration.
    lead : Lead, optional
        Shares the batches with readers in other processes.
    """

    cdef object ending        # the engine, while close() runs
    cdef readonly object supervisor
    cdef object reword
    cdef readonly InFlight tasks
    cdef bint in_order, single, respawns
    cdef bint in_budget  # the loaders of a pool share a limited memory
    cdef bint planning  # from the call of user code for the next task until the task is in a slot
    cdef bint stopped  # next() must give up: another thread wants to end the iteration
    cdef int copy
    cdef uint32_t range_rows, n_static
    cdef public uint64_t prefetch_depth  # tasks that may be in flight at once
    cdef readonly uint64_t iteration
    cdef uint64_t epoch, seed, timeout, warn_after, look_at, idle
    cdef readonly uint64_t start_ns  # how long the start waited for workers
    cdef int death_fd   # a descriptor that is readable when a worker has died, or -1
    cdef uint64_t late  # `Position.changes` when a wait took `timeout` seconds; NEVER: none has
    cdef object lead    # tells readers of this pass; None: the batches are not shared
    cdef bint gathered  # the readers take part
    cdef uint64_t lead_pass, shared  # the pass's number for the lead; results that were shared

    def __init__(self, options, engine, seed, plan, position, on_end, **hooks):
        self.begin(options, engine, seed, plan, position, on_end, **hooks)

    @cython.critical_section
    def begin(self, options, engine, seed, plan, Position position not None, on_end, *, rebuild=error_record.rebuild,
              reword=None, no_timeout=False, tuner=None, lead=None, **hooks):
        """Begin a pass; the parameters are those of the class. Any earlier pass has been closed."""
        self.put_hooks(on_end, rebuild, **hooks)
        self.begin_plan(options, plan, position)
        self.reword = reword
        self.lead, self.gathered, self.lead_pass, self.shared = lead, False, 0, 0
        self.ring, self.meter = engine.ring, engine.meter
        self.tasks = InFlight(self.ring.n_slots)
        self.planning = False
        self.look_at = 0
        self.seed, self.epoch, self.late = seed, position.epoch, NEVER
        self.copy = COPY[options.memory.copy]
        self.in_order = bool(options.in_order)
        self.death_fd = engine.pool.death_fd
        self.idle = IDLE if self.death_fd < 0 else SELDOM
        self.timeout = SR_FOREVER if no_timeout else limit_of(options.timeout)
        self.warn_after = limit_of(options.warn_after)
        self.prefetch_depth = options.prefetch_depth
        self.range_rows = options.workers.chunk_size or 0
        self.single = options.batch_size is None
        self.in_budget = options.workers.memory is not None
        self.supervisor = Supervisor(engine, options, tuner)
        self.look_next = SR_FOREVER if engine.memory is None and tuner is None else 0
        self._engine = engine  # last: an object with an engine is complete, and its __del__ ends the iteration
        cdef uint64_t began = clock()
        try:
            self.iteration = engine.begin_iteration(seed)
            self.start_ns = clock() - began
            self.meter.wait_ns += self.start_ns  # it belongs to the first batch
            if lead is not None:
                self.lead_pass = lead.begin(engine, options, seed, position)
            self.n_static = options.num_workers if engine.by_turns else 0
            if tuner is not None:
                tuner.begin(engine)
            if self.streams is not None and position.workers is None:
                position.workers = [WorkerPosition() for _ in self.streams.pending]
            self.respawns = self.streams is not None and options.respawns
            if self.streams is None and position.workers is not None:
                self.indices = {}
            self.is_plain = self.streams is None and self.indices is None
            self.dispatch(False)  # workers begin now: the caller may do other work before the first next()
        except BaseException as error:
            if lead is not None:
                lead.end(self.lead_pass, 0, error, is_fatal=True)
            self.close()  # now: a later __del__ of this object would end another iteration
            raise

    cdef int check_process(self) except -1:
        self.ring.usable()
        return 0

    # ---- delivery

    cdef Task receive(self):
        cdef Task task = self.received
        cdef int slot
        if task is not None and task.kind != 0:
            return task
        try:
            if task is None:
                slot = self.due_slot()
                if slot < 0:
                    return None
                # No Python code runs until the lease is stored where the next call finds it.
                self.lease = take(self.ring, SR_CONSUMER, slot)
                task = self.received = self.tasks.remove(slot)
                if self.lead is not None:
                    share(self.lease)
                    self.shared += 1
            return self.unpacked(task, self.copy)
        except Closed as error:
            self.closed_meanwhile(error)
            return None
        except DescriptorClosed as error:
            stay_if_exiting()
            self.fail(error)
            raise

    @cython.final
    cdef int closed_meanwhile(self, error) except -1:
        """Raise the exception for a wait that another thread has ended, or give way to the pass that it begins here."""
        if self.restarting:
            self.gives_way = True
            return 0
        if not self.stopped:
            stay_if_exiting()
            if self._engine is None:
                raise ended_meanwhile() from error
        raise error

    @cython.final
    cdef int due_slot(self) except -2:
        """Dispatch and wait; return the slot of the batch that is delivered next, -1 at the end."""
        cdef int slot
        while True:
            self.dispatch(True)
            if self.tasks.n == 0:
                return -1
            if self.lead is not None and not self.gathered:
                self.gather()
            # The oldest task has the lowest sequence number.
            slot = self.wait(self.tasks.first if self.in_order else -1)
            self.go_on()
            if self.in_order or self.tasks.by_slot[slot] is not None:
                return slot

    def record_loop(self, uint64_t begun, uint64_t there, uint64_t before):
        engine = self.engine
        if before:
            self.ring.record_loop((there - begun) / SECOND, (there - before) / SECOND)
        elif engine is not None and engine.running > 1:  # the engine's first wait does not count for the loader's rate
            waited = there - begun + self.start_ns
            self.ring.record_loop(waited / SECOND, waited / SECOND)

    # ---- dispatch

    cdef int dispatch(self, bint may_wait) except -1:
        """Dispatch tasks up to the prefetch depth. `may_wait`: wait for a slot if there is no task to wait for."""
        if self.planning or self.exhausted or self.tasks.n >= self.depth():
            return 0
        self.planning = True
        try:
            self.plan_ahead(may_wait)
        finally:
            self.planning = False
        return 0

    @cython.final
    cdef int plan_ahead(self, bint may_wait) except -1:
        cdef int slot
        while True:
            if self.due is None:
                if self.would_wait is not None and (self.tasks.n or not may_wait) and self.would_wait():
                    return 0
                if not self.plan_next():
                    self.look_next = 0  # look() must learn that the plan has ended
                    return 0
            if self._engine is None:
                raise Closed("the loader was closed while its sampler drew indices")
            slot = self.ring.pick_free()
            if slot < 0:
                if self.tasks.n or not may_wait:
                    return 0
                slot = self.wait_for_slot()
            if not self.put(slot):
                continue
            if self.exhausted or self.tasks.n >= self.depth():
                return 0

    @cython.final
    cdef uint64_t depth(self) noexcept:
        """Return how many tasks may be in flight at once: within a budget, those whose batches fit, but at least one.

        The first batch is made alone, because the size of the batches is not known before.
        """
        if not self.in_budget:
            return self.prefetch_depth
        cdef uint64_t fits = self.ring.fillable(<int> self.ring.n_slots) if self.ring.meter.batches else 1
        return min(self.prefetch_depth, max(fits, <uint64_t> 1))

    @cython.final
    cdef int put(self, uint32_t slot) except -1:
        """Dispatch the prepared task into a slot; return 0 if that must be tried again.

        An exception that the task itself causes ends the plan.
        """
        cdef Task task = Task.__new__(Task)
        cdef uint64_t sequence = 0
        cdef uint32_t addressee = 0
        indices = self.due
        if not self.is_plain:
            if self.streams is not None:
                task.worker, sequence = indices
                indices = None
            if self.indices is not None:
                try:
                    self.indices[self.next_seq] = listed(indices)
                except Exception as error:
                    self.end_with(error)
                    return 1
        if self.n_static and self.streams is None:
            task.worker = self.next_seq % self.n_static if self.in_order else least_busy(self.tasks, self.n_static)
        if task.worker is not None:
            addressee = <uint32_t> task.worker + 2
        task.slot, task.seq, task.sequence = slot, self.next_seq, sequence
        try:
            task.gen = self.ring.dispatch(slot, indices, self.iteration, self.epoch, task.seq, self.seed, sequence,
                                          addressee, self.range_rows, self.single)
        except (SegmentFull, BatchTooLarge, DescriptorClosed) as error:
            self.end_with(error)
            return 1
        if task.gen == NOT_FREE:  # a worker that is short of memory has taken it meanwhile
            return 0
        if task.gen == NOT_INTS:
            try:
                self.due = Pickled(indices)
            except Exception as error:
                self.end_with(error)
                return 1
            return 0
        # No Python code runs below, so Ctrl-C cannot interrupt it.
        self.due = None
        self.next_seq += 1
        self.tasks.add(task)
        return 1

    # ---- waits

    @cython.final
    cdef int wait_for_slot(self) except -1:
        """Wait for a free slot: workers may still use slots of an iteration that has ended."""
        cdef uint64_t began = clock(), give_up = after(began, self.timeout), warn_at = after(began, self.warn_after)
        cdef int slot
        try:
            while True:
                slot = self.ring.pick_free()
                if slot >= 0:
                    return slot
                engine = self._engine
                if self.ring.in_circulation(1) == 0:
                    if FREE_THREADED and clock() - began < LATE:
                        settle()
                        self.ring.await_free(clock() + LATE // 200, self.death_fd)
                        continue
                    if self.lead is None or self.ring.lent == 0:
                        raise slots_held(self.ring.n_slots, self.ring.circulating)
                    self.ring.await_free(min(clock() + IDLE, give_up, warn_at), self.lead.death_fd)
                    attempt(self.lead.warn_of_slots, self.ring, began)
                else:
                    # A publish into such a slot wakes this wait, although the batch is stale.
                    self.ring.await_ready(engine.busy_slot, min(clock() + IDLE, give_up, warn_at), self.death_fd)
                warn_at = self.waited(began, give_up, warn_at)
        finally:
            self.meter.wait_ns += clock() - began

    @cython.final
    cdef int wait(self, int wanted) except -1:
        """Wait for the batch that is due (-1: any); return its slot."""
        cdef int slot = self.ring.await_ready(wanted, 0, -1)
        cdef uint64_t began, give_up, warn_at
        if slot >= 0:
            return slot
        began = clock()
        give_up, warn_at = after(began, self.timeout), after(began, self.warn_after)
        try:
            if began >= self.look_at:  # many short waits must not hide a death
                self.look_at = began + self.idle
                self.check()
            while True:
                slot = self.ring.await_ready(wanted, min(self.look_at, give_up, warn_at), self.death_fd)
                if slot >= 0:
                    return slot
                self.look_at = clock() + self.idle
                warn_at = self.waited(began, give_up, warn_at)
        finally:
            self.meter.wait_ns += clock() - began

    @cython.final
    cdef int gather(self) except -1:
        """Wait until all readers take part in the pass: then each of them gets all of its batches."""
        cdef uint64_t began = clock(), give_up = after(began, self.timeout)
        try:
            while not self.gathered:
                complete, error = attempt(self.lead.is_complete, self.lead_pass, IDLE / SECOND)
                if error is not None:
                    self.fail(error)
                    raise error
                self.check()
                self.gathered = complete
                if not complete and clock() >= give_up:
                    raise self.lead.timed_out(self.lead_pass, self.options.timeout)
        finally:
            self.meter.wait_ns += clock() - began
        return 0

    @cython.final
    cdef uint64_t waited(self, uint64_t began, uint64_t give_up, uint64_t warn_at) except? 0:
        """Do what a wait since `began` requires; return when it must log that it is long."""
        self.check()
        if clock() >= warn_at:
            self.supervisor.log_wait(self.ring, self.oldest_seq(), (clock() - began) / SECOND)
            warn_at = NEVER
        if clock() >= give_up:
            raise self.timed_out()
        return warn_at

    @cython.final
    cdef int go_on(self) except -1:
        if self.stopped:
            raise Closed("another thread has ended the iteration")
        if self._engine is None:
            raise ended_meanwhile()
        return 0

    @cython.critical_section
    def hand_over_timeout(self):
        self.timeout = SR_FOREVER
        return self.options.timeout

    @cython.critical_section
    def timed_out(self):
        """Return the exception for a wait that has taken `timeout` seconds."""
        if self._position is None:
            raise Closed("the iteration has not begun")
        self.late = self._position.changes
        if self.lead is not None and self.tasks.n == 0 and (text := self.lead.slots_kept(self.ring)):
            return LoaderTimeout(f"no batch within timeout={self.options.timeout} s. {text}")
        seq = self.oldest_seq()
        return self.worded(timed_out(self.options.timeout, seq, self.options.num_workers, self.options.method))

    @cython.final
    cdef uint64_t oldest_seq(self) except? 0:
        return self.tasks.oldest().seq if self.tasks.n else self.next_seq

    @cython.final
    cdef object worded(self, error):
        return error if self.reword is None else self.reword(error)

    # ---- checks

    cdef int look(self) except -1:
        self.look_next = 0  # look again if an exception is raised: a user may turn warnings into errors
        self.look_next = self.supervisor.look(self, self._engine, self.exhausted)
        return 0

    @cython.final
    cdef int check(self) except -1:
        """Check that all workers live, and that there are as many as wanted."""
        self.go_on()
        engine = self._engine  # another thread may end the iteration during the check
        error = attempt(self.supervisor.check, self, engine, self.respawns)[1]
        if error is not None:
            stay_if_exiting()  # which ends the workers
            error = self.worded(error) if isinstance(error, WorkerDied) else error
            self.fail(error)
            raise error
        self.death_fd = engine.pool.death_fd
        if self.lead is not None:
            self.lead.recover_dead(engine)
        return 0

    @cython.critical_section
    def resize(self, options):
        """See `Pass.resize`. Any thread may call it; a thread in next() applies it within half a second."""
        cdef unsigned long before
        self.supervisor.resized, self.look_next = options, 0
        if self._engine is None or self._engine.inherited or not self.lock.is_held_by(0):
            return
        before = self.lock.acquire()
        try:
            if self._engine is not None:
                self.supervisor.change_workers(self, self._engine)
        finally:
            self.lock.release(before)

    @cython.critical_section
    def left(self):
        """Return [(task, state)] of the batches that have left their slots and have not been delivered, in order."""
        return [*self.uncommitted, *([] if self.received is None else [(self.received, self.state)])]

    @cython.nonecheck(True)
    def is_ready(self, Task task not None):
        """Return whether a task's batch lies in its slot."""
        return self.ring.await_ready(task.slot, 0, -1) >= 0

    @cython.nonecheck(True)
    def state_at(self, uint32_t slot):
        """Return the state in a slot that is READY; it stays there. None: there is none, or it is corrupt."""
        cdef sr_result result = self.ring.result_of(slot, SR_WHOLE)[0]
        try:
            return state_in(self.ring.payload(slot), self.ring.committed(slot), &result)
        except CorruptBatch:
            return None  # receive() raises it for this batch

    @property
    def inherited(self):
        engine = self.engine
        return engine is not None and engine.inherited

    # ---- the end

    @cython.critical_section
    def fail(self, error):
        """End the iteration: the engine cannot continue."""
        self.error = error
        engine, self._engine = self._engine, None
        if engine is not None:
            if self.lead is not None:
                self.lead.end(self.lead_pass, self.shared, error, is_fatal=True)
            engine.overdue = self.late == self._position.changes
            engine.shut_down()
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()

    @cython.nonecheck(True)
    def interrupt(self, bint on=True):
        """Make the current next() in another thread, and later ones, raise `Closed`; with `on` false, undo that."""
        self.stopped = on
        self.ring.interrupt(on)

    @cython.critical_section
    def drain(self, int64_t upto=0):
        """Wait until workers have made everything in flight, and all batches below `upto`; drop these batches."""
        cdef Task task
        if self._engine is None:
            return
        cdef unsigned long before
        self.interrupt()  # another thread's next() gives up its turn
        try:
            before = self.lock.acquire()
        finally:
            self.interrupt(False)
        try:
            self.received = self.lease = self.value = self.state = None
            while True:
                if <int64_t> self.next_seq < upto:
                    self.prefetch_depth = self.tasks.n + <uint64_t> (upto - <int64_t> self.next_seq)
                    self.dispatch(True)
                task = self.tasks.oldest()
                if task is None:
                    return
                self.wait(task.slot)
                self.ring.discard(task.slot)
                self.tasks.remove(task.slot)
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self.lock.release(before)

    @cython.critical_section
    def close(self, reason=None):
        if not self.at_end:
            self._reason = reason or self._reason
        if self._engine is not None:
            self.ending, self._engine = self._engine, None
        engine = self.ending
        if engine is None:
            return
        if not engine.inherited:
            self.interrupt(False)
            self.received = self.lease = self.value = self.state = None
            self.supervisor.end(clock() if self.at_end else self.meter.taken_at)
            engine.overdue = self.late == self._position.changes
            if self.lead is not None:
                self.lead.end(self.lead_pass, self.shared, self.last_error)
            engine.end_iteration(self.iteration, self.tasks.all())
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()
        self.tasks = InFlight(self.ring.n_slots)
        self.ending = None

    def __del__(self):
        if (self._engine is not None or self.ending is not None) and not _exiting():
            self.close()
