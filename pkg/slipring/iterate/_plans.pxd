cdef class StreamPlan:
    cdef readonly list turn, sequence, pending
    cdef readonly bint in_order
    cdef int came(self, worker) except -1
