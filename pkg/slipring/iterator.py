"""One pass over a loader: dispatch ahead, deliver in order."""

import time

from slipring import remote
from slipring._codec import COPY_ALWAYS, COPY_AUTO, COPY_NEVER, receive
from slipring._encode import BATCH, ERROR
from slipring._ring import mix
from slipring.dispatch import MapPlan, StreamPlan, Task
from slipring.engine import stay_if_exiting
from slipring.errors import Closed, CorruptBatch, LoaderTimeout, SlotsExhausted

IDLE_S = 0.1  # how often a waiting consumer looks after its workers
MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64
_COPY = {"auto": COPY_AUTO, "always": COPY_ALWAYS, "never": COPY_NEVER}


class LoaderIterator:
    """What ``iter(loader)`` returns.

    Not for use by several threads at once, nor in a forked child.
    """

    def __init__(self, loader, engine, epoch, on_end):
        options = loader.options
        self._options = options
        self._engine = engine
        self._ring = engine.ring
        self._tally = loader._tally
        self._on_end = on_end
        self._epoch = epoch
        # The run's base seed: what workers add their number to.
        self._seed = seed = mix(loader.seed, epoch) & MASK_62
        self._copy = _COPY[options.copy]
        self._tasks = {}  # ticket -> Task, in dispatch order
        self._by_slot = {}
        self._next_ticket = 0
        self._exhausted = False
        self._look_at = 0.0  # when to look after the workers, also in short waits
        self._error = None
        self._plan_error = None
        self._plan = self._streams = None
        self._due = None  # what the plan gave, and no slot was free for
        try:
            self._run = engine.begin_run(seed)
            if loader.is_stream:
                self._streams = StreamPlan(max(1, options.num_workers), options.in_order)
            else:
                self._plan = MapPlan(options, loader.dataset, seed)
        except BaseException:
            self.close()  # now: later, this object's end would end the run of another
            raise
        self._look_ahead = 1 if engine.inline else options.look_ahead
        self._chunk = options.chunk_size or 0

    def __iter__(self):
        return self

    def __next__(self):
        engine = self._engine
        if engine is None:
            if self._error is not None:
                raise Closed(f"the iteration ended with an error: {self._error}")
            raise StopIteration
        while True:
            try:
                delivery = self._step()
            except (LoaderTimeout, SlotsExhausted, CorruptBatch):
                raise  # the iteration can go on after these
            except Exception as error:
                stay_if_exiting()
                if self._engine is None:  # another thread has ended the iteration meanwhile
                    raise Closed("the loader was closed while a batch was waited for") from error
                self._fail(error)
                raise
            if delivery is None:
                self._finish()
            kind, value, task = delivery
            if kind == BATCH:
                return value
            if kind == ERROR:
                original = engine.pool.take_error(task.ticket) if engine.inline else None
                raise remote.rebuild(value, original)
            self._streams.ended(task.worker)

    def _step(self):
        """Dispatch, wait, take; None at the end."""
        if self._ring.forked:
            raise Closed("this iterator belongs to the parent process; make a new one after fork")
        self._dispatch()
        if not self._tasks:
            return None
        slot = self._wait()
        task = self._by_slot.pop(slot)
        del self._tasks[task.ticket]
        if self._streams is not None:
            self._streams.came(task.worker)
        return (*receive(self._ring, slot, self._copy), task)

    def _finish(self):
        """Everything has been delivered: end, with the sampler's exception if it raised one."""
        error, self._plan_error = self._plan_error, None
        self.close()
        if error is not None:
            raise error
        raise StopIteration

    # ---- ahead

    def _dispatch(self):
        """Fill the look-ahead with tasks."""
        while not self._exhausted and len(self._tasks) < self._look_ahead:
            if self._due is None and not self._plan_next():
                return
            slot = self._ring.pick_free()
            if slot < 0:
                if self._tasks:
                    return
                slot = self._wait_for_slot()
            try:
                self._put(slot)
            except Exception as error:
                self._end_with(error)

    def _plan_next(self):
        """Find out what is to be dispatched next; False if that was all."""
        try:
            plan = self._plan if self._streams is None else self._streams
            self._due = next(plan, None)
        except Exception as error:
            self._end_with(error)
        if self._due is None:
            self._exhausted = True
        return not self._exhausted

    def _end_with(self, error):
        """Dispatch no more; the error is raised at its turn, after the batches before it."""
        self._plan_error = error
        self._exhausted = True

    def _put(self, slot):
        worker, sequence, indices, single = None, 0, None, False
        due, self._due = self._due, None
        if self._streams is not None:
            worker, sequence = due
        else:
            indices, single = due, self._plan.single
            if self._engine.static and not self._engine.inline:
                worker = self._next_ticket % self._options.num_workers
        ticket = self._next_ticket
        gen = self._ring.dispatch(
            slot,
            indices,
            self._run,
            self._epoch,
            ticket,
            self._seed,
            sequence,
            0 if worker is None else worker + 2,
            self._chunk,
            single,
        )
        self._next_ticket += 1
        self._tasks[ticket] = self._by_slot[slot] = Task(ticket, slot, gen, worker)

    def _wait_for_slot(self):
        """Wait for a free slot: workers may still be at what an iteration has left behind when it ended."""
        began = time.perf_counter()
        timeout = self._options.timeout
        try:
            while (slot := self._ring.pick_free()) < 0:
                if self._engine.inline or self._ring.circulating == 0:
                    raise self._no_slot()
                # What is published into the slot wakes this wait, although nobody wants it any more.
                self._ring.wait_ready(self._engine.left_behind, min(IDLE_S, timeout or IDLE_S))
                self._engine.pool.check()
                if timeout and time.perf_counter() - began >= timeout:
                    raise self._timed_out(timeout)
            return slot
        finally:
            self._tally.consumer_wait_s += time.perf_counter() - began

    def _no_slot(self):
        n = self._ring.n_slots
        return SlotsExhausted(
            f"all {n} slots are held ({n - self._ring.circulating} of them by batches you keep, or by worker "
            "code that keeps arrays from slipring.empty), so no batch can be made; drop batches, raise slots="
            f" (now {n}), or use copy='auto'"
        )

    # ---- delivery

    def _wait(self):
        """Wait for the batch that is due; returns its slot."""
        wanted = next(iter(self._tasks.values())).slot if self._options.in_order else -1
        if self._engine.inline:
            self._engine.pool.advance()
        slot = self._ring.wait_ready(wanted, 0)
        if slot >= 0:
            return slot
        began = time.perf_counter()
        timeout = self._options.timeout
        try:
            if began >= self._look_at:  # waits that are short each must not hide a death for ever
                self._look_at = began + IDLE_S
                self._engine.pool.check()
            while True:
                left = began + timeout - time.perf_counter() if timeout else IDLE_S
                slot = self._ring.wait_ready(wanted, min(IDLE_S, max(left, 0.0)))
                if slot >= 0:
                    return slot
                self._engine.pool.check()
                if timeout and left <= IDLE_S and time.perf_counter() - began >= timeout:
                    raise self._timed_out(timeout)
        finally:
            self._tally.consumer_wait_s += time.perf_counter() - began

    def _timed_out(self, timeout):
        ticket = next(iter(self._tasks), self._next_ticket)
        return LoaderTimeout(
            f"no batch within timeout={timeout} s: batch {ticket} is still being made by "
            f"{self._options.num_workers} workers; raise timeout, use more workers, or look at what the "
            "dataset waits for (py-spy dump --pid of a worker)"
        )

    # ---- the end

    def _fail(self, error):
        """The engine cannot go on."""
        self._error = error
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shut_down()
            self._on_end(engine)

    def close(self):
        """End the iteration; what is under way is thrown away. Safe to call twice."""
        engine, self._engine = self._engine, None
        if engine is not None and not engine.foreign:
            engine.end_run(self._tasks.values())
            self._on_end(engine)
        self._tasks = {}
        self._by_slot = {}

    def __del__(self):
        if getattr(self, "_engine", None) is not None:
            self.close()
