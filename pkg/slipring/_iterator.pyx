"""One pass over a loader: dispatch ahead, deliver in order.

Compiled, because all of it runs once per batch in the training process: after a sleep the caches are cold,
and what the interpreter has to look at costs several times as much as in a tight loop.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from slipring._check cimport forget_handlers, raised_by_a_handler
from slipring._codec cimport receive_kind
from slipring._marks cimport Marks
from slipring._ring cimport Ring
from slipring._segment cimport SR_BATCH, SR_ERROR, clock
from slipring._slices cimport Slices
from slipring._turn cimport Turn
from slipring._under_way cimport Task, UnderWay

from slipring import remote
from slipring._codec import COPY_ALWAYS, COPY_AUTO, COPY_NEVER
from slipring.dispatch import StreamPlan
from slipring.engine import exiting, stay_if_exiting
from slipring.errors import Closed, CorruptBatch, LoaderTimeout, SlotsExhausted, slots_exhausted, timed_out

# ns; how often a waiting consumer looks after its workers, and where the wait ends with a worker (`watched`).
cdef uint64_t IDLE = 100_000_000, SELDOM = 500_000_000
cdef uint64_t NEVER = <uint64_t> -1
cdef double SECOND = 1e9  # ns
cdef object _exiting = exiting  # see there
_COPY = {"auto": COPY_AUTO, "always": COPY_ALWAYS, "never": COPY_NEVER}


@cython.final
@cython.auto_pickle(False)
cdef class LoaderIterator:
    """What ``iter(loader)`` returns; the first tasks are under way with it.

    Several threads may call next(): each batch goes to one of them. Not for use in a forked child.

    Parameters
    ----------
    options : Options
    engine : Engine
    seed : int
        The run's base seed, of 64 bits: what workers add their number to.
    epoch : int
        Of 64 bits; with `seed` and a ticket it seeds a batch.
    plan : iterator or Slices
        What `slipring.dispatch` makes: of indices, or whose turn it is.
    on_end : callable
        Called with the engine when the iteration is over.
    rebuild : callable
        Makes an exception of an error record: `slipring.remote.rebuild`, or one of its signature.
    first_ticket : int
        The number of the first batch that `plan` gives.
    done : iterable of int
        Tickets that are not to be delivered: their indices are skipped.
    patient : bool
        Wait for a batch without a limit: somebody else sees to `timeout`.
    eager : bool
        Dispatch the next task before a batch is handed out, instead of when the one after it is asked for:
        who leaves the iteration then has had as many made as with torch.
    """

    cdef object __weakref__
    cdef readonly object _engine  # None: the iteration is over
    cdef object options, on_end, rebuild, error
    cdef Turn turn  # to be in next(); close() does not ask, to end a wait
    cdef object memory  # what the workers' growth is watched by; None: it is not
    cdef uint64_t memory_at  # when next
    cdef set done
    cdef readonly Ring ring
    cdef Marks marks    # None: batches come without
    cdef UnderWay tasks
    cdef object draw, streams  # where the next task comes from; streams: whose turn it is
    cdef Slices slices         # the same as `draw`, where slipring itself sets the order
    cdef object would_wait     # asks whether the next one must be waited for; None: it never must
    cdef object due     # what the plan gave, and no slot was free for
    cdef object plan_error
    cdef bint exhausted, in_order, inline, single, eager
    cdef bint stopped  # next() is to give up: another thread wants to end the iteration
    cdef int copy
    cdef uint32_t chunk, n_static
    cdef uint64_t run, epoch, seed, next_ticket, look_ahead, timeout, look_at, idle
    cdef int watched   # a descriptor that is readable when a worker has died, or -1
    cdef readonly int64_t last_ticket  # of the batch or error that was delivered last; -1 before
    cdef readonly int last_slot        # where that one lay
    cdef readonly object last_worker   # whom it was addressed to, or None

    def __init__(self, options, engine, seed, epoch, plan, on_end, *, rebuild=remote.rebuild, first_ticket=0,
                 done=(), eager=False, patient=False):
        self.options, self.on_end, self.rebuild = options, on_end, rebuild
        self.turn = Turn()
        self._engine = engine
        self.ring = engine.ring
        self.seed, self.epoch = seed, epoch
        self.next_ticket, self.done, self.last_ticket = first_ticket, set(done), -1
        self.copy = _COPY[options.copy]
        self.in_order, self.inline = bool(options.in_order), engine.inline
        self.watched = engine.pool.watched
        self.idle = IDLE if self.watched < 0 else SELDOM
        limited = options.timeout and not patient
        self.timeout = <uint64_t> (min(options.timeout, 1e9) * SECOND) if limited else NEVER
        self.look_ahead = 1 if self.inline else options.look_ahead
        self.chunk = options.chunk_size or 0
        self.single = options.batch_size is None
        self.eager = eager
        self.memory, self.memory_at = engine.memory, 0
        self.tasks = UnderWay(self.ring.n_slots)
        try:
            self.run = engine.begin_run(seed)
            self.n_static = options.num_workers if engine.static else 0
            self.draw, self.would_wait = plan, getattr(plan, "would_wait", None)
            self.streams = plan if isinstance(plan, StreamPlan) else None
            self.slices = plan if isinstance(plan, Slices) else None
            if self.streams is not None and options.respawns and not self.inline:
                self.marks = Marks(engine, self.run, self.streams)
            if not self.inline:  # workers begin now: the caller may have much to do before the first next()
                self.dispatch(False)
        except BaseException:
            self.close()  # now: later, this object's end would end the run of another
            raise

    def __iter__(self):
        return self

    def __next__(self):
        if self._engine is None:
            self.raise_end()
        self.ring.usable()  # first: in a forked child another thread's turn would last for ever
        cdef unsigned long before = self.turn.take()
        try:
            return self.next_batch()
        finally:
            self.turn.give(before)

    cdef int raise_end(self) except -1:
        if self.error is not None:
            raise Closed(f"the iteration ended with an error: {self.error}")
        raise StopIteration

    cdef object next_batch(self):
        cdef Task task
        cdef int kind = 0
        engine = self._engine
        if engine is None:
            self.raise_end()
        if self.memory is not None and self.ring.meter.taken_at >= self.memory_at:
            self.look_at_memory()
        forget_handlers()
        while True:
            try:
                task = self.due_task(engine)
                if task is not None:
                    value = receive_kind(self.ring, task.slot, self.copy, &kind)
            except (LoaderTimeout, SlotsExhausted, CorruptBatch):
                raise  # the iteration can go on after these
            except Exception as error:
                if self.stopped or raised_by_a_handler(error):
                    raise
                stay_if_exiting()
                if self._engine is None:  # another thread has ended the iteration meanwhile
                    raise Closed("the loader was closed while a batch was waited for") from error
                self.fail(error)
                raise
            if task is None:
                self.finish()
            self.last_ticket, self.last_slot = <int64_t> task.ticket, task.slot
            self.last_worker = task.worker
            if self.marks is not None and kind != SR_ERROR:
                value = self.marks.keep(task.worker, task.sequence, value)
            if self.eager:
                self.dispatch(False)
            if kind == SR_BATCH:
                return value
            if kind == SR_ERROR:
                original = engine.pool.take_error(task.ticket) if self.inline else None
                raise self.rebuild(value, original)
            self.streams.ended(task.worker, value)
            value = None

    cdef int look_at_memory(self) except -1:
        """Between two batches: a warning that is an error to the user costs none of them."""
        self.memory_at = clock() + <uint64_t> (min(self.memory.look(self.ring), 1e9) * SECOND)
        return 0

    cdef Task due_task(self, engine):
        """Dispatch and wait; the task whose batch is to be delivered, None at the end."""
        cdef int slot
        cdef Task task
        self.dispatch(True)
        if self.tasks.n == 0:
            return None
        slot = -1
        if self.in_order:  # tickets come in turn, but for those delivered before a resume
            slot = self.tasks.oldest().slot
        if self.inline:
            engine.pool.advance()
        slot = self.wait(slot)
        task = self.tasks.remove(slot)
        if self.streams is not None:
            self.streams.came(task.worker)
        return task

    def finish(self):
        """Everything has been delivered: end, with the sampler's exception if it raised one."""
        error, self.plan_error = self.plan_error, None
        self.close()
        if error is not None:
            raise error
        raise StopIteration

    # ---- ahead

    cdef int dispatch(self, bint patient) except -1:
        """Fill the look-ahead with tasks; `patient`: wait for a slot where there is no task to wait for."""
        cdef int slot
        while not self.exhausted and self.tasks.n < self.look_ahead:
            if self.due is None:
                if self.would_wait is not None and (self.tasks.n or not patient) and self.would_wait():
                    return 0
                if not self.plan_next():
                    return 0
            if self._engine is None:
                raise Closed("the loader was closed while indices were asked for")
            slot = self.ring.pick_free()
            if slot < 0:
                if self.tasks.n or not patient:
                    return 0
                slot = self.wait_for_slot()
            try:
                self.put(slot)
            except Exception as error:
                self.end_with(error)
        return 0

    cdef int plan_next(self) except -1:
        """Find out what is to be dispatched next; False if that was all."""
        try:
            self.due = self.drawn()
            while self.done and self.next_ticket in self.done and self.due is not None:
                self.done.discard(self.next_ticket)
                self.next_ticket += 1
                self.due = self.drawn()
        except LoaderTimeout as error:
            if self.would_wait is not None:
                raise  # it can be asked again
            self.end_with(error)
        except Exception as error:
            self.end_with(error)
        if self.due is None:
            self.exhausted = True
        return not self.exhausted

    cdef object drawn(self):
        """What the plan gives next; None if that was all."""
        if self.slices is None:
            return next(self.draw, None)
        return self.slices if self.slices.advance() else None

    cdef void end_with(self, error):
        """Dispatch no more; the error is raised at its turn, after the batches before it."""
        self.plan_error = error
        self.exhausted = True

    cdef int put(self, uint32_t slot) except -1:
        cdef Task task = Task.__new__(Task)
        cdef uint64_t sequence = 0
        cdef uint32_t addressee = 0
        indices, self.due = self.due, None
        if self.streams is not None:
            task.worker, sequence = indices
            indices = None
        elif self.n_static:
            task.worker = self.next_ticket % self.n_static if self.in_order else self.least_busy()
        if task.worker is not None:
            addressee = <uint32_t> task.worker + 2
        task.slot, task.ticket, task.sequence = slot, self.next_ticket, sequence
        task.gen = self.ring.dispatch(slot, indices, self.run, self.epoch, task.ticket, self.seed, sequence,
                                      addressee, self.chunk, self.single)
        # From here on nothing of Python's runs, so that Ctrl-C cannot come between.
        self.next_ticket += 1
        self.tasks.add(task)
        return 0

    cdef int least_busy(self) except -1:
        """Who has least to do: in turn, a worker held up by a slow sample would end up with all tasks."""
        cdef list busy = [0] * self.n_static
        cdef Task task
        for task in self.tasks.all():
            busy[task.worker] += 1
        return busy.index(min(busy))

    cdef int wait_for_slot(self) except -1:
        """Wait for a free slot: workers may still be at what an iteration has left behind when it ended."""
        cdef uint64_t began = clock(), give_up = self.give_up(began)
        cdef int slot
        try:
            while True:
                slot = self.ring.pick_free()
                if slot >= 0:
                    return slot
                engine = self._engine
                if self.inline or self.ring.in_circulation() == 0:
                    raise slots_exhausted(self.ring.n_slots, self.ring.in_circulation())
                # What is published into the slot wakes this wait, although nobody wants it any more.
                self.ring.await_ready(engine.left_behind, min(clock() + IDLE, give_up), self.watched)
                self.go_on()
                self.check(engine)
                if clock() >= give_up:
                    raise self.timed_out()
        finally:
            self.ring.meter.wait_ns += clock() - began

    # ---- delivery

    cdef uint64_t give_up(self, uint64_t began) noexcept:
        return NEVER if self.timeout > NEVER - began else began + self.timeout

    cdef int wait(self, int wanted) except -1:
        """Wait for the batch that is due (-1: any); returns its slot."""
        cdef int slot = self.ring.await_ready(wanted, 0, -1)
        cdef uint64_t began, give_up
        if slot >= 0:
            return slot
        began = clock()
        give_up = self.give_up(began)
        try:
            if began >= self.look_at:  # waits that are short each must not hide a death for ever
                self.look_at = began + self.idle
                self.check(self._engine)
            while True:
                slot = self.ring.await_ready(wanted, min(self.look_at, give_up), self.watched)
                if slot >= 0:
                    return slot
                self.look_at = clock() + self.idle
                self.go_on()
                self.check(self._engine)
                if clock() >= give_up:
                    raise self.timed_out()
        finally:
            self.ring.meter.wait_ns += clock() - began

    cdef int go_on(self) except -1:
        if self.stopped:
            raise Closed("another thread has ended the iteration")
        return 0

    def hand_over_timeout(self):
        """Wait without a limit from now on, as if made `patient`; return that in seconds, 0 for none."""
        self.timeout = NEVER
        return self.options.timeout

    def timed_out(self):
        """Return the exception for a wait that has taken `timeout` seconds."""
        ticket = self.tasks.oldest().ticket if self.tasks.n else self.next_ticket
        return timed_out(self.options.timeout, ticket, self.options.num_workers)

    # ---- deaths

    cdef int check(self, engine) except -1:
        """See whether all workers live."""
        engine.pool.check(None if self.marks is None else self.mark_of)
        return 0

    def mark_of(self, number):
        """Return what the worker that takes a dead one's place is told."""
        return self.marks.of(number, self.tasks.all())

    # ---- the end

    def fail(self, error):
        """The engine cannot go on."""
        self.error = error
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shut_down()
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()

    def interrupt(self, bint on=True):
        """Have a next() that waits in another thread raise `Closed`, and those to come; or take that back."""
        self.stopped = on
        self.ring.interrupt(on)

    def drain(self, int64_t upto=0):
        """Have the workers make everything that is under way, and all tickets below `upto`; throw it away."""
        cdef Task task
        if self._engine is None:
            return
        self.interrupt(False)
        try:
            while True:
                if <int64_t> self.next_ticket < upto:
                    self.look_ahead = self.tasks.n + <uint64_t> (upto - <int64_t> self.next_ticket)
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

    def close(self):
        """End the iteration; what is under way is thrown away. Safe to call twice."""
        engine, self._engine = self._engine, None
        if engine is not None and not engine.foreign:
            self.interrupt(False)
            engine.end_run(self.tasks.all())
            self.on_end(engine)
            if self.would_wait is not None:
                self.draw.close()
        self.tasks = UnderWay(self.ring.n_slots)

    def __del__(self):
        if self._engine is not None and not _exiting():
            self.close()
