"""Pickle objects that contain tensors, with the bytes of every tensor in the slot and not in the pickle.

This is for objects that are pickled as a whole: subclasses of Tensor with attributes (torchvision's tv_tensors), sparse
and nested tensors, and objects and unusual containers that hold tensors. torch's own reduction would write a tensor's
bytes into the pickle, as a file of its own. This module is imported only after torch.
"""

import copyreg
import functools
import io
import pickle

import numpy as np
import torch

from slipring._core.codec import pytree
from slipring._core.codec.tensors import BY_NAME, carried, is_plain


def dumps(value, buffer_callback):
    """Return the result of ``pickle.dumps(value, 5, buffer_callback=...)``, with tensors out of band."""
    out = io.BytesIO()
    _Pickler(out, 5, buffer_callback=buffer_callback).dump(value)
    return out.getbuffer()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if type(value) is torch.UntypedStorage and value.device.type == "cpu":  # torch cannot unpickle its own pickle
            return _storage, (pickle.PickleBuffer(torch.empty(0, dtype=torch.uint8).set_(value).numpy()),)
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        kind = type(value)
        if not _says_no_more(kind):
            return NotImplemented  # it reduces itself, mostly to plain tensors
        with torch._C.DisableTorchFunctionSubclass():
            plain = value if kind is torch.Tensor else value.as_subclass(torch.Tensor)
            parts = _parts(plain.detach())
            if parts is None:
                return NotImplemented
            attributes = vars(value)
            if kind is torch.Tensor and not attributes and not value.requires_grad:
                return parts
            # The attributes are set separately: they may refer to the tensor.
            return _dress, (kind, *parts, value.requires_grad), attributes, None, None, _set_attributes


@functools.lru_cache(maxsize=1024)
def _says_no_more(kind):
    """Return whether a class of tensors leaves the pickling of its objects to Tensor."""
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return (
        kind.__reduce_ex__ is torch.Tensor.__reduce_ex__
        and kind.__reduce__ is torch.Tensor.__reduce__
        and getattr(kind, "__getstate__", None) is getattr(torch.Tensor, "__getstate__", None)
        and kind.__setstate__ is torch.Tensor.__setstate__
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and kind not in copyreg.dispatch_table
        and not hasattr(kind, "__tensor_flatten__")
        and not any(pytree.slots_of(each) for each in own)
    )


def _parts(tensor):
    """Return (function, arguments) that make a detached tensor again; None for a tensor that torch must reduce."""
    if tensor.device.type != "cpu" or tensor.is_quantized:
        return None
    if tensor.is_nested:
        sizes = tensor._nested_tensor_size(), tensor._nested_tensor_strides()
        return _nested, (tensor.values(), *sizes, tensor._nested_tensor_storage_offsets())
    if tensor.layout is torch.sparse_coo:
        return _sparse, (tensor._indices(), tensor._values(), tuple(tensor.shape), tensor.is_coalesced())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = tensor.crow_indices(), tensor.col_indices()
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = tensor.ccol_indices(), tensor.row_indices()
    else:
        return _strided_parts(tensor)
    return _compressed, (*indices, tensor.values(), tuple(tensor.shape), tensor.layout)


def _strided_parts(tensor):
    if not is_plain(tensor):
        return None
    strides = None
    name, tensor = str(tensor.dtype).removeprefix("torch."), carried(tensor)
    if not tensor.is_contiguous():
        tensor = tensor.clone()  # without gaps, in the order of its strides
        strides = tensor.stride()
    flat = tensor.as_strided((tensor.numel(),), (1,)) if strides else tensor.reshape(-1)
    data = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
    return _strided, (data, name, tuple(tensor.shape), strides)


# ---- called by pickles


def _bytes(data):
    array = np.frombuffer(data, np.uint8)
    if not array.flags.writeable:  # the memory of a cache: torch would write to it nevertheless
        array = array.copy()
    return torch.from_numpy(array)


def _storage(data):
    return _bytes(data).untyped_storage()


def _strided(data, name, shape, strides):
    flat = _bytes(data).view(BY_NAME[name])
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _nested(values, sizes, strides, offsets):
    return torch._nested_view_from_buffer(values, sizes, strides, offsets)


def _sparse(indices, values, shape, is_coalesced):
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=is_coalesced)


def _compressed(outer, inner, values, shape, layout):
    return torch.sparse_compressed_tensor(outer, inner, values, shape, layout=layout, check_invariants=False)


def _dress(kind, function, parts, requires_grad):
    tensor = function(*parts)
    if kind is not torch.Tensor:
        tensor = tensor.as_subclass(kind)
    if requires_grad:
        tensor.requires_grad_()  # its result may be of another class
    return tensor


def _set_attributes(tensor, attributes):
    vars(tensor).update(attributes)
