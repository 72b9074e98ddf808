from libc.stdint cimport uint64_t

from slipring._core.ring._segment cimport sr_result
from slipring._core.ring._slot cimport WriteTarget


cdef class Packed(WriteTarget):
    cdef uint64_t used, size
    cdef sr_result result
    cdef object value(self)


cdef Packed pack(value)
