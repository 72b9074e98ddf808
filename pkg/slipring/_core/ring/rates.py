"""The speed of a loop, and the share of its time that it waits: by its own clock, and by its loaders' statistics."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from slipring.stats import Stats

PREFIX = "slipring/"

# Sums since a loader was made; two looks give the difference.
SUMS = (
    "batches", "bytes", "copied_batches", "fetch_s", "collate_s", "slot_wait_s", "consumer_wait_s", "respawns",
)  # fmt: skip


class LoopTimer:
    """The durations of a loop's steps, and of the wait for a batch in each."""

    def __init__(self) -> None:
        self.steps = 0  # that have received their batch
        self._waited = self._took = self._begun = self._last = 0.0

    def begin(self) -> None:
        """Begin a pass: the time before its first step does not count."""
        self._begun = self._last = time.perf_counter()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Return the context in which a step waits for its batch. A wait that ends with an exception does not count."""
        begun = time.perf_counter()
        yield
        end = time.perf_counter()
        self.steps += 1
        self._waited += end - begun
        self._took += end - self._last
        self._last = end

    @property
    def wait_s(self) -> float:
        """float: the average wait for a batch, in seconds."""
        return _ratio(self._waited, self.steps)

    @property
    def step_s(self) -> float:
        """float: the average time from one batch to the next, in seconds."""
        return _ratio(self._took, self.steps)

    @property
    def wait_share(self) -> float:
        """float: the share of the time since `begin` that was spent waiting, if there was one pass."""
        return min(1.0, _ratio(self._waited, time.perf_counter() - self._begun))


def scalars(now: Stats, before: Stats | None, seconds: float) -> dict[str, float]:
    """Return the figures of a loader between two `slipring.Stats`, with names for TensorBoard, W&B and others.

    Parameters
    ----------
    now, before : Stats
        `before` None: from the beginning.
    seconds : float
        The time between them.

    Returns
    -------
    dict
        - ``slipring/batches_per_s``, ``slipring/mb_per_s``: the delivered batches and bytes.
        - ``slipring/wait_share``: the share of the time that was spent waiting for batches, 0 to 1. With ``device=``, a
          thread waits in advance, and the training loop waits at most as long.
        - ``slipring/workers_busy_share``: the part of the workers' time in which they worked.
        - ``slipring/fetch_ms``, ``slipring/collate_ms``: a worker's time for a batch.
        - ``slipring/copied_share``: the part of the batches that were copied out of their slots.
        - ``slipring/respawns``: workers that were replaced.

        Shares and times for a batch are 0 if there was none.

    Examples
    --------
    >>> import slipring
    >>> from slipring.monitor import scalars
    >>> with slipring.Loader(range(12), batch_size=4) as loader:
    ...     for batch in loader:
    ...         pass
    ...     scalars(loader.stats(), None, seconds=2.0)["slipring/batches_per_s"]
    1.5
    """
    return named({name: getattr(now, name) - getattr(before, name, 0) for name in SUMS}, seconds)


def named(made: dict[str, float], seconds: float) -> dict[str, float]:
    """Return the scalars for the differences of `SUMS`."""
    batches = made["batches"]
    busy = made["fetch_s"] + made["collate_s"]
    figures = {
        "batches_per_s": _ratio(batches, seconds),
        "mb_per_s": _ratio(made["bytes"] / 1e6, seconds),
        "wait_share": min(1.0, _ratio(made["consumer_wait_s"], seconds)),
        "workers_busy_share": _ratio(busy, busy + made["slot_wait_s"]),
        "fetch_ms": _ratio(made["fetch_s"] * 1e3, batches),
        "collate_ms": _ratio(made["collate_s"] * 1e3, batches),
        "copied_share": _ratio(made["copied_batches"], batches),
        "respawns": float(made["respawns"]),
    }
    return {PREFIX + name: value for name, value in figures.items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


class Window:
    """The scalars from one look to the next, of one loader or of several that a training loop reads in turn.

    Parameters
    ----------
    loaders : iterable of loader
        Anything whose ``stats()`` is a `slipring.Stats`.

    Examples
    --------
    >>> import slipring
    >>> from slipring.monitor import Window
    >>> with slipring.Loader(range(12), batch_size=4) as loader:
    ...     window = Window([loader])
    ...     batches = list(loader)
    ...     window.look()["slipring/batches_per_s"] > 0
    True
    """

    def __init__(self, loaders: Iterable[Any]) -> None:
        self.loaders: list[Any] = list(loaders)
        self._seen = self._sums()
        self._begun = time.perf_counter()

    def _sums(self) -> dict[str, float]:
        stats = [loader.stats() for loader in self.loaders]
        return {name: sum(getattr(one, name, 0) for one in stats) for name in SUMS}

    def look(self) -> dict[str, float]:
        """Return the scalars since the last look."""
        seen, now = self._sums(), time.perf_counter()
        made = {name: seen[name] - self._seen[name] for name in SUMS}
        seconds, self._seen, self._begun = now - self._begun, seen, now
        return named(made, seconds)


for _public in (Window, scalars):
    _public.__module__ = "slipring.monitor"  # its pickle and its repr have its public name
