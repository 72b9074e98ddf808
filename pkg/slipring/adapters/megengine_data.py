"""The other arguments of MegEngine's loader: datasets, transforms and collators."""

from __future__ import annotations

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from slipring import default_collate
from slipring._core.options.checks import flag, iterable
from slipring.errors import shown

# The parts of a sample that a transform may know, besides names that end with "category" or "info".
_PARTS = {"image", "coords", "boxes", "mask", "keypoints", "polygons"}


class Dataset(ABC):
    """Base of datasets that are read by index. (MegEngine's own class, or any with these two methods, serves too.)

    Examples
    --------
    >>> from slipring.adapters.megengine import Dataset
    >>> class Squares(Dataset):
    ...     def __getitem__(self, index):
    ...         return index * index
    ...     def __len__(self):
    ...         return 10
    >>> Squares()[3]
    9
    """

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return a sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are."""


class StreamDataset(Dataset):
    """Base of datasets that are iterated. (MegEngine's own class, or any with only ``__iter__``, serves too.)

    Examples
    --------
    >>> from slipring.adapters.megengine import DataLoader, StreamDataset, StreamSampler
    >>> class Numbers(StreamDataset):
    ...     def __iter__(self):
    ...         return iter([1, 2, 3, 4])
    >>> [batch.tolist() for batch in DataLoader(Numbers(), StreamSampler(batch_size=2))]
    [[1, 2], [3, 4]]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of samples."""

    def __getitem__(self, index: Any) -> Any:
        raise _NotOfStreams(f"a stream has no sample {shown(index)}: iterate it")

    def __len__(self) -> int:
        raise _NotOfStreams("a stream has no length: iterate it")


class _NotOfStreams(AssertionError, TypeError):
    """MegEngine's AssertionError; a TypeError too, so that ``list(stream)`` works without a length."""


class ArrayDataset(Dataset):
    """A dataset of arrays: sample i is the tuple of element i of each array.

    Parameters
    ----------
    *arrays : array_like
        All of one length.

    Raises
    ------
    ValueError
        The arrays differ in length.

    Examples
    --------
    >>> from slipring.adapters.megengine import ArrayDataset
    >>> ArrayDataset([1, 2, 3], ["a", "b", "c"])[1]
    (2, 'b')
    """

    arrays: tuple[Any, ...]

    def __init__(self, *arrays: Any) -> None:
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"arrays must be one or more, all of one length, not of lengths {lengths}")
        self.arrays = arrays

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Several datasets, one after the other.

    Parameters
    ----------
    datasets : iterable
        Datasets that are read by index.

    Raises
    ------
    AssertionError
        `datasets` is empty, or one of them is a stream.

    Examples
    --------
    >>> from slipring.adapters.megengine import ArrayDataset, ConcatDataset
    >>> both = ConcatDataset([ArrayDataset([1, 2]), ArrayDataset([3, 4])])
    >>> len(both), both[2]
    (4, (3,))
    """

    datasets: list[Any]
    cumulative_sizes: list[int]

    def __init__(self, datasets: Iterable[Any]) -> None:
        iterable("datasets", datasets, "an iterable of datasets")
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets must be one or more, not none")
        for dataset in self.datasets:
            if any(kind.__name__ == "StreamDataset" for kind in type(dataset).__mro__):
                raise AssertionError(f"datasets must be indexed, and {type(dataset).__name__} is a stream")
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __getitem__(self, index: int) -> Any:
        n = len(self)
        if index < -n:
            raise ValueError(f"index must be from {-n} to {n - 1}, not {index}")
        if index >= n:
            raise IndexError(f"index must be from {-n} to {n - 1}, not {index}")
        index %= n
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


# ---- transforms


class Transform(ABC):
    """Base of transforms. (MegEngine's own class, or any with these two methods, serves too.)

    Examples
    --------
    >>> from slipring.adapters.megengine import Transform
    >>> class Double(Transform):
    ...     def apply(self, input):
    ...         return 2 * input
    >>> Double().apply_batch([1, 2, 3])
    (2, 4, 6)
    """

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the samples of a batch transformed."""
        return tuple(self.apply(sample) for sample in inputs)

    @abstractmethod
    def apply(self, input: Any) -> Any:
        """Return the transformed sample."""

    def __repr__(self) -> str:
        return type(self).__name__


class PseudoTransform(Transform):
    """The transform that changes nothing: the default of `DataLoader`.

    Examples
    --------
    >>> from slipring.adapters.megengine import PseudoTransform
    >>> PseudoTransform().apply("as it was")
    'as it was'
    """

    def apply(self, input: Any) -> Any:
        return input


class Compose(Transform):
    """Transforms, one after the other.

    Parameters
    ----------
    transforms : list
        Each has `apply`, and gets `order` as its attribute of that name.
    batch_compose : bool
        Give each transform the whole batch (by its `apply_batch`). False: transform sample by sample.
    shuffle_indices : list of tuple of int, optional
        Groups of transforms, by their numbers from 1. For each sample, the order within a group is drawn.
    order : sequence of str, optional
        The names of a sample's parts: 'image' (the default), 'boxes', 'mask', ...

    Raises
    ------
    ValueError, NotImplementedError
        `order` is not a sequence or names an unknown part; `batch_compose` and `shuffle_indices` are both given.

    Examples
    --------
    >>> from slipring.adapters.megengine import Compose, Transform
    >>> class Double(Transform):
    ...     def apply(self, input):
    ...         return 2 * input
    >>> Compose([Double(), Double()]).apply(3)
    12
    """

    order: Sequence[str]
    transforms: Sequence[Any]
    batch_compose: bool
    shuffle_indices: Any

    def __init__(
        self,
        transforms: Sequence[Any] = (),
        batch_compose: bool = False,
        shuffle_indices: Sequence[Sequence[int]] | None = None,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        flag("batch_compose", batch_compose)
        if batch_compose and shuffle_indices is not None:
            raise ValueError("shuffle_indices draws for each sample, batch_compose=True transforms batches")
        self.order = ("image",) if order is None else order
        if not isinstance(self.order, Sequence):
            raise ValueError(f"order must be a sequence of names, not {shown(order)}")
        for name in self.order:
            self._check_part(name)
        iterable("transforms", transforms, "a sequence of transforms")
        self.transforms, self.batch_compose = transforms, batch_compose
        if shuffle_indices is not None:
            iterable("shuffle_indices", shuffle_indices, "a sequence of groups of numbers, or None")
        self.shuffle_indices = shuffle_indices and [tuple(k - 1 for k in group) for group in shuffle_indices]
        self._set_order()

    def _check_part(self, name):
        if not isinstance(name, str):
            raise TypeError(f"order must be names, and {shown(name)} is not a name")
        if name == "batch":
            raise ValueError("order must name parts of a sample, and 'batch' is not a part")
        known = name in _PARTS or name.endswith(("category", "info")) or hasattr(self, f"_apply_{name}")
        if not known:
            raise NotImplementedError(f"order must name parts that are known, not {shown(name)}: {sorted(_PARTS)}")

    def _set_order(self):
        for transform in self.transforms:
            transform.order = self.order
            if hasattr(transform, "_set_order"):
                transform._set_order()

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self.batch_compose:
            return super().apply_batch(inputs)
        for transform in self.transforms:
            inputs = transform.apply_batch(inputs)
        return inputs

    def apply(self, input: Any) -> Any:
        for transform in self._drawn():
            input = transform.apply(input)
        return input

    def _drawn(self):
        """Return the transforms in the order for one sample, from numpy's global generator."""
        order = list(self.transforms)
        for group in self.shuffle_indices or ():
            for index, drawn in zip(group, np.random.permutation(group).tolist(), strict=True):
                order[index] = self.transforms[drawn]
        return order


# ---- collation


class Collator:
    """Base of collators, and the default. (MegEngine's own class, or any with `apply`, serves too.)

    Examples
    --------
    >>> from slipring.adapters.megengine import Collator
    >>> Collator().apply([1, 2, 3])
    array([1, 2, 3])
    """

    def apply(self, inputs: list[Any]) -> Any:
        """Return the batch that `slipring.default_collate` makes in the slot."""
        return default_collate(inputs)
