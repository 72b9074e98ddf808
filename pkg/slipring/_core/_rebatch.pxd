from libc.stdint cimport int64_t


cdef class Block:
    cdef readonly list arrays
    cdef readonly object rest
    cdef readonly Py_ssize_t rows
    cdef bint writes
    cdef Py_ssize_t at  # how many of them are used


cdef class Rebatcher:
    cdef object source, feed
    cdef Py_ssize_t batch_size
    cdef bint drop_last
    cdef object given  # what the source has given, until it is read
    cdef list parts    # of which it is the first, in the reverse order
    cdef int64_t number  # of what is read next
    cdef public int64_t raised
    cdef list ahead  # blocks that come before the source's next one, the first of them last
    cdef Block block
    cdef readonly int64_t made, batches
    cdef int64_t passed  # rows that could not be made, since the last batch
    cdef int64_t behind  # rows that are to be skipped
    cdef Block drawn_block(self)
    cdef bint advance(self) except -1
    cdef int used(self, Py_ssize_t n) except -1
