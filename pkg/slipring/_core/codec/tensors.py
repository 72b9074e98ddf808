"""Torch tensors as leaves of a batch: their bytes as an array's, their dtype by its name.

This module is imported when the first tensor is encoded or decoded, so that slipring itself never imports torch.
"""

import numpy as np
import torch

from slipring.errors import CorruptBatch

# Dtypes that numpy lacks are sent as integers of the same size. torch copies integers even if it cannot copy the dtype.
_CARRIERS = {
    1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32), 8: (torch.int64, np.int64),
}  # fmt: skip


def _sort_dtypes():
    """Return {dtype: numpy's dtype} and the dtypes that numpy lacks.

    Bytes do not describe a quantized tensor (quint8, qint32, ...), because its scale is outside them.
    """
    known, carried, memory = {}, set(), torch.zeros(16, dtype=torch.uint8)
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            continue
        try:
            known[dtype] = memory.view(dtype).numpy().dtype
        except TypeError:
            if dtype.itemsize in _CARRIERS:
                carried.add(dtype)
    return known, carried


_DTYPES, _CARRIED = _sort_dtypes()
BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.keys() | _CARRIED}
numpy_dtype = _DTYPES.get


def array_of(tensor):
    """Return the tensor's memory as an array; if numpy lacks the tensor's dtype, the array has a carrier's dtype."""
    return carried(tensor).numpy()


def carried(tensor):
    """Return the tensor's memory as a tensor of a dtype that numpy has."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.dtype in _DTYPES else tensor.view(_CARRIERS[tensor.element_size()][0])


def is_plain(value):
    """Return whether a value is a CPU tensor that its dtype, shape and bytes describe completely."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and (value.dtype in _DTYPES or value.dtype in _CARRIED)
        and not value.is_nested
    )


def pack(value):
    """Return (array, dtype name, requires_grad, borrowed) of a plain CPU tensor; None if the value must be pickled.

    `borrowed`: the array is over the tensor's own memory. A tensor on a device raises TypeError, because a worker
    cannot send it.
    """
    if not isinstance(value, torch.Tensor):
        return None
    _refuse_device(value)
    if not is_plain(value) or value.dim() > 12 or vars(value):
        return None
    borrowed = not (value.is_conj() or value.is_neg())
    return array_of(value), str(value.dtype).removeprefix("torch."), value.requires_grad, borrowed


def _refuse_device(tensor):
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"a worker returned a tensor on {tensor.device}; return CPU tensors or arrays, the consumer "
            "moves batches to the device"
        )


def carrier(name):
    """Return the number of the numpy dtype from which torch makes tensors of dtype `name`; -1 if there is none."""
    dtype = _DTYPES.get(BY_NAME.get(name)) if isinstance(name, str) else None
    return -1 if dtype is None else dtype.num


def unusable(array, name, error):
    """Return the exception for an array from which torch cannot make a tensor."""
    return CorruptBatch(f"a worker sent a tensor of dtype {name} as an array of {array.dtype}: {error}")


def restore(array, name, requires_grad):
    """Return a tensor of the torch dtype `name` over `array`'s memory.

    `array` has any shape, and that dtype or a carrier of the same size. The decoder itself restores the tensors that
    `carrier` describes completely.
    """
    dtype = BY_NAME.get(name) if isinstance(name, str) else None
    if dtype is None or dtype.itemsize != array.itemsize:
        raise CorruptBatch(f"a worker sent a tensor of dtype {name!r} as an array of {array.dtype}")
    try:
        tensor = torch.from_numpy(array)
        if not array.size:
            tensor = torch.empty(array.shape, dtype=tensor.dtype)  # from numpy, all its strides are 0
        tensor = tensor if tensor.dtype is dtype else tensor.view(dtype)
        return tensor.requires_grad_() if requires_grad else tensor
    except (TypeError, RuntimeError, ValueError) as error:  # a dtype that torch does not support
        raise unusable(array, name, error) from None


def stack_alike(tensors, empty):
    """Return torch's stack of tensors in memory from ``empty(shape, dtype)``; None if the first one is not plain.

    The types must be exactly torch.Tensor. Only the first tensor is checked: torch's own collation also stacks the
    others into an array of the first one's dtype, and refuses misfits with the same message.
    """
    first = tensors[0]
    dtype = _DTYPES.get(first.dtype)
    if dtype is None or not is_plain(first):
        return None
    return torch.stack(tensors, 0, out=torch.from_numpy(empty((len(tensors), *first.shape), dtype)))


def stack(tensors, empty):
    """Return the tensors, all of one shape, stacked along a new first dimension.

    If their kinds agree, the result lies in memory from ``empty(shape, dtype)``.
    """
    first = tensors[0]
    for tensor in tensors:
        _refuse_device(tensor)
    if not all(is_plain(t) and t.dtype is first.dtype for t in tensors):
        return torch.stack(tensors)
    shape = (len(tensors), *first.shape)
    out = torch.from_numpy(empty(shape, _DTYPES.get(first.dtype) or carrier_of(first.dtype)))
    torch.stack([t.detach() if t.dtype in _DTYPES else carried(t) for t in tensors], out=out)
    return out if out.dtype is first.dtype else out.view(first.dtype)


def next_unpromoted(tensors):
    """Return the index of the first tensor whose dtype torch cannot combine with those before it; None if all fit."""
    dtype = tensors[0].dtype
    for i, tensor in enumerate(tensors):
        if tensor.dtype is not dtype:
            try:
                dtype = torch.promote_types(dtype, tensor.dtype)
            except RuntimeError:
                return i
    return None


# ---- rows of a batch, for slipring._core.codec._collate


def carrier_of(dtype):
    """Return the integer dtype that carries a torch dtype which numpy lacks; None if numpy has it."""
    return np.dtype(_CARRIERS[dtype.itemsize][1]) if dtype in _CARRIED else None


def row_dtype(tensor):
    """Return the numpy dtype of rows for tensors like this one; None if they have no rows."""
    if not is_plain(tensor) or tensor.requires_grad:
        return None
    return _DTYPES.get(tensor.dtype) or carrier_of(tensor.dtype)


def without_memory(tensor):
    """Return a meta tensor of the same shape, dtype and strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def write_row(row, tensor, dtype):
    """Copy a tensor to its row, an array; return False if it is not plain, or of another dtype or shape."""
    if row_dtype(tensor) is None or tensor.dtype is not dtype or tensor.shape != row.shape:
        return False
    torch.from_numpy(row).copy_(carried(tensor))
    return True


def read_row(row, dtype, like):
    """Return a copy of a row, with the strides of `like` (None: contiguous)."""
    row = torch.from_numpy(row)
    made = torch.empty_like(row) if like is None else torch.empty_like(like, dtype=row.dtype, device="cpu")
    made.copy_(row)
    return made if made.dtype is dtype else made.view(dtype)


def over_rows(array, dtype):
    """Return the tensor over an array of `row_dtype`."""
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype)
