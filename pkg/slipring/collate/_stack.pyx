"""Stacking: numbers, arrays or tensors of many samples become one array, straight in the slot."""

import sys

cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t

from slipring.collate._empty cimport copy_rows
from slipring.ring._slot cimport Fill, current_fill

import numpy as np

from slipring.codec import _decode as _codec
from slipring.collate._empty import empty

cnp.import_array()

cdef object INT64 = np.dtype(np.int64)


# ---- what is wrong with samples that do not fit together


cdef object where(Py_ssize_t i):
    """How to name a sample in a message: by its index in the dataset where that is known."""
    cdef Fill fill = current_fill()
    if fill is not None and fill.rows is not None and i < len(fill.rows):
        return f"index {fill.rows[i]!r}"
    return f"sample {i}"


cdef object mismatch(str path, str what, Py_ssize_t i, a, Py_ssize_t j, b):
    at = f" at {path}" if path else ""
    return ValueError(
        f"samples cannot be put together{at}: {where(i)} has {what} {a}, {where(j)} has {what} {b}; "
        "make them alike in the dataset, or give a collate_fn"
    )


cdef object mismatch_type(str path, list values, Py_ssize_t i):
    return mismatch(path, "type", 0, type(values[0]).__name__, i, type(values[i]).__name__)


cdef object mismatch_layout(str path, str what, a, Py_ssize_t i, b):
    at = f" at {path}" if path else ""
    return ValueError(
        f"samples cannot be put together{at}: the batch's first rows have {what} {a}, {where(i)} has "
        f"{what} {b}; make them alike in the dataset, or give a collate_fn"
    )


# ---- numbers


cdef object stack_numbers(list values, str path):
    cdef Py_ssize_t i, n = len(values)
    cdef int overflow = 0
    cdef int64_t *ints
    first = type(values[0])
    if first is int and all_of(values, int):
        out = empty((n,), INT64)
        ints = <int64_t *> cnp.PyArray_DATA(<cnp.ndarray> out)
        for i in range(n):
            ints[i] = PyLong_AsLongLongAndOverflow(values[i], &overflow)
            if overflow:
                return stack_large(values)
        return out
    for i in range(n):
        if not isinstance(values[i], (int, float, np.number, np.bool_)):
            raise mismatch_type(path, values, i)
    if first is bool and all_of(values, bool):
        dtype = np.bool_
    elif first is float and all_of(values, float):
        dtype = np.float64
    else:
        dtype = np.result_type(*{number_dtype(type(v)) for v in values})
    out = empty((n,), dtype)
    try:
        out[...] = values
    except OverflowError:
        return values
    return out


cdef object number_dtype(kind):
    """The dtype of a number of that type; of Python's own: what a batch of nothing else gets."""
    if issubclass(kind, np.generic):
        return np.dtype(kind)
    return np.dtype(np.bool_ if kind is bool else np.float64 if issubclass(kind, float) else np.int64)


cdef object stack_large(list values):
    """Ints that need more than 63 bits: unsigned where that suffices, else they stay as they are."""
    if min(values) < 0 or max(values) >= 1 << 64:
        return values
    out = empty((len(values),), np.uint64)
    out[...] = values
    return out


# ---- arrays and tensors


cdef object stack_arrays(list values, str path):
    """One array of all; the new first dimension counts samples."""
    cdef Py_ssize_t i, n = len(values)
    cdef bint same = True
    cdef cnp.ndarray first
    cdef cnp.dtype descr, other
    for i in range(n):
        if type(values[i]) is not np.ndarray:
            values = as_arrays(values, path)
            break
    first = <cnp.ndarray> values[0]
    descr = <cnp.dtype> cnp.PyArray_DESCR(first)
    for i in range(1, n):
        other = <cnp.dtype> cnp.PyArray_DESCR(<cnp.ndarray> values[i])
        # Nearly always the very same object.
        if other is not descr and not cnp.PyArray_EquivTypes(other, descr):
            same = False
            break
    dtype = descr if same else common_dtype(values, path)
    check_shapes(values, path)
    out = empty((n, *(<object> first).shape), dtype)
    write_rows(<cnp.ndarray> out, values, 0, same)
    return out


cdef list as_arrays(list values, str path):
    cdef Py_ssize_t i
    out = []
    for i in range(len(values)):
        if not isinstance(values[i], (np.ndarray, np.generic, int, float)):
            raise mismatch_type(path, values, i)
        out.append(np.asarray(values[i]))
    return out


cdef object common_dtype(list values, str path):
    """What all samples' dtypes can be turned into without a change of meaning."""
    cdef Py_ssize_t i
    first = values[0].dtype
    for i in range(1, len(values)):
        dtype = values[i].dtype
        if dtype.kind != first.kind and not (dtype.kind in "biufc" and first.kind in "biufc"):
            raise mismatch(path, "dtype", 0, first, i, dtype)
    try:
        return np.result_type(*{v.dtype for v in values})
    except TypeError:  # structured dtypes, units of time
        i = next_different(values)
        raise mismatch(path, "dtype", 0, first, i, values[i].dtype) from None


cdef Py_ssize_t next_different(list values):
    cdef Py_ssize_t i
    for i in range(1, len(values)):
        if values[i].dtype != values[0].dtype:
            return i
    return 0


cdef int check_shapes(list values, str path) except -1:
    cdef Py_ssize_t i
    cdef int d, ndim = cnp.PyArray_NDIM(<cnp.ndarray> values[0])
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(<cnp.ndarray> values[0])
    cdef bint fits
    for i in range(1, len(values)):
        fits = cnp.PyArray_NDIM(<cnp.ndarray> values[i]) == ndim
        for d in range(ndim):
            fits = fits and cnp.PyArray_DIM(<cnp.ndarray> values[i], d) == shape[d]
        if not fits:
            raise mismatch(path, "shape", 0, values[0].shape, i, values[i].shape)
    return 0


cdef int write_rows(cnp.ndarray out, list values, Py_ssize_t first, bint same) except -1:
    """Copy arrays of the row's shape to ``out[first:]``; `same`: their dtype is that of `out`."""
    cdef Py_ssize_t i, n = len(values), row
    cdef const char **sources
    for i in range(n):
        same = same and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray> values[i])
    if not same:
        for i in range(n):
            out[first + i] = values[i]
        return 0
    row = cnp.PyArray_NBYTES(<cnp.ndarray> values[0])
    sources = <const char **> PyMem_Malloc(n * sizeof(char *))
    if sources == NULL:
        raise MemoryError()
    for i in range(n):
        sources[i] = <const char *> cnp.PyArray_DATA(<cnp.ndarray> values[i])
    copy_rows(<char *> cnp.PyArray_DATA(out) + first * row, sources, n, row)
    PyMem_Free(sources)
    return 0


cdef object tensor_class():
    """torch.Tensor, without importing torch: where there is a tensor, torch is there."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


cdef bint is_tensor(value):
    """Whether it is a torch tensor."""
    kind = tensor_class()
    return kind is not None and isinstance(value, kind)


cdef object stack_tensors(list values, str path):
    cdef Py_ssize_t i
    first = values[0].shape
    for i in range(1, len(values)):
        if not is_tensor(values[i]):
            raise mismatch_type(path, values, i)
        if values[i].shape != first:
            raise mismatch(path, "shape", 0, tuple(first), i, tuple(values[i].shape))
    return _codec.foreign_module("tensor").stack(values, empty)
