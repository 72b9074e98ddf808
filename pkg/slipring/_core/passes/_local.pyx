"""One pass without workers: each batch is made here when it is requested, and lies in no slot."""

cimport cython
from libc.stdint cimport uint64_t
from posix.unistd cimport getpid

from slipring._core.passes._inflight cimport Position, Task
from slipring._core.passes._pass cimport Pass
from slipring._core.passes._plan cimport listed
from slipring._core.passes._turnstile cimport ReentrantLock
from slipring._core.ring._segment cimport SR_BATCH, SR_EMPTY, SR_END, SR_ERROR, clock

from slipring._core.codec._rows import NO_SAMPLES
from slipring._core.passes._inflight import WorkerPosition
from slipring._core.passes.engine import exiting
from slipring._core.ring.sample_marks import take_position
from slipring._core.workers.local_worker import END_OF_STREAM
from slipring._core.workers.stateful import attempt
from slipring.errors import Closed, closed_in_a_step, ended_by, ended_meanwhile, state_in_a_step

cdef object _exiting = exiting  # see slipring._core.passes.engine


@cython.auto_pickle(False)
cdef class LocalIteration(Pass):
    """The iterator of a loader without workers.

    Several threads may call next(): each batch goes to one of them. A forked child must not use it, except torch's.

    If Ctrl-C or another signal handler raises an exception while a batch is being made, the iteration ends.

    Parameters
    ----------
    options : Options
    worker : LocalWorker
    seed : int
        The iteration's base seed.
    plan, position
        See `Iteration`.
    on_end : callable
        Called when the iteration is over.
    rebuild : callable, optional
        Returns the exception to raise for an error record and the exception itself. None: exceptions are raised as
        they are.
    hooks
        See `Iteration`.
    """

    cdef int owner      # the process that last used the lock
    cdef bint making    # a batch is being made

    def __init__(self, options, worker, seed, plan, position, on_end, **hooks):
        self.begin(options, worker, seed, plan, position, on_end, **hooks)

    @cython.critical_section
    def begin(self, options, worker, seed, plan, Position position not None, on_end, *, rebuild=None, **hooks):
        """Begin a pass; the parameters are those of the class. Any earlier pass has been closed."""
        self.owner = getpid()
        self.put_hooks(on_end, rebuild, **hooks)
        self.begin_plan(options, plan, position)
        self.meter = worker.meter
        self.making = False
        if self.streams is not None and position.workers is None:
            position.workers = [WorkerPosition()]
        worker.begin()
        self._engine = worker

    cdef int check_process(self) except -1:
        if self.owner != getpid():
            if self.rebuild is not None:
                raise Closed("this iterator belongs to the parent process; make a new one after fork")
            self.owner, self.lock, self.making = getpid(), ReentrantLock(), False  # as torch's continues
        return 0

    cdef Task receive(self):
        cdef Task task = self.received
        cdef uint64_t began
        if task is not None:
            return task
        if self.due is None and (self.exhausted or not self.plan_next()):
            return None
        task, indices = Task.__new__(Task), self.due
        task.seq, task.kind = self.next_seq, SR_BATCH
        if self.streams is not None:
            task.worker, task.sequence = indices
            indices = None
        elif self._position.workers is not None:
            task.worker = 0
        if self.slices is not None:
            indices = listed(indices)
        worker = self._engine
        began = clock()
        self.making = True
        try:
            value, error = attempt(worker.make, task.seq, indices)
            if error is None and self.finish_batch is not None and value is not END_OF_STREAM:
                value, error = attempt(self.finish_batch, value)
        except BaseException as interrupted:
            self.close(ended_by(interrupted, "the dataset"))
            raise
        finally:
            self.meter.wait_ns += clock() - began
        if self._engine is None:
            raise ended_meanwhile()
        if error is not None:
            value, task.kind = self.described(task, error), SR_ERROR
        elif value is END_OF_STREAM:
            task.kind = SR_END
        elif value is NO_SAMPLES:
            task.kind = SR_EMPTY
        # No Python code runs below.
        self.received, self.value, self.due = task, value, None
        self.state = worker.state
        self.next_seq += 1
        self.making = False
        return task

    @cython.final
    cdef object described(self, Task task, error):
        if self.rebuild is None:
            take_position(error)  # the caller has no use for it
            return error
        return self.rebuild(self._engine.record(error, task.seq), error)

    @property
    def inherited(self):
        return self._engine is not None and self.rebuild is not None and self.owner != getpid()

    # ---- states

    @cython.critical_section
    def ask_state(self):
        """Query the states of the dataset and its iterator, and store them in the position.

        Raise RuntimeError if this thread is making a batch, or if a batch has been made and not been delivered.
        """
        cdef unsigned long before
        if self._position.workers is None or self._engine is None or self.owner != getpid():
            return
        if self.lock.is_mine():
            raise state_in_a_step()
        before = self.lock.acquire()
        try:
            if self._engine is not None:
                self.put_state()
        finally:
            self.lock.release(before)

    @cython.final
    cdef int put_state(self) except -1:
        asked, states = self._engine.states_now(
            self.making or self.received is not None or len(self.uncommitted) > 0
        )
        if asked:
            self._position.put(states, self.streams is None)
        return 0

    @cython.final
    cdef int keep_state(self) except -1:
        """Store the state before the iteration ends. If this fails, `state_dict` raises the exception."""
        if self._engine is None or self._position.workers is None:
            return 0
        if not self.lock.is_held_by(0) and not self.lock.is_mine():
            self._position.put(closed_in_a_step())
        else:
            try:
                self.put_state()
            except Exception as error:
                self._position.put(error.with_traceback(None))
        return 0

    # ---- the end

    @cython.critical_section
    def close(self, reason=None):
        if not self.at_end:
            self._reason = reason or self._reason
        self.keep_state()
        worker, self._engine = self._engine, None
        if worker is None:
            return
        self.received = self.value = self.state = None
        worker.forget_iteration()
        self.on_end(worker)
        if self.would_wait is not None:
            self.draw.close()

    def __del__(self):
        if self._engine is not None and not _exiting():
            self.close()
