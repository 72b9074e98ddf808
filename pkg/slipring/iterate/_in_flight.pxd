from libc.stdint cimport uint32_t, uint64_t


cdef class Task:
    cdef readonly uint64_t ticket, gen, sequence
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
