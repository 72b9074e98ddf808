cimport numpy as cnp
from libc.stdint cimport uint64_t

cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept
cdef bint strides_in(uint64_t order, int ndim, const cnp.npy_intp *shape, cnp.npy_intp itemsize,
                     cnp.npy_intp *strides) noexcept
