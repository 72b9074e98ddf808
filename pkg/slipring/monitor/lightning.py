"""How much a Lightning training waits for its data, in its own logs. The import needs Lightning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from slipring.monitor._callbacks import StatsSampler

__all__ = ["DataMonitor"]

NAMES = ("lightning.pytorch", "pytorch_lightning")  # two packages with the same classes, twice


def _callback() -> type[Any]:
    """The base class of the package that the program uses."""
    installed = (name for name in NAMES if importlib.util.find_spec(name.partition(".")[0]))
    name = next((name for name in NAMES if sys.modules.get(name)), None) or next(installed, None)
    if name is None:
        raise ImportError("slipring.monitor.lightning needs Lightning: pip install lightning", name=NAMES[0])
    kind: type[Any] = importlib.import_module(name).Callback
    return kind


class DataMonitor(_callback()):  # type: ignore[misc]
    """A callback that logs throughput and the share of waiting, by `slipring.monitor.scalars`' names.

    Parameters
    ----------
    loader : loader, optional
        Default: the trainer's own train_dataloader, all of them if it has several.
    every : int
        Steps from one line to the next.

    Attributes
    ----------
    last : dict
        What was logged last.

    Raises
    ------
    ValueError
        When a training begins whose loader is none of slipring's.

    Examples
    --------
    >>> from slipring.monitor.lightning import DataMonitor
    >>> monitor = DataMonitor(every=100)  # pl.Trainer(callbacks=[monitor])
    """

    def __init__(self, loader: Any = None, every: int = 50) -> None:
        super().__init__()
        self.last: dict[str, float] = {}
        self._sampler = StatsSampler(loader, every)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's: begin."""
        self._sampler.begin(trainer.train_dataloader)

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Lightning's: log, where it is time to."""
        told = self._sampler.step()
        if told is not None:
            self.last = told
            for logger in trainer.loggers:
                logger.log_metrics(told, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's: let go of the loader."""
        self._sampler.end()
