cimport numpy as cnp

cdef inline bint all_of(list values, kind) noexcept:
    """Whether all are of exactly that type."""
    for value in values:
        if type(value) is not kind:
            return False
    return True

cdef object mismatch(str path, str what, Py_ssize_t i, a, Py_ssize_t j, b)
cdef object mismatch_type(str path, list values, Py_ssize_t i)
cdef object mismatch_layout(str path, str what, a, Py_ssize_t i, b)
cdef object stack_numbers(list values, str path)
cdef object number_dtype(kind)
cdef object stack_arrays(list values, str path)
cdef int write_rows(cnp.ndarray out, list values, Py_ssize_t first, bint same) except -1
cdef object tensor_class()
cdef bint is_tensor(value)
cdef object stack_tensors(list values, str path)
