cdef class ReentrantLock:
    cdef unsigned long holder  # the thread that has it, or 0
    cdef int waiting           # number of threads that wait for it
    cdef object queue          # the waiting threads block on it
    cdef unsigned long acquire(self) except? 1
    cdef unsigned long acquire_as(self, unsigned long me) except? 1
    cdef bint take(self, unsigned long me) noexcept
    cdef bint is_mine(self) noexcept
    cdef bint is_held_by(self, unsigned long thread) noexcept
    cdef int release(self, unsigned long before) except -1
    cdef int wait(self, unsigned long me) except -1


cdef class Turnstile:
    cdef ReentrantLock lock      # held in next(); close() does not take it, because it must end a wait
    cdef ReentrantLock restarts  # held by the thread that runs `restart`
    cdef int restarting          # calls of `restart` that have not returned
    cdef unsigned long enter(self) except? 1
    cdef int await_restart(self) except -1
