"""The order that slipring itself sets, batch by batch.

Compiled, and without an object per batch: all of it runs where the training process has cold caches.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

cnp.import_array()


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Slices:
    """Consecutive slices of the indices below `length`, or of a permutation of them; before the first.

    Parameters
    ----------
    length : int
    size : int
        Indices per slice; the last may have fewer.
    drop_last : bool
        Not then.
    order : numpy.ndarray of int64, optional
        Shape (length,), contiguous. Default: as they come; a dataset may be longer than memory.
    """

    def __init__(self, uint64_t length, uint64_t size, bint drop_last=False, order=None):
        if order is not None:
            # By numpy's own interface: a memoryview would have the format described in text.
            if not (cnp.PyArray_Check(order) and cnp.PyArray_TYPE(order) == cnp.NPY_INT64
                    and cnp.PyArray_NDIM(order) == 1 and cnp.PyArray_IS_C_CONTIGUOUS(order)
                    and <uint64_t> cnp.PyArray_DIM(order, 0) == length):
                raise TypeError(f"order must be a contiguous array of {length} int64, not {order!r}")
            self.data = <const int64_t *> cnp.PyArray_DATA(order)
        self.order = order
        self.size = size
        self.end = length - length % size if drop_last else length

    cpdef bint advance(self) noexcept:
        """Go on to the next slice; False if there is none."""
        self.first += self.n
        self.n = min(self.size, self.end - self.first)
        return self.n > 0

    cdef void write(self, int64_t *out) noexcept:
        """Write the present slice's `n` indices."""
        cdef uint64_t i
        if self.data != NULL:
            memcpy(out, self.data + self.first, self.n * 8)
        else:
            for i in range(self.n):
                out[i] = <int64_t> (self.first + i)
