"""One pass over a loader: dispatch tasks in advance, deliver batches in order.

This module is compiled because all of it runs once per batch in the training process. After a sleep the CPU's caches
are cold, so interpreted code costs several times as much here as in a tight loop.
"""

import collections

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.unistd cimport getpid

from slipring._core.ring._order cimport Slices
from slipring._core.ring._ring cimport NOT_INTS, Pickled, Ring
from slipring._core.ring._segment cimport NOT_FREE, SR_BATCH, SR_CONSUMER, SR_EMPTY, SR_END, SR_ERROR, SR_FOREVER
from slipring._core.ring._segment cimport SR_WHOLE, WITH_STATE, Meter, clock, sr_result
from slipring._core.ring._slot cimport Lease, take
from slipring._core.codec._codec cimport state_in, unpack

from slipring._core.workers import error_record
from slipring._core.codec._codec import COPY
from slipring._core.workers.deaths import log_replay
from slipring._core.passes.engine import exiting, stay_if_exiting
from slipring._core.codec._rows import NO_SAMPLES
from slipring._core.workers.stateful import attempt
from slipring.errors import (
    BatchTooLarge, Closed, CorruptBatch, DescriptorClosed, LoaderTimeout, SegmentFull, WorkerDied, closed_in_a_step,
    generator_ended, reentered, state_in_a_step,
)
from slipring._core.ring.text import slots_held, timed_out

include "_iteration_progress.pxi"
include "_iteration_position.pxi"
include "_iteration_local.pxi"

cdef object _exiting = exiting  # see slipring._core.passes.engine
cdef object NOT_READ = object()


@cython.auto_pickle(False)
cdef class Iteration:
    """The iterator that ``iter(loader)`` returns. Its first tasks are in flight when it is made.

    Several threads may call next(): each batch goes to one of them. A forked child must not use it.

    A task stays in flight until `commit`, which is one step in C. If a signal handler raises before that step, the
    caller can repeat `next`.

    Parameters
    ----------
    options : Options
    engine : Engine or LocalEngine
        A `LocalEngine` has a `fetcher`, which makes the objects that `next` returns, outside of any slot.
    seed : int
        The iteration's base seed of 64 bits, to which workers add their number.
    plan : iterator
        It comes from `slipring._core.passes.source` and yields indices, or which worker is next. Its first item has the
        sequence number ``position.delivered``. Items whose batches are in ``position.beyond`` are skipped.
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
    """

    cdef object __weakref__
    cdef readonly object _engine  # None: the iteration is over
    cdef object ending        # the engine, while close() runs
    cdef object options, on_end, rebuild, error
    cdef readonly object reason  # why it was closed: next() raises this text; None: next() raises StopIteration
    cdef public object next_pass  # if the pass ends without a batch, this begins the next one in its argument; or None
    cdef public object finish_batch  # see `finish`
    cdef object reword, is_recorded, recording
    cdef readonly object before_return
    cdef uint64_t announced   # sequence number + 1 of the batch for which `before_return` was called last
    cdef object fetcher       # of a `LocalEngine`, else None
    cdef ReentrantLock lock  # held in next(); close() does not take it, because it must end a wait
    cdef ReentrantLock restarts  # held by the thread that runs `restart`
    cdef int restarting      # calls of `restart` that have not returned
    cdef int owner           # without a ring: the process that last used the lock
    cdef object memory  # watches the growth of the workers' memory, or None
    cdef object tuner   # finds the best number of workers; None: the number is fixed
    cdef object resized  # options with another number of workers, until they have been applied
    cdef uint64_t look_next, memory_at  # times of the next look() between two batches, and of the next look at memory
    cdef set done
    cdef readonly Ring ring  # None: the batches lie in no slot
    cdef Meter meter
    cdef readonly Position position
    cdef InFlight tasks
    cdef readonly Task received  # the task that has left its slot and has not been committed
    cdef Lease lease    # its slot
    cdef object value   # its batch, or the exception in its place
    cdef object state   # the worker's state that came with it, or None
    cdef object uncommitted  # (task, state) of the batches that `Ahead` has, in order
    cdef dict indices  # sequence number -> the indices of a task in flight; None: no worker reads them again
    cdef bint respawns  # a replacement continues a dead worker's stream at its position
    cdef object draw    # yields the next task
    cdef StreamPlan streams  # the same object if workers make streams, else None
    cdef Slices slices         # the same object if slipring itself determines the order, else None
    cdef object would_wait     # returns whether the plan's next item must be waited for; None: never
    cdef object due     # an item of the plan that has no slot yet
    cdef object plan_error   # raised after the batches that have been dispatched
    cdef object last_error   # raised at the end
    cdef bint exhausted, in_order, inline, single, dispatch_before_return
    cdef bint planning  # from the call of user code for the next task until the task is in a slot
    cdef bint has_hooks   # other code must be called at each next()
    cdef bint is_plain    # workers, but neither streams nor states: a batch needs few steps
    cdef bint gives_way   # `receive` was interrupted by `restart`
    cdef bint at_end      # everything has been delivered
    cdef bint state_kept  # without workers: the state has been stored in the position
    cdef bint stopped  # next() must give up: another thread wants to end the iteration
    cdef int copy
    cdef uint32_t chunk, n_static
    cdef uint64_t iteration, epoch, seed, next_seq, look_ahead, timeout, warn_after, look_at, idle
    cdef readonly uint64_t start_ns  # how long the start waited for workers
    cdef int death_fd   # a descriptor that is readable when a worker has died, or -1
    cdef uint64_t late  # `Position.changes` when a wait took `timeout` seconds; NEVER: none has

    def __cinit__(self, *_, **__):
        self.lock, self.restarts = ReentrantLock(), ReentrantLock()
        self.owner = getpid()

    def __init__(self, options, engine, seed, plan, position, on_end, **hooks):
        self.begin(options, engine, seed, plan, position, on_end, **hooks)

    def begin(self, options, engine, seed, plan, Position position not None, on_end, *, rebuild=error_record.rebuild,
              finish=None, reword=None, dispatch_before_return=False, no_timeout=False,
              before_return=None, is_recorded=None, recording=None, tuner=None):
        """Begin a pass; the parameters are those of the class. Any earlier pass has been closed."""
        self.options, self.on_end, self.rebuild = options, on_end, rebuild
        self.finish_batch, self.reword = finish, reword
        self.before_return, self.announced = before_return, 0
        self.is_recorded, self.recording = is_recorded, recording
        self.has_hooks = dispatch_before_return or before_return is not None or is_recorded is not None
        self.fetcher = engine.fetcher
        self.ring, self.meter = engine.ring, engine.meter
        self.tasks = InFlight(1 if self.ring is None else self.ring.n_slots)
        self.uncommitted, self.received, self.error = collections.deque(), None, None
        self.reason = self.next_pass = None
        self.due = self.plan_error = self.last_error = self.indices = None
        self.exhausted = self.planning = self.at_end = self.state_kept = False
        self.look_at = 0
        self.seed, self.position, self.epoch = seed, position, position.epoch
        self.next_seq, self.done, self.late = position.delivered, set(position.beyond), NEVER
        self.copy = COPY[options.memory.copy]
        self.in_order, self.inline = bool(options.in_order), engine.inline
        self.death_fd = -1 if self.fetcher is not None else engine.pool.death_fd
        self.idle = IDLE if self.death_fd < 0 else SELDOM
        self.timeout = SR_FOREVER if no_timeout else limit_of(options.timeout)
        self.warn_after = limit_of(options.warn_after)
        self.look_ahead = 1 if self.inline else options.look_ahead
        self.chunk = options.workers.chunk_size or 0
        self.single = options.batch_size is None
        self.dispatch_before_return = dispatch_before_return
        self.memory, self.memory_at = engine.memory, 0
        self.tuner = tuner
        self.look_next = SR_FOREVER if self.memory is None and tuner is None else 0
        self.draw, self.would_wait = plan, getattr(plan, "would_wait", None)
        self.streams = plan if isinstance(plan, StreamPlan) else None
        self.slices = plan if isinstance(plan, Slices) else None
        self._engine = engine  # last: an object with an engine is complete, and its __del__ ends the iteration
        cdef uint64_t began = clock()
        try:
            self.iteration = engine.begin_iteration(seed)
            self.start_ns = clock() - began
            if self.fetcher is None:
                self.meter.wait_ns += self.start_ns  # it belongs to the first batch
            self.n_static = options.num_workers if engine.by_turns else 0
            if tuner is not None:
                tuner.begin(engine)
            if self.streams is not None and position.workers is None:
                position.workers = [WorkerPosition() for _ in self.streams.pending]
            self.respawns = self.streams is not None and options.respawns and not self.inline
            if self.streams is None and position.workers is not None and not self.inline:
                self.indices = {}
            self.is_plain = self.streams is None and self.indices is None and not self.inline
            if not self.inline:  # workers begin now: the caller may do other work before the first next()
                self.dispatch(False)
        except BaseException:
            self.close()  # now: a later __del__ of this object would end another iteration
            raise

    def __iter__(self):
        return self

    def __next__(self):
        cdef unsigned long before, me
        while True:
            if self._engine is None and self.next_pass is None and not self.restarting:
                self.raise_end()
            # First: in a forked child, a thread that does not exist there may hold the lock.
            if self.ring is None:
                self.own_lock()
            else:
                self.ring.usable()
            me = PyThread_get_thread_ident()
            if self.lock.holder == me:
                raise reentered()
            before = self.lock.acquire_as(me)
            try:
                value = self.next_batch()
            finally:
                self.lock.release(before)
            if value is not None or not self.gives_way:
                return value
            self.gives_way = False
            if self.restarts.is_mine():
                raise reentered()
            self.restarts.release(self.restarts.acquire())  # wait until the other thread has begun the next pass

    @cython.final
    cdef int own_lock(self) except -1:
        if self.owner != getpid():
            self.owner, self.lock = getpid(), ReentrantLock()
        return 0

    cpdef int raise_end(self, of=None) except -1:
        """Raise the exception that ended the iteration, or StopIteration; or begin `next_pass` in `of` (or in this)."""
        error, self.last_error = self.last_error, None
        if error is not None:
            self.next_pass = None
            raise error
        if self.error is not None:
            raise Closed(f"the iteration ended with an error: {self.error}")
        if self.reason is not None:
            raise Closed(self.reason)
        if self.at_end:
            self.position.finished = True
            if self.next_pass is not None:
                self.next_pass(self if of is None else of)
                return 0
        raise StopIteration

    @cython.final
    cdef object next_batch(self):
        cdef Task task
        cdef int kind
        engine = self._engine
        if engine is None:
            self.raise_end()
            engine = self._engine
        if self.meter.taken_at >= self.look_next:
            self.look(engine)
        while True:
            task = self.receive_with_hooks(engine) if self.has_hooks else self.receive(engine)
            if task is None:
                if self.gives_way:
                    return None
                self.finish()
                engine = self._engine
                continue
            if self.next_pass is not None and (task.kind == SR_BATCH or task.kind == SR_ERROR):
                self.next_pass = None
            # The last place where a signal handler can raise: no Python code runs until the caller has the batch.
            PyErr_CheckSignals()
            kind = task.kind
            value = self.commit(task)
            if kind == SR_BATCH:
                return value
            if kind == SR_ERROR:
                raise value

    @cython.final
    cdef Task receive_with_hooks(self, engine):
        cdef Task task
        if self.is_recorded is None or not self.is_recorded():
            task = self.receive(engine)
        else:
            with self.recording():
                task = self.receive(engine)
        if task is not None:
            if self.dispatch_before_return:
                self.dispatch(False)
            if self.before_return is not None and task.kind == SR_BATCH:
                self.announce(task)
        return task

    cpdef int announce(self, Task task) except -1:
        """Call `before_return` for the batch of a task that has left its slot."""
        if self.announced != task.seq + 1:
            self.announced = task.seq + 1
            self.before_return()
        return 0

    @cython.final
    cdef Task receive(self, engine):
        """Return the task that is due, with its value; None at the end. The call can be repeated until `commit`."""
        cdef Task task = self.received
        cdef int slot, kind = SR_BATCH
        if task is None and self.fetcher is not None:
            task = self.make()
            if task is None:
                return None
        if task is not None and task.kind != 0:
            return task
        if self.fetcher is not None:
            value = self.value
        else:
            try:
                if task is None:
                    slot = self.due_slot(engine)
                    if slot < 0:
                        return None
                    # No Python code runs until the lease is stored where the next call finds it.
                    self.lease = take(self.ring, SR_CONSUMER, slot)
                    task = self.received = self.tasks.remove(slot)
                if self.lease.result.flags & WITH_STATE:
                    self.state = state_in(self.lease.payload, self.lease.limit, &self.lease.result)
                value, kind = unpack(self.lease, self.copy), self.lease.result.kind
                if kind == SR_ERROR:
                    value = self.rebuild(value, engine.pool.error_of(task.seq) if self.inline else None)
            except Closed as error:
                self.closed_meanwhile(error)
                return None
            except CorruptBatch as error:
                value, kind = error, SR_ERROR
            except DescriptorClosed as error:
                stay_if_exiting()
                self.fail(error)
                raise
        if self.finish_batch is not None and kind == SR_BATCH:
            value, error = attempt(self.finish_batch, value)
            if error is not None:
                value, kind = error, SR_ERROR
        self.value, task.kind = value, kind
        return task

    @cython.final
    cdef int closed_meanwhile(self, error) except -1:
        """Raise the exception for a wait that another thread has ended, or give way to the pass that it begins here."""
        if self.restarting:
            self.gives_way = True
            return 0
        if not self.stopped:
            stay_if_exiting()
            if self._engine is None:
                raise Closed("another thread ended the iteration while a batch was awaited") from error
        raise error

    @cython.final
    cdef Task make(self):
        """Let the fetcher make the next batch; return its task, None at the end. The call can be repeated."""
        cdef Task task
        if self.due is None and (self.exhausted or not self.plan_next()):
            return None
        task = Task.__new__(Task)
        task.seq, task.kind = self.next_seq, 0
        indices = self.due
        if self.streams is not None:
            task.worker, task.sequence = indices
        elif self.position.workers is not None:
            task.worker = 0
        value, error = attempt(self.fetcher.make, task.seq, indices)
        if error is not None:
            value, task.kind = error, SR_ERROR
        if value is END_OF_STREAM:
            task.kind = SR_END
        elif value is NO_SAMPLES:
            task.kind = SR_EMPTY
        self.put_by(task, value)
        return task

    @cython.final
    cdef int put_by(self, Task task, value) except -1:
        """Store what the fetcher has made, in one step."""
        self.received, self.value, self.due = task, value, None
        self.state = self.fetcher.state
        self.next_seq += 1
        self.fetcher.kept = None
        self.fetcher.drop()  # nothing is lost if a handler raises from here on
        return 0

    @cython.final
    cdef object commit(self, Task task):
        """Move the position, and return the value of a received task. No Python code runs before the position moves."""
        self.position.add(task, self.state, self.indices)
        if self.is_plain:
            self.received = None
        else:
            self.leave(task)
            if self.indices is not None:
                self.indices.pop(task.seq, None)
        value = self.value
        self.value = self.lease = None
        return value

    @cython.final
    cdef int leave(self, Task task) except -1:
        """Drop the received task, which leaves the iteration. No Python code runs."""
        self.received = self.state = None
        if self.streams is not None:
            self.streams.came(task.worker)
            if task.kind == SR_END:
                self.streams.ended(task.worker)
        if self.inline and task.kind == SR_ERROR and self.fetcher is None and self._engine is not None:
            self._engine.pool.worker.errors.pop(task.seq, None)
        return 0

    # ---- batches that another object moves to a device before they are requested: see `slipring._core.passes.ahead`

    def take(self):
        """Receive the next batch; return (batch, slot, False), or (exception, slot, True); None at the end.

        The slot is -1 if the batch lies in none. The call returns the same until `set_aside` has been called.
        """
        cdef Task task
        cdef unsigned long before
        engine = self._engine
        if engine is None:
            self.raise_end()
        if self.lock.is_mine():
            raise reentered()
        before = self.lock.acquire()
        try:
            if self._engine is None:
                self.raise_end()
            if self.meter.taken_at >= self.look_next:
                self.look(engine)
            while True:
                task = self.receive(engine)
                if task is None:
                    return None
                if task.kind == SR_BATCH or task.kind == SR_ERROR:
                    return self.value, -1 if self.fetcher is not None else task.slot, task.kind == SR_ERROR
                self.set_aside(None, None)
        finally:
            self.lock.release(before)

    def set_aside(self, items, item):
        """Append `item`, which is made of the batch that `take` returned, to `items`. No Python code runs."""
        cdef Task task = self.received
        if task is None:
            raise Closed("the iteration was closed while a batch was on its way to a device")
        if items is not None:
            items.append(item)
        self.uncommitted.append((task, self.state))
        self.leave(task)
        self.value = self.lease = None

    def note_copy(self, slot, seconds):
        """Record how long the copy from a slot took."""
        self.ring.note_copy(slot, seconds)

    def note_loop(self, uint64_t begun, uint64_t there, uint64_t before):
        """Record that the loop waited from `begun` to `there`; `before` is when its last wait ended. All in ns."""
        engine = self._engine
        if self.ring is None:
            return
        if before:
            self.ring.note_loop((there - begun) / SECOND, (there - before) / SECOND)
        elif engine is not None and engine.running > 1:  # the engine's first wait does not count for the loader's rate
            waited = there - begun + self.start_ns
            self.ring.note_loop(waited / SECOND, waited / SECOND)

    def commit_upto(self, last):
        """Commit the tasks that were set aside, up to this one; None: none of them; True: all."""
        cdef Task task
        while last is not None and self.uncommitted:
            task, state = self.uncommitted.popleft()
            self.position.add(task, state, self.indices)
            if self.indices is not None:
                self.indices.pop(task.seq, None)
            if task is last:
                break

    @cython.final
    cdef int look(self, engine) except -1:
        """Look at memory and workers between two batches. If a user turns a warning into an error, no batch is lost."""
        cdef uint64_t then = SR_FOREVER
        self.look_next = 0  # look again if an exception is raised
        if self.resized is not None:
            self.change_workers(engine)
        if self.tuner is not None:
            options = self.tuner.look(engine, self.options, self.exhausted)
            if options is not None:
                self.resized = options
                self.change_workers(engine)
            then = self.tuner.look_next
        if self.memory is not None:
            if clock() >= self.memory_at:
                self.memory_at = clock() + <uint64_t> (min(self.memory.look(self.ring), 1e9) * SECOND)
            then = min(then, self.memory_at)
        if engine.pool.resizing:
            engine.pool.reconcile()
            then = min(then, clock() + IDLE)
        self.look_next = then if self.resized is None else 0
        return 0

    @cython.final
    cdef int change_workers(self, engine) except -1:
        """Adapt workers and tasks in flight to the options in `resized`, or leave that to the next iteration."""
        options = self.resized
        if not engine.fixed and options.num_workers <= engine.worker_capacity:
            self.look_ahead = options.look_ahead
            if self.resized is options:  # another thread may have requested another number meanwhile
                self.resized = None  # if a signal handler raises from here on, the pool itself continues
            engine.resize(options.num_workers)
        if self.resized is options:
            self.resized = None
        return 0

    def resize(self, options):
        """Continue with the number of workers of these options if the batches do not depend on it.

        Any thread may call it. If another thread is in next(), that thread applies it within half a second.
        """
        cdef unsigned long before
        self.resized, self.look_next = options, 0
        if self._engine is None or self._engine.foreign or self.lock.holder != 0:
            return
        before = self.lock.acquire()
        try:
            if self._engine is not None and self.resized is not None:
                self.change_workers(self._engine)
        finally:
            self.lock.release(before)

    @property
    def is_live(self):
        """bool: whether the iteration is still running."""
        return self._engine is not None

    @property
    def foreign(self):
        """bool: whether this process has inherited the iteration by a fork."""
        return self._engine is not None and self._engine.foreign

    @cython.final
    cdef int due_slot(self, engine) except -2:
        """Dispatch and wait; return the slot of the batch that is delivered next, -1 at the end."""
        cdef int slot
        while True:
            self.dispatch(True)
            if self.tasks.n == 0:
                return -1
            # The oldest task has the lowest sequence number.
            slot = self.tasks.first if self.in_order else -1
            if self.inline:
                self.make_here(engine)
            slot = self.wait(slot)
            self.go_on()
            if self.in_order or self.tasks.by_slot[slot] is not None:
                return slot

    @cython.final
    cdef int make_here(self, engine) except -1:
        """Make the next batch here, without workers; the time counts as waiting."""
        cdef uint64_t began = clock()
        try:
            engine.pool.advance()
        finally:
            self.meter.wait_ns += clock() - began
        return 0

    def finish(self, of=None):
        """End after everything has been delivered; raise the sampler's exception, or as `raise_end` does."""
        self.last_error, self.plan_error = self.plan_error, None
        self.at_end = True
        self.position.finished = self.last_error is None
        if self.tuner is not None:
            self.tuner.end(clock())
        if self.keeps_state():
            self.keep_state(True)
        self.close()
        self.raise_end(of)

    # ---- ahead

    @cython.final
    cdef int dispatch(self, bint patient) except -1:
        """Dispatch tasks up to the prefetch depth. `patient`: wait for a slot if there is no task to wait for."""
        if self.planning or self.exhausted or self.tasks.n >= self.look_ahead:
            return 0
        self.planning = True
        try:
            self.plan_ahead(patient)
        finally:
            self.planning = False
        return 0

    @cython.final
    cdef int plan_ahead(self, bint patient) except -1:
        cdef int slot
        while True:
            if self.due is None:
                if self.would_wait is not None and (self.tasks.n or not patient) and self.would_wait():
                    return 0
                if not self.plan_next():
                    self.look_next = 0  # look() must learn that the plan has ended
                    return 0
            if self._engine is None:
                raise Closed("the loader was closed while its sampler drew indices")
            slot = self.ring.pick_free()
            if slot < 0:
                if self.tasks.n or not patient:
                    return 0
                slot = self.wait_for_slot()
            if not self.put(slot):
                continue
            if self.exhausted or self.tasks.n >= self.look_ahead:
                return 0

    @cython.final
    cdef int plan_next(self) except -1:
        """Prepare the next task; return False if the plan has no more tasks."""
        if self.slices is not None and not self.done:  # advance() cannot raise, so the steps below are not needed
            self.exhausted = not self.slices.advance()
            self.due = None if self.exhausted else self.slices
            return not self.exhausted
        self.due = self.drawn()
        while self.done and self.next_seq in self.done and self.due is not None and type(self.due) is not Failed:
            self.done.discard(self.next_seq)
            self.next_seq += 1
            self.due = None
            self.due = self.drawn()
        if type(self.due) is Failed:
            self.end_with((<Failed> self.due).error)
        elif self.due is None:
            self.exhausted = True
        return not self.exhausted

    @cython.final
    cdef object drawn(self):
        """Return the plan's next item, None at the end. The time of a user's sampler counts as waiting."""
        cdef uint64_t began
        if self.slices is not None:
            return self.slices if self.slices.advance() else None
        if self.streams is not None or self.fetcher is not None:
            return next(self.draw, None)
        began = clock()
        try:
            return next(self.draw, None)
        finally:
            self.meter.wait_ns += clock() - began

    @cython.final
    cdef void end_with(self, error):
        """Dispatch no more. The error is raised after the batches before it."""
        self.plan_error = error
        self.due = None
        self.exhausted = True

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
                                          addressee, self.chunk, self.single)
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
                if self.inline or self.ring.in_circulation(1) == 0:
                    raise slots_held(self.ring.n_slots, self.ring.circulating)
                # A publish into such a slot wakes this wait, although the batch is stale.
                self.ring.await_ready(engine.left_behind, min(clock() + IDLE, give_up, warn_at), self.death_fd)
                self.go_on()
                self.check(engine)
                warn_at = self.warn(warn_at, began)
                if clock() >= give_up:
                    raise self.timed_out()
        finally:
            self.meter.wait_ns += clock() - began

    # ---- delivery

    @cython.final
    cdef uint64_t warn(self, uint64_t warn_at, uint64_t began) except? 0:
        """Log a wait that has lasted since `began`, if it is time; return when to do so from now on."""
        if clock() < warn_at:
            return warn_at
        attempt(log_wait, self.ring, self.oldest_seq(), (clock() - began) / SECOND)  # it may fail: no batch is lost
        return NEVER

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
                self.check(self._engine)
            while True:
                slot = self.ring.await_ready(wanted, min(self.look_at, give_up, warn_at), self.death_fd)
                if slot >= 0:
                    return slot
                self.look_at = clock() + self.idle
                self.go_on()
                self.check(self._engine)
                warn_at = self.warn(warn_at, began)
                if clock() >= give_up:
                    raise self.timed_out()
        finally:
            self.meter.wait_ns += clock() - began

    @cython.final
    cdef int go_on(self) except -1:
        if self.stopped:
            raise Closed("another thread has ended the iteration")
        if self._engine is None:
            raise Closed("another thread ended the iteration while a batch was awaited")
        return 0

    def hand_over_timeout(self):
        """Wait without a limit from now on; return the previous limit in seconds, 0 for none."""
        self.timeout = SR_FOREVER
        return self.options.timeout

    def timed_out(self):
        """Return the exception for a wait that has taken `timeout` seconds."""
        self.late = self.position.changes
        seq = self.oldest_seq()
        return self.worded(timed_out(self.options.timeout, seq, self.options.num_workers, self.options.method))

    @cython.final
    cdef uint64_t oldest_seq(self) except? 0:
        return self.tasks.oldest().seq if self.tasks.n else self.next_seq

    @cython.final
    cdef object worded(self, error):
        return error if self.reword is None else self.reword(error)

    # ---- deaths

    @cython.final
    cdef int check(self, engine) except -1:
        """Check that all workers live, and that there are as many as wanted."""
        if self.resized is not None:
            self.change_workers(engine)
        error = attempt(engine.pool.check, self.state_for if self.respawns else None)[1]
        if error is not None:
            stay_if_exiting()  # which ends the workers
            error = self.worded(error) if isinstance(error, WorkerDied) else error
            self.fail(error)
            raise error
        self.death_fd = engine.pool.death_fd
        return 0

    @cython.nonecheck(True)
    def state_for(self, number):
        """Return the position from which a dead worker's replacement continues; see `Worker.inherited`.

        It is the newest state that the worker has published in this iteration, delivered or not. The replacement
        reads the later samples again.
        """
        cdef WorkerPosition worker = <WorkerPosition> self.position.workers[number]
        cdef Task task
        cdef int64_t at = worker.at
        state = worker.state if at >= 0 else None
        due = self.streams.sequence[number] if number in self.streams.turn else None
        # The tasks of a worker in the order of their sequence: those that have left their slots come before the others.
        left = [*self.uncommitted, *([] if self.received is None else [(self.received, self.state)])]
        for task, later in left + [(task, NOT_READ) for task in self.tasks.all()]:
            if task.worker != number:
                continue
            if later is NOT_READ:
                if self.ring.await_ready(task.slot, 0, -1) < 0:
                    due = task.sequence
                    break
                later = self.state_at(task.slot)
            if later is not None:
                state, at = later, <int64_t> task.sequence + 1
        at = max(at, 0)
        if due:
            self._engine.counters.goes_on(state is not None, due - at)
            log_replay(number, due - at, state is not None)
        return self.iteration, at, state

    @cython.final
    cdef bytes state_at(self, uint32_t slot):
        """Return the state in a slot that is READY; it stays there."""
        cdef sr_result result = self.ring.result_of(slot, SR_WHOLE)[0]
        try:
            return state_in(self.ring.payload(slot), self.ring.committed(slot), &result)
        except CorruptBatch:
            return None  # receive() raises it for this batch

    # ---- the end

    def fail(self, error):
        """End the iteration: the engine cannot continue."""
        self.error = error
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.overdue = self.late == self.position.changes
            engine.shut_down()
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()

    @cython.nonecheck(True)
    def interrupt(self, bint on=True):
        """Make the current next() in another thread, and later ones, raise `Closed`; with `on` false, undo that."""
        self.stopped = on
        if self.ring is not None:
            self.ring.interrupt(on)

    def restart(self, begin):
        """Call `begin`, which begins another pass, while no thread is in next(); waiting threads use that pass."""
        cdef unsigned long before, turn
        if self.lock.is_mine():
            raise reentered()
        self.restarting += 1
        try:
            turn = self.restarts.acquire()
            try:
                self.interrupt()
                try:
                    before = self.lock.acquire()
                finally:
                    self.interrupt(False)
                try:
                    return begin()
                finally:
                    self.lock.release(before)
            finally:
                self.restarts.release(turn)
        finally:
            self.restarting -= 1

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
                    self.look_ahead = self.tasks.n + <uint64_t> (upto - <int64_t> self.next_seq)
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

    def ask_state(self, at_end=False):
        """Without workers, query the states of the dataset and its iterator, and store them in the position.

        Workers send theirs with the batches. `at_end`: this is part of the last next().

        Raise RuntimeError if this thread is making a batch, or if a batch is half made.
        """
        cdef unsigned long before
        engine = self._engine
        if not self.inline or self.position.workers is None or engine is None or engine.foreign:
            return
        if self.lock.is_mine() and not at_end:
            raise state_in_a_step()
        before = self.lock.acquire()
        try:
            if self._engine is not None:
                self.put_state(engine)
        finally:
            self.lock.release(before)

    @cython.final
    cdef int put_state(self, engine) except -1:
        cdef WorkerPosition worker = <WorkerPosition> self.position.workers[0]
        asked, states = engine.pool.states_now(self.received is not None or len(self.uncommitted) > 0)
        if asked:
            if self.streams is None:
                worker.batches = self.position.delivered
            worker.put(states, 0)
        return 0

    @cython.final
    cdef bint keeps_state(self):
        return self.inline and self._engine is not None and self.position.workers is not None and not self.state_kept

    @cython.final
    cdef int keep_state(self, bint at_end) except -1:
        """Store the state before the iteration ends, without waiting. If this fails, `state_dict` raises the exception.

        `at_end`: this is part of the last next().
        """
        if not at_end and self.lock.holder != 0:
            error = closed_in_a_step()
        else:
            error = attempt(self.ask_state, at_end)[1]
        if error is not None:
            (<WorkerPosition> self.position.workers[0]).put(error.with_traceback(None), 0)
        self.state_kept = True
        return 0

    def close(self, reason=None):
        """End the iteration and cancel the tasks in flight. Safe to call twice, and again after Ctrl-C.

        `reason`: before the iteration's end, later calls of next() raise `Closed` with this text.
        """
        if not self.at_end:
            self.reason = reason or self.reason
        if self.keeps_state():
            self.keep_state(False)
        if self._engine is not None:
            self.ending, self._engine = self._engine, None
        engine = self.ending
        if engine is None:
            return
        if not engine.foreign:
            self.interrupt(False)
            self.received = self.lease = self.value = self.state = None
            if self.tuner is not None:
                self.tuner.end(self.meter.taken_at)  # the program's later activity is unknown
            engine.overdue = self.late == self.position.changes
            engine.end_iteration(self.iteration, self.tasks.all())
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()
        self.tasks = InFlight(1 if self.ring is None else self.ring.n_slots)
        self.ending = None

    def __del__(self):
        if (self._engine is not None or self.ending is not None) and not _exiting():
            self.close()


include "_iteration_device.pxi"
