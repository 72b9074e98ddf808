"""Batches of an exact size from shards, which can say where in a shard the rows given out end."""

from collections.abc import Callable, Iterable
from typing import Any, final

from typing_extensions import Self

from slipring.streams._rebatch import Rebatcher, _Feed

@final
class Opened:
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
    def place(self) -> tuple[int, int]: ...
