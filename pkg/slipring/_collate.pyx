"""Collation: many samples become one batch, stacked straight into the slot."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from slipring._ring cimport Fill, copy_streaming, current_fill

import numpy as np

from slipring import _codec
from slipring import tree as _tree
from slipring._encode import empty

cnp.import_array()

cdef Py_ssize_t BIG_COPY = 1 << 16  # from here on other threads may run during a copy
cdef Py_ssize_t STREAMING = 4 << 20  # from here on an array leaves the caches before anybody reads it
FIXED_KINDS = frozenset("biufcmMSUV?")


def default_collate(samples):
    """Put samples together along a new first dimension.

    In a worker the arrays are made inside the slot, so each sample's bytes are copied once.

    Parameters
    ----------
    samples : list
        Arrays, numbers, text, torch tensors, and dicts, lists, tuples, namedtuples and dataclasses of them.

    Returns
    -------
    value
        The samples' own containers. Arrays of shape ``s`` become one of shape ``(len(samples), *s)``, bools a
        bool, ints an int64 and floats a float64 array of shape ``(len(samples),)``; text and anything else a
        list. Where all samples have None there is None.

    Raises
    ------
    ValueError
        Shapes, keys or lengths differ; the message names both and the indices.
    """
    samples = samples if type(samples) is list else list(samples)
    if not samples:
        raise ValueError("there are no samples to put together: the sampler gave an empty batch")
    return collate(samples, "")


cdef object where(Py_ssize_t i):
    """How to name a sample in a message: by its index in the dataset where that is known."""
    cdef Fill fill = current_fill()
    if fill is not None and fill.rows is not None and i < len(fill.rows):
        return f"index {fill.rows[i]!r}"
    return f"sample {i}"


cdef object place(str path):
    return f" at {path}" if path else ""


cdef object mismatch(str path, str what, Py_ssize_t i, a, Py_ssize_t j, b):
    return ValueError(
        f"samples cannot be put together{place(path)}: {where(i)} has {what} {a}, {where(j)} has {what} {b}; "
        "make them alike in the dataset, or give a collate_fn"
    )


cdef object collate(list values, str path):
    first = values[0]
    kind = type(first)
    if kind is np.ndarray or kind is np.memmap:
        if first.dtype.kind in FIXED_KINDS:
            return stack_arrays(values, path)
        return values
    if kind is int or kind is float or kind is bool:
        return stack_numbers(values, path)
    if kind is str or kind is bytes:
        return values
    if kind is dict or kind is OrderedDict:
        return kind([(k, collate(column(values, k, path), f"{path}[{k!r}]")) for k in first])
    if isinstance(first, tuple) or kind is list:
        return collate_sequence(values, kind, path)
    if first is None:
        return stack_nothing(values, path)
    if isinstance(first, np.generic) and first.dtype.kind in FIXED_KINDS:
        return stack_arrays([np.asarray(v) for v in values], path)
    if kind.__module__.partition(".")[0] == "torch" and is_tensor(kind):
        return _codec.foreign_module("tensor").stack(values, empty)
    if dataclasses.is_dataclass(kind):
        return collate_dataclass(values, kind, path)
    if isinstance(first, Mapping):
        return kind({k: collate(column(values, k, path), f"{path}[{k!r}]") for k in first})
    return values


def is_tensor(kind):
    """Whether `kind` is torch.Tensor or one of its subclasses, without importing torch."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)


cdef list column(list values, key, str path):
    """Element `key` of every mapping."""
    cdef Py_ssize_t i
    cdef list out = []
    size = len(values[0])
    for i in range(len(values)):
        value = values[i]
        try:
            out.append(value[key])
        except (KeyError, TypeError, IndexError):
            raise mismatch(path, "keys", 0, list(values[0]), i, keys_of(value)) from None
        if len(value) != size:
            raise mismatch(path, "keys", 0, list(values[0]), i, keys_of(value))
    return out


cdef object keys_of(value):
    return list(value) if isinstance(value, Mapping) else f"none (it is a {type(value).__name__})"


cdef object collate_sequence(list values, kind, str path):
    cdef Py_ssize_t i, j, n = len(values[0])
    for i in range(1, len(values)):
        if not isinstance(values[i], (tuple, list)):
            raise mismatch(path, "type", 0, kind.__name__, i, type(values[i]).__name__)
        if len(values[i]) != n:
            raise mismatch(path, "length", 0, n, i, len(values[i]))
    out = [collate([v[j] for v in values], f"{path}[{j}]") for j in range(n)]
    if kind is list:
        return out
    return kind._make(out) if _tree.is_namedtuple(kind) else tuple(out)


cdef object collate_dataclass(list values, kind, str path):
    # As pickle does, without __init__: it ran for every sample already.
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        name = field.name
        for i in range(len(values)):
            if not hasattr(values[i], name):
                raise mismatch(path, "type", 0, kind.__name__, i, type(values[i]).__name__)
        object.__setattr__(made, name, collate([getattr(v, name) for v in values], f"{path}.{name}"))
    return made


cdef object stack_nothing(list values, str path):
    for i in range(len(values)):
        if values[i] is not None:
            raise mismatch(path, "type", 0, "None", i, type(values[i]).__name__)
    return None


cdef object stack_numbers(list values, str path):
    cdef Py_ssize_t i, n = len(values)
    cdef int64_t[::1] ints
    kinds = {type(v) for v in values}
    if kinds == {int}:
        try:
            out = empty((n,), np.int64)
            ints = out
            for i in range(n):
                ints[i] = PyLong_AsLongLong(values[i])
            return out
        except OverflowError:
            if min(values) < 0 or max(values) >= 1 << 64:
                return values
            dtype = np.uint64
    elif kinds <= {int, float, bool}:
        dtype = np.bool_ if kinds == {bool} else np.float64 if float in kinds else np.int64
    elif kinds <= {int, float, bool} or all(isinstance(v, (int, float, np.number, np.bool_)) for v in values):
        dtype = np.result_type(*[np.asarray(v) for v in values])
    else:
        other = next(i for i in range(n) if not isinstance(values[i], (int, float, np.generic)))
        raise mismatch(path, "type", 0, type(values[0]).__name__, other, type(values[other]).__name__)
    out = empty((n,), dtype)
    out[...] = values
    return out


cdef object stack_arrays(list values, str path):
    """One array of all; the new first dimension counts samples."""
    cdef cnp.ndarray first = <cnp.ndarray> values[0]
    cdef Py_ssize_t i, n = len(values)
    cdef bint same = True
    for i in range(n):
        if type(values[i]) is not np.ndarray:
            values = as_arrays(values, path)
            break
    for i in range(1, n):
        # Nearly always the very same dtype object.
        if (cnp.PyArray_DESCR(<cnp.ndarray> values[i]) != cnp.PyArray_DESCR(first)
                and not cnp.PyArray_EquivTypes(<cnp.dtype> cnp.PyArray_DESCR(<cnp.ndarray> values[i]),
                                               <cnp.dtype> cnp.PyArray_DESCR(first))):
            same = False
    dtype = (<object> first).dtype if same else np.result_type(*values)
    out = empty((n,) + (<object> first).shape, dtype)
    write_rows(<cnp.ndarray> out, values, path, 0, same)
    return out


cdef list as_arrays(list values, str path):
    out = []
    for i in range(len(values)):
        if not isinstance(values[i], (np.ndarray, np.generic)):
            raise mismatch(path, "type", 0, "ndarray", i, type(values[i]).__name__)
        out.append(np.asarray(values[i]))
    return out


cdef int write_rows(cnp.ndarray out, list values, str path, Py_ssize_t first, bint same) except -1:
    """Copy arrays to ``out[first:]``, one per row."""
    cdef Py_ssize_t i, n = len(values), row = 0
    cdef int d, ndim = cnp.PyArray_NDIM(out) - 1
    cdef cnp.npy_intp *shape = cnp.PyArray_DIMS(out) + 1
    cdef cnp.ndarray value
    cdef const char **sources
    cdef char *target
    cdef bint plain = same
    for i in range(n):
        value = <cnp.ndarray> values[i]
        if cnp.PyArray_NDIM(value) != ndim:
            raise mismatch(path, "shape", 0, (<object> values[0]).shape, i, (<object> value).shape)
        for d in range(ndim):
            if cnp.PyArray_DIM(value, d) != shape[d]:
                raise mismatch(path, "shape", 0, tuple([shape[k] for k in range(ndim)]), i, (<object> value).shape)
        plain = plain and cnp.PyArray_IS_C_CONTIGUOUS(value)
    if not plain:
        for i in range(n):
            out[first + i] = values[i]
        return 0
    row = cnp.PyArray_NBYTES(<cnp.ndarray> values[0]) if n else 0
    target = <char *> cnp.PyArray_DATA(out) + first * row
    if row * n < BIG_COPY:
        for i in range(n):
            memcpy(target + i * row, cnp.PyArray_DATA(<cnp.ndarray> values[i]), row)
        return 0
    sources = <const char **> PyMem_Malloc(n * sizeof(char *))
    if sources == NULL:
        raise MemoryError()
    for i in range(n):
        sources[i] = <const char *> cnp.PyArray_DATA(<cnp.ndarray> values[i])
    with nogil:
        if row * n >= STREAMING:
            for i in range(n):
                copy_streaming(target + i * row, sources[i], row)
        else:
            for i in range(n):
                memcpy(target + i * row, sources[i], row)
    PyMem_Free(sources)
    return 0


# ---- cooperative batches: several workers write rows of one batch ------------------------------------------


def skeleton(sample, Py_ssize_t rows):
    """Return the batch that `rows` samples like this one make, its arrays empty; None if a leaf has no fixed size.

    Nothing is allocated before it is clear that all leaves are fixed.
    """
    return skeleton_of(sample, rows) if is_fixed(sample) else None


cdef bint is_fixed(sample) except *:
    kind = type(sample)
    if kind is np.ndarray or kind is np.memmap or isinstance(sample, np.generic):
        return sample.dtype.kind in FIXED_KINDS
    if kind is int or kind is float or kind is bool:
        return True
    if kind is dict or kind is OrderedDict:
        return all([is_fixed(v) for v in sample.values()])
    if isinstance(sample, tuple) or kind is list:
        return all([is_fixed(v) for v in sample])
    return False


cdef object skeleton_of(sample, Py_ssize_t rows):
    kind = type(sample)
    if kind is dict or kind is OrderedDict:
        return kind([(k, skeleton_of(v, rows)) for k, v in sample.items()])
    if isinstance(sample, tuple) or kind is list:
        parts = [skeleton_of(v, rows) for v in sample]
        return parts if kind is list else kind._make(parts) if _tree.is_namedtuple(kind) else tuple(parts)
    if kind is bool:
        return empty((rows,), np.bool_)
    if kind is int or kind is float:
        return empty((rows,), np.int64 if kind is int else np.float64)
    array = np.asarray(sample)
    return empty((rows, *array.shape), array.dtype)


def write(target, list samples, Py_ssize_t first, str path=""):
    """Write samples to rows ``first:first + len(samples)`` of a skeleton.

    Raises
    ------
    ValueError
        A sample does not fit the layout that another worker's first sample has set.
    """
    kind = type(target)
    if kind is np.ndarray:
        arrays = [np.asarray(v) for v in samples]
        for i in range(len(arrays)):
            if arrays[i].dtype != target.dtype and not np.can_cast(arrays[i].dtype, target.dtype, "safe"):
                raise mismatch_layout(path, "dtype", target.dtype, i, arrays[i].dtype)
            if arrays[i].shape != target.shape[1:]:
                raise mismatch_layout(path, "shape", target.shape[1:], i, arrays[i].shape)
        write_rows(<cnp.ndarray> target, arrays, path, first, all([a.dtype == target.dtype for a in arrays]))
    elif kind is dict or kind is OrderedDict:
        for k in target:
            write(target[k], column(samples, k, path), first, f"{path}[{k!r}]")
    else:
        for i in range(len(samples)):
            if not isinstance(samples[i], (tuple, list)) or len(samples[i]) != len(target):
                raise mismatch_layout(path, "length", len(target), i, len(samples[i]))
        for j in range(len(target)):
            write(target[j], [s[j] for s in samples], first, f"{path}[{j}]")


cdef object mismatch_layout(str path, str what, a, Py_ssize_t i, b):
    return ValueError(
        f"samples cannot be put together{place(path)}: the batch's first rows have {what} {a}, {where(i)} has "
        f"{what} {b}; make them alike in the dataset, or give a collate_fn"
    )
