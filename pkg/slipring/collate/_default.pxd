cimport numpy as cnp

cdef object stack_numbers(list values, str path)
cdef int write_rows(cnp.ndarray out, list values, Py_ssize_t first, bint same) except -1
