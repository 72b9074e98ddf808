"""A progress bar that tells whether the loop waits for its batches."""

from __future__ import annotations

import contextlib
import operator
import sys
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slipring._core.arguments import MAX_COUNT, integer, iterable, one_of
from slipring.errors import shown
from slipring.monitor._callbacks import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Literal, TextIO

T = TypeVar("T")

STYLES = ("auto", "tqdm", "rich")
LOOK_S = 0.5  # how often the figures behind the bar are made anew


class Progress(Generic[T]):
    """A loader whose passes show how far they are; `slipring.progress` makes it.

    Attributes
    ----------
    loader : iterable
    wait_share : float
        The part of the last pass, or of what there is of it yet, that was spent waiting for batches.

    Examples
    --------
    >>> import io
    >>> import slipring
    >>> with slipring.Loader(range(12), batch_size=4) as loader:
    ...     shown = slipring.progress(loader, file=io.StringIO())
    ...     len(list(shown)), len(shown), 0 < shown.wait_share <= 1
    (3, 3, True)
    """

    def __init__(
        self,
        loader: Iterable[T],
        total: int | None,
        description: str | None,
        open_bar: Callable[[int | None, str, TextIO], Any],
        file: TextIO | None,
    ) -> None:
        self.loader: Iterable[T] = loader
        self.wait_share: float = 0.0
        self._total, self._description, self._file = total, description, file
        self._open_bar = open_bar

    def __iter__(self) -> Iterator[T]:
        total = self._total
        if total is None:
            with contextlib.suppress(TypeError, NotImplementedError):  # a stream has no length
                total = len(self)
        bar = self._open_bar(total, self._description or "", self._file or sys.stderr)
        try:
            yield from self._pass(bar)
        finally:
            bar.close()

    def _pass(self, bar: Any) -> Iterator[T]:
        began = looked = time.perf_counter()
        waited = 0.0
        mb = _Megabytes(self.loader)
        iterator = iter(self.loader)
        held: list[T] = []  # no variable of this frame: a batch that is kept here would keep its slot
        while True:
            asked = time.perf_counter()
            try:
                held.append(next(iterator))
            except StopIteration:
                return
            finally:
                now = time.perf_counter()
                waited += now - asked
                self.wait_share = min(1.0, waited / (now - began)) if now > began else 0.0
            told = now - looked >= LOOK_S
            if told:
                looked = now
            bar.step(f"{mb.rate()}{self.wait_share:.0%} waiting" if told else None)
            yield held.pop()

    def __len__(self) -> int:
        """Batches of a pass, as the loader says, or `total`."""
        return operator.index(self._total if self._total is not None else len(self.loader))  # type: ignore[arg-type]


class _Megabytes:
    """MB/s since the last look, of a loader that tells."""

    def __init__(self, loader: Any) -> None:
        self._stats = getattr(loader, "stats", None)
        self._seen, self._at = self._bytes(), time.perf_counter()

    def _bytes(self) -> int:
        return int(getattr(self._stats(), "bytes", 0)) if callable(self._stats) else 0

    def rate(self) -> str:
        seen, now = self._bytes(), time.perf_counter()
        rate = (seen - self._seen) / 1e6 / max(1e-9, now - self._at)
        self._seen, self._at = seen, now
        return f"{rate:,.1f} MB/s, " if rate else ""


class _Tqdm:
    def __init__(self, total: int | None, description: str, file: TextIO) -> None:
        self._bar = need("tqdm.auto" if file is sys.stderr else "tqdm", "slipring.progress").tqdm(
            total=total, desc=description or None, unit="batch", file=file
        )

    def step(self, figures: str | None) -> None:
        if figures is not None:
            self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


class _Rich:
    def __init__(self, total: int | None, description: str, file: TextIO) -> None:
        rich = need("rich.progress", "slipring.progress")
        console = need("rich.console", "slipring.progress").Console(file=file)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[rate]}{task.fields[figures]}"),
            console=console,
        )
        self._task = self._bar.add_task(description, total=total, rate="", figures="")
        self._done, self._at = 0, time.perf_counter()
        self._seen = 0
        self._bar.start()

    def step(self, figures: str | None) -> None:
        self._done += 1
        if figures is None:
            self._bar.advance(self._task)
            return
        now = time.perf_counter()
        rate = f"{(self._done - self._seen) / (now - self._at):.1f} batches/s, "
        self._seen, self._at = self._done, now
        self._bar.update(self._task, advance=1, rate=rate, figures=figures)

    def close(self) -> None:
        self._bar.stop()


def progress(
    loader: Iterable[T],
    total: int | None = None,
    description: str | None = None,
    *,
    style: Literal["auto", "tqdm", "rich"] = "auto",
    file: TextIO | None = None,
) -> Progress[T]:
    """Show how far a pass over a loader is: batches/s, MB/s, and the part of the time spent waiting for batches.

    Parameters
    ----------
    loader : iterable
        Any loader, or an iterable of batches. MB/s are told of those that have ``stats()``.
    total : int, optional
        Batches of a pass; default: the loader's length, if it has one.
    description : str, optional
        Stands before the bar.
    style : {'auto', 'tqdm', 'rich'}
        Which library shows it; 'auto': tqdm, or rich where that is not installed.
    file : file, optional
        Where to; default: ``sys.stderr``.

    Returns
    -------
    Progress
        To iterate over, once for each pass.

    Raises
    ------
    ImportError
        The library is not installed.

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
    one_of("style", style, STYLES)
    if style == "auto":
        try:
            need("tqdm", "slipring.progress")
        except ImportError as missing:
            style = "rich"
            try:
                need("rich", "slipring.progress")
            except ImportError:
                raise missing from None
    open_bar = _Rich if style == "rich" else _Tqdm
    need("rich" if style == "rich" else "tqdm", "slipring.progress")
    return Progress(loader, total, description, open_bar, file)


progress.__module__ = "slipring"  # it is pickled, and shown, by its public place
