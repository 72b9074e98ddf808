"""Collation: stack a list of samples in the slot, by slipring's rules or by torch's."""

import copy
import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping

cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t

from slipring._core.codec._codec cimport AsTensor, all_of, copy_rows, is_fixed, is_foreign_array, is_tensor
from slipring._core.codec._dlpack cimport DLApi, DLTensor, alike, describe, exchange, is_ambiguous, single_float
from slipring._core.ring._slot cimport SlotWriter, current_writer

import numpy as np

from slipring._core.codec import _codec, pytree
from slipring._core.codec._codec import empty
from slipring._core.codec.samples import listed_samples
from slipring.errors import shown

cnp.import_array()

UNSUPPORTED = object()  # in place of a batch that torch itself must collate
cdef object unsupported = UNSUPPORTED
cdef int MAX_DEPTH = pytree.MAX_DEPTH
cdef object INT64 = np.dtype(np.int64)


def default_collate(samples):
    """Stack samples along a new first dimension.

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
        list. If all samples are None, so is the result. Arrays are in native byte order, as numpy's `stack` makes
        them, whatever the order of the samples. Arrays of other libraries in CPU memory that follow the array
        API standard, such as JAX's, become numpy's.

    Raises
    ------
    ValueError
        Shapes, dtypes, keys or lengths differ; the message names both and the indices.

    Examples
    --------
    >>> import slipring
    >>> slipring.default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    {'x': array([1.5, 2.5]), 'name': ['a', 'b']}
    """
    # A copy: rows are copied without the GIL, and another thread may change the caller's list.
    samples = listed_samples(samples)
    if not samples:
        raise ValueError("there are no samples to put together: the sampler gave an empty batch")
    return collate(samples, "", 0)


cdef object collate(list values, str path, int depth):
    first = values[0]
    kind = type(first)
    if depth > MAX_DEPTH:
        raise ValueError(f"a sample is nested deeper than {MAX_DEPTH} containers; does it contain itself?")
    if kind is np.ndarray or kind is np.memmap:
        fixed = is_fixed(<cnp.dtype> cnp.PyArray_DESCR(<cnp.ndarray> first))
        return stack_arrays(values, path) if fixed else values
    if kind is int or kind is float or kind is bool:
        return stack_numbers(values, path)
    if kind is str or kind is bytes:
        return values
    if kind is dict or kind is OrderedDict:
        return kind([
            (k, collate(column(values, k, first, path), within(path, k), depth + 1)) for k in first
        ])
    if isinstance(first, tuple) or kind is list:
        return collate_sequence(values, kind, path, depth)
    if first is None:
        return collate_nothing(values, path)
    if isinstance(first, np.generic):
        return stack_arrays(values, path) if is_fixed(first.dtype) else values
    if is_tensor(first):
        return stack_tensors(values, path)
    if is_foreign_array(first):
        return stack_arrays(values, path) if is_fixed(np.asarray(first).dtype) else values
    if dataclasses.is_dataclass(kind):
        return collate_dataclass(values, kind, path, depth)
    if isinstance(first, Mapping):
        return collate_mapping(values, first, path, depth)
    return values


cdef list column(list values, key, first, str path):
    """Return element `key` of every mapping; all have the keys of `first`."""
    cdef Py_ssize_t i
    cdef list out = []
    size = len(first)
    for i in range(len(values)):
        value = values[i]
        if not isinstance(value, Mapping):
            raise mismatch(path, "type", 0, type(first).__name__, i, type(value).__name__)
        if len(value) != size or key not in value:
            raise mismatch(path, "keys", 0, list(first), i, list(value))
        out.append(value[key])
    return out


cdef object collate_mapping(list values, first, str path, int depth):
    """Collate mappings of other classes: the result is a filled copy of the first, as torch makes it."""
    parts = {k: collate(column(values, k, first, path), within(path, k), depth + 1) for k in first}
    return filled(first, parts)


cdef object filled(first, dict parts):
    """Return a mapping like the first with these parts, or a dict if its class cannot be constructed."""
    try:
        if isinstance(first, MutableMapping):
            made = copy.copy(first)
            for k in parts:  # Counter.update() would add to the counts of the first sample
                made[k] = parts[k]
            return made
        return type(first)(parts)
    except TypeError:
        return parts


cdef object collate_sequence(list values, kind, str path, int depth):
    cdef Py_ssize_t i, j, n = len(values[0])
    cdef list out, parts
    for i in range(1, len(values)):
        if not isinstance(values[i], (tuple, list)):
            raise mismatch_type(path, values, i)
        if len(values[i]) != n:
            raise mismatch(path, "length", 0, n, i, len(values[i]))
    out = [None] * n
    for j in range(n):
        parts = [None] * len(values)  # no comprehension: see Decoder.build
        for i in range(len(values)):
            parts[i] = values[i][j]
        out[j] = collate(parts, f"{path}[{j}]", depth + 1)
    if kind is list:
        return out
    return kind._make(out) if pytree.is_namedtuple(kind) else tuple(out)


cdef object collate_dataclass(list values, kind, str path, int depth):
    cdef Py_ssize_t i
    for i in range(len(values)):
        if type(values[i]) is not kind:
            raise mismatch_type(path, values, i)
    # A copy, not a call: __init__ ran for every sample already.
    made = copy.copy(values[0])
    for field in dataclasses.fields(kind):
        parts = [None] * len(values)  # no comprehension: see Decoder.build
        for i in range(len(values)):
            parts[i] = getattr(values[i], field.name)
        object.__setattr__(made, field.name, collate(parts, f"{path}.{field.name}", depth + 1))
    return made


cdef object collate_nothing(list values, str path):
    for i in range(len(values)):
        if values[i] is not None:
            raise mismatch_type(path, values, i)
    return None


# ---- errors for samples that do not match


cdef object where(Py_ssize_t i):
    """Return the name of a sample for a message: its index in the dataset if that is known."""
    cdef SlotWriter writer = current_writer()
    if writer is not None and writer.rows is not None and i < len(writer.rows):
        return f"index {shown(writer.rows[i])}"
    return f"sample {i}"


cdef str within(str path, key):
    """Return the name of a mapping's item for a message. The key is nearly always a string, whose repr cannot raise."""
    return f"{path}[{key!r}]" if type(key) is str else f"{path}[{shown(key)}]"


cdef str said(what):
    """Return a mapping's keys as `shown` does; numbers, shapes and the names of types stay as they are."""
    return shown(what) if type(what) is list else str(what)


cdef object mismatch(str path, str what, Py_ssize_t i, a, Py_ssize_t j, b):
    at = f" at {path}" if path else ""
    return ValueError(
        f"samples cannot be put together{at}: {where(i)} has {what} {said(a)}, {where(j)} has "
        f"{what} {said(b)}; make them alike in the dataset, or give a collate_fn"
    )


cdef object mismatch_type(str path, list values, Py_ssize_t i):
    return mismatch(path, "type", 0, type(values[0]).__name__, i, type(values[i]).__name__)


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
    """Return the dtype of a number of that type; for Python's own types, that of a batch with nothing else."""
    if issubclass(kind, np.generic):
        return np.dtype(kind)
    return np.dtype(np.bool_ if kind is bool else np.float64 if issubclass(kind, float) else np.int64)


cdef object stack_large(list values):
    """Stack ints that need more than 63 bits: as unsigned if that suffices, otherwise they stay as they are."""
    if min(values) < 0 or max(values) >= 1 << 64:
        return values
    out = empty((len(values),), np.uint64)
    out[...] = values
    return out


# ---- arrays and tensors


cdef object stack_arrays(list values, str path):
    """Return one array of all samples; the new first dimension counts them."""
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
        # Usually both are the same object.
        if other is not descr and not cnp.PyArray_EquivTypes(other, descr):
            same = False
            break
    dtype = native(descr if same else common_dtype(values, path))
    check_shapes(values, path)
    out = empty((n, *(<object> first).shape), dtype)
    write_rows(<cnp.ndarray> out, values, same and dtype is descr)
    return out


cdef cnp.dtype native(cnp.dtype descr):
    """Return the dtype with all its parts in native byte order, as numpy stacks arrays; `descr` itself if it is so."""
    if cnp.PyTypeNum_ISUSERDEF(descr.type_num):
        return descr
    if descr.type_num != cnp.NPY_VOID and cnp.PyDataType_ISNOTSWAPPED(descr):
        return descr
    cdef cnp.dtype made = descr.newbyteorder("=")  # `isnative` does not look into the arrays in fields
    return descr if cnp.PyArray_EquivTypes(made, descr) else made


cdef list as_arrays(list values, str path):
    cdef Py_ssize_t i
    out = []
    for i in range(len(values)):
        if not isinstance(values[i], (np.ndarray, np.generic, int, float)) and not is_foreign_array(values[i]):
            raise mismatch_type(path, values, i)
        out.append(np.asarray(values[i]))
    return out


cdef object common_dtype(list values, str path):
    """Return the dtype to which all samples can be converted without a change of meaning."""
    cdef Py_ssize_t i
    cdef object first = native(values[0].dtype), dtype
    for i in range(1, len(values)):
        dtype = native(values[i].dtype)
        if dtype.kind != first.kind and not (dtype.kind in "biufc" and first.kind in "biufc"):
            raise mismatch(path, "dtype", 0, first, i, dtype)
    try:
        return np.result_type(*{v.dtype for v in values})
    except TypeError:  # structured dtypes, units of time
        i = next_different(values)
        raise mismatch(path, "dtype", 0, first, i, native(values[i].dtype)) from None


cdef Py_ssize_t next_different(list values):
    cdef Py_ssize_t i
    for i in range(1, len(values)):
        if native(values[i].dtype) != native(values[0].dtype):
            return i
    return 0


cdef int check_shapes(list values, str path) except -1:
    cdef Py_ssize_t i
    for i in range(1, len(values)):
        if not cnp.PyArray_SAMESHAPE(<cnp.ndarray> values[i], <cnp.ndarray> values[0]):
            raise mismatch(path, "shape", 0, values[0].shape, i, values[i].shape)
    return 0


cdef int write_rows(cnp.ndarray out, list values, bint same) except -1:
    """Copy arrays of the row's shape to `out`; `same`: their dtype is that of `out`."""
    cdef Py_ssize_t i, n = len(values), row
    cdef const char **sources
    for i in range(n):
        same = same and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray> values[i])
    if not same:
        for i in range(n):
            out[i] = values[i]
        return 0
    row = cnp.PyArray_NBYTES(<cnp.ndarray> values[0])
    sources = <const char **> PyMem_Malloc(n * sizeof(char *))
    if sources == NULL:
        raise MemoryError()
    for i in range(n):
        sources[i] = <const char *> cnp.PyArray_DATA(<cnp.ndarray> values[i])
    copy_rows(<char *> cnp.PyArray_DATA(out), sources, n, row)
    PyMem_Free(sources)
    return 0


cdef object stack_tensors(list values, str path):
    cdef Py_ssize_t i
    first = values[0].shape
    for i in range(1, len(values)):
        if not is_tensor(values[i]):
            raise mismatch_type(path, values, i)
        if values[i].shape != first:
            raise mismatch(path, "shape", 0, tuple(first), i, tuple(values[i].shape))
    module = _codec.foreign_module("tensor")
    odd_one = module.next_unpromoted(values)
    if odd_one is not None:
        raise mismatch(path, "dtype", 0, values[0].dtype, odd_one, values[odd_one].dtype)
    return module.stack(values, empty)


# ---- torch's default collation of plain samples, in C and straight into the slot. The results are those of
# ---- torch.utils.data.default_collate. torch itself collates all other types, and samples that do not fit together, or
# ---- raises its own errors


def has_same_rules(dict registered, dict defaults):
    """Return whether two dicts have the same entries, that is, the user has registered no types for collation."""
    if len(registered) != len(defaults):
        return False
    for kind, function in registered.items():
        if defaults.get(kind) is not function:
            return False
    return True


def collate_plain(samples):
    """Return the result of torch's default_collate for plain samples; `UNSUPPORTED` if there is any other sample.

    Plain samples are a list of arrays, ints, floats, bools, text, bytes, torch tensors, and dicts, lists, tuples and
    namedtuples of them, of exactly these types. In the result, arrays and numbers are `AsTensor`, torch tensors are a
    tensor in the slot, and tuples are lists.
    """
    if type(samples) is not list or not samples:
        return UNSUPPORTED
    return collate_torch(list(samples), False, 0)  # a copy: another thread may change the caller's list


cdef object collate_torch(list values, bint transposed, int depth):
    first = values[0]
    kind = type(first)
    if depth > MAX_DEPTH:
        return unsupported
    if not isinstance(first, (tuple, list)) and not all_of(values, kind):
        return unsupported
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
        if stacked is unsupported:
            stacked = _codec.foreign_module("tensor").stack_alike(values, empty)
        return unsupported if stacked is None else stacked
    return unsupported


cdef object torch_stack(list values):
    cdef cnp.ndarray first = <cnp.ndarray> values[0], other
    cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(first)
    cdef Py_ssize_t i, n = len(values)
    if not has_tensor(descr):
        return unsupported
    for i in range(1, n):
        other = <cnp.ndarray> values[i]
        if cnp.PyArray_DESCR(other) is not cnp.PyArray_DESCR(first):
            if not cnp.PyArray_EquivTypes(<cnp.dtype> cnp.PyArray_DESCR(other), descr):
                return unsupported
        if not cnp.PyArray_SAMESHAPE(other, first):
            return unsupported
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
        return unsupported
    dtype = values[0].dtype
    descr = _codec.foreign_module("tensor").numpy_dtype(dtype)
    if descr is None or dtype.is_complex:  # DLPack does not report the conjugate flag
        return unsupported
    ambiguous = is_ambiguous(&first)
    rows = <const char **> PyMem_Malloc(n * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            value = values[i]
            if not describe(api, value, &other) or not alike(&first, &other) or value.requires_grad:
                return unsupported
            if ambiguous and value.dtype is not dtype:
                return unsupported
            # DLPack does not report the negative bit of a tensor such as x.conj().imag. Such a tensor is strided,
            # unless it has a single element.
            if single_float(&other) and value.is_neg():
                return unsupported
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
    return unsupported if type(out) is list or out.dtype.kind == "u" else as_tensor(out)


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
                return unsupported
            column.append((<dict> value)[key])
        part = collate_torch(column, False, depth + 1)
        if part is unsupported:
            return unsupported
        out[key] = part
    return out


cdef object torch_sequence(list values, kind, int depth):
    cdef Py_ssize_t i, j, n = len(values[0])
    cdef list out = [], parts
    named = kind is not tuple and kind is not list
    if named and not pytree.is_namedtuple(kind):
        return unsupported
    for value in values:
        if type(value) is not kind or len(value) != n:
            return unsupported
    for j in range(n):
        parts = [None] * len(values)
        for i in range(len(values)):
            parts[i] = values[i][j]
        part = collate_torch(parts, True, depth + 1)
        if part is unsupported:
            return unsupported
        out.append(part)
    return kind(*out) if named else out
