cimport numpy as cnp

from slipring._core.codec._codec cimport NPY_HALF, AsTensor


cdef object collate(list values, str path, int depth)
cdef object collate_torch(list values, bint transposed, int depth)
cdef object filled(first, dict parts)
cdef str within(str path, key)
cdef cnp.dtype native(cnp.dtype descr)
cdef AsTensor as_tensor(out)


cdef inline bint has_tensor(cnp.dtype descr) noexcept:
    """Return whether torch has tensors of that dtype."""
    cdef int num = descr.type_num
    if not (num <= cnp.NPY_DOUBLE or num == NPY_HALF or num == cnp.NPY_CFLOAT or num == cnp.NPY_CDOUBLE):
        return False
    return cnp.PyDataType_ISNOTSWAPPED(descr)
