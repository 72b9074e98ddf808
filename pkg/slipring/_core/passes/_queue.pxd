from libc.stdint cimport uint64_t


cdef uint64_t deadline_of(bint block, timeout) except? 1
