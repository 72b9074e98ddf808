"""Log how much a training by Hugging Face's Trainer waits for its data. The import needs transformers."""

from __future__ import annotations

from typing import Any

from slipring.monitor._callbacks import StatsSampler, need

TrainerCallback = need("transformers", "slipring.monitor.transformers", "transformers").TrainerCallback

__all__ = ["DataMonitor"]


class DataMonitor(TrainerCallback):  # type: ignore[misc]
    """A callback that logs throughput and the share of waiting, by `slipring.monitor.scalars`' names.

    Parameters
    ----------
    trainer : transformers.Trainer
        Its ``log`` gets the figures: they reach ``state.log_history`` and the targets of ``report_to``.
    loader : loader, optional
        Default: the trainer's own training loader.
    every : int
        Steps between two lines.

    Attributes
    ----------
    last : dict
        The figures that were logged last.

    Raises
    ------
    ValueError
        A training begins whose loader is not slipring's: `slipring.torch.install` changes that.

    Examples
    --------
    >>> from slipring.monitor.transformers import DataMonitor
    >>> def monitored(trainer):
    ...     trainer.add_callback(DataMonitor(trainer, every=100))
    ...     return trainer
    """

    def __init__(self, trainer: Any, loader: Any = None, every: int = 50) -> None:
        self.last: dict[str, float] = {}
        self._trainer, self._sampler = trainer, StatsSampler(loader, every)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; called by transformers."""
        self._sampler.begin(kwargs.get("train_dataloader"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the figures if they are due; called by transformers."""
        metrics = self._sampler.step()
        if metrics is not None:
            self.last = metrics
            self._trainer.log(dict(metrics))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Drop the loader; called by transformers."""
        self._sampler.end()
