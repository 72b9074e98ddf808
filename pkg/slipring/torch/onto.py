"""Batches of any iteration on a device: what faces other than torch's need of preload."""

import numpy as np
import torch

from slipring.torch import device as _device
from slipring.torch.keeper import Moves
from slipring.torch.mover import Mover, each_leaf
from slipring.torch.pins import Pins
from slipring.torch.preload import Feed, Preload, Steps


def as_tensors(batch):
    """Return a batch whose arrays are tensors over the same memory; text and objects stay as they are."""
    return each_leaf(batch, _as_tensor)


def _as_tensor(leaf):
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc":
        return leaf
    return torch.from_numpy(leaf)


class TensorFeed(Feed):
    """What an iteration gives, arrays as tensors; see `slipring.torch.preload.Feed`."""

    def __call__(self):
        batch, slot, note = super().__call__()
        return as_tensors(batch), slot, note


def preload_onto(device, feed, ahead=1, timeout=None):
    """Return the `Preload` that brings a feed's batches to a device, or has them ready on the CPU.

    Parameters
    ----------
    device : torch.device or str
    feed : Feed
        Of an iteration that has begun.
    ahead : int
        Batches that are there before they are asked for.
    timeout : float, optional
        Seconds that `Preload.next` waits at most.

    Raises
    ------
    ValueError, RuntimeError
        There is no such device.
    """
    place = _device.open_device(_device.checked("device", device))
    mover = Mover([place], None, None, True, Moves())
    engine = feed.core._engine
    if mover.host is not None and engine is not None:
        mover.pins = engine.attachment = engine.attachment or Pins(engine.ring, mover.host)
    return Preload(Steps(feed, mover), ahead, timeout)


def unnoted(note):
    """For `Preload.next`, where nobody keeps account of what was handed out."""
