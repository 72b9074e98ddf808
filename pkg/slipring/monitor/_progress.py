"""A progress bar that shows whether the loop waits for its batches."""

from __future__ import annotations

import contextlib
import operator
import sys
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from slipring._core.options.checks import MAX_COUNT, integer, iterable
from slipring._core.ring.rates import LoopTimer, Window
from slipring.errors import shown
from slipring.monitor._callbacks import need

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

T = TypeVar("T")

LOOK_S = 0.5  # how often the figures of the bar are updated


class Progress(Generic[T]):
    """A loader whose passes show how far they are; `slipring.progress` makes it.

    Attributes
    ----------
    loader : iterable
    wait_share : float
        The share of the last or current pass that was spent waiting for batches.

    Examples
    --------
    >>> import io
    >>> import slipring
    >>> with slipring.Loader(range(12), batch_size=4) as loader:
    ...     shown = slipring.progress(loader, file=io.StringIO())
    ...     len(list(shown)), len(shown), 0 < shown.wait_share <= 1
    (3, 3, True)
    """

    def __init__(self, loader: Iterable[T], total: int | None, description: str | None, file: TextIO | None) -> None:
        self.loader: Iterable[T] = loader
        self.wait_share: float = 0.0
        self._total, self._description, self._file = total, description, file

    def __iter__(self) -> Iterator[T]:
        total = self._total
        if total is None:
            with contextlib.suppress(TypeError, NotImplementedError):  # a stream has no length
                total = len(self)
        file = self._file or sys.stderr
        bar = need("tqdm.auto" if file is sys.stderr else "tqdm", "slipring.progress").tqdm(
            total=total, desc=self._description, unit="batch", file=file
        )
        window = Window([self.loader] if callable(getattr(self.loader, "stats", None)) else [])
        timer, looked = LoopTimer(), time.perf_counter()
        timer.begin()
        try:
            iterator = iter(self.loader)
            held: list[T] = []  # not a variable of this frame, which would keep the batch and its slot
            while True:
                try:
                    with timer.step():
                        held.append(next(iterator))
                except StopIteration:
                    return
                self.wait_share = timer.wait_share
                if (now := time.perf_counter()) - looked >= LOOK_S:
                    looked, rate = now, window.look()["slipring/mb_per_s"]
                    figures = f"{rate:,.1f} MB/s, " if rate else ""
                    bar.set_postfix_str(f"{figures}{self.wait_share:.0%} waiting", refresh=False)
                bar.update()
                yield held.pop()
        finally:
            self.wait_share = timer.wait_share
            bar.close()

    def __len__(self) -> int:
        """Return the number of batches of a pass: `total`, or the loader's length."""
        return operator.index(self._total if self._total is not None else len(self.loader))  # type: ignore[arg-type]


def progress(
    loader: Iterable[T], total: int | None = None, description: str | None = None, *, file: TextIO | None = None
) -> Progress[T]:
    """Show how far a pass over a loader is: batches/s, MB/s, and the part of the time spent waiting for batches.

    Parameters
    ----------
    loader : iterable
        Any loader, or an iterable of batches. MB/s are shown if it has ``stats()``.
    total : int, optional
        Batches of a pass; default: the loader's length, if it has one.
    description : str, optional
        The text before the bar.
    file : file, optional
        Where the bar is written; default: ``sys.stderr``.

    Returns
    -------
    Progress
        To iterate over, once for each pass.

    Raises
    ------
    ImportError
        tqdm is not installed.

    Examples
    --------
    >>> import io
    >>> import slipring
    >>> with slipring.Loader(range(12), batch_size=4) as loader:
    ...     for batch in slipring.progress(loader, file=io.StringIO()):  # on the terminal, without file=
    ...         print(batch)
    [0 1 2 3]
    [4 5 6 7]
    [ 8  9 10 11]
    """
    iterable("loader", loader, "a loader or an iterable of batches")
    total = integer("total", total, 0, MAX_COUNT, optional=True)
    if not isinstance(description, (str, type(None))):
        raise TypeError(f"description must be a str or None, not {shown(description)}")
    if file is not None and not hasattr(file, "write"):
        raise TypeError(f"file must have a method write, which {shown(file)} has not")
    need("tqdm", "slipring.progress")
    return Progress(loader, total, description, file)


progress.__module__ = "slipring"  # its pickle and its repr have its public name
