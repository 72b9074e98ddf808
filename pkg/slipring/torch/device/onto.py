"""The batches of any iteration on a device: what adapters other than torch's need of preload."""

import numpy as np
import torch

from slipring._core.engine_cache import DeviceCounters
from slipring.torch.device import cuda as _device
from slipring.torch.device.mover import Mover, each_leaf
from slipring.torch.device.registered import RegisteredSlots
from slipring.torch.preload import Feed, Preload, Steps


def as_tensors(batch):
    """Return a batch whose arrays are tensors over the same memory; text and objects stay as they are.

    An array that torch cannot use in place (read-only, unaligned, of another byte order, with negative strides) is
    copied. Arrays of a dtype that torch lacks stay arrays.
    """
    return each_leaf(batch, _as_tensor)


def _as_tensor(leaf):
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biufc" or leaf.dtype.char in "gG":
        return leaf
    steps_over_elements = all(step >= 0 and step % leaf.itemsize == 0 for step in leaf.strides)
    if not (leaf.flags.behaved and leaf.dtype.isnative and steps_over_elements):
        leaf = np.array(leaf, leaf.dtype.newbyteorder("="))
    return torch.from_numpy(leaf)


class TensorFeed(Feed):
    """A `slipring.torch.preload.Feed` that gives arrays as tensors."""

    def __call__(self):
        batch, slot, note = super().__call__()
        return as_tensors(batch), slot, note


class OnDevice:
    """An iteration's batches on one device; the next are copied there, or ready on the CPU, before they are requested.

    `device` is as `slipring.torch.device.cuda.checked_device` returns it. `feed` is of an iteration that has begun;
    the limit for its waiting counts for `next` from now on.
    """

    def __init__(self, device, feed):
        places = [_device.open_device(device.device)]
        mover = Mover(places, device.memory_format, device.transform, device.non_blocking, DeviceCounters())
        engine = feed.core._engine
        if mover.host is not None and engine is not None:
            mover.pins = engine.attachment = engine.attachment or RegisteredSlots(engine.ring, mover.host)
        self._ready, self._made = None, []  # what is made and not handed out; what of it nobody notes
        ahead = 1 if device.preload is None else device.preload
        self._preload = Preload(Steps(feed, mover), ahead, feed.core.hand_over_timeout() or None)

    def __iter__(self):
        return self

    def __next__(self):
        """Return the next batch, ordered for the caller's current stream; errors as `Preload.next` raises them."""
        while True:
            if self._ready is None:
                self._preload.next(self, whole=False)
            self._made.clear()
            # No call from here on: a handler cannot raise, nor another thread take the same.
            ready = self._ready
            if ready is not None:
                self._ready = None
                return ready[0]

    def close(self):
        """End the thread. Safe to call twice."""
        self._preload.stop()
