"""Batches on devices."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals

from slipring._core.passes._turnstile cimport Turnstile

from slipring._core.passes.engine import exiting
from slipring.errors import Closed, ended_meanwhile, state_in_a_step

cdef object _exiting = exiting  # see slipring._core.passes.engine


@cython.auto_pickle(False)
cdef class DeviceIteration(Turnstile):
    """An iterator over batches on one or more devices, to which `preloader` moves them in advance.

    Several threads may call next(). A batch counts as delivered when next() returns it, not when `preloader` gets it.

    Parameters
    ----------
    core : Pass
        Or another object with its ``take``, ``defer_commit``, ``commit_upto``, ``finish``, ``raise_end``, ``reason``,
        ``next_pass``, ``is_live`` and ``close``.
    preloader : Preloader
    """

    cdef object __weakref__
    cdef object _core, _preloader

    def __init__(self, core, preloader):
        self.begin(core, preloader)

    @cython.critical_section
    def begin(self, core, preloader):
        """Begin a pass. Any earlier pass has been closed."""
        self._core, self._preloader = core, preloader

    @property
    def core(self):
        """Pass: the iteration whose batches are moved; see the class."""
        with cython.critical_section(self):
            return self._core

    @property
    def preloader(self):
        """Preloader: moves them."""
        with cython.critical_section(self):
            return self._preloader

    def __iter__(self):
        return self

    def __next__(self):
        with cython.critical_section(self):
            return self.next_here()

    cdef object next_here(self):
        cdef unsigned long before
        while True:
            # First: in a forked child, a thread that does not exist there may hold the lock.
            self.preloader.check_owner()
            before = self.enter()
            try:
                try:
                    return self.next_step()
                finally:
                    self.lock.release(before)
            except Closed:
                if not self.restarting:
                    raise
                self.await_restart()

    cdef object next_step(self):
        preloader, core = self.preloader, self.core
        if core.reason is not None:
            core.raise_end()
        step = preloader.first()
        if step is None:
            core.raise_end(self)
            return self.next_step()
        if not step.is_end:
            core.next_pass = None
        if core.before_return is not None and step.value is not None and step.last_task is not None:
            core.announce(step.last_task)
        # The last place where a signal handler can raise: no Python code runs until the caller has the batch.
        PyErr_CheckSignals()
        if not preloader.ready or preloader.ready[0] is not step:  # as in `Pass.next_batch`
            raise ended_meanwhile()
        core.commit_upto(step.last_task)
        preloader.ready.popleft()
        if preloader.room.locked():
            preloader.room.release()
        if step.is_end:
            core.finish(self)
            return self.next_step()
        error, step.error = step.error, None
        if error is not None:
            raise error
        return step.value

    @cython.critical_section
    def interrupt(self, on=True):
        """End the thread that prepares batches, for `restart`."""
        if on:
            self.preloader.stop()

    @property
    def position(self):
        """Position: see `Iteration`."""
        return self.core.position

    @property
    def is_live(self):
        """bool: whether the iteration is still running."""
        return self.core.is_live

    @property
    def inherited(self):
        """bool: whether this process has inherited the iteration by a fork."""
        return self.core.inherited

    @cython.critical_section
    def ask_state(self):
        """See `LocalIteration.ask_state`."""
        if self.lock.is_mine():
            raise state_in_a_step()
        self.core.ask_state()

    @cython.critical_section
    def resize(self, options):
        """See `Iteration.resize`."""
        self.core.resize(options)

    @cython.critical_section
    def close(self, reason=None):
        """End the thread and the iteration; see `Iteration.close`."""
        if self.preloader is not None:
            self.preloader.stop()
            self.core.close(reason)

    def __del__(self):
        if self.preloader is not None and not _exiting():
            self.preloader.stop()
