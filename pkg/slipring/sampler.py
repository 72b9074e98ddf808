"""Batches of indices, also for several processes of one job that share a dataset."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from slipring._core.options.checks import MAX_EPOCH, epoch_number, flag, integer
from slipring._core.ring._order import IndexOrder
from slipring._core.ring._ring import mix
from slipring._core.ring.digests import digest, digest_of, earlier_digest_of
from slipring._core.workers.redivision import check_divided_once, hint_for
from slipring._core.workers.seeding import MASK_63
from slipring.errors import shown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_ORDER = 0x52414E4B53  # keeps these orders apart from all else that is drawn from the same seed


class BatchSampler:
    """Lists of indices for ``Loader(batch_sampler=...)``: all of them, or one rank's share.

    Each pass is another epoch. The order of an epoch depends only on `seed` and the epoch's number. Each rank takes
    every `world_size`-th index of the same order. All ranks get the same number of indices: if the last ones do not
    suffice, the first ones are used again, as in torch's DistributedSampler. So the batches of all ranks together, a
    step, are the next ``world_size * batch_size`` indices of the order, however they are divided. An epoch can
    therefore be resumed with other ranks: see `load_state_dict`.

    Parameters
    ----------
    indices : int or sequence
        The number of indices, from 0, such as ``len(dataset)``; or the indices themselves. Those in a one-dimensional
        array, tensor or series reach the dataset as plain numbers, others unchanged.
    batch_size : int
        Indices per batch of this rank.
    shuffle : bool
        A new order in every epoch.
    drop_last : bool
        Drop the last step, of all ranks, if the indices do not fill it; then no index is used again.
    weights : array_like of float, optional
        One per index, shape (n,); need not sum up to one. Indices are drawn by them, with replacement.
    num_samples : int, optional
        Draw this number of indices with replacement, for all ranks together. Default with `weights`: n.
    rank, world_size : int
        The rank, and the number of ranks. Under torchrun: ``RANK`` and ``WORLD_SIZE`` of the environment.
    seed : int, optional
        Must be the same in all ranks. None: 0 if there are several ranks, otherwise a new seed from the system.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set. A pass takes it, and increases it by one, at its first ``next()``.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Examples
    --------
    >>> import slipring
    >>> sampler = slipring.BatchSampler(10, batch_size=3, rank=1, world_size=2)
    >>> list(sampler)
    [[1, 3, 5], [7, 9]]

    Three ranks continue after a step of two ranks:

    >>> batches = iter(sampler)
    >>> first = next(batches)
    >>> for rank in range(3):
    ...     other = slipring.BatchSampler(10, batch_size=1, rank=rank, world_size=3)
    ...     other.load_state_dict(batches.state_dict())
    ...     print(list(other))
    [[6], [9]]
    [[7], [0]]
    [[8], [1]]
    """

    _has_positions = True  # each row of a batch has a position in the order

    indices: Any
    batch_size: int
    shuffle: bool
    drop_last: bool
    num_samples: int
    rank: int
    world_size: int
    seed: int

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
        batch_size = integer("batch_size", batch_size, 1)
        num_samples = integer("num_samples", num_samples, 1, sys.maxsize, optional=True)
        world_size = integer("world_size", world_size, 1)
        rank = integer("rank", rank, 0, world_size - 1)
        seed = integer("seed", seed, optional=True)
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        self._replaced = weights is not None or num_samples is not None
        if self._replaced and not len(indices):
            raise ValueError("indices are none: nothing can be drawn from them")
        if shuffle and self._replaced:
            given = "num_samples" if weights is None else "weights"
            raise ValueError(f"shuffle=True gives each index once, {given} draws with replacement")
        self._drawn_seed = None
        if seed is None:
            seed = 0 if world_size > 1 else int.from_bytes(os.urandom(8), "little") & MASK_63
            self._drawn_seed = seed
        self.indices, self.batch_size, self.shuffle, self.drop_last = indices, batch_size, shuffle, drop_last
        self._bounds, self._weights_digest = None, None
        if weights is not None:
            self._bounds, self._weights_digest = _cumulative(weights, len(indices))
        self._indices_digest = None  # computed once, at the first request: there may be many indices
        self.num_samples = len(indices) if num_samples is None else num_samples
        self.rank, self.world_size, self.seed = rank, world_size, seed & MASK_63
        self.epoch = 0
        self._begun = None  # epoch and position at which the newest pass has begun; None: it has not
        self._resumed = None  # the same of the next pass, if a state was loaded

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """ndarray of float64 or None: the weights as shares of one, shape (n,)."""
        return None if self._bounds is None else np.diff(self._bounds, prepend=0.0)

    @property
    def epoch(self) -> int:
        """int: the number of the next pass."""
        return self.__dict__["epoch"]

    @epoch.setter
    def epoch(self, value: SupportsIndex) -> None:
        self.__dict__["epoch"] = epoch_number(value)

    def order(self, epoch: int) -> Sequence[Any]:
        """Return the indices of an epoch, for all ranks.

        Parameters
        ----------
        epoch : int

        Returns
        -------
        sequence
            Read-only; its slices are lists. The indices are computed when they are read. A shuffle of at most 65,536
            indices is stored, and all orders are equally likely.
        """
        n, key = len(self.indices), mix(self.seed, epoch_number(epoch), _ORDER)
        if self._replaced:
            return _EpochIndices(self.indices, IndexOrder.drawn(n, self.num_samples, key, self._bounds))
        return _EpochIndices(self.indices, IndexOrder.shuffled(n, key) if self.shuffle else IndexOrder(n))

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass. (If it is not called, each pass increases it by one.)"""
        self.epoch = epoch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where a state was taken, of any rank, with any ranks and any `batch_size`.

        A loader's `load_state_dict` does it for its sampler. All ranks of a job are at the same step, so one rank's
        state is valid for all: give each rank the same one. The rest of that epoch is divided again. The state's `seed`
        is used from then on.

        Parameters
        ----------
        state : mapping
            From ``state_dict()`` of an iterator of such a sampler.

        Raises
        ------
        TypeError, ValueError
            It is not such a state, or the state of another order: with other indices or weights, or drawn in another
            way. A digest of the indices is compared, unless they are neither numbers nor text: then only their number
            is. A sequence class of your own may have a method ``fingerprint()``, which returns a str that identifies
            its content. Otherwise the first state reads all indices of it, or 1,024 evenly spaced ones if there are
            more than 65,536.
        """
        self._resumed = self._checked(state)
        self.epoch, self.seed = self._resumed[0], int(state["seed"])

    def _state_at(self, delivered):
        """Return the state of the newest pass after so many batches of the epoch, as `saved_position` counts them."""
        epoch, beginning = self._beginning
        step = self.batch_size * self.world_size
        return self._state(epoch, delivered * step + beginning % step)

    def __iter__(self) -> Iterator[list[Any]]:
        check_divided_once(self, self.seed == self._drawn_seed and self._drawn != "given")
        self._begun = None
        return _Pass(self)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch that is read from its beginning."""
        return self._batches_after(0)

    def _batches_after(self, position):
        left = max(0, self.num_samples - position)
        if self.drop_last:
            return left // (self.batch_size * self.world_size)
        share = -(-left // self.world_size)
        return -(-share // self.batch_size)

    @property
    def _next_pass(self):
        """tuple: epoch and position at which the next pass begins."""
        resumed = self._resumed
        return resumed if resumed is not None and resumed[0] == self.epoch else (self.epoch, 0)

    @property
    def _beginning(self):
        """tuple: the same of the newest pass."""
        return self._next_pass if self._begun is None else self._begun

    @property
    def _drawn(self):
        """str: how the order is made, which a state must have in common with the sampler that loads it."""
        return "drawn" if self._replaced else "shuffled" if self.shuffle else "given"

    @property
    def _digests(self):
        """dict: digests that distinguish orders with the same number of samples."""
        if self._indices_digest is None:
            self._indices_digest = digest_of(self.indices)
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
            raise TypeError(f"a state must be a dict, as state_dict() of a pass returns it, not {shown(state)}")
        if not state.keys() >= _KEYS:
            raise ValueError(
                f"this is no state of slipring.BatchSampler: it must have {sorted(_KEYS)}, and has "
                f"{sorted(map(str, state))[:8]}"
            )
        for name, most in (("epoch", MAX_EPOCH - 1), ("position", MASK_63), ("seed", MASK_63)):
            integer(f"the state's {name}", state[name], 0, most)
        for what, has in (("samples", self.num_samples), ("order", self._drawn)):
            if state[what] != has:
                raise ValueError(
                    f"the state is of an epoch with {what}={state[what]!r}, this sampler has {has!r}: other "
                    "indices would be skipped than were delivered. Resume with the same indices, shuffle, "
                    "weights and num_samples"
                )
        for what, has in self._digests.items():
            if state[what] != has and not (what == "indices" and state[what] == earlier_digest_of(self.indices)):
                raise ValueError(
                    f"the state is of an epoch with other {what} than this sampler's: other indices would be skipped "
                    f"than were delivered. Resume with the same {what}"
                )
        return int(state["epoch"]), int(state["position"])


_KEYS = {"epoch", "position", "samples", "order", "indices", "weights", "seed"}


class _EpochIndices(Sequence):
    """The indices of an epoch, in the order of an `IndexOrder`."""

    def __init__(self, indices, order):
        self._indices, self._order = indices, order

    def __len__(self):
        return len(self._order)

    def __getitem__(self, at):
        positions = self._positions[at]
        if isinstance(at, slice):
            return self.part(positions.start, len(positions), positions.step)
        return self.part(positions, 1)[0]

    def __array__(self, dtype=None, copy=None):
        return np.array(self[:], dtype)

    def __iter__(self):
        for first in self._positions[::1024]:
            yield from self[first : first + 1024]

    @property
    def _positions(self):
        return range(len(self))

    def left(self, position, most):
        """Return how many of the next `most` positions belong to the epoch."""
        return max(0, min(most, len(self) - position))

    def part(self, first, count, step=1):
        """Return a list of `count` indices, at positions first, first + step, ... Position 0 follows the last one."""
        n = max(1, len(self))
        positions = self._order.part(first % n, count, step % n)
        indices = self._indices
        if isinstance(indices, np.ndarray):
            # Datetimes in nanoseconds would become ints.
            return list(indices[positions]) if indices.dtype.kind in "mM" else indices[positions].tolist()
        if isinstance(indices, range) and (indices.start, indices.step) == (0, 1):
            return positions.tolist()
        return [indices[position] for position in positions.tolist()]


class _Pass:
    """The batches of one epoch; its state lets an interrupted run continue.

    The pass begins at its first batch: torch's loader makes two passes for its first epoch, and reads one.
    """

    def __init__(self, sampler):
        self.sampler = sampler
        # cursor: its epoch, and how many indices of the order all ranks together have been given; None: not begun
        self.cursor = self.order = self.seed = None

    def __iter__(self):
        return self

    def __next__(self):
        sampler = self.sampler
        self._begin(sampler.order)
        epoch, position = self.cursor[:2]
        ranks, step = sampler.world_size, sampler.batch_size * sampler.world_size
        left = self.order.left(position, step)
        if not left or (sampler.drop_last and left < step):
            raise StopIteration
        size = min(sampler.batch_size, -(-left // ranks))
        indices = self.order.part(position + sampler.rank, size, ranks)
        self.cursor = epoch, position + step  # last: a call that was interrupted before returns this batch again
        return indices

    def state_dict(self):
        """Return the epoch, and the position of all ranks together in its order."""
        state = self.sampler._state(*(self.cursor or self.sampler._next_pass))
        return state if self.seed is None else {**state, "seed": self.seed}

    def load_state_dict(self, state):
        """Continue at a position; the sampler's next pass is the epoch after it. See `BatchSampler.load_state_dict`."""
        self.cursor, self.order = self.sampler._checked(state), None
        self.sampler.seed = self.seed = int(state["seed"])
        self._count()

    def _begin(self, order_of):
        """Begin the pass at its first request; `order_of` returns the order of an epoch."""
        if self.order is not None:
            return
        if self.cursor is None:
            self.cursor = self.sampler._next_pass
        self._count()
        self.seed = self.sampler.seed
        self.order = order_of(self.cursor[0])  # last: a call that a handler interrupts before this line can be repeated

    def _count(self):
        sampler = self.sampler
        sampler._begun, sampler._resumed = self.cursor, None
        sampler.epoch = self.cursor[0] + 1


_MASK = "indices must be numbers, not a mask: give numpy.flatnonzero of it"


def _sequence(indices):
    """Return an object that returns an index by its position, for a number, a sequence or an array."""
    if np.ma.is_masked(indices):
        raise ValueError("indices are a masked array with masked values: give its compressed()")
    if hasattr(indices, "__array__"):  # a series would be indexed by its labels; an array has numpy's numbers
        array = np.asarray(indices)
        if array.ndim > 1:
            raise ValueError(f"indices must have one dimension, not shape {array.shape}")
        if array.ndim == 1 and array.dtype == bool:
            raise TypeError(_MASK)
        if array.ndim == 1:
            return array
        indices = array[()]
    if not hasattr(indices, "__len__"):
        return range(integer("indices", indices, 0, sys.maxsize, hint="; or give a sequence of indices"))
    if not hasattr(indices, "__getitem__") or isinstance(indices, Mapping):
        raise TypeError(f"indices must be an int or a sequence, not a {type(indices).__name__}{hint_for(indices)}")
    if isinstance(indices, (list, tuple)) and indices and type(indices[0]) is bool:
        raise TypeError(_MASK)
    return indices


def _cumulative(given, n):
    """Return the cumulative weights, which end with 1, and a digest of the weights as given."""
    try:
        weights = np.ascontiguousarray(given, np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError(f"weights must be numbers, one per index, not {shown(given)}: {error}") from None
    if weights.shape != (n,):
        raise ValueError(f"weights must have one number per index, shape ({n},), not {weights.shape}: {shown(given)}")
    if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
        raise ValueError(f"weights must be finite, not negative, and not all zero; they are {shown(given)}")
    bounds = np.cumsum(weights)
    bounds /= bounds[-1]
    return bounds, digest(weights)
