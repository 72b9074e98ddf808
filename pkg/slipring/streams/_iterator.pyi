"""One pass over a stream's loader, and how far it is."""

from collections.abc import Callable
from typing import Any, final

from typing_extensions import Self

@final
class Place:
    epoch: int
    rows: list[int]
    turn: int
    ended: bool
    begun: bool
    notes: list[list[int] | None]
    def __init__(self, epoch: int, rows: list[int], turn: int = 0) -> None: ...

@final
class StreamIterator:
    def __init__(
        self, batches: Any, place: Place, noted: bool = False, on_end: Callable[[], object] | None = None
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
