"""Snapshots: with each batch of a stream its worker publishes from where another worker could go on."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from slipring.codec._decode cimport decode
from slipring.ring._segment cimport SR_ERROR, SR_WHOLE, sr_result

from slipring.workers.restarts import told_of_replay
from slipring.errors import CorruptBatch


@cython.final
@cython.auto_pickle(False)
cdef class Snapshots:
    """Those of one run.

    Parameters
    ----------
    engine : Engine
        Keeps the last mark of each worker from run to run.
    run : int
    streams : StreamPlan
    """

    def __init__(self, engine, run, streams):
        self.ring, self.run, self.streams = engine.ring, run, streams
        self.kept, self.tally = engine.marks, engine.tally

    cdef object keep(self, worker, uint64_t sequence, value):
        """Keep the mark that came with a worker's batch, or with its end; return the batch."""
        if type(value) is not list or len(value) != 2:  # of a worker that could not begin
            return value
        mark = (<list> value)[1]
        if mark is not None:
            self.kept[worker] = self.run, sequence + 1, mark
        return (<list> value)[0]

    def of(self, number, tasks):
        """Return the last mark that a dead worker has published, delivered or not; empty: it had none.

        The worker that takes its place goes on there, and reads again what was published behind it.

        Parameters
        ----------
        number : int
        tasks : iterable of Task
            What is under way, of all workers; each one's in the order of their sequence.
        """
        run, position, mark = self.kept.get(number, (self.run, 0, None))
        if run != self.run:
            position = 0
        due = self.streams.sequence[number] if number in self.streams.turn else None
        for task in tasks:
            if task.worker != number:
                continue
            if self.ring.await_ready(task.slot, 0, -1) < 0:
                due = task.sequence
                break
            later = self.peek(task.slot)
            if later is not None:
                run, position, mark = self.run, task.sequence + 1, later
        if due:
            by_state = mark is not None and run == self.run
            self.tally.goes_on(by_state, due - position)
            told_of_replay(number, due - position, by_state)
        return mark or b""

    cdef object peek(self, uint32_t slot):
        """The mark in a slot that is READY; it stays there."""
        cdef sr_result result = self.ring.result_of(slot, SR_WHOLE)[0]
        if result.kind == SR_ERROR:
            return None
        try:
            value = decode(self.ring.payload(slot), self.ring.committed(slot), &result, self.ring)
        except CorruptBatch:
            return None  # raised when it is this batch's turn
        return value[1] if type(value) is list and len(value) == 2 else None
