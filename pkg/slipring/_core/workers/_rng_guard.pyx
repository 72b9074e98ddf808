"""Keep the caller's random generators while its own thread makes a batch, and restore them afterwards.

This module is compiled because in Python a signal handler may raise between any two steps, from 3.14 on also between
`__enter__` and the block of a ``with`` statement. The caller would then be left with the generators of the batch.
"""

cimport cython

from slipring._core.ring._check import from_handler
from slipring._core.workers import seeding
from slipring._core.ring.worker_info import get_worker_info, swap_thread_info


@cython.auto_pickle(False)
cdef class Guard:
    """Calls a function between `enter` and `leave`, whatever it raises."""

    cdef object owner, rng_context

    def call(self, function, *arguments):
        """Return the function's result."""
        self.enter()
        try:
            return function(*arguments)
        finally:
            self.leave()

    cdef int enter(self) except -1:
        return 0

    cdef int leave(self) except -1:
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class RngGuard(Guard):
    """Calls a function, and then restores the caller's generators.

    `owner` has the function's generators: ``states``, the result of `save_globals` or None, and ``rng_context``. Both
    are updated at the end. If `owner` is None, the function sets its own generators.
    """

    cdef object saved

    def __init__(self, owner=None):
        self.owner = owner

    cdef int enter(self) except -1:
        self.saved = seeding.save_globals()
        self.rng_context = seeding.swap_context(seeding.NO_CONTEXT if self.owner is None else self.owner.rng_context)
        if self.owner is not None and self.owner.states is not None:
            try:
                seeding.restore_globals(self.owner.states)
            except BaseException:
                self.put_back()
                raise
        return 0

    cdef int leave(self) except -1:
        raised = None
        if self.owner is not None and self.owner.states is not None:
            self.owner.states, raised = surely(seeding.save_globals, (), raised)
        raised = self.put_back(raised)
        if raised is not None:
            raise raised
        return 0

    cdef object put_back(self, raised=None):
        """Restore the caller's generators; return the first exception that was raised meanwhile."""
        rng_context, raised = surely(seeding.swap_context, (self.rng_context,), raised)
        if self.owner is not None:
            self.owner.rng_context = rng_context
        return surely(seeding.restore_globals, (self.saved,), raised)[1]


@cython.final
@cython.auto_pickle(False)
cdef class AsWorker(Guard):
    """Calls a function in which `slipring.rng` and `get_worker_info` answer as in a worker.

    Global generators stay the caller's.

    ``owner.rng_context`` is the context from which `slipring.rng` continues, and is updated at the end. `info` is the
    answer unless the calling thread or process is already a worker.
    """

    cdef object info

    def __init__(self, owner, info):
        self.owner, self.info = owner, info

    cdef int enter(self) except -1:
        info = get_worker_info() or self.info
        # If a handler raises in `swap_context`, nothing has been swapped.
        self.rng_context = seeding.swap_context(self.owner.rng_context)
        self.info, raised = surely(swap_thread_info, (info,), None)
        if raised is not None:
            raise self.put_back(raised)
        return 0

    cdef int leave(self) except -1:
        raised = self.put_back(None)
        if raised is not None:
            raise raised
        return 0

    cdef object put_back(self, raised):
        self.info, raised = surely(swap_thread_info, (self.info,), raised)
        self.owner.rng_context, raised = surely(seeding.swap_context, (self.rng_context,), raised)
        return raised


@cython.final
@cython.auto_pickle(False)
cdef class LendRng(Guard):
    """Calls functions in which `slipring.rng` returns a generator, unless the caller's own batch has one already.

    All other generators stay the caller's.
    """

    cdef object generator
    cdef bint is_lent

    def __init__(self, generator):
        self.generator = generator

    cdef int enter(self) except -1:
        self.is_lent = not seeding.has_rng()
        if self.is_lent:
            seeding.set_rng(self.generator)
        return 0

    cdef int leave(self) except -1:
        if self.is_lent:
            raised = surely(seeding.set_rng, (None,), None)[1]
            if raised is not None:
                raise raised
        return 0


cdef tuple surely(function, tuple arguments, raised):
    """Call a function until no handler raises in it; the function must be repeatable.

    Return (its result, the first exception); that is `raised` if it is not None.
    """
    while True:
        try:
            return function(*arguments), raised
        except BaseException as error:
            if isinstance(error, Exception) and not from_handler(error):
                raise
            raised = error if raised is None else raised
