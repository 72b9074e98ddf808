"""How much a training by Hugging Face's Trainer waits for its data, in its own logs. The import needs transformers."""

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
        By whose ``log`` it is logged: it reaches ``state.log_history`` and what ``report_to`` names.
    loader : loader, optional
        Default: the trainer's own, of its training.
    every : int
        Steps from one line to the next.

    Attributes
    ----------
    last : dict
        What was logged last.

    Raises
    ------
    ValueError
        When a training begins whose loader is none of slipring's: `slipring.torch.install` makes it one.

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
        """Transformers': begin."""
        self._sampler.begin(kwargs.get("train_dataloader"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Transformers': log, where it is time to."""
        told = self._sampler.step()
        if told is not None:
            self.last = told
            self._trainer.log(dict(told))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Transformers': let go of the loader."""
        self._sampler.end()
