"""Rebatching: blocks of any number of rows in, batches of an exact size out."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

class _Feed(Protocol):
    def read(self, given: Any, number: int, batch: int) -> Block | list[Any] | None: ...
    def own(self, rest: Any) -> Any: ...
    def joined(self, rests: list[Any]) -> Any: ...
    def named(self, arrays: list[NDArray[Any]], rest: Any) -> Any: ...
    def pool(self, size: int) -> Any: ...

@final
class Block:
    arrays: list[NDArray[Any]]
    rest: Any
    rows: int
    def __init__(self, arrays: list[NDArray[Any]], rest: Any, rows: int, writes: bool = False) -> None: ...

class Rebatcher:
    made: int
    batches: int
    raised: int
    def __init__(self, source: Iterable[Any], feed: _Feed, batch_size: int, drop_last: bool = False) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def skip(self, rows: int) -> None: ...
    def catch_up(self) -> int: ...

class Shuffler(Rebatcher):
    def __init__(
        self,
        source: Iterable[Any],
        feed: _Feed,
        batch_size: int,
        drop_last: bool,
        size: int,
        rng: np.random.Generator,
    ) -> None: ...

class BlockReading:
    made: Any
    behind: int
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

@final
class OpenedShard:
    def __init__(self, blocks: Iterable[Any]) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

class ShardRebatcher(Rebatcher):
    def __init__(
        self,
        open: Callable[[int], Iterable[Any]],
        feed: _Feed,
        batch_size: int,
        drop_last: bool,
        pieces: list[list[int]],
    ) -> None: ...
    bad: tuple[int, int]
    def place(self) -> tuple[int, int]: ...
