"""Repeat one batch: how fast a training is without waiting for data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slipring._core.options.checks import integer, iterable
from slipring._core.ring.text import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class Replay(Generic[T]):
    """An iterable and iterator of one batch; see `slipring.replay`, which makes it.

    Attributes
    ----------
    batch : object
        The repeated batch.
    steps : int
        Measured steps: all except the first, which includes warm-up.

    Examples
    --------
    >>> import slipring
    >>> replayed = slipring.replay(range(3), n=4)
    >>> list(replayed), replayed.steps
    ([0, 0, 0, 0], 3)
    """

    def __init__(self, batch: T, n: int | None) -> None:
        self.batch: T = batch
        self.steps: int = 0
        self._n, self._given = n, 0
        self._begun: float | None = None  # when the second step began
        self._last = 0.0

    def __iter__(self) -> Replay[T]:
        return self

    def __next__(self) -> T:
        now = time.perf_counter()
        if self._given == 1:
            self._begun = now
        elif self._given > 1 and self.steps < self._given - 1:
            self.steps, self._last = self._given - 1, now  # the previous step has ended
        if self._given == self._n:
            raise StopIteration
        self._given += 1
        return self.batch

    def __len__(self) -> int:
        """Return the number of all steps.

        Raises
        ------
        TypeError
            The replay has no end.
        """
        if self._n is None:
            raise TypeError("this replay has no end, and so no length: give slipring.replay(loader, n=...)")
        return self._n

    @property
    def step_s(self) -> float:
        """float: seconds of a step alone, on average after the first; NaN until the second has ended."""
        if self._begun is None or not self.steps:
            return float("nan")
        return (self._last - self._begun) / self.steps

    def __repr__(self) -> str:
        count = "forever" if self._n is None else f"{self._n} times"
        measured = f"{self.steps} steps of {seconds(self.step_s)}"
        return f"<Replay of a {type(self.batch).__name__}, {count}, {measured}>"


def replay(loader: Iterable[T], n: int | None = None) -> Replay[T]:
    """Repeat the first batch of a loader, to measure a training that never waits for data.

    The iteration that made the batch is ended, so that no worker competes with the training. Each step gets the same
    object, not a copy: if a step writes to the batch, the next step sees that.

    Parameters
    ----------
    loader : iterable
        Any loader, or an iterable of batches. Loaders of slipring can be used afterwards.
    n : int, optional
        How many times; None: without limit.

    Returns
    -------
    Replay
        An iterable. After the loop, `steps` and `step_s` show how long a step took.

    Raises
    ------
    ValueError
        The loader gives no batch.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(100), batch_size=4, num_workers=2) as loader:
    ...     replayed = slipring.replay(loader, n=50)
    ...     sum(int(batch.sum()) for batch in replayed)
    300
    >>> 0 < replayed.step_s < 1
    True
    """
    iterable("loader", loader, "a loader or an iterable of batches")
    n = integer("n", n, 1, optional=True)
    iterator: Any = iter(loader)
    try:
        batch = next(iterator)
    except StopIteration:
        raise ValueError(f"there is no batch to replay: the loader ({type(loader).__name__}) gives none") from None
    finally:
        _end(loader, iterator)
    return Replay(batch, n)


def _end(loader: Any, iterator: Any) -> None:
    """End an iteration, and the workers that would wait for the next one."""
    end = getattr(loader, "_end_all", None)
    close = getattr(iterator, "close", None)
    if callable(end):
        end()
    elif callable(close) and iterator is not loader:  # a generator as an argument is the caller's
        close()


replay.__module__ = "slipring"  # its pickle and its repr have its public name
