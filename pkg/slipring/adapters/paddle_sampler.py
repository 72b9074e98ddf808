"""Paddle's BatchSampler."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.options.checks import flag, integer
from slipring._core.passes.source import grouped
from slipring._core.workers import fetch
from slipring.adapters.raising import raising_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class BatchSampler:
    """Lists of indices, drawn as `paddle.io.BatchSampler` draws them.

    Parameters
    ----------
    dataset, sampler
        Exactly one of the two; a sampler gives indices.
    shuffle : bool
    batch_size : int
    drop_last : bool

    Raises
    ------
    ValueError, TypeError
        An argument is wrong; the text names the argument, its value and the rule. Each is also an AssertionError, as in
        paddle.

    Examples
    --------
    >>> from slipring.adapters.paddle import BatchSampler
    >>> list(BatchSampler("abcde", batch_size=2))
    [[0, 1], [2, 3], [4]]
    """

    dataset: Any
    sampler: Any
    shuffle: bool
    batch_size: int
    drop_last: bool

    @raising_as(AssertionError)
    def __init__(
        self,
        dataset: Any = None,
        sampler: Iterable[Any] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        batch_size = integer("batch_size", batch_size, 1)
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        if (dataset is None) == (sampler is None):
            raise ValueError("either dataset or sampler must be given, and not both")
        if dataset is not None and (fetch.is_iterated(dataset) or not hasattr(dataset, "__len__")):
            raise TypeError(
                f"dataset must have indices and a length, not be iterable alone ({type(dataset).__name__}): "
                "give it to the loader itself, with batch_size="
            )
        if sampler is not None and shuffle:
            raise ValueError("shuffle=True and sampler exclude each other: the sampler sets the order")
        self.dataset, self.sampler, self.shuffle = dataset, sampler, shuffle
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = self.sampler
        if indices is None:
            n = len(self.dataset)
            indices = np.random.choice(np.arange(n), n, replace=False).tolist() if self.shuffle else range(n)
        return grouped(indices, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        n = len(self.dataset if self.sampler is None else self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class EndlessSampler:
    """The `batch_sampler` of a loader whose dataset is iterable: without end, one None for each sample of a batch."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self) -> Iterator[list[Any]]:
        return itertools.repeat([None] * self.batch_size)


class NoLength(ValueError, TypeError):
    """Paddle's ValueError; a TypeError too, so that ``list(loader)`` works without a length."""
