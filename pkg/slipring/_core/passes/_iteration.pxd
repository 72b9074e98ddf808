from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class Failed:
    cdef readonly object error


cdef class SamplerDraws:
    cdef object iterator
    cdef readonly Failed failed  # None: the iterator has not failed
    cdef object draw(self)
    cpdef bint take(self, list items, Py_ssize_t n) except -1


cdef class StreamPlan:
    cdef readonly list turn, sequence, pending
    cdef readonly bint in_order
    cdef int came(self, worker) except -1
    cdef int ended(self, worker) except -1


cdef class Task:
    cdef readonly uint64_t seq, gen, sequence
    cdef readonly uint32_t slot
    cdef readonly object worker  # number of the worker that must make it; None: any
    cdef int before, behind      # slots of the tasks dispatched before and after it; -1: none
    cdef int kind                # of the result, after it has been decoded; 0 before


cdef class InFlight:
    cdef readonly uint64_t n
    cdef list by_slot     # slot -> Task or None
    cdef int first, last  # slots; -1: none
    cdef int add(self, Task task) except -1
    cdef Task remove(self, uint32_t slot)
    cdef Task oldest(self)
    cdef list all(self)


cdef class WorkerPosition:
    cdef readonly uint64_t batches, since
    cdef readonly object state
    cdef readonly list again
    cdef readonly int64_t at
    cdef readonly bint before, ended
    cdef int put(self, object state, int64_t at) except -1


cdef class Position:
    cdef readonly uint64_t epoch, delivered
    cdef readonly set beyond
    cdef readonly list workers
    cdef readonly int next_worker
    cdef readonly bint finished
    cdef uint64_t changes
    cdef int add(self, Task task, object state, dict indices) except -1


cdef class ReentrantLock:
    cdef unsigned long holder  # the thread that has it, or 0
    cdef int waiting           # number of threads that wait for it
    cdef object queue          # the waiting threads block on it
    cdef unsigned long acquire(self) except? 1
    cdef unsigned long acquire_as(self, unsigned long me) except? 1
    cdef bint is_mine(self) noexcept
    cdef int release(self, unsigned long before) except -1
    cdef int wait(self) except -1
