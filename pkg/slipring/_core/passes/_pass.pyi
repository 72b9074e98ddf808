"""The iterator that ``iter(loader)`` returns, as far as users see it."""

from typing import Generic, Self, TypeVar

_Batch = TypeVar("_Batch", covariant=True)

class Pass(Generic[_Batch]):
    def __iter__(self) -> Self: ...
    def __next__(self) -> _Batch: ...
    def close(self, reason: str | None = None) -> None: ...
