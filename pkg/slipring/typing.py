"""Types of datasets, for annotations: ``from slipring.typing import Empty``. No class has to inherit from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

__all__ = ["BatchDataset", "Empty", "ListDataset", "MapDataset"]

Sample = TypeVar("Sample", covariant=True)
Batch = TypeVar("Batch", covariant=True)


class MapDataset(Protocol[Sample]):
    """A dataset that is indexed by numbers, or by the items of its sampler. A list is one."""

    def __getitem__(self, index: Any, /) -> Sample:
        """Return a sample."""
        ...


class ListDataset(Protocol[Sample]):
    """A dataset that reads several samples at once."""

    def __getitems__(self, indices: list[Any], /) -> Sequence[Sample]:
        """Return the samples at `indices`."""
        ...


class Empty(Protocol):
    """A function that makes arrays in the slot: `slipring.empty`, and the argument `empty` of ``fetch_into``."""

    def __call__(self, shape: int | tuple[int, ...], dtype: DTypeLike = ...) -> NDArray[Any]:
        """Return a new array, which is not initialised."""
        ...


class BatchDataset(Protocol[Batch]):
    """A dataset that makes whole batches by itself."""

    def fetch_into(self, indices: list[Any], empty: Empty, /) -> Batch:
        """Return the batch of `indices`, its arrays made by ``empty(shape, dtype)``."""
        ...
