cimport numpy as cnp

cdef object collate(list values, str path, int depth)
cdef object filled(first, dict parts)
cdef str within(str path, key)
cdef object stack_numbers(list values, str path)
cdef int write_rows(cnp.ndarray out, list values, bint same) except -1
