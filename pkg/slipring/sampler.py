"""Which indices make a batch, where several processes of one job share a dataset."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.options import flag, integer
from slipring.ring._ring import mix
from slipring.workers.seeding import MASK_63

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_ORDER = 0x52414E4B53  # keeps these orders apart from all else that is drawn from the same seed


class BatchSampler:
    """Lists of indices for ``Loader(batch_sampler=...)``: all of them, or one rank's share.

    Every pass is another epoch; the order of an epoch depends on `seed` and its number alone. Ranks take
    every `world_size`-th index of the same order, and have equally many: the first indices are used again
    where the last ones do not suffice, as in torch's DistributedSampler.

    Parameters
    ----------
    indices : int or sequence
        How many, from 0; or which. (Of a dataset: ``len(dataset)``.) Those of an array, tensor or series
        (one dimension) reach the dataset as plain numbers, others as they are.
    batch_size : int
        Indices per batch of this rank.
    shuffle : bool
        A new order in every epoch.
    drop_last : bool
        Drop a last batch that is not full.
    weights : array_like of float, optional
        One per index, shape (n,); need not sum up to one. Indices are drawn by them, with replacement.
    num_samples : int, optional
        Draw so many with replacement, for all ranks together. Default with `weights`: n.
    rank, world_size : int
        Which of how many shares. Under torchrun: the environment's ``RANK`` and ``WORLD_SIZE``.
    seed : int, optional
        Must be the same in all ranks. None: 0 where there are several, else a new one, from the system.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set. A pass counts it up.

    Raises
    ------
    TypeError, ValueError
        At construction, naming argument, value and rule.

    Examples
    --------
    >>> import slipring
    >>> sampler = slipring.BatchSampler(10, batch_size=3, rank=1, world_size=2)
    >>> list(sampler)
    [[1, 3, 5], [7, 9]]
    """

    indices: Any
    batch_size: int
    shuffle: bool
    drop_last: bool
    weights: NDArray[np.float64] | None
    num_samples: int
    rank: int
    world_size: int
    seed: int
    epoch: int

    def __init__(
        self,
        indices: int | Sequence[Any] | ArrayLike,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        weights: ArrayLike | None = None,
        num_samples: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
    ) -> None:
        indices = _sequence(indices)
        integer("batch_size", batch_size, 1)
        integer("num_samples", num_samples, 1, optional=True)
        integer("world_size", world_size, 1)
        integer("rank", rank, 0, world_size - 1)
        integer("seed", seed, optional=True)
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        self._replaced = weights is not None or num_samples is not None
        if self._replaced and not len(indices):
            raise ValueError("indices are none: nothing can be drawn from them")
        if shuffle and self._replaced:
            given = "num_samples" if weights is None else "weights"
            raise ValueError(f"shuffle=True gives each index once, {given} draws with replacement")
        if seed is None:
            seed = 0 if world_size > 1 else int.from_bytes(os.urandom(8), "little")
        self.indices, self.batch_size, self.shuffle, self.drop_last = indices, batch_size, shuffle, drop_last
        self.weights = None if weights is None else _probabilities(weights, len(indices))
        self.num_samples = len(indices) if num_samples is None else num_samples
        self.rank, self.world_size, self.seed = rank, world_size, seed & MASK_63
        self.epoch = 0

    def order(self, epoch: int) -> Sequence[Any] | NDArray[Any]:
        """Return the indices of an epoch, for all ranks.

        Parameters
        ----------
        epoch : int

        Returns
        -------
        sequence
        """
        n, at = len(self.indices), None
        draw = np.random.Generator(np.random.Philox(key=mix(self.seed, epoch, _ORDER)))
        if self._replaced:
            at = draw.choice(n, self.num_samples, p=self.weights)
        elif self.shuffle:
            at = draw.permutation(n)
        if at is None or isinstance(self.indices, range):
            return self.indices if at is None else at
        if isinstance(self.indices, np.ndarray):
            return self.indices[at]
        return [self.indices[k] for k in at.tolist()]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass. (Without it passes count by themselves.)"""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return _Pass(self, epoch)

    def __len__(self) -> int:
        """Batches per epoch, of this rank."""
        share = -(-self.num_samples // self.world_size)
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)


class _Pass:
    """The batches of one epoch; says where it is, so that an interrupted run goes on there."""

    def __init__(self, sampler, epoch, given=0):
        self.sampler = sampler
        self._begin(epoch, given)

    def _begin(self, epoch, given):
        self.epoch, self.given = epoch, given
        self.order = None  # drawn when it is asked for: it may be told another place before

    def __iter__(self):
        return self

    def __next__(self):
        sampler = self.sampler
        if self.order is None:
            self.order = sampler.order(self.epoch)
        n, size, ranks = len(self.order), sampler.batch_size, sampler.world_size
        first, share = self.given * size, -(-n // ranks)
        last = min(first + size, share)
        if first >= last or (sampler.drop_last and last - first < size):
            raise StopIteration
        places = range(first * ranks + sampler.rank, last * ranks, ranks)
        if isinstance(self.order, np.ndarray):
            indices = self.order[np.fromiter(places, np.int64) % n].tolist()
        else:
            indices = [self.order[place % n] for place in places]
        self.given += 1  # now: who was interrupted is given the same again
        return indices

    def state_dict(self):
        """Return the place: which epoch, and how many of its batches have been given."""
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state):
        """Go on at a place; the sampler's next pass is the epoch behind it."""
        self._begin(state["epoch"], state["given"])
        self.sampler.epoch = self.epoch + 1


def rank_of(*samplers):
    """Return the rank whose share of the indices one of them gives; 0 if none says anything of it."""
    ranks = (getattr(sampler, "rank", 0) for sampler in samplers)
    return next((rank for rank in ranks if isinstance(rank, int) and rank), 0)


def _sequence(indices):
    """What can be asked for an index by its place: of how many, of a sequence, or of an array."""
    if hasattr(indices, "__array__"):  # a series would be asked by its labels, an array gives numpy's numbers
        array = np.asarray(indices)
        if array.ndim > 1:
            raise ValueError(f"indices must have one dimension, not shape {array.shape}")
        if array.ndim == 1 and array.dtype == bool:
            raise TypeError("indices must be numbers, not a mask: give numpy.flatnonzero of it")
        if array.ndim == 1:
            return array
        indices = array[()]
    if not hasattr(indices, "__len__"):
        integer("indices", indices, 0, sys.maxsize, hint="; or give a sequence of indices")
        return range(indices)
    if not hasattr(indices, "__getitem__") or isinstance(indices, Mapping):
        raise TypeError(f"indices must be an int or a sequence, not a {type(indices).__name__}")
    return indices


def _probabilities(weights, n):
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights must have one number per index, shape ({n},), not {weights.shape}")
    if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
        raise ValueError("weights must not be negative, and not all zero")
    return weights / weights.sum()
