"""The devices to which a loader with torch's interface moves its batches."""

from __future__ import annotations

import torch

from slipring.options import Device
from slipring.torch import private
from slipring.torch.device import cuda as _device
from slipring.torch.device.mover import Mover
from slipring.torch.device.registered import RegisteredSlots


class DeviceMethods:
    """The ``device=`` and ``pin_memory=`` of a loader: a part of `slipring.torch.DataLoader`."""

    @property
    def slipring_device(self) -> Device | None:
        """`device`, for clients whose own loaders have an attribute of that name (Accelerate)."""
        return self.device

    @property
    def _target(self):
        """Device or None: `device`, unchecked, because users may set it between epochs."""
        return self.device if self.device is None or isinstance(self.device, Device) else Device(self.device)

    @property
    def _devices(self):
        """list: the devices of `_target`; empty if it is None."""
        target = self._target
        if target is None:
            return []
        return list(target.device) if self._several else [target.device]

    def _addresses(self):
        """Return the PCI address of each device of `_target`; None for one that has none."""
        _device.checked_device(self.device)
        return [_device.open_device(torch.device(device)).pci_address for device in self._devices]

    @property
    def _several(self):
        """bool: a step is a list of batches, one for each device."""
        target = self._target
        return target is not None and not isinstance(target.device, (str, int, torch.device))

    @property
    def _preload_depth(self):
        target = self._target
        if target is None or target.preload is None:
            return int(target is not None or self._pins)
        return target.preload

    @property
    def _pins(self):
        """bool: whether to pin batches of workers, as torch does."""
        on_cpu = all(torch.device(device).type == "cpu" for device in self._devices)
        if not (self.pin_memory and self.num_workers and on_cpu):
            return False
        return torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "mps"

    def _mover(self, engine):
        """Return the `Mover` to the devices; `engine` has the slots of the batches, or is None."""
        target = _device.checked_device(self.device)
        if target is None:
            target = Device("cpu")  # for pinning only
        devices = [_device.open_device(torch.device(device)) for device in self._devices or ["cpu"]]
        transform = _pinning(target.transform) if self._pins else target.transform
        mover = Mover(devices, target.memory_format, transform, target.non_blocking, self._engines.counters)
        if mover.host is None:
            self._unpin(engine)
        elif engine is not None:
            mover.pins = engine.pinned_slots = engine.pinned_slots or RegisteredSlots(engine.ring, mover.host)
        return mover

    @staticmethod
    def _unpin(engine):
        """Undo an earlier epoch's registrations before views of its slots are delivered; see `RegisteredSlots`."""
        if engine is not None and engine.pinned_slots is not None:
            engine.pinned_slots.close()
            engine.pinned_slots = None


def _pinning(transform):
    """Return a transform that pins a batch in the thread that preloads, so that next() need not."""
    device = torch.accelerator.current_accelerator().type
    index = torch.accelerator.current_device_index()

    def pin(batch):
        torch.accelerator.set_device_index(index)  # it is set per thread
        batch = private.pin_memory.pin_memory(batch, device)
        return batch if transform is None else transform(batch)

    return pin
