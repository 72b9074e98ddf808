cdef class ReentrantLock:
    cdef unsigned long holder  # the thread that has it, or 0
    cdef int waiting           # how many others want it
    cdef object queue          # what they wait on
    cdef unsigned long take(self) except? 1
    cdef int give(self, unsigned long before) except -1
    cdef int wait(self) except -1
