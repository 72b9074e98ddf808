"""torch's own loader behind slipring's names, where slipring cannot run and SLIPRING_FALLBACK=1.

It imports no compiled module of slipring.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch.utils.data

from slipring import _platform
from slipring._core.codec.pytree import map_leaves
from slipring._core.options.rule import check, rules
from slipring.options import Device, TorchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORCHS = inspect.signature(torch.utils.data.DataLoader.__init__)


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """`torch.utils.data.DataLoader`, which also takes the options of slipring's loader.

    Of these, ``device=`` has its effect, without preloading, ``share=`` is refused, and the others are only checked.
    """

    _device: Device | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        own = {name: options.pop(name, rule.default) for name, (_, rule) in rules(TorchOptions).items()}
        try:
            given = TORCHS.bind_partial(self, *args, **options)
        except TypeError as error:
            raise TypeError(f"DataLoader() {error}") from None
        given.arguments["num_workers"] = _worker_count(given.arguments.get("num_workers", 0))
        super().__init__(*given.args[1:], **given.kwargs)
        for name, (kind, rule) in rules(TorchOptions).items():
            setattr(self, name, check(name, kind, rule, own[name]))
        if self.share is not None:
            raise ValueError("share=: torch's own loader, which replaces slipring's here, does not share batches")
        if self.device is not None:
            self._device = self.device if isinstance(self.device, Device) else Device(self.device)
            if isinstance(self._device.device, (list, tuple)):
                raise ValueError(f"device={self._device.device!r}: torch's own loader takes one device; give that")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        return batches if self._device is None else (_moved(batch, self._device) for batch in batches)

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers of `persistent_workers`."""
        self._iterator = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch's own loader, which replaces slipring's here, has no {name!r}")


def _worker_count(given: Any) -> int:
    """Return a number where slipring's loader would find the best one."""
    if isinstance(given, (tuple, list)):
        given = given[1] if given[1] is not None else "auto"
    return (os.cpu_count() or 1) if given == "auto" else given


def _moved(batch, device):
    """Return a batch on the device, in its memory format, and transformed."""
    moved = map_leaves(batch, lambda leaf: _put(leaf, device))
    return moved if device.transform is None else device.transform(moved)


def _put(leaf, device):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dimensions = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(device.memory_format)
    wanted = device.memory_format if dimensions == leaf.dim() else torch.preserve_format
    return leaf.to(device.device, memory_format=wanted)


def RingCollate(collate_fn: Callable[[list[Any]], Any] | None = None, **options: Any) -> Callable[[list[Any]], Any]:
    """Return the function that collates: there is no ring to send batches through."""
    return torch.utils.data.default_collate if collate_fn is None else collate_fn


def install() -> contextlib.AbstractContextManager[None]:
    """Do nothing: torch's class is in its place."""
    return contextlib.nullcontext()


def uninstall() -> None:
    """Do nothing, as `install`."""


def warn() -> None:
    """Warn once in a job: a worker that does not start by a fork imports the script again, and stays silent."""
    if multiprocessing.parent_process() is None:
        warnings.warn(
            "slipring.torch.DataLoader is torch's own loader (SLIPRING_FALLBACK=1), without states, reports and the "
            f"other features of slipring: {_platform.fallback}",
            RuntimeWarning,
            stacklevel=3,
        )
