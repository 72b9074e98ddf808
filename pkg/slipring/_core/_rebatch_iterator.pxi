# Part of _rebatch.pyx: one pass over a stream's loader, and its position. It is compiled so that no signal handler can
# raise between a batch and its count, or before the caller has the batch.

cimport cython
from libc.stdint cimport int64_t

from slipring._core.engine import exiting

cdef object _exiting = exiting  # no global of the module: those may have gone when an iterator is dropped at exit


@cython.final
cdef class Place:
    """The position of a pass."""

    cdef readonly object epoch
    cdef readonly list rows  # that each worker has given
    cdef readonly object turn  # number of the worker whose batch comes next
    cdef readonly bint ended
    cdef public bint begun  # a pass continues from here, or has continued
    cdef readonly list notes  # what came last with a batch of each worker, if batches come with notes

    def __init__(self, epoch, rows, turn=0):
        self.epoch, self.rows, self.turn = epoch, list(rows), turn
        self.notes = [None] * len(self.rows)

    def __reduce__(self):
        return Place, (self.epoch, self.rows, self.turn)


@cython.final
@cython.auto_pickle(False)
cdef class StreamIterator:
    """The iterator of a `StreamLoader`. Only one thread at a time may use it.

    Each batch advances `place`. `noted`: each item is a list of a note and the batch, and a note begins with the
    worker's number and the rows that the worker has given, this batch included. Otherwise the worker is looked up and
    the batch's rows are counted. `on_end` is called when the iteration is at its end, closed or dropped.
    """

    cdef object batches, on_end
    cdef Place place
    cdef bint noted

    def __init__(self, batches, Place place not None, bint noted=False, on_end=None):
        self.batches, self.place, self.noted, self.on_end = batches, place, noted, on_end

    def __iter__(self):
        return self

    def __next__(self):
        cdef Place place = self.place
        cdef Py_ssize_t worker
        try:
            batch = next(self.batches)
        except StopIteration:
            place.ended = True
            self.end()
            raise
        if self.noted:
            note, batch = <list?> batch
            worker = (<list?> note)[0]
            place.rows[worker] = (<list> note)[1]
            place.notes[worker] = note
            place.turn = (worker + 1) % len(place.rows)
            return batch
        worker = (<Py_ssize_t> self.batches.position.next_worker - 1) % len(place.rows)
        for column in (<dict?> batch).values():
            place.rows[worker] = <int64_t> place.rows[worker] + len(column)
            break
        place.turn = (worker + 1) % len(place.rows)
        return batch

    def close(self):
        """End the iteration; batches that are held stay valid."""
        self.batches.close()
        self.end()

    cdef int end(self) except -1:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
        return 0

    def __del__(self):
        if self.on_end is not None and not _exiting():
            self.end()
