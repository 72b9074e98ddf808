cimport numpy as cnp

from slipring.collate._arrays cimport AsTensor

cdef object collate_torch(list values, bint transposed, int depth)
cdef AsTensor as_tensor(out)
cdef bint has_tensor(cnp.dtype descr) noexcept
