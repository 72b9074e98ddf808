"""The order of an array's dimensions in memory, as one number; docs/codec.md has its form.

A channels_last batch, an image whose channels come first in its shape and last in memory, a Fortran array:
their bytes lie without gaps, only in another order than C's. They are sent as they lie.
"""

cimport numpy as cnp
from libc.stdint cimport uint64_t

from slipring.ring._segment cimport SR_MAX_DIMS

cnp.import_array()


cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept:
    """Say how an array of at most SR_MAX_DIMS dimensions is to lie; whether its bytes lie so already.

    *order is 0 for C's order. An array with gaps is to lie as torch's ``clone`` puts it: without them, in the
    order of its strides.
    """
    cdef int n = cnp.PyArray_NDIM(value), d, i
    cdef int outwards[SR_MAX_DIMS]
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(value)
    cdef cnp.npy_intp *actual = cnp.PyArray_STRIDES(value)
    cdef cnp.npy_intp step = cnp.PyArray_ITEMSIZE(value)
    cdef bint same = True
    order[0] = 0
    for d in range(n - 1, -1, -1):
        strides[d] = step
        same = same and actual[d] == step
        step *= shape[d]
    if same or step == 0:
        return True
    sort(n, shape, actual, outwards)
    same = True
    step = cnp.PyArray_ITEMSIZE(value)
    for i in range(n):
        d = outwards[i]
        strides[d] = step
        step *= shape[d]
        order[0] |= <uint64_t> d << 4 * (n - 1 - i)
        same = same and d == n - 1 - i
    if same:
        order[0] = 0
    for d in range(n):
        if shape[d] != 1 and actual[d] != strides[d]:
            return False
    return True


cdef void sort(int n, const cnp.npy_intp *shape, const cnp.npy_intp *strides, int *outwards) noexcept:
    """Dimensions from the innermost to the outermost, in the very order of torch's infer_dense_strides."""
    cdef int i, inner, outer
    cdef cnp.npy_intp a, b
    for i in range(n):
        outwards[i] = n - 1 - i
    for i in range(1, n):
        outer = i
        for inner in range(i - 1, -1, -1):
            a, b = abs(strides[outwards[inner]]), abs(strides[outwards[outer]])
            if a == 0 or b == 0:
                continue  # this pair says nothing
            if a > b or (a == b and shape[outwards[inner]] > shape[outwards[outer]]):
                outwards[inner], outwards[outer] = outwards[outer], outwards[inner]
                outer = inner
            elif a < b:
                break


cdef bint strides_in(uint64_t order, int ndim, const cnp.npy_intp *shape, cnp.npy_intp itemsize,
                     cnp.npy_intp *strides) noexcept:
    """Whether `order` is one of so many dimensions; *strides are those of an array that lies in it."""
    cdef int i, d
    cdef unsigned int seen = 0
    cdef cnp.npy_intp step = itemsize
    if order >> 4 * ndim:
        return False
    for i in range(ndim - 1, -1, -1):
        d = <int> (order >> 4 * i & 15)
        if d >= ndim or seen >> d & 1:
            return False
        seen |= 1u << d
        strides[d] = step
        step *= shape[d]
    return True
