"""slipring under torch's interface: ``from slipring.torch import DataLoader`` is all that changes."""

from slipring.torch.install import install, uninstall
from slipring.torch.loader import DataLoader

__all__ = ["DataLoader", "install", "uninstall"]
