from libc.stdint cimport uint64_t


cdef class Definition:
    cdef char *defs
    cdef uint64_t n_defs, defs_room
    cdef int put(self, const void *data, uint64_t n) except -1
    cdef int tag(self, char c) except -1
    cdef int count(self, Py_ssize_t length) except -1
    cdef int text(self, bytes data) except -1
    cdef int named(self, cls, char c) except -1
    cdef bint key(self, key, int depth) except *
