"""Shared code for other libraries: their import, and the callbacks of training libraries."""

from __future__ import annotations

import importlib
from typing import Any

from slipring._core.options.checks import integer
from slipring._core.ring.rates import Window

# Attributes in which wrappers have the wrapped loader: Accelerate's, Lightning's, Ray's and others.
WRAPPED = ("base_dataloader", "iterables", "dataloader", "loader")


def need(module: str, what: str, remedy: str = "slipring[monitor]") -> Any:
    """Import an optional library; the ImportError names the feature that needs it, and the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name != top:
            raise  # it is installed, and lacks a module itself
        raise ImportError(f"{what} needs {top}: pip install {remedy}", name=top) from None


def loaders_in(found: Any) -> list[Any]:
    """Return the loaders that have figures, in a loader, a wrapper of one, or containers of them."""
    if isinstance(found, dict):
        return [loader for one in found.values() for loader in loaders_in(one)]
    if isinstance(found, (list, tuple)):
        return [loader for one in found for loader in loaders_in(one)]
    if callable(getattr(found, "stats", None)) and hasattr(type(found), "__iter__"):
        return [found]
    for name in WRAPPED:
        inner = getattr(found, name, None)
        if inner is not None and inner is not found:
            return loaders_in(inner)
    return []


class StatsSampler:
    """A sampler of the figures of a training's loaders, every so many steps; `loader` None: the one `begin` gets."""

    def __init__(self, loader: Any, every: int) -> None:
        integer("every", every, 1)
        self.loader, self.every = loader, every
        self._steps = 0
        self._window: Window | None = None

    def begin(self, trainers: Any) -> None:
        """Begin a training; `trainers` is its own loader. Raise ValueError if there is no loader with figures."""
        owner = trainers if self.loader is None else self.loader
        loaders = loaders_in(owner)
        if not loaders:
            raise ValueError(
                f"DataMonitor needs a loader of slipring's, and the training reads from a {type(owner).__name__}: "
                "use slipring.torch.DataLoader, or give DataMonitor(loader=...)"
            )
        self._steps, self._window = 0, Window(loaders)

    def step(self) -> dict[str, float] | None:
        """Count a step; return the scalars if they are due."""
        if self._window is None:
            return None
        self._steps += 1
        return None if self._steps % self.every else self._window.look()

    def end(self) -> None:
        """Drop the loaders."""
        self._window = None
