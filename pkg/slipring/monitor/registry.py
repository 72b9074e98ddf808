"""The loaders of this process, for those who show figures of all of them."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_number = itertools.count()
_loaders: dict[int, weakref.ref[Any]] = {}


def register(loader: Any) -> None:
    """Have a loader among `living`, for as long as it lives."""
    # No callback: what a signal's handler raises in one is lost. No lock: a fork would leave it closed.
    for number, reference in list(_loaders.items()):
        if reference() is None:
            _loaders.pop(number, None)
    _loaders[next(_number)] = weakref.ref(loader)


def living() -> Iterator[tuple[str, Any]]:
    """(name, loader) of each that lives."""
    for number, reference in list(_loaders.items()):
        loader = reference()
        if loader is not None:
            yield f"{_kind(loader)}-{number}", loader


def named(loaders: Iterable[Any] | dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, loader) of those that are given; a dict has their names."""
    if isinstance(loaders, dict):
        for loader in loaders.values():
            _check(loader)
        yield from loaders.items()
        return
    if callable(getattr(loaders, "stats", None)):
        raise TypeError(f"loaders must be a list or dict of loaders, not one {type(loaders).__name__}: give [it]")
    numbers = {id(reference()): number for number, reference in list(_loaders.items())}
    for loader in loaders:
        _check(loader)
        number = numbers.get(id(loader))
        yield f"{_kind(loader)}-{next(_number) if number is None else number}", loader


def _check(loader: Any) -> None:
    if not callable(getattr(loader, "stats", None)):
        raise TypeError(
            f"loaders must be loaders of slipring's, a list or dict of them, and {loader!r:.80} has no stats()"
        )


def _kind(loader: Any) -> str:
    return type(getattr(loader, "dataset", loader)).__name__
