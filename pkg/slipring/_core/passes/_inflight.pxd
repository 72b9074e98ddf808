from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class Task:
    cdef readonly uint64_t seq, gen, sequence
    cdef readonly uint32_t slot
    cdef readonly object worker  # number of the worker that must make it; None: any
    cdef int before, after      # slots of the tasks dispatched before and after it; -1: none
    cdef int kind                # of the result, after it has been decoded; 0 before


cdef class InFlight:
    cdef readonly uint64_t n
    cdef list by_slot     # slot -> Task or None
    cdef int first, last  # slots; -1: none
    cdef int add(self, Task task) except -1
    cdef Task remove(self, uint32_t slot)
    cdef Task oldest(self)
    cpdef list all(self)


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
    cdef int put(self, object state, bint is_of_all=*) except -1


cdef int least_busy(InFlight tasks, uint32_t workers) except -1
