"""One pass over a stream's loader, and how far it is.

Compiled: between the batch and its count, and between that and who has asked, no signal's handler can raise.
"""

cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Place:
    """How far a pass is.

    Parameters
    ----------
    epoch : int
    rows : list of int
        That each worker has given.
    turn : int
        Whose batch comes next.

    Attributes
    ----------
    ended : bool
    begun : bool
        A pass goes on from here, or has.
    """

    cdef readonly object epoch
    cdef readonly list rows
    cdef readonly object turn
    cdef readonly bint ended
    cdef public bint begun

    def __init__(self, epoch, rows, turn=0):
        self.epoch, self.rows, self.turn = epoch, list(rows), turn

    def __reduce__(self):
        return Place, (self.epoch, self.rows, self.turn)


@cython.final
@cython.auto_pickle(False)
cdef class StreamIterator:
    """What ``iter`` of a `StreamLoader` returns. One thread at a time may ask it.

    Parameters
    ----------
    batches : LoaderIterator
    place : Place
        Is moved along.
    """

    cdef object batches
    cdef Place place

    def __init__(self, batches, Place place not None):
        self.batches, self.place = batches, place

    def __iter__(self):
        return self

    def __next__(self):
        cdef Place place = self.place
        cdef Py_ssize_t worker
        try:
            batch = next(self.batches)
        except StopIteration:
            place.ended = True
            raise
        worker = self.batches.last_worker
        for column in (<dict?> batch).values():
            place.rows[worker] = <int64_t> place.rows[worker] + len(column)
            break
        place.turn = (worker + 1) % len(place.rows)
        return batch

    def close(self):
        """End the iteration; batches that are held stay valid."""
        self.batches.close()
