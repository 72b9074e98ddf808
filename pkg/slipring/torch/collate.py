"""torch's default_collate with its result in the slot."""

import numpy as np
import torch
from torch.utils.data import default_convert

from slipring._core.codec._codec import empty
from slipring._core.codec._collate import UNSUPPORTED, collate_plain, has_same_rules
from slipring._core.codec.pytree import is_namedtuple
from slipring._core.codec.tensors import stack_alike
from slipring._core.ring._slot import current
from slipring.torch.private import collate as _theirs

# The entries that torch itself registers. With others, types may be collated differently.
_DEFAULT = {
    torch.Tensor: _theirs.collate_tensor_fn,
    np.ndarray: _theirs.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): _theirs.collate_numpy_scalar_fn,
    float: _theirs.collate_float_fn,
    int: _theirs.collate_int_fn,
    str: _theirs.collate_str_fn,
    bytes: _theirs.collate_str_fn,
}


def default_collate(samples):
    """Return the result of ``torch.utils.data.default_collate(samples)``, made in the slot if there is one.

    The result must go to a slot: arrays may stand for tensors until the consumer takes them.
    """
    if has_default_rules():
        made = collate_plain(samples)
        if made is not UNSUPPORTED:
            return made
    return _theirs.default_collate(samples)


def is_default(function):
    """Return whether a `collate_fn` is torch's default, or what workers use for it."""
    return function is default_collate or function is _theirs.default_collate


def convert(sample):
    """Return torch's default_convert of a sample; copy read-only arrays first, because every tensor is writable."""
    return default_convert(_writable(sample))


def _writable(sample):
    kind = type(sample)
    if isinstance(sample, np.ndarray):
        return sample if sample.flags.writeable else sample.copy()
    if kind is dict:
        return {key: _writable(part) for key, part in sample.items()}
    if kind is list or kind is tuple:
        return kind([_writable(part) for part in sample])
    return kind._make(map(_writable, sample)) if is_namedtuple(kind) else sample


def has_default_rules():
    """Return whether the user has registered no types in torch's collation."""
    registered = _theirs.default_collate_fn_map
    return has_same_rules(registered, _IN_SLOT) or has_same_rules(registered, _DEFAULT)


def _collate_tensor(batch, *, collate_fn_map=None):
    """Stack tensors in the slot, for a user's collate_fn that calls torch's default_collate."""
    if current() is not None and all(type(t) is torch.Tensor for t in batch):
        stacked = stack_alike(batch, empty)
        if stacked is not None:
            return stacked
    return _theirs.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


_IN_SLOT = {**_DEFAULT, torch.Tensor: _collate_tensor}


def collate_in_slot():
    """Make torch's default_collate stack tensors in the slot, in this process. A worker calls it once.

    Entries that the user has registered are kept.
    """
    registered = _theirs.default_collate_fn_map
    if registered.get(torch.Tensor) is _theirs.collate_tensor_fn:
        registered[torch.Tensor] = _collate_tensor


def core_collate(function):
    """Return the function that workers use for a loader's `collate_fn`."""
    if function is _theirs.default_collate:
        return default_collate
    if function is _theirs.default_convert:
        return convert
    return function.with_tensors() if hasattr(function, "gather_spans") else function  # of slipring.tokens
