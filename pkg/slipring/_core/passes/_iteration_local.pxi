# Part of _iteration.pyx: batches that this process makes, and that lie in no slot.

cimport cython

END_OF_STREAM = END  # what the fetcher of a `LocalEngine` returns in place of a batch


@cython.final
@cython.auto_pickle(False)
cdef class LocalEngine:
    """The engine of an `Iteration` whose batches this process makes; they lie in no slot.

    `fetcher` has ``make(seq, indices)``, which may be called again after a signal handler has raised in it; ``state``,
    to send with the batch that was made, or None; ``kept``, not None while a batch is being made; ``drop()``, called
    when the batch is stored; ``states_now(half_made)``, see `Worker.states_now`; and ``forget_iteration()``. `meter`
    has the counters.
    """

    cdef readonly object fetcher, meter, ring, memory, pool
    cdef readonly int death_fd
    cdef readonly bint inline, by_turns, fixed, foreign, resizing
    cdef public bint overdue

    def __init__(self, fetcher, meter):
        self.fetcher = self.pool = fetcher
        self.meter, self.inline, self.fixed, self.death_fd = meter, True, True, -1

    def begin_iteration(self, seed):
        """Return the number of the iteration."""
        return 1

    def end_iteration(self, iteration, tasks):
        """Drop the dataset's iterator."""
        self.fetcher.forget_iteration()

    def shut_down(self):
        """Do nothing: there are no workers to end."""
