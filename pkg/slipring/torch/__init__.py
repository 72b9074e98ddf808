"""slipring under torch's interface: only the import of DataLoader changes, to ``from slipring.torch``."""

from typing import TYPE_CHECKING

import torch

from slipring import _platform

TORCH = (2, 6)  # the first version with `in_order` and torch.accelerator

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < TORCH:
    raise ImportError(
        f"slipring.torch needs torch {TORCH[0]}.{TORCH[1]} or later (the tests run with 2.13 and 2.14) and this is "
        f"{torch.__version__}; slipring.Loader needs no torch"
    )

from slipring._public import publish  # noqa: E402
from slipring.options import Device  # noqa: E402
from slipring.torch.context import context_slice  # noqa: E402

if TYPE_CHECKING or not _platform.fallback:
    from slipring.torch.drop_in.install import install, uninstall
    from slipring.torch.loader import DataLoader
    from slipring.torch.ring_collate import RingCollate
else:
    from slipring.torch.fallback import DataLoader, RingCollate, install, uninstall, warn

    warn()

__all__ = ["DataLoader", "Device", "RingCollate", "context_slice", "install", "uninstall"]

publish(__name__)
