"""torch's default collation of plain samples, in C and straight into the slot.

Its results are those of ``torch.utils.data.default_collate``. Whatever is not plain (other types, samples
that do not fit together) is torch's own to collate, or to refuse in its own words.
"""

cimport numpy as cnp

from slipring._empty cimport NPY_HALF, AsTensor
from slipring._stack cimport stack_numbers, write_rows

import sys

import numpy as np

from slipring import _codec
from slipring import tree as _tree
from slipring._empty import empty

cnp.import_array()

__all__ = ["ODD", "AsTensor", "collate_plain", "is_stock"]

cdef int MAX_DEPTH = _tree.MAX_DEPTH
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
    return collate(<list> samples, False, 0)


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
    cdef Py_ssize_t j, n = len(values[0])
    cdef list out = []
    named = kind is not tuple and kind is not list
    if named and not _tree.is_namedtuple(kind):
        return odd
    for value in values:
        if type(value) is not kind or len(value) != n:
            return odd
    for j in range(n):
        part = collate([value[j] for value in values], True, depth + 1)
        if part is odd:
            return odd
        out.append(part)
    return kind(*out) if named else out


cdef bint all_of(list values, kind) noexcept:
    for value in values:
        if type(value) is not kind:
            return False
    return True
