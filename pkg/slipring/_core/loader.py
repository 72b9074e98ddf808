"""What every loader can do besides being iterated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring._core._ring import MAX_WORKERS
from slipring._core.arguments import integer
from slipring.errors import Closed

if TYPE_CHECKING:
    from typing_extensions import Self

    from slipring._core.engine_cache import EngineCache
    from slipring._core.option_values import Options
    from slipring._core.tuning import Tuner, Tuning
    from slipring._observe.report import Report
    from slipring.stats import Stats


class LoaderMethods:
    """The number of workers, the figures and the end of a loader."""

    dataset: Any
    _engines: EngineCache
    _tuner: Tuner | None
    _closed = False

    if TYPE_CHECKING:  # what a loader has of its own

        @property
        def _options_now(self) -> Options: ...
        @property
        def _makes_batches_itself(self) -> bool: ...
        def _put_num_workers(self, num_workers: int) -> None: ...
        def close(self) -> None: ...

    def resize(self, num_workers: int) -> None:
        """Change the number of workers, also in the middle of an iteration.

        New workers start at once; surplus workers leave after their batch. No batch is lost, and with
        ``rng="batch"`` and a map dataset every byte stays the same. If batches depend on the workers (iterable
        datasets, ``rng="worker"``), the number changes with the next iteration. The same holds for more workers than
        the segment has room for: 4 per processor, the upper bound of ``num_workers=(least, most)``, or the number that
        the loader began with. Slots are added with the next iteration, too: until then, the new workers share the
        existing slots. The loader stops looking for the best number.

        Parameters
        ----------
        num_workers : int
            At least 1. A loader without workers can have some from its next iteration on.

        Raises
        ------
        TypeError, ValueError
            Naming the value and the rule; also for a loader without workers that is being iterated.
        Closed
            The loader has been closed.
        """
        num_workers = integer(
            "num_workers", num_workers, 1, MAX_WORKERS, hint="; for none make a loader with num_workers=0"
        )
        with self._engines.locked():
            self._check_open()
            if self._makes_batches_itself:
                raise ValueError(
                    f"num_workers={num_workers} for an iteration that makes its batches itself: end it first, or make "
                    "the loader with workers"
                )
            self._put_num_workers(num_workers)
            if self._tuner is not None:
                self._tuner.stop(num_workers, "resize() has set them")
            options = self._options_now
            for iterator in self._engines.iterators:
                iterator.resize(options)

    @property
    def tuning(self) -> Tuning | None:
        """Tuning or None: what the loader found for ``num_workers="auto"``; None if the number was given."""
        return None if self._tuner is None else self._tuner.tuning

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made."""
        return self._engines.stats(self._options_now.n_slots)

    def report(self, *, headroom: object = None, ranks: bool = False) -> Report:
        """Return the `slipring._observe.report.Report`: is the loop waiting for data, by what, and what would help.

        Nothing of it is measured before it is asked for but what the slots remember anyway.

        Parameters
        ----------
        headroom : float, optional
            Seconds of a step alone, or the `slipring.replay` that has found them out: how much there is to gain.
        ranks : bool
            Gather the verdicts of all ranks (torch.distributed): every rank must ask at the same time.

        Examples
        --------
        >>> import slipring
        >>> with slipring.Loader(range(1000), batch_size=10, num_workers=2) as loader:
        ...     total = sum(batch.sum() for batch in loader)
        ...     report = loader.report()
        >>> report.dict()["batches"]
        100
        """
        from slipring._core.reporting import report

        name = f"{type(self).__name__}({type(self.dataset).__name__})"
        made = report(self, name, headroom)
        self._add_waits(made)
        return made.gathered() if ranks else made  # last: the other ranks get the verdict

    def _add_waits(self, made: Report) -> None:
        """Add to a report what only one kind of loader knows."""

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the loader has been closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
