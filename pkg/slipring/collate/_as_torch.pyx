"""torch's default collation of plain samples, in C and straight into the slot.

Its results are those of ``torch.utils.data.default_collate``. Whatever is not plain (other types, samples
that do not fit together) is torch's own to collate, or to refuse in its own words.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from slipring.collate._arrays cimport NPY_HALF, AsTensor, all_of, copy_rows
from slipring.collate._default cimport stack_numbers, write_rows

import sys

import numpy as np

from slipring.codec import _decode as _codec
from slipring.codec import tree as _tree
from slipring.collate._arrays import empty

cnp.import_array()

__all__ = ["ODD", "collate_plain", "is_stock"]

# DLPack 1.x, the table of functions that a type offers as __dlpack_c_exchange_api__: it describes a tensor
# without a Python object made, and without torch's headers.
cdef enum:
    DL_CPU = 1
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_BOOL = 6

cdef extern from *:
    """
    typedef struct {
        void *data;
        struct { int32_t kind, number; } device;
        int32_t ndim;
        struct { uint8_t code, bits; uint16_t lanes; } dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } slipring_dl_tensor;
    typedef struct {
        uint32_t major, minor;
        void *older;
        void *allocate, *take, *give;
        int (*describe)(PyObject *tensor, slipring_dl_tensor *out);
        void *stream;
    } slipring_dl_api;
    """
    ctypedef struct DLDevice "slipring_dl_tensor.device":
        int32_t kind
    ctypedef struct DLType "slipring_dl_tensor.dtype":
        uint8_t code
        uint8_t bits
        uint16_t lanes
    ctypedef struct DLTensor "slipring_dl_tensor":
        char *data
        DLDevice device
        int32_t ndim
        DLType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct DLApi "slipring_dl_api":
        uint32_t major
        int (*describe)(PyObject *tensor, DLTensor *out) except -1

cdef int MAX_DEPTH = _tree.MAX_DEPTH
cdef dict _DTYPES = {
    (DL_BOOL, 8): np.dtype(np.bool_),
    **{(DL_INT, bits): np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(DL_UINT, bits): np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(DL_FLOAT, bits): np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
}
ODD = object()
cdef object odd = ODD


def is_stock(dict registered, dict stock):
    """Whether two dicts have the very same entries: no user has registered types of collation."""
    if len(registered) != len(stock):
        return False
    for kind, function in registered.items():
        if stock.get(kind) is not function:
            return False
    return True


def collate_plain(samples):
    """Return what torch's default_collate makes of plain samples; `ODD` if there is any other.

    Parameters
    ----------
    samples : list
        Of arrays, ints, floats, bools, text, bytes, torch tensors, and dicts, lists, tuples and namedtuples
        of them, of exactly these types.

    Returns
    -------
    value
        Arrays and numbers become `AsTensor`, torch tensors a tensor in the slot, tuples lists.
    """
    if type(samples) is not list or not samples:
        return ODD
    return collate(list(samples), False, 0)  # a list that no other thread changes meanwhile


cdef object collate(list values, bint transposed, int depth):
    first = values[0]
    kind = type(first)
    if depth > MAX_DEPTH:
        return odd
    if not isinstance(first, (tuple, list)) and not all_of(values, kind):
        return odd
    if kind is np.ndarray:
        return stack(values)
    if kind is int or kind is float or kind is bool:
        return numbers(values)
    if kind is str or kind is bytes:
        return tuple(values) if transposed else values  # as zip() has left them
    if kind is dict:
        return collate_dict(values, <dict> first, depth)
    if isinstance(first, (tuple, list)):
        return collate_sequence(values, kind, depth)
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        stacked = stack_tensors(values, kind)
        if stacked is odd:
            stacked = _codec.foreign_module("tensor").stack_alike(values, empty)
        return odd if stacked is None else stacked
    return odd


cdef object stack(list values):
    cdef cnp.ndarray first = <cnp.ndarray> values[0], other
    cdef cnp.dtype descr = <cnp.dtype> cnp.PyArray_DESCR(first)
    cdef int num = cnp.PyArray_TYPE(first), ndim = cnp.PyArray_NDIM(first), d
    cdef Py_ssize_t i, n = len(values)
    if not (num <= cnp.NPY_DOUBLE or num == NPY_HALF or num == cnp.NPY_CFLOAT or num == cnp.NPY_CDOUBLE):
        return odd
    if not cnp.PyArray_ISNOTSWAPPED(first):
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
    write_rows(<cnp.ndarray> out, values, 0, True)
    return as_tensor(out)


cdef object stack_tensors(list values, kind):
    """Contiguous CPU tensors of one shape and dtype, copied without a call into torch's operators."""
    cdef const DLApi *api = NULL
    cdef DLTensor first, other
    cdef const char **rows
    cdef Py_ssize_t i, n = len(values)
    cdef uint64_t nbytes
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return odd
    api = <const DLApi *> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    if api.major != 1 or not describe(api, values[0], &first):
        return odd
    dtype = _DTYPES.get((first.dtype.code, first.dtype.bits))
    if dtype is None:
        return odd
    rows = <const char **> PyMem_Malloc(n * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            if not describe(api, values[i], &other) or not alike(&first, &other) or values[i].requires_grad:
                return odd
            # x.conj().imag is negative by a flag that DLPack does not tell. It is strided, unless it is
            # a single number.
            if single_float(&other) and values[i].is_neg():
                return odd
            rows[i] = other.data + other.byte_offset
        shape = (n, *[first.shape[d] for d in range(first.ndim)])
        out = empty(shape, dtype)
        nbytes = cnp.PyArray_NBYTES(<cnp.ndarray> out) // n
        if nbytes:
            copy_rows(<char *> cnp.PyArray_DATA(<cnp.ndarray> out), rows, n, nbytes)
    finally:
        PyMem_Free(rows)
    return as_tensor(out)


cdef bint describe(const DLApi *api, tensor, DLTensor *out):
    """Whether a tensor is of ordinary memory, row by row; *out says where."""
    cdef int64_t step = 1
    cdef int d
    try:
        api.describe(<PyObject *> tensor, out)
    except Exception:  # a sparse one, or one whose values are not what its memory shows
        return False
    if out.device.kind != DL_CPU or out.dtype.lanes != 1:
        return False
    if out.strides != NULL:
        for d in range(out.ndim - 1, -1, -1):
            if out.shape[d] != 1 and out.strides[d] != step:
                return False
            step *= out.shape[d]
    return True


cdef bint single_float(const DLTensor *tensor) noexcept:
    cdef int d
    for d in range(tensor.ndim):
        if tensor.shape[d] != 1:
            return False
    return tensor.dtype.code == DL_FLOAT


cdef bint alike(const DLTensor *a, const DLTensor *b) noexcept:
    cdef int d
    if a.ndim != b.ndim or a.dtype.code != b.dtype.code or a.dtype.bits != b.dtype.bits:
        return False
    for d in range(a.ndim):
        if a.shape[d] != b.shape[d]:
            return False
    return True


cdef object numbers(list values):
    """One array of ints, floats or bools, all of the same kind."""
    out = stack_numbers(values, "")
    # Ints beyond 63 bits stay a list or become unsigned: torch refuses them.
    return odd if type(out) is list or out.dtype.kind == "u" else as_tensor(out)


cdef object as_tensor(out):
    cdef AsTensor made = AsTensor.__new__(AsTensor)
    made.array = out
    return made


cdef object collate_dict(list values, dict first, int depth):
    cdef dict out = {}
    for key in first:
        column = []
        for value in values:
            if key not in <dict> value:
                return odd
            column.append((<dict> value)[key])
        part = collate(column, False, depth + 1)
        if part is odd:
            return odd
        out[key] = part
    return out


cdef object collate_sequence(list values, kind, int depth):
    cdef Py_ssize_t i, j, n = len(values[0])
    cdef list out = [], parts
    named = kind is not tuple and kind is not list
    if named and not _tree.is_namedtuple(kind):
        return odd
    for value in values:
        if type(value) is not kind or len(value) != n:
            return odd
    for j in range(n):
        parts = [None] * len(values)
        for i in range(len(values)):
            parts[i] = values[i][j]
        part = collate(parts, True, depth + 1)
        if part is odd:
            return odd
        out.append(part)
    return kind(*out) if named else out
