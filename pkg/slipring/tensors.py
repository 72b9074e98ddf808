"""Torch tensors as leaves: their bytes travel as an array's, their dtype by name.

Imported only when a tensor is met, so that slipring itself never imports torch.
"""

import numpy as np
import torch

# What numpy has no dtype for travels as integers of the same size.
_CARRIERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32)}
_NUMPY = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip


def _array(tensor):
    """The tensor's memory as an array; its dtype is only a carrier where numpy lacks the real one."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype not in _NUMPY:
        tensor = tensor.contiguous().view(_CARRIERS[tensor.element_size()][0])
    return tensor.numpy()


def _is_plain(value):
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not value.is_quantized
        and (value.dtype in _NUMPY or value.element_size() in _CARRIERS)
    )


def pack(value):
    """Return (array, dtype name) of a plain CPU tensor; None for what must be pickled.

    Raises
    ------
    TypeError
        The tensor lives on a device: a worker cannot send it.
    """
    if not isinstance(value, torch.Tensor):
        return None
    _refuse_device(value)
    if not _is_plain(value) or value.dim() > 12:
        return None
    return _array(value), str(value.dtype).removeprefix("torch.")


def _refuse_device(tensor):
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"a worker returned a tensor on {tensor.device}; return CPU tensors or arrays, the consumer moves "
            "batches to the device"
        )


def restore(array, name):
    """Return the tensor over `array`'s memory.

    Parameters
    ----------
    array : numpy.ndarray
        Any shape; of the dtype, or of a carrier of the same size.
    name : str
        The torch dtype's name.
    """
    from slipring.errors import CorruptBatch

    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise CorruptBatch(f"a worker sent a tensor of unknown dtype {name!r}")
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


def stack(tensors, empty):
    """Return the tensors stacked along a new first dimension, in memory from `empty`.

    Parameters
    ----------
    tensors : list of torch.Tensor
        CPU tensors, of one shape.
    empty : callable
        ``empty(shape, dtype)`` returns an array.
    """
    first = tensors[0]
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            _refuse_device(tensor)
    if not all(_is_plain(t) and t.dtype is first.dtype and t.shape == first.shape for t in tensors):
        return torch.stack(tensors)
    shape = (len(tensors), *first.shape)
    if first.dtype in _NUMPY:
        out = torch.from_numpy(empty(shape, _array(first).dtype))
    else:
        out = torch.from_numpy(empty(shape, _CARRIERS[first.element_size()][1])).view(first.dtype)
    return torch.stack([t.detach() for t in tensors], out=out)
