"""Several sources with weights as one order of indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.options.checks import epoch_number, flag, integer, one_of
from slipring._core.ring._ring import mix
from slipring._core.ring.digests import digest
from slipring._core.workers.redivision import hint_for
from slipring.errors import shown
from slipring.sampler import BatchSampler, _EpochIndices, _Pass
from slipring.tokens._arguments import numbers
from slipring.tokens._mixture import ENDLESS, MixedOrder, checked_saved, rates_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_MIXED = 0x4D49584544  # keeps these orders apart from all else that is drawn from the same seed
_MOST_LAG = 1024  # batches that a state may lie behind the newest one of its pass
_STEP = 1 << 20  # samples


class MixedSampler(BatchSampler):
    """Batches from several sources with weights, for ``DataLoader(batch_sampler=...)``.

    The indices are those of the sources one after the other, as in torch's ``ConcatDataset``; `locate` returns source
    and index. So one pool of workers reads all sources. A source is read in rounds: each round has each of its samples
    once, in a new order.

    After any number of samples, the number of samples of each source differs from its share by less than ``1 + w * (n -
    2)``, where w is its weight, as a share of one, and n the number of sources. If the weights change by the step, it
    is ``1 + w * n`` for the largest w. The order is a pure function of the arguments and of the epoch, so ranks need
    not communicate, and any number of ranks can finish an epoch: see `load_state_dict`.

    A sampler of `slipring.tokens` takes a mixture as the order of its documents: ``PackedSampler(lengths, ...,
    mixture=)``.

    Parameters
    ----------
    sources : sequence
        For each source the number of its samples, or an array of their lengths in tokens.
    weights : sequence of float or callable
        One per source; need not sum to one. Or a function of the step that returns them, such as for a curriculum. The
        same step must always have the same weights, in all ranks. It is called up to 8,192 samples ahead, and by a
        sampler with this `mixture` about 270,000. So it must return weights for steps after the epoch's end, too.
    batch_size : int
        Indices per batch of this rank.
    by : str
        What the weights are shares of: "sample", or "token". Then each source's share of samples is its weight divided
        by its mean length, so shares of tokens are exact after whole rounds. Within a round, they vary as the lengths
        of the samples do.
    stop : str
        Where an epoch ends: at the "first" source's end, at the "last" one's, or "never". Until then, sources that end
        begin another round.
    samples_per_step : int, optional
        With a function: the number of samples of all ranks for which its result holds, usually the batch size of
        all ranks together. Steps are counted from the epoch's beginning.
    shuffle : bool
        A new order in every round. If False, each source is read in its own order.
    drop_last : bool
        Drop the last step of all ranks, if the samples do not fill it. If False, the mixture continues until all ranks
        have the same number.
    rank, world_size : int
        The rank, and the number of ranks. Under torchrun: ``RANK`` and ``WORLD_SIZE`` of the environment.
    seed : int, optional
        Must be the same in all ranks. None: 0 if there are several ranks, otherwise a new seed from the system.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set.

    Raises
    ------
    TypeError, ValueError
        An argument, or a result of the function, is wrong; the text names the source or the step, the value and the
        rule.

    Examples
    --------
    >>> from slipring import tokens
    >>> sampler = tokens.MixedSampler([6, 100], weights=[3, 1], batch_size=4, shuffle=False, seed=0)
    >>> sorted(index for batch in sampler for index in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> sampler.locate([5, 7])
    (array([0, 1]), array([5, 1]))
    """

    sizes: list[int]
    by: str
    stop: str
    samples_per_step: int | None

    def __init__(
        self,
        sources: Sequence[int | ArrayLike],
        weights: Sequence[float] | Callable[[int], Sequence[float]],
        batch_size: int = 1,
        *,
        by: Literal["sample", "token"] = "sample",
        stop: Literal["first", "last", "never"] = "first",
        samples_per_step: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
    ) -> None:
        one_of("by", by, ("sample", "token"))
        one_of("stop", stop, ("first", "last", "never"))
        flag("shuffle", shuffle)
        self.by, self.stop = by, stop
        self.sizes, self._means = _sizes_of(sources, by)
        self.samples_per_step = integer("samples_per_step", samples_per_step, 1, _STEP, optional=True)
        if callable(weights) and samples_per_step is None:
            raise TypeError("weights are a function of the step: give samples_per_step, the size of a step")
        if not callable(weights) and samples_per_step is not None:
            raise TypeError("samples_per_step needs a function of the step as weights")
        self._weights_of = weights if callable(weights) else None
        self._rates = None if callable(weights) else rates_of(weights, self._means, "weights")
        super().__init__(
            sum(self.sizes), batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=world_size,
            seed=seed,
        )  # fmt: skip
        self._counted = None
        self._newest = None  # the `MixedOrder` of the newest pass

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """ndarray of float64 or None: the weights as shares of samples, shape (n,); None if they are a function."""
        return None if self._rates is None else np.array(self._rates) / sum(self._rates)

    def locate(self, indices: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of the source of each index, and its index there.

        Parameters
        ----------
        indices : array_like of int

        Raises
        ------
        TypeError, IndexError
            The indices are not integers, or one is of no source.
        """
        given = np.asarray(indices)
        if given.dtype.kind not in "iu" and given.size:
            raise TypeError(f"indices must be integers, not {given.dtype}: {shown(indices)}")
        indices, bounds = given.astype(np.int64), np.cumsum([0, *self.sizes])
        if (wrong := (indices < 0) | (indices >= bounds[-1])).any():
            raise IndexError(f"the sources have the indices from 0 to {bounds[-1] - 1}, not {indices[wrong].flat[0]}")
        sources = np.searchsorted(bounds, indices, side="right") - 1
        return sources, indices - bounds[sources]

    def order(self, epoch: int) -> Sequence[Any]:
        """Return the indices of an epoch, for all ranks.

        Parameters
        ----------
        epoch : int

        Returns
        -------
        sequence
            Read-only; its slices are lists. The indices are computed when they are read. With ``stop="never"`` it has
            no length.
        """
        return MixedIndices(self.indices, self._order_of(self.seed, epoch_number(epoch)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where a state was taken, of any rank, with any ranks and any `batch_size`.

        See `slipring.BatchSampler.load_state_dict`. The sources must be the same. The weights, `by` and `stop` may be
        others: the weights hold after the state's position, from the next multiple of 64 samples on or the one after
        it.

        Parameters
        ----------
        state : mapping

        Raises
        ------
        TypeError, ValueError
            It is not such a state, or the state of other sources. The text names the source.
        """
        super().load_state_dict(state)

    def _order_of(self, seed, epoch, saved=None):
        """Return the `MixedOrder` of an epoch, also for a sampler that takes its documents from this mixture."""
        key = mix(seed, epoch, _MIXED)
        return MixedOrder(self.sizes, self._rates_at, self.samples_per_step, self.stop, self.shuffle, key, saved)

    def _rates_at(self, step):
        if self._rates is not None:
            return self._rates
        return rates_of(self._weights_of(step), self._means, f"weights of step {step}")

    def _batches_after(self, position):
        """Return the number of batches of an epoch; `position` is its beginning."""
        key = self.seed, self.epoch
        if self._counted is None or self._counted[0] != key:
            self._counted = key, len(self._order_of(*key))
        step = self.batch_size * self.world_size
        return self._counted[1] // step if self.drop_last else -(-self._counted[1] // step)

    def __iter__(self) -> Iterator[list[Any]]:
        super().__iter__()
        return _MixedPass(self)

    # ---- the state

    @property
    def _identity(self):
        """dict: what a plan of documents from this mixture must have in common with that of a state."""
        unused = [] if self._rates is None else [source for source, rate in enumerate(self._rates) if not rate]
        stop = [self.stop, *(unused if self.stop == "last" else ())]
        return {"sizes": [*self.sizes], "stop": stop, "shuffle": self.shuffle}

    @property
    def _drawn(self):
        return "mixed, shuffled" if self.shuffle else "mixed, given"

    @property
    def _digests(self):
        return {"indices": digest(str(self.sizes).encode()), "weights": None}

    def _state(self, epoch, position, saved=None):
        return {**super()._state(epoch, position), "sizes": [*self.sizes], "mixture": saved}

    def _state_at(self, delivered):
        epoch, beginning, *saved = self._beginning
        step = self.batch_size * self.world_size
        position = delivered * step + beginning % step
        if self._begun is not None and self._newest is not None:
            position = self._at_most_end(self._newest, position)
            saved = [self._newest.saved(position, position)]
        return self._state(epoch, position, *saved)

    def _at_most_end(self, order, position):
        """Return the position after a step, which is short if the mixture stops: another `stop` can continue there."""
        if order.end is None or position - self.batch_size * self.world_size >= order.end:
            return position
        return min(position, -(-order.end // self.world_size) * self.world_size)

    def _checked(self, state):
        """Return (epoch, position, saved order or None) of a state that is one of these sources."""
        if isinstance(state, Mapping) and not state.keys() >= {"sizes", "mixture"}:
            raise ValueError(
                f"this is no state of slipring.tokens.MixedSampler; its keys are {sorted(map(str, state))[:8]}"
            )
        if isinstance(state, Mapping):
            check_sizes(state["sizes"], self.sizes)
        epoch, position = super()._checked(state)
        saved = state["mixture"]
        if saved is None and position:
            raise ValueError(f"the state is of position {position} and must have the mixture there, not None")
        return epoch, position, saved if saved is None else checked_saved(saved, self.sizes)


class MixedIndices(_EpochIndices):
    """The indices of an epoch of a mixture; also those after its end can be read."""

    def part(self, first, count, step=1):
        return self._order.part(first, count, step).tolist()

    def left(self, position, most):
        return self._order.left(position, most)

    @property
    def _positions(self):
        return range(ENDLESS) if self._order.stop == "never" else range(len(self))


class _MixedPass(_Pass):
    """The batches of a rank in one epoch of a mixture."""

    def _begin(self, order_of):
        if self.order is not None:
            return
        sampler = self.sampler

        def order_from(epoch):
            found = sampler._order_of(sampler.seed, epoch, *self.cursor[2:])
            sampler._newest = found
            return MixedIndices(sampler.indices, found)

        super()._begin(order_from)

    def state_dict(self):
        if self.order is None:
            return super().state_dict()
        sampler, (epoch, position) = self.sampler, self.cursor[:2]
        position = sampler._at_most_end(self.order._order, position)
        oldest = max(0, position - _MOST_LAG * sampler.batch_size * sampler.world_size)
        return {**sampler._state(epoch, position, self.order._order.saved(oldest, position)), "seed": self.seed}

    def _count(self):
        super()._count()
        self.sampler._newest = None


def check_sizes(sizes, ours):
    """Raise ValueError that names the first source of a state which differs."""
    if not isinstance(sizes, (list, tuple)) or len(sizes) != len(ours):
        raise ValueError(f"the state's sizes must be those of {len(ours)} sources, not {shown(sizes)}")
    for source, (there, here) in enumerate(zip(sizes, ours)):
        if there != here:
            raise ValueError(f"source {source} of the state has {shown(there)} samples, of this mixture {here}")


def _sizes_of(sources, by):
    """Return the number of samples of each source, and their mean lengths (ones if they do not matter)."""
    if isinstance(sources, (str, bytes, Mapping)) or not hasattr(sources, "__getitem__") or not len(sources):
        what = f"{shown(sources)}{hint_for(sources)}"
        raise TypeError(f"sources must be a number of samples or an array of lengths for each, not {what}")
    sizes, means = [], []
    for source, given in enumerate(sources):
        name, mean = f"sources[{source}]", 1.0
        if np.ndim(given):
            lengths = numbers(name, given)
            size = integer(f"{name}: its length", len(lengths), 1)
            if by == "token":
                mean = _mean(name, lengths)
        elif by == "token":
            raise TypeError(f"by='token' needs the length of each sample: {name} must be an array, not {shown(given)}")
        else:
            size = integer(name, given, 1, 1 << 40)
        sizes.append(int(size))
        means.append(mean)
    return sizes, means


def _mean(name, lengths):
    total = 0
    for first in range(0, len(lengths), _STEP):
        part = lengths[first : first + _STEP]
        if (wrong := np.flatnonzero(part < 1)).size:
            at = int(wrong[0])
            raise ValueError(f"{name}: sample {first + at} has {part[at]} tokens: each must have at least one")
        total += int(part.sum(dtype=np.int64))
    return total / len(lengths)
