# Part of _collate.pyx: torch's default collation of plain samples, in C and straight into the slot. The results are
# those of torch.utils.data.default_collate. torch itself collates all other types, and samples that do not fit
# together, or raises its own errors.

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint64_t

from slipring._core.codec._codec cimport NPY_HALF, AsTensor, all_of, copy_rows
from slipring._core.codec._dlpack cimport DLApi, DLTensor, alike, describe, exchange, is_ambiguous, single_float

import sys

import numpy as np

from slipring._core.codec import _codec, pytree
from slipring._core.codec._codec import empty

ODD = object()
cdef object odd = ODD


def is_stock(dict registered, dict stock):
    """Return whether two dicts have the same entries, that is, the user has registered no types for collation."""
    if len(registered) != len(stock):
        return False
    for kind, function in registered.items():
        if stock.get(kind) is not function:
            return False
    return True


def collate_plain(samples):
    """Return the result of torch's default_collate for plain samples; `ODD` if there is any other sample.

    Plain samples are a list of arrays, ints, floats, bools, text, bytes, torch tensors, and dicts, lists, tuples and
    namedtuples of them, of exactly these types. In the result, arrays and numbers are `AsTensor`, torch tensors are a
    tensor in the slot, and tuples are lists.
    """
    if type(samples) is not list or not samples:
        return ODD
    return collate_torch(list(samples), False, 0)  # a copy: another thread may change the caller's list


cdef object collate_torch(list values, bint transposed, int depth):
    first = values[0]
    kind = type(first)
    if depth > MAX_DEPTH:
        return odd
    if not isinstance(first, (tuple, list)) and not all_of(values, kind):
        return odd
    if kind is np.ndarray:
        return torch_stack(values)
    if kind is int or kind is float or kind is bool:
        return torch_numbers(values)
    if kind is str or kind is bytes:
        return tuple(values) if transposed else values  # torch transposes with zip(), which yields tuples
    if kind is dict:
        return torch_dict(values, <dict> first, depth)
    if isinstance(first, (tuple, list)):
        return torch_sequence(values, kind, depth)
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        stacked = torch_stack_tensors(values, kind)
        if stacked is odd:
            stacked = _codec.foreign_module("tensor").stack_alike(values, empty)
        return odd if stacked is None else stacked
    return odd


cdef bint has_tensor(cnp.dtype descr) noexcept:
    """Return whether torch has tensors of that dtype."""
    cdef int num = descr.type_num
    if not (num <= cnp.NPY_DOUBLE or num == NPY_HALF or num == cnp.NPY_CFLOAT or num == cnp.NPY_CDOUBLE):
        return False
    return cnp.PyDataType_ISNOTSWAPPED(descr)


cdef object torch_stack(list values):
    cdef cnp.ndarray first = <cnp.ndarray> values[0], other
    cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(first)
    cdef int ndim = cnp.PyArray_NDIM(first), d
    cdef Py_ssize_t i, n = len(values)
    if not has_tensor(descr):
        return odd
    for i in range(1, n):
        other = <cnp.ndarray> values[i]
        if cnp.PyArray_DESCR(other) is not cnp.PyArray_DESCR(first):
            if not cnp.PyArray_EquivTypes(<cnp.dtype> cnp.PyArray_DESCR(other), descr):
                return odd
        if cnp.PyArray_NDIM(other) != ndim:
            return odd
        for d in range(ndim):
            if cnp.PyArray_DIM(other, d) != cnp.PyArray_DIM(first, d):
                return odd
    out = empty((n, *(<object> first).shape), descr)
    write_rows(<cnp.ndarray> out, values, True)
    return as_tensor(out)


cdef object torch_stack_tensors(list values, kind):
    """Stack contiguous CPU tensors of one shape and dtype without a call into torch's operators."""
    cdef const DLApi *api = exchange(kind)
    cdef DLTensor first, other
    cdef const char **rows
    cdef Py_ssize_t i, n = len(values)
    cdef uint64_t nbytes
    cdef bint ambiguous
    if api == NULL or not describe(api, values[0], &first):
        return odd
    dtype = values[0].dtype
    descr = _codec.foreign_module("tensor").numpy_dtype(dtype)
    if descr is None or dtype.is_complex:  # DLPack does not report the conjugate flag
        return odd
    ambiguous = is_ambiguous(&first)
    rows = <const char **> PyMem_Malloc(n * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            value = values[i]
            if not describe(api, value, &other) or not alike(&first, &other) or value.requires_grad:
                return odd
            if ambiguous and value.dtype is not dtype:
                return odd
            # DLPack does not report the negative bit of a tensor such as x.conj().imag. Such a tensor is strided,
            # unless it has a single element.
            if single_float(&other) and value.is_neg():
                return odd
            rows[i] = other.data + other.byte_offset
        shape = (n, *[first.shape[d] for d in range(first.ndim)])
        out = empty(shape, descr)
        nbytes = cnp.PyArray_NBYTES(<cnp.ndarray> out) // n
        if nbytes:
            copy_rows(<char *> cnp.PyArray_DATA(<cnp.ndarray> out), rows, n, nbytes)
    finally:
        PyMem_Free(rows)
    return as_tensor(out)


cdef object torch_numbers(list values):
    """Return one array of ints, floats or bools, all of the same kind."""
    out = stack_numbers(values, "")
    # Ints beyond 63 bits stay a list or become unsigned: torch refuses them.
    return odd if type(out) is list or out.dtype.kind == "u" else as_tensor(out)


cdef AsTensor as_tensor(out):
    cdef AsTensor made = AsTensor.__new__(AsTensor)
    made.array = out
    return made


cdef object torch_dict(list values, dict first, int depth):
    cdef dict out = {}
    for key in first:
        column = []
        for value in values:
            if key not in <dict> value:
                return odd
            column.append((<dict> value)[key])
        part = collate_torch(column, False, depth + 1)
        if part is odd:
            return odd
        out[key] = part
    return out


cdef object torch_sequence(list values, kind, int depth):
    cdef Py_ssize_t i, j, n = len(values[0])
    cdef list out = [], parts
    named = kind is not tuple and kind is not list
    if named and not pytree.is_namedtuple(kind):
        return odd
    for value in values:
        if type(value) is not kind or len(value) != n:
            return odd
    for j in range(n):
        parts = [None] * len(values)
        for i in range(len(values)):
            parts[i] = values[i][j]
        part = collate_torch(parts, True, depth + 1)
        if part is odd:
            return odd
        out.append(part)
    return kind(*out) if named else out
