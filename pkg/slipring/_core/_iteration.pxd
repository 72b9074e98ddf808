from libc.stdint cimport uint32_t, uint64_t

from slipring._core._ring cimport Ring


cdef class StreamPlan:
    cdef readonly list turn, sequence, pending
    cdef readonly bint in_order
    cdef int came(self, worker) except -1


cdef class Task:
    cdef readonly uint64_t seq, gen, sequence
    cdef readonly uint32_t slot
    cdef readonly object worker  # whom it is addressed to: a number, or None
    cdef int before, behind      # the slots of those dispatched before and after it; -1: there is none


cdef class InFlight:
    cdef readonly uint64_t n
    cdef list by_slot     # slot -> Task or None
    cdef int first, last  # slots; -1: there is none
    cdef int add(self, Task task) except -1
    cdef Task remove(self, uint32_t slot)
    cdef Task oldest(self)
    cdef list all(self)


cdef class Snapshots:
    cdef Ring ring
    cdef uint64_t run
    cdef object streams, counters
    cdef dict kept  # worker -> (run, batches, the snapshot behind them)
    cdef object keep(self, worker, uint64_t sequence, value)
    cdef object peek(self, uint32_t slot)


cdef class ReentrantLock:
    cdef unsigned long holder  # the thread that has it, or 0
    cdef int waiting           # how many others want it
    cdef object queue          # what they wait on
    cdef unsigned long acquire(self) except? 1
    cdef bint is_mine(self) noexcept
    cdef int release(self, unsigned long before) except -1
    cdef int wait(self) except -1
