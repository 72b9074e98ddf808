cimport numpy as cnp

from slipring._core.codec._codec cimport AsTensor


cdef object collate(list values, str path, int depth)
cdef object filled(first, dict parts)
cdef str within(str path, key)
cdef object stack_numbers(list values, str path)
cdef int write_rows(cnp.ndarray out, list values, bint same) except -1


cdef object collate_torch(list values, bint transposed, int depth)
cdef AsTensor as_tensor(out)
cdef bint has_tensor(cnp.dtype descr) noexcept
