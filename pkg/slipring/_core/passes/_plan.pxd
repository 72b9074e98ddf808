cdef class Failed:
    cdef readonly object error


cdef class SamplerDraws:
    cdef object iterator
    cdef readonly Failed failed  # None: the iterator has not failed
    cdef readonly bint is_interrupted
    cdef object draw(self)
    cdef int interrupted(self, error) except -1
    cpdef bint take(self, list items, Py_ssize_t n) except -1


cdef class StreamPlan:
    cdef readonly list rotation, sequence, pending
    cdef readonly bint in_order
    cdef int came(self, worker) except -1
    cdef int ended(self, worker) except -1


cdef list listed(indices)
