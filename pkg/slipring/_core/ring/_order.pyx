"""The orders that slipring itself sets, of any length in constant memory (csrc/index_order.h)."""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from slipring._core.ring._cring cimport (
    SR_ORDER_ASCENDING, SR_ORDER_DRAWN, SR_ORDER_SHUFFLED, SR_ORDER_STORED, sr_order_key, sr_order_write,
)

import numpy as np

cnp.import_array()

_MOST_STORED = 1 << 16  # indices; 512 kB


cdef const void *_data_of(array, int kind, uint64_t length, str what) except? NULL:
    """Return the data of a contiguous array of `length` values, through numpy's C API: a memoryview is slow."""
    if not (cnp.PyArray_Check(array) and cnp.PyArray_TYPE(array) == kind and cnp.PyArray_NDIM(array) == 1
            and cnp.PyArray_IS_C_CONTIGUOUS(array) and <uint64_t> cnp.PyArray_DIM(array, 0) == length):
        raise TypeError(f"{what} must be a contiguous array of {length} values, not {array!r}")
    return cnp.PyArray_DATA(array)


@cython.final
@cython.auto_pickle(False)
cdef class IndexOrder:
    """The indices below `n`, one for each of `length` positions (default n).

    They ascend; the class methods make other orders, whose parameters are `key` and `array`.
    """

    def __init__(self, uint64_t n, length=None, int kind=SR_ORDER_ASCENDING, uint64_t key=0, array=None):
        self.order.kind, self.order.n = kind, n
        self.order.length = n if length is None else length
        self.key, self.array = key, array
        if kind == SR_ORDER_STORED:
            self.order.stored = <const int64_t *> _data_of(array, cnp.NPY_INT64, n, "indices (int64)")
        elif kind != SR_ORDER_ASCENDING:
            sr_order_key(&self.order, key)
        if kind == SR_ORDER_DRAWN and array is not None:
            self.order.bounds = <const double *> _data_of(array, cnp.NPY_FLOAT64, n, "bounds (float64)")

    def __reduce__(self):
        return IndexOrder, (self.order.n, self.order.length, self.order.kind, self.key, self.array)

    @classmethod
    def stored(cls, indices):
        """Return the order in a contiguous array of int64."""
        return cls(len(indices), None, SR_ORDER_STORED, 0, indices)

    @classmethod
    def shuffled(cls, uint64_t n, uint64_t key, uint64_t most_stored=_MOST_STORED):
        """Return a permutation. Short ones are stored, and exactly uniform: all permutations are equally likely."""
        if n <= most_stored:
            return cls.stored(np.random.Generator(np.random.Philox(key=key)).permutation(n))
        return cls(n, None, SR_ORDER_SHUFFLED, key)

    @classmethod
    def drawn(cls, uint64_t n, uint64_t length, uint64_t key, bounds=None):
        """Return indices that are drawn with replacement, with equal probability or by weight.

        `bounds` are the n cumulative weights as float64, ascending; the last one is 1.
        """
        return cls(n, length, SR_ORDER_DRAWN, key, bounds)

    def __len__(self):
        return self.order.length

    def part(self, uint64_t first, uint64_t count, uint64_t step=1):
        """Return `count` indices as int64, at positions first, first + step, ...; position 0 follows the last one."""
        if count and not self.order.length:
            raise IndexError("an order without positions has no indices")
        found = np.empty(count, np.int64)
        if count:
            sr_order_write(&self.order, first, step, count, <int64_t *> cnp.PyArray_DATA(found))
        return found


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Slices:
    """Consecutive slices of an `IndexOrder`. It begins before the first slice.

    This is the order that slipring itself sets, batch by batch. It is compiled and makes no object per batch, because
    it runs while the training process has cold caches. A slice has `size` indices. The last one may have fewer, or with
    `drop_last` is dropped. The first `skipped` slices are left out.
    """

    def __init__(self, IndexOrder indices not None, uint64_t size, bint drop_last=False, uint64_t skipped=0):
        cdef uint64_t length = indices.order.length
        self.indices, self.size = indices, size
        self.end = length - length % size if drop_last else length
        self.first = self.end if skipped > self.end // size else skipped * size

    cpdef bint advance(self) noexcept:
        """Advance to the next slice; return False if there is none."""
        self.first += self.n
        self.n = min(self.size, self.end - self.first)
        return self.n > 0

    cdef void write(self, int64_t *out) noexcept:
        """Write the current slice's `n` indices."""
        cdef uint64_t i
        if self.indices.order.kind != SR_ORDER_ASCENDING:
            sr_order_write(&self.indices.order, self.first, 1, self.n, out)
            return
        for i in range(self.n):
            out[i] = <int64_t> (self.first + i)
