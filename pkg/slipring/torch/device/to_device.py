"""The batches of any iteration on a device: the preload of adapters other than torch's."""

import dataclasses
import functools

import numpy as np
import torch

from slipring._core.passes._device import DeviceIteration
from slipring._core.passes.prefetch import Preloader
from slipring.errors import shown
from slipring.stats import Counters
from slipring.torch.device import cuda as _device
from slipring.torch.device.mover import Mover, each_leaf
from slipring.torch.device.registered import RegisteredSlots


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


def one_device(given):
    """Return the `Device` for an argument, with the default of `preload` filled in."""
    device = _device.checked_device(given)
    if isinstance(device.device, list):
        raise ValueError(f"device={shown(given)}: batches go to one device. Make a loader for each rank")
    if device.preload is None:
        device = dataclasses.replace(device, preload=int(device.device.type != "cpu"))  # slots are on the CPU
    return device


def pci_address(device):
    """Return the PCI address of the device of a `Device` from `one_device`; None if it has none."""
    return _device.open_device(device.device).pci_address


def on_device(core, device):
    """Return a `DeviceIteration` with the batches of `core` on one device, as tensors.

    `device` comes from `slipring.torch.device.cuda.checked_device`. `core` is an `Iteration` that has begun, or another
    object that `DeviceIteration` takes. The limit of its waits applies to next() from now on.
    """
    if core.next_pass is not None:
        core.next_pass = functools.partial(_next_pass, core.next_pass, device)
    return DeviceIteration(core, _preloader(core, device))


def _next_pass(begin, device, iterator):
    """Begin the next pass of the core of a `DeviceIteration`; `begin` is the core's own `next_pass`."""
    begin(iterator.core)
    iterator.begin(iterator.core, _preloader(iterator.core, device))


def _preloader(core, device):
    devices = [_device.open_device(device.device)]
    mover = Mover(devices, device.memory_format, device.transform, device.non_blocking, Counters())
    core.finish_batch = as_tensors
    engine = core.engine
    if mover.host is not None and getattr(engine, "ring", None) is not None:
        mover.pins = engine.pinned_slots = engine.pinned_slots or RegisteredSlots(engine.ring, mover.host)
    depth = 1 if device.preload is None else device.preload
    return Preloader(core, mover, depth, core.hand_over_timeout() or None)
