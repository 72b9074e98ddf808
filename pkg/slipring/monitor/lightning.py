"""Log how much a Lightning training waits for its data. The import needs Lightning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from slipring.monitor._callbacks import StatsSampler

__all__ = ["DataMonitor"]

NAMES = ("lightning.pytorch", "pytorch_lightning")  # two packages with the same classes, twice


def _callback() -> type[Any]:
    """Return the base class of the package that the program uses."""
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
        Steps between two lines.

    Attributes
    ----------
    last : dict
        The figures that were logged last.

    Raises
    ------
    ValueError
        A training begins whose loader is not slipring's.

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
        """Begin; called by Lightning."""
        self._sampler.begin(trainer.train_dataloader)

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Log the figures if they are due; called by Lightning."""
        metrics = self._sampler.step()
        if metrics is not None:
            self.last = metrics
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Drop the loader; called by Lightning."""
        self._sampler.end()
