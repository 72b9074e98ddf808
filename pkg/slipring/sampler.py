"""Which indices make a batch, where several processes of one job share a dataset."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.errors import shown
from slipring.options import flag, integer
from slipring.ring._ring import mix
from slipring.workers.seeding import MASK_63, Share

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_ORDER = 0x52414E4B53  # keeps these orders apart from all else that is drawn from the same seed


class BatchSampler:
    """Lists of indices for ``Loader(batch_sampler=...)``: all of them, or one rank's share.

    Every pass is another epoch; the order of an epoch depends on `seed` and its number alone. Ranks take
    every `world_size`-th index of the same order, and have equally many: the first indices are used again
    where the last ones do not suffice, as in torch's DistributedSampler. So the batches of all ranks together,
    a step, are the next ``world_size * batch_size`` indices of the order, however these are divided, and an
    epoch can be resumed with other ranks: see `resume`.

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
        Drop the last step, of all ranks, if the indices do not fill it: then none is used again.
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

    One step later three ranks go on where two were:

    >>> batches = iter(sampler)
    >>> first = next(batches)
    >>> for rank in range(3):
    ...     other = slipring.BatchSampler(10, batch_size=1, rank=rank, world_size=3)
    ...     other.resume(batches.state_dict())
    ...     print(list(other))
    [[6], [9]]
    [[7], [0]]
    [[8], [1]]
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
        self.weights, self._weights_digest = None, None
        if weights is not None:
            self.weights, self._weights_digest = _probabilities(weights, len(indices))
        self._indices_digest = None  # taken once, when it is asked for: indices may be many
        self.num_samples = len(indices) if num_samples is None else num_samples
        self.rank, self.world_size, self.seed = rank, world_size, seed & MASK_63
        self.epoch = 0
        self._begun = 0, 0  # epoch and position at which the newest pass has begun
        self._resumed = None  # the same of the next pass, if a state says so

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

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state behind so many batches of this rank, counted from where the newest pass has begun.

        For who counts them: `Loader` asks for more than it has delivered. (`slipring.torch.DataLoader` has the
        place in its own ``state_dict()``, and an iterator of the sampler, asked directly, in its.)

        Parameters
        ----------
        batches : int
            That were delivered.

        Returns
        -------
        dict
            Of numbers and text; for `resume`.

        Raises
        ------
        TypeError, ValueError
            `batches` is no such number.

        Examples
        --------
        >>> import slipring
        >>> sampler = slipring.BatchSampler(10, batch_size=2)
        >>> first = next(iter(sampler))
        >>> sampler.state_after(1)["position"]
        2
        """
        integer("batches", batches, 0)
        epoch, position = self._begun
        return self._state(epoch, position + batches * self.batch_size * self.world_size)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Have the next pass go on where a state was taken, of any rank, with any ranks and any `batch_size`.

        All ranks of a job are at the same step, so that one rank's state says it for all: give each rank the
        same one. The rest of that epoch is divided anew. The state's `seed` holds from here on.

        Parameters
        ----------
        state : mapping
            Of `state_after`, or of an iterator of such a sampler.

        Raises
        ------
        TypeError, ValueError
            It is no such state, or of another order: of other indices or weights, or drawn in another way. Of
            indices that are neither numbers nor text, and of a sequence of your own, only the length is compared.
        """
        self._resumed = self._checked(state)
        self.epoch, self.seed = state["epoch"], state["seed"]

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        resumed, self._resumed = self._resumed, None
        return _Pass(self, epoch, resumed[1] if resumed is not None and resumed[0] == epoch else 0)

    def __len__(self) -> int:
        """Batches of this rank in an epoch that is read from its beginning."""
        if self.drop_last:
            return self.num_samples // (self.batch_size * self.world_size)
        share = -(-self.num_samples // self.world_size)
        return -(-share // self.batch_size)

    @property
    def _drawn(self):
        """How an order comes about: what a state must have in common with who loads it."""
        return "drawn" if self._replaced else "shuffled" if self.shuffle else "given"

    @property
    def _digests(self):
        """What tells orders apart that have as many samples."""
        if self._indices_digest is None:
            self._indices_digest = _digest_of(self.indices)
        return {"indices": self._indices_digest, "weights": self._weights_digest}

    def _state(self, epoch, position):
        return {
            "epoch": epoch,
            "position": position,
            "samples": self.num_samples,
            "order": self._drawn,
            **self._digests,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "rank": self.rank,
            "world_size": self.world_size,
        }

    def _checked(self, state):
        """Return (epoch, position) of a state that is one of this order."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a state must be a dict, as state_after() returns it, not {shown(state)}")
        if not state.keys() >= _KEYS:
            raise ValueError(
                f"this is no state of slipring.BatchSampler (of this version): it must have {sorted(_KEYS)}, "
                f"and has {sorted(map(str, state))[:8]}"
            )
        for what, has in (("samples", self.num_samples), ("order", self._drawn)):
            if state[what] != has:
                raise ValueError(
                    f"the state is of an epoch with {what}={state[what]!r}, this sampler has {has!r}: other "
                    "indices would be skipped than were delivered. Resume with the same indices, shuffle, "
                    "weights and num_samples"
                )
        for what, has in self._digests.items():
            if state.get(what, has) != has:  # the states of older versions do not have it
                raise ValueError(
                    f"the state is of an epoch with other {what} than this sampler's: other indices would be skipped "
                    f"than were delivered. Resume with the same {what}"
                )
        return state["epoch"], state["position"]


_KEYS = {"epoch", "position", "samples", "order", "seed"}


class _Pass:
    """The batches of one epoch; says where it is, so that an interrupted run goes on there.

    Attributes
    ----------
    position : int
        How many indices of the order all ranks together have been given.
    """

    def __init__(self, sampler, epoch, position=0):
        self.sampler = sampler
        self._begin(epoch, position)

    def _begin(self, epoch, position):
        self.epoch, self.position = epoch, position
        self.sampler._begun = epoch, position
        self.order = None  # drawn when it is asked for: it may be told another place before

    def __iter__(self):
        return self

    def __next__(self):
        sampler = self.sampler
        if self.order is None:
            self.order = sampler.order(self.epoch)
        n, ranks, step = len(self.order), sampler.world_size, sampler.batch_size * sampler.world_size
        left = n - self.position
        if left <= 0 or (sampler.drop_last and left < step):
            raise StopIteration
        first, size = self.position + sampler.rank, min(sampler.batch_size, -(-left // ranks))
        places = range(first, first + size * ranks, ranks)
        if isinstance(self.order, np.ndarray):
            indices = self.order[np.fromiter(places, np.int64) % n].tolist()
        else:
            indices = [self.order[place % n] for place in places]
        self.position += step  # now: who was interrupted is given the same again
        return indices

    def state_dict(self):
        """Return the place: which epoch, and how far all ranks together have come."""
        return self.sampler._state(self.epoch, self.position)

    def load_state_dict(self, state):
        """Go on at a place; the sampler's next pass is the epoch behind it. See `BatchSampler.resume`."""
        epoch, position = self.sampler._checked(state)
        self.sampler.seed = state["seed"]
        self._begin(epoch, position)
        self.sampler.epoch = self.epoch + 1


def rank_of(*samplers):
    """Return the rank whose share of the indices one of them gives; 0 if none says anything of it."""
    ranks = (getattr(sampler, "rank", 0) for sampler in samplers)
    return next((rank for rank in ranks if isinstance(rank, int) and rank), 0)


def share_of(batch_sampler, sampler, batch_size):
    """Return a rank's `Share` of each step, as what gives the indices divides them; for ``rng="sample"``.

    Raises
    ------
    ValueError
        Nothing says at which position of all ranks' order a sample is.
    """
    if isinstance(batch_sampler, BatchSampler):
        return Share(batch_sampler.batch_size, batch_sampler.rank, batch_sampler.world_size)
    if batch_sampler is not None:
        raise ValueError(
            f"rng='sample' seeds by a sample's position in the order, which batch_sampler "
            f"({type(batch_sampler).__name__}) does not tell: use slipring.BatchSampler, or batch_size= with "
            "sampler=, or rng='batch'"
        )
    rank, ranks = rank_of(sampler), ranks_of(sampler)
    if rank >= ranks:
        raise ValueError(
            f"rng='sample' seeds by a sample's position in the order of all ranks, and {type(sampler).__name__} "
            f"has rank={rank}, but no world_size or num_replicas: use slipring.BatchSampler, or rng='batch'"
        )
    return Share(batch_size or 1, rank, ranks)


def place_of(batch_sampler):
    """Return (whole steps, indices before those) that a `BatchSampler` has given before its newest pass began.

    The latter are less than a step, and 0 where no step was of another size.
    """
    if not isinstance(batch_sampler, BatchSampler):
        return 0, 0
    return divmod(batch_sampler._begun[1], batch_sampler.batch_size * batch_sampler.world_size)


def ranks_of(sampler):
    """Return of how many ranks a sampler gives one's share; 1 if it says nothing of it."""
    counts = (getattr(sampler, name, None) for name in ("world_size", "num_replicas"))
    return next((count for count in counts if isinstance(count, int)), 1)


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


def _digest_of(indices):
    """Say in a few bytes which indices these are: the same in any process, and however the same numbers are kept."""
    if isinstance(indices, (list, tuple)) and set(map(type, indices)) == {int}:
        indices = np.array(indices)
    if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and len(indices):
        numbers = indices.astype(np.int64)
        steps = np.diff(numbers)
        first, step = int(numbers[0]), int(steps[0]) if len(steps) else 1
        if not step or (steps != step).any():
            return _digest(numbers.tobytes())
        indices = range(first, first + step * len(numbers), step)
    if isinstance(indices, range):
        return _digest(f"{len(indices)} from {indices.start} by {indices.step}".encode())
    if isinstance(indices, (list, tuple, np.ndarray)):
        try:
            return _digest(json.dumps(list(indices)).encode())
        except TypeError:  # what JSON has not may be written differently in another process
            pass
    return _digest(f"{len(indices)}".encode())


def _digest(written):
    return hashlib.blake2b(written, digest_size=16).hexdigest()


def _probabilities(weights, n):
    """Return the weights as shares of one, and a digest of them as given: sums may differ between processors."""
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights must have one number per index, shape ({n},), not {weights.shape}")
    if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
        raise ValueError("weights must not be negative, and not all zero")
    return weights / weights.sum(), _digest(weights.tobytes())
