"""Rebatching: the base class of iterators over blocks."""

from typing import Any, Self

class BlockReading:
    made: Any
    rows_to_skip: int
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
