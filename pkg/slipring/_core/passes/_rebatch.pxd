from libc.stdint cimport int64_t


cdef class Block:
    cdef readonly list arrays
    cdef readonly object rest
    cdef readonly Py_ssize_t rows
    cdef bint writes
    cdef Py_ssize_t at  # how many of them are used


cdef class Rebatcher:
    cdef object source, reader
    cdef Py_ssize_t batch_size
    cdef bint drop_last
    cdef object given  # an item of the source that has not been read yet
    cdef list parts    # the other items of the list that `reader.read` returned, in reverse order
    cdef int64_t number  # of the next block
    cdef public int64_t raised
    cdef list pushed_back  # blocks to use before the source's next one, in reverse order
    cdef Block block
    cdef readonly int64_t made, batches
    cdef int64_t passed  # rows that could not be made, since the last batch
    cdef int64_t rows_to_skip
    cdef Block drawn_block(self)
    cdef bint advance(self) except -1
    cdef int used(self, Py_ssize_t n) except -1
