"""MegEngine's samplers: they give the indices of whole batches."""

from __future__ import annotations

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from slipring import BatchSampler
from slipring._core.options.checks import MAX_COUNT, integer, is_scalar, iterable
from slipring._core.passes.source import grouped
from slipring.adapters import megengine_own as own
from slipring.adapters.raising import raising_as
from slipring.errors import shown


class Sampler(ABC):
    """Base of all samplers.

    Examples
    --------
    >>> from slipring.adapters.megengine import Sampler
    >>> class Pairs(Sampler):
    ...     def __iter__(self):
    ...         return iter([[0, 1], [2, 3]])
    >>> list(Pairs())
    [[0, 1], [2, 3]]
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of lists of indices."""


class MapSampler(Sampler):
    """Base of samplers of indices: `sample` draws them, `scatter` keeps this rank's, `batch` cuts them.

    Parameters
    ----------
    dataset
        It must have a length.
    batch_size : int
        At most the number of samples of the rank.
    drop_last : bool
        Drop a last batch that is not full.
    num_samples : int, optional
        Samples per epoch, of all ranks together; default: the dataset's length.
    world_size, rank : int, optional
        The number of shares, and which of them to take. Default: as megengine.distributed says, if it is in use.
    seed : int, optional
        Seed of the order. All ranks must have the same: if there are several, the default is 0.

    Attributes
    ----------
    num_samples : int
        Samples of this rank per epoch.

    Raises
    ------
    ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Examples
    --------
    >>> from slipring.adapters.megengine import MapSampler
    >>> class Backwards(MapSampler):
    ...     def sample(self):
    ...         return range(len(self.dataset) - 1, -1, -1)
    >>> list(Backwards("abcde", batch_size=2))
    [[4, 3], [2, 1], [0]]
    """

    dataset: Any
    batch_size: int
    drop_last: bool
    num_samples: int
    world_size: int
    rank: int
    rng: np.random.RandomState
    indices: Sequence[Any] | None

    @raising_as(ValueError)
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        known_rank, known_size = own.rank_and_world_size()
        self.world_size = known_size if world_size is None else world_size
        self.rank = known_rank if rank is None else rank
        batch_size = integer("batch_size", batch_size, 1)
        num_samples = integer("num_samples", num_samples, 1, sys.maxsize, optional=True)
        self.world_size = integer("world_size", self.world_size, 1, MAX_COUNT)
        self.rank = integer("rank", self.rank, 0, self.world_size - 1)
        seed = integer("seed", seed, 0, (1 << 32) - 1, optional=True)
        if num_samples is None and (not hasattr(dataset, "__len__") or is_scalar(dataset)):
            raise TypeError(f"dataset must have a length, which {type(dataset).__name__} has not")
        if not isinstance(drop_last, bool):
            raise TypeError(f"drop_last must be True or False, not {shown(drop_last)}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self._share(len(dataset) if num_samples is None else num_samples)
        if self.num_samples < batch_size:
            raise ValueError(f"batch_size must be at most the {self.num_samples} samples, not {batch_size}")
        self.rng = np.random.RandomState(0 if seed is None and self.world_size > 1 else seed)

    def _share(self, n):
        self.num_samples = -(-n // self.world_size)

    def sample(self) -> Sequence[Any]:
        """Return the indices of an epoch, for all ranks."""
        raise NotImplementedError

    def scatter(self, indices: Sequence[Any]) -> list[Any]:
        """Return this rank's share of indices; shares are equally long, so the first indices may come twice."""
        positions = range(self.rank, -(-len(indices) // self.world_size) * self.world_size, self.world_size)
        return [indices[position % len(indices)] for position in positions]

    def batch(self) -> Iterator[list[Any]]:
        """Return an iterator of an epoch's batches."""
        indices = list(self.sample())
        if self.world_size > 1:
            indices = self.scatter(indices)
        yield from grouped(indices, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        return self.batch()

    def __len__(self) -> int:
        n, size = self.num_samples, self.batch_size
        return n // size if self.drop_last else -(-n // size)


class _OfIndices(MapSampler):
    """Base of samplers of all indices, or of those of a sequence."""

    def __init__(
        self, dataset: Any, batch_size: int = 1, drop_last: bool = False, indices: Sequence[Any] | None = None,
        world_size: int | None = None, rank: int | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(dataset, batch_size, drop_last, None, world_size, rank, seed)
        if indices is not None and not isinstance(indices, Sequence):
            raise ValueError(f"indices must be a list, or another sequence, or None, not {shown(indices)}")
        self.indices = indices
        if indices is not None:
            self._share(len(indices))


class SequentialSampler(_OfIndices):
    """Indices in order: all, or those of a sequence.

    Examples
    --------
    >>> from slipring.adapters.megengine import SequentialSampler
    >>> list(SequentialSampler("abcde", batch_size=2))
    [[0, 1], [2, 3], [4]]
    """

    def sample(self) -> Sequence[Any]:
        return range(len(self.dataset)) if self.indices is None else self.indices


class RandomSampler(_OfIndices):
    """All indices, or those of a sequence, once each, in another order in every epoch.

    Examples
    --------
    >>> from slipring.adapters.megengine import RandomSampler
    >>> sorted(sum(RandomSampler("abcde", batch_size=2, seed=0), []))
    [0, 1, 2, 3, 4]
    """

    def sample(self) -> Sequence[Any]:
        return self.rng.permutation(len(self.dataset) if self.indices is None else self.indices).tolist()


class ReplacementSampler(MapSampler):
    """`num_samples` indices drawn with replacement, by weight if `weights` is given.

    Parameters
    ----------
    weights : sequence of float, optional
        One per sample of the dataset; need not sum up to one.

    Examples
    --------
    >>> from slipring.adapters.megengine import ReplacementSampler
    >>> list(ReplacementSampler("abc", batch_size=3, weights=[0, 1, 0]))
    [[1, 1, 1]]
    """

    weights: Any

    @raising_as(ValueError)
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        weights: Sequence[float] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        if weights is not None and not isinstance(weights, Sequence):
            raise TypeError(f"weights must be a list, or another sequence, or None, not {shown(weights)}")
        self.weights = BatchSampler(len(dataset), weights=weights).weights

    def sample(self) -> Sequence[Any]:
        n = self.num_samples * self.world_size  # each rank draws its own: no index is shared out twice
        return self.rng.choice(len(self.dataset), n, p=self.weights).tolist()


class Infinite(MapSampler):
    """Another sampler, repeated epoch after epoch without end. It has the attributes of that sampler.

    Examples
    --------
    >>> import itertools
    >>> from slipring.adapters.megengine import Infinite, SequentialSampler
    >>> list(itertools.islice(Infinite(SequentialSampler("abc", batch_size=2)), 3))
    [[0, 1], [2], [0, 1]]
    """

    sampler: Any
    sampler_iter: Iterator[Any]

    def __init__(self, sampler: MapSampler) -> None:
        iterable("sampler", sampler, "a sampler")
        self.sampler, self.sampler_iter = sampler, iter(sampler)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":  # a copy does not have it yet
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Infinite:
        return self

    def __next__(self) -> list[Any]:
        for _ in range(2):
            batch = next(self.sampler_iter, None)
            if batch is not None:
                return batch
            self.sampler_iter = iter(self.sampler)
        raise StopIteration  # an epoch has no batches

    def __len__(self) -> int:
        return np.iinfo(np.int64).max


class StreamSampler(Sampler):
    """Sets how many samples of a stream make a batch.

    Examples
    --------
    >>> from slipring.adapters.megengine import StreamSampler
    >>> next(iter(StreamSampler(batch_size=3)))
    [0, 1, 2]
    """

    batch_size: int

    @raising_as(ValueError)
    def __init__(self, batch_size: int = 1) -> None:
        self.batch_size = integer("batch_size", batch_size, 1)

    def sample(self) -> Iterator[int]:
        """Return the numbers of the samples."""
        return itertools.count()

    def batch(self) -> Iterator[list[int]]:
        """Return an iterator of lists of numbers, for full batches."""
        return grouped(self.sample(), self.batch_size, True)

    def __iter__(self) -> Iterator[list[int]]:
        return self.batch()
