cimport numpy as cnp
from libc.stdint cimport uint64_t

from slipring.ring._slot cimport Fill

cdef extern from "numpy/arrayobject.h":
    enum:
        NPY_HALF  # numpy's own .pxd lacks it

cdef inline bint all_of(list values, kind) noexcept:
    """Whether all are of exactly that type."""
    for value in values:
        if type(value) is not kind:
            return False
    return True

cdef class AsTensor:
    cdef readonly cnp.ndarray array
    cdef str name(self)

cdef object tensor_class()
cdef bint is_tensor(value)
cdef bint is_foreign_array(value) except -1
cdef int is_fixed(cnp.dtype descr) except -1
cdef object in_slot(Fill fill, tuple shape, cnp.dtype descr)
cdef object array_over(char *at, int ndim, cnp.npy_intp *shape, cnp.npy_intp *strides, cnp.dtype descr,
                       object base)
cdef void copy_in(char *to, const char *source, uint64_t nbytes) noexcept
cdef void copy_row(char *to, const char *source, uint64_t nbytes, bint large) noexcept
cdef void copy_rows(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept
cdef bint order_of(cnp.ndarray value, cnp.npy_intp *strides, uint64_t *order) noexcept
cdef bint strides_in(uint64_t order, int ndim, const cnp.npy_intp *shape, cnp.npy_intp itemsize,
                     cnp.npy_intp *strides) noexcept
