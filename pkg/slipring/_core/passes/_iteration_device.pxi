# Part of _iteration.pyx: batches on devices.

cimport cython
from cpython.exc cimport PyErr_CheckSignals


@cython.auto_pickle(False)
cdef class DeviceIteration:
    """An iterator over batches on one or more devices, to which `ahead` moves them before they are requested.

    Several threads may call next(). A batch counts as delivered when next() returns it, not when `ahead` receives it.

    Parameters
    ----------
    core : Iteration
        Or another object with its ``take``, ``set_aside``, ``commit_upto``, ``finish``, ``raise_end``, ``reason``,
        ``next_pass``, ``is_live`` and ``close``.
    ahead : Ahead
    """

    cdef object __weakref__
    cdef readonly object core
    cdef readonly object ahead
    cdef ReentrantLock lock
    cdef ReentrantLock restarts  # held by the thread that runs `restart`
    cdef int restarting  # calls of `restart` that have not returned

    def __cinit__(self, *_, **__):
        self.lock, self.restarts = ReentrantLock(), ReentrantLock()

    def __init__(self, core, ahead):
        self.begin(core, ahead)

    def begin(self, core, ahead):
        """Begin a pass. Any earlier pass has been closed."""
        self.core, self.ahead = core, ahead

    def __iter__(self):
        return self

    def __next__(self):
        cdef unsigned long before
        while True:
            ahead = self.ahead
            ahead.check_owner()  # first: in a forked child, a thread that does not exist there may hold the lock
            if self.lock.is_mine():
                raise reentered()
            before = self.lock.acquire()
            try:
                try:
                    return self.next_step()
                finally:
                    self.lock.release(before)
            except Closed:
                if not self.restarting:
                    raise
                if self.restarts.is_mine():
                    raise reentered() from None
                self.restarts.release(self.restarts.acquire())  # as in `Iteration`

    cdef object next_step(self):
        ahead, core = self.ahead, self.core
        if core.reason is not None:
            core.raise_end()
        step = ahead.first()
        if step is None:
            core.raise_end(self)
            return self.next_step()
        if not step.is_end:
            core.next_pass = None
        if core.before_return is not None and step.value is not None and step.last_task is not None:
            core.announce(step.last_task)
        # The last place where a signal handler can raise: no Python code runs until the caller has the batch.
        PyErr_CheckSignals()
        core.commit_upto(step.last_task)
        ahead.ready.popleft()
        if ahead.room.locked():
            ahead.room.release()
        if step.is_end:
            core.finish(self)
            return self.next_step()
        error, step.error = step.error, None
        if error is not None:
            raise error
        return step.value

    def restart(self, begin):
        """See `Iteration.restart`."""
        cdef unsigned long before, turn
        if self.lock.is_mine():
            raise reentered()
        self.restarting += 1
        try:
            turn = self.restarts.acquire()
            try:
                self.ahead.stop()
                before = self.lock.acquire()
                try:
                    return begin()
                finally:
                    self.lock.release(before)
            finally:
                self.restarts.release(turn)
        finally:
            self.restarting -= 1

    @property
    def position(self):
        """Position: see `Iteration`."""
        return self.core.position

    @property
    def is_live(self):
        """bool: whether the iteration is still running."""
        return self.core.is_live

    @property
    def foreign(self):
        """bool: whether this process has inherited the iteration by a fork."""
        return self.core.foreign

    def ask_state(self):
        """See `Iteration.ask_state`."""
        if self.lock.is_mine():
            raise state_in_a_step()
        self.core.ask_state()

    def resize(self, options):
        """See `Iteration.resize`."""
        self.core.resize(options)

    def close(self, reason=None):
        """End the thread and the iteration; see `Iteration.close`."""
        if self.ahead is not None:
            self.ahead.stop()
            self.core.close(reason)

    def __del__(self):
        if self.ahead is not None and not _exiting():
            self.ahead.stop()
