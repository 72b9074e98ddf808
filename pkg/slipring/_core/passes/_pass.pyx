"""The base class of passes with and without workers: the plan, the delivery and the end.

A batch stays due until `commit`, which is one step in C. If a signal handler raises before that step, the caller can
repeat `next`.
"""

import collections

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t

from slipring._core.codec._codec cimport state_in, unpack
from slipring._core.passes._inflight cimport Position, Task
from slipring._core.passes._plan cimport Failed, StreamPlan
from slipring._core.passes._turnstile cimport Turnstile
from slipring._core.ring._order cimport Slices
from slipring._core.ring._segment cimport SR_BATCH, SR_END, SR_ERROR, SR_FOREVER, WITH_STATE, clock

from slipring._core.passes._plan import Interrupted
from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, CorruptBatch, ended_meanwhile


@cython.auto_pickle(False)
cdef class Pass(Turnstile):
    """Base class of the iterators that ``iter(loader)`` returns.

    `plan` comes from `slipring._core.passes.source` and yields indices, or which worker is next. Its first item has the
    sequence number ``position.delivered``. Items whose batches are in ``position.beyond`` are skipped.
    """

    def put_hooks(self, on_end, rebuild=None, finish=None, before_return=None, is_recorded=None, recording=None,
                  dispatch_before_return=False):
        """Set the functions of a frontend; see `Iteration`."""
        self.on_end, self.rebuild, self.finish_batch = on_end, rebuild, finish
        self.before_return, self.announced = before_return, 0
        self.is_recorded, self.recording = is_recorded, recording
        self.dispatch_before_return = dispatch_before_return
        self.has_hooks = dispatch_before_return or before_return is not None or is_recorded is not None

    @cython.final
    cdef int begin_plan(self, options, plan, Position position) except -1:
        self.options, self._position = options, position
        self.uncommitted, self.received, self.error = collections.deque(), None, None
        self._reason = self._next_pass = None
        self.due = self.plan_error = self.last_error = self.indices = None
        self.exhausted = self.at_end = self.is_plain = False
        self.look_next = SR_FOREVER
        self.next_seq, self.done = position.delivered, set(position.beyond)
        self.draw, self.would_wait = plan, getattr(plan, "would_wait", None)
        self.streams = plan if isinstance(plan, StreamPlan) else None
        self.slices = plan if isinstance(plan, Slices) else None
        return 0

    # ---- what each kind of pass does in its own way

    cdef int check_process(self) except -1:
        """Raise `Closed` in a forked child that cannot use this iterator."""
        return 0

    cdef int look(self) except -1:
        """Look at memory and workers between two batches."""
        return 0

    cdef Task receive(self):
        """Return the task that is due, with its value; None at the end. The call can be repeated until `commit`."""
        raise NotImplementedError

    @cython.final
    cdef Task unpacked(self, Task task, int copy):
        """Decode the batch of a received task from its slot, and return the task."""
        cdef int kind = SR_BATCH
        cdef Lease lease = self.lease
        try:
            if lease.result.flags & WITH_STATE:
                self.state = state_in(lease.payload, lease.limit, &lease.result)
            value, kind = unpack(lease, copy), lease.result.kind
            if kind == SR_ERROR:
                value = self.rebuild(value)
        except CorruptBatch as error:
            value, kind = error, SR_ERROR
        if self.finish_batch is not None and kind == SR_BATCH:
            value, error = attempt(self.finish_batch, value)
            if error is not None:
                value, kind = error, SR_ERROR
        if self.lease is not lease:  # the batch's own code, or a thread meanwhile, has closed the iteration
            raise ended_meanwhile()
        self.value, task.kind = value, kind
        return task

    cdef int dispatch(self, bint may_wait) except -1:
        """Dispatch tasks up to the prefetch depth."""
        return 0

    # A property that another thread's step may set is read in a critical section: without a GIL, a plain attribute's
    # object may be freed before it is counted.

    @property
    def position(self):
        """Position: of the batches that were delivered."""
        with cython.critical_section(self):
            return self._position

    @property
    def next_pass(self):
        """Callable: begins the next pass in its argument, if this one ends without a batch; or None."""
        with cython.critical_section(self):
            return self._next_pass

    @next_pass.setter
    def next_pass(self, begin):
        with cython.critical_section(self):
            self._next_pass = begin

    @property
    def engine(self):
        """Engine: it makes the batches; None: the iteration is over."""
        with cython.critical_section(self):
            return self._engine

    @property
    def reason(self):
        """str: why the iteration was closed, which next() raises; None: next() raises StopIteration."""
        with cython.critical_section(self):
            return self._reason

    @property
    def inherited(self):
        """bool: whether this process has inherited the iteration by a fork, and cannot continue it."""
        return False

    def ask_state(self):
        """Store the current state of a dataset of this process in the position."""

    def hand_over_timeout(self):
        """Wait without a limit from now on; return the previous limit in seconds, 0 for none."""
        return 0

    def record_loop(self, uint64_t begun, uint64_t there, uint64_t before):
        """Record that the loop waited from `begun` to `there`; `before` is when its last wait ended. All in ns."""

    def record_copy(self, uint32_t slot, double seconds):
        """Record how long the copy of the batch in a slot to a device took."""
        self.ring.record_copy(slot, seconds)

    def resize(self, options):
        """Continue with the number of workers of these options if the batches do not depend on it."""

    def close(self, reason=None):
        """End the iteration. Safe to call twice, and again after Ctrl-C.

        `reason`: before the iteration's end, later calls of next() raise `Closed` with this text.
        """
        raise NotImplementedError

    # ---- delivery

    def __iter__(self):
        return self

    def __next__(self):
        with cython.critical_section(self):
            return self.next_here()

    @cython.final
    cdef object next_here(self):
        cdef unsigned long before
        while True:
            if self._engine is None and self._next_pass is None and not self.restarting:
                self.raise_end()
            self.check_process()  # first: in a forked child, a thread that does not exist there may hold the lock
            before = self.enter()
            try:
                value = self.next_batch()
            finally:
                self.lock.release(before)
            if value is not None or not self.gives_way:
                return value
            self.gives_way = False
            self.await_restart()

    @cython.critical_section
    cpdef int raise_end(self, of=None) except -1:
        """Raise the exception that ended the iteration, or StopIteration; or begin `next_pass` in `of` (or in this)."""
        error, self.last_error = self.last_error, None
        if error is not None:
            self._next_pass = None
            raise error
        if self.error is not None:
            raise Closed(f"the iteration ended with an error: {self.error}")
        if self._reason is not None:
            raise Closed(self._reason)
        if self.at_end:
            self._position.finished = True
            if self._next_pass is not None:
                self._next_pass(self if of is None else of)
                return 0
        raise StopIteration

    @cython.final
    cdef object next_batch(self):
        cdef Task task
        cdef int kind
        if self._engine is None:
            self.raise_end()
        if self.meter.taken_at >= self.look_next:
            self.look()
        while True:
            task = self.receive_with_hooks() if self.has_hooks else self.receive()
            if task is None:
                if self.gives_way:
                    return None
                self.finish()
                continue
            if self._next_pass is not None and (task.kind == SR_BATCH or task.kind == SR_ERROR):
                self._next_pass = None
            # The last place where a signal handler can raise: no Python code runs until the caller has the batch.
            PyErr_CheckSignals()
            if self.received is not task:  # the iteration was closed by a hook, by a handler or by another thread
                raise ended_meanwhile()
            kind = task.kind
            value = self.commit(task)
            if kind == SR_BATCH:
                return value
            if kind == SR_ERROR:
                raise value

    @cython.final
    cdef Task receive_with_hooks(self):
        cdef Task task
        if self.is_recorded is None or not self.is_recorded():
            task = self.receive()
        else:
            with self.recording():
                task = self.receive()
        if task is not None:
            if self.dispatch_before_return:
                self.dispatch(False)
            if self.before_return is not None and task.kind == SR_BATCH:
                self.announce(task)
        return task

    @cython.critical_section
    cpdef int announce(self, Task task) except -1:
        """Call `before_return` for the batch of a task."""
        if self.announced != task.seq + 1:
            self.announced = task.seq + 1
            self.before_return()
        return 0

    @cython.final
    cdef object commit(self, Task task):
        """Move the position, and return the value of a received task. No Python code runs before the position moves."""
        value = self.value
        self._position.add(task, self.state, self.indices)
        if self.is_plain:
            self.received = None
        else:
            self.leave(task)
            if self.indices is not None:
                self.indices.pop(task.seq, None)
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
        return 0

    @cython.critical_section
    def finish(self, of=None):
        """End after everything has been delivered; raise the sampler's exception, or as `raise_end` does."""
        self.end_if_interrupted()
        self.last_error, self.plan_error = self.plan_error, None
        self.at_end = True
        self._position.finished = self.last_error is None
        self.close()
        self.raise_end(of)

    @cython.final
    cdef int end_if_interrupted(self) except -1:
        """End before the sampler's end if Ctrl-C has interrupted it: then batches that are aside are not delivered."""
        if isinstance(self.plan_error, Interrupted):
            self.close(str(self.plan_error))
            raise Closed(self._reason)
        return 0

    @property
    def is_live(self):
        """bool: whether the iteration is still running."""
        return self._engine is not None

    # ---- batches that another object moves to a device before they are requested: see `slipring._core.passes.prefetch`

    @cython.critical_section
    def take(self):
        """Receive the next batch; return (task, batch, slot, False), or (task, exception, slot, True); None at the end.

        The slot is -1 if the batch lies in none. The call returns the same until `defer_commit` has been called.
        """
        cdef Task task
        cdef unsigned long before
        if self._engine is None:
            self.raise_end()
        before = self.enter()
        try:
            if self._engine is None:
                self.raise_end()
            if self.meter.taken_at >= self.look_next:
                self.look()
            while True:
                task = self.receive()
                if task is None:
                    self.end_if_interrupted()
                    return None
                if task.kind == SR_BATCH or task.kind == SR_ERROR:
                    return task, self.value, -1 if self.ring is None else task.slot, task.kind == SR_ERROR
                self.defer_commit(None, None)
        finally:
            self.lock.release(before)

    @cython.critical_section
    def defer_commit(self, items, item):
        """Append `item`, which is made of the batch that `take` returned, to `items`. No Python code runs."""
        cdef Task task = self.received
        if task is None:
            raise Closed("the iteration was closed while a batch was on its way to a device")
        if items is not None:
            items.append(item)
        self.uncommitted.append((task, self.state))
        self.leave(task)
        self.value = self.lease = None

    @cython.critical_section
    def commit_upto(self, last):
        """Commit the tasks that were set aside, up to this one; None: none of them; True: all."""
        cdef Task task
        while last is not None and self.uncommitted:
            task, state = self.uncommitted.popleft()
            self._position.add(task, state, self.indices)
            if self.indices is not None:
                self.indices.pop(task.seq, None)
            if task is last:
                break

    # ---- the plan

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
        if self.streams is not None:
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
