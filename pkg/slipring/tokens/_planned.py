"""What the samplers of documents have in common: the plan of an epoch, its report, its state."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipring._core.options.checks import epoch_number, flag, integer, one_of
from slipring._core.ring._ring import mix
from slipring._core.workers.redivision import check_divided_once
from slipring.errors import shown
from slipring.sampler import BatchSampler, _Pass
from slipring.tokens._arguments import compare, cost_of, digest_of_array, limits_of, mapping, numbers
from slipring.tokens._mixed import MixedIndices, MixedSampler
from slipring.tokens._mixture import checked_saved
from slipring.tokens._plan import PART, EpochPlan, StepWindow, TokenLengths

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_PLAN = 0x544F4B454E53  # keeps these plans apart from all else that is drawn from the same seed
_CHECKED_AT_ONCE = 1 << 24  # lengths
_MOST_LAG = 1024  # batches that a state may lie behind the newest one of its pass
MOST = 1 << 32


class Piece(NamedTuple):
    """The index of a part of a document: tokens from `start` to `stop`.

    With ``overflow="truncate"`` or ``"split"``, the dataset gets it in place of a plain index for each document that
    exceeds the budget.
    """

    index: int
    start: int
    stop: int


class Plan(NamedTuple):
    """The batches of an epoch, of all ranks, in their order. Batch b of rank r is pack ``b * world_size + r``.

    Pack p has the documents ``members[bounds[p]:bounds[p + 1]]``, and of each the tokens from `starts` to `stops`.
    """

    members: NDArray[np.int64]
    bounds: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class PlanReport(NamedTuple):
    """What a plan makes of an epoch.

    Attributes
    ----------
    tokens : int
        Tokens in all batches, without padding.
    packs, batches : int
        Packs of all ranks, and batches of each rank.
    fill : float
        Tokens as a share of what the packs have room for; of padded batches: as a share of the padded tokens.
    padding : int
        Tokens that `document_multiple_of` and padded batches add.
    dropped, truncated, split : int
        The number of documents above a limit, for each `overflow` policy.
    repeated : int
        Packs of the last step that were delivered before, because it lacked documents.
    left_out : int
        Documents of the last step, which ``last="drop"`` leaves out.
    balance, balance_p99 : float
        The largest cost among the ranks over their mean, for an optimizer step: its mean and its 99th percentile.
    seconds : float
        The time to plan the epoch.
    """

    tokens: int
    packs: int
    batches: int
    fill: float
    padding: int
    dropped: int
    truncated: int
    split: int
    repeated: int
    left_out: int
    balance: float
    balance_p99: float
    seconds: float


class Planned(BatchSampler):
    """The common part of the samplers: options, plan, state."""

    _PADDED = False
    _has_positions = False  # a row of a batch has no position in the order

    max_tokens: int | None
    max_documents: int | None
    overflow: str
    document_multiple_of: int
    limits: dict[str, tuple[NDArray[Any], int]]
    cost: tuple[float, float] | NDArray[Any]
    batches_per_step: int
    last: str
    window: int
    check_ranks: bool
    mixture: MixedSampler | None

    def __init__(
        self, lengths: ArrayLike, max_tokens: int | None, max_documents: int | None, *, cumulative: bool,
        overflow: str, limits: Mapping[str, tuple[ArrayLike, int]] | None, document_multiple_of: int,
        cost: tuple[float, float] | ArrayLike, batches_per_step: int, last: str, window: int, shuffle: bool, rank: int,
        world_size: int, seed: int | None, check_ranks: bool, mixture: MixedSampler | None,
    ) -> None:  # fmt: skip
        flag("cumulative", cumulative)
        flag("check_ranks", check_ranks)
        one_of("overflow", overflow, ("error", "drop", "truncate", "split"))
        one_of("last", last, ("split", "drop", "repeat"))
        lengths = numbers("lengths", lengths)
        n = len(lengths) - bool(cumulative)
        if n < 0:
            raise ValueError("lengths are cumulative, so there must be one more than documents, not none")
        self.max_tokens = integer("max_tokens", max_tokens, 1, MOST, optional=True)
        self.max_documents = integer("max_documents", max_documents, 1, MOST, optional=True)
        multiple = integer("document_multiple_of", document_multiple_of, 1, MOST)
        if max_tokens is not None and max_tokens < multiple:
            raise ValueError(f"max_tokens={max_tokens} must be at least document_multiple_of={multiple}")
        self.batches_per_step = integer("batches_per_step", batches_per_step, 1, 1 << 20)
        self.window = integer("window", window, 1, MOST)
        self.overflow, self.last, self.document_multiple_of, self.check_ranks = overflow, last, multiple, check_ranks
        self.limits = {} if limits is None else limits_of(limits, n)
        if self.limits and overflow == "split":
            raise ValueError("overflow='split' cannot be used with limits: the numbers of a piece are unknown")
        self.cost = cost_of(cost, n)
        self.mixture = mixture
        if mixture is not None:
            _check_mixture(mixture, n, shuffle)
        super().__init__(n, 1, shuffle=shuffle, rank=rank, world_size=world_size, seed=seed)
        self._documents = TokenLengths(
            lengths, bool(cumulative), self.max_tokens, self.max_documents, self.limits, overflow, multiple, self.cost,
            self._PADDED,
        )  # fmt: skip
        if n <= _CHECKED_AT_ONCE:
            self._documents.check()
        self._counted = self._compared = self._lengths_digest = None
        self._log = []  # of the newest pass: the entries of windows, as a state has them
        self._newest = None  # the order of the newest pass

    def order(self, epoch: int) -> Sequence[Any]:
        """Return the documents of an epoch in the order in which they are packed.

        Parameters
        ----------
        epoch : int

        Returns
        -------
        sequence
            Read-only; its slices are lists. Of a mixture with ``stop="never"`` it has no length.
        """
        order = None if self.mixture is None else self.mixture._order_of(self.seed, epoch_number(epoch))
        return super().order(epoch) if order is None else MixedIndices(self.indices, order)

    def plan(self, epoch: int | None = None) -> Plan:
        """Return all batches of an epoch, as these ranks read it from its beginning.

        Parameters
        ----------
        epoch : int, optional
            Default: that of the next pass.
        """
        found, sizes = [[], [], []], [np.zeros(1, np.int64)]
        for window in self._windows(self._epoch_plan(epoch)):
            packs, of = window.packs, window.sequence
            sizes.append(np.diff(packs.bounds)[of])
            members = _ranges(packs.bounds[of], sizes[-1])
            for each, name in zip(found, ("documents", "starts", "stops")):
                each.append(getattr(packs, name)[members])
        members, starts, stops = (np.concatenate([np.empty(0, np.int64), *each]) for each in found)
        return Plan(members, np.cumsum(np.concatenate(sizes)), starts, stops)

    def report(self, epoch: int | None = None) -> PlanReport:
        """Plan an epoch, as these ranks read it from its beginning, and return what came of it.

        Parameters
        ----------
        epoch : int, optional
            Default: that of the next pass.
        """
        began = time.perf_counter()
        plan = self._epoch_plan(epoch)
        tokens = room = packs = padding = repeated = left_out = 0
        ratios = [np.empty(0)]
        for window in self._windows(plan):
            of, bounds = window.packs, window.packs.bounds
            sizes = np.diff(bounds)[window.sequence]
            members = _ranges(bounds[window.sequence], sizes)
            lengths = of.stops - of.starts
            rounded = -(-lengths // self.document_multiple_of) * self.document_multiple_of
            own, longest = int(lengths[members].sum()), np.maximum.reduceat(rounded, bounds[:-1])[window.sequence]
            padded = int((longest * sizes).sum() if self._PADDED else rounded[members].sum())
            tokens, packs, padding = tokens + own, packs + len(window.sequence), padding + padded - own
            room += padded if self._PADDED else len(window.sequence) * self.max_tokens
            repeated += window.repeated
            left_out += int(np.diff(bounds)[window.left_out].sum())
            costs = of.sums[window.sequence].reshape(-1, self.batches_per_step, self.world_size).sum(1)
            ratios.append(costs.max(1) / np.maximum(costs.mean(1), np.finfo(float).tiny))
        counts = np.array([*plan.counts.values()], np.int64).reshape(-1, 3).sum(0).tolist()
        ratios = np.concatenate(ratios)
        balance = (float(ratios.mean()), float(np.percentile(ratios, 99))) if len(ratios) else (1.0, 1.0)
        seconds = time.perf_counter() - began
        fill = tokens / room if room else 1.0
        batches = packs // self.world_size
        return PlanReport(tokens, packs, batches, fill, padding, *counts, repeated, left_out, *balance, seconds)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where a state was taken, of any rank, with any ranks and `batches_per_step`.

        See `slipring.BatchSampler.load_state_dict`. The rest of the window that the state lies in is divided again.

        Parameters
        ----------
        state : mapping

        Raises
        ------
        TypeError, ValueError
            It is not such a state, or the state of another plan. The text names what differs: an option, or the
            lengths, of which a digest is compared (of more than 65,536 lengths: of 1,024 evenly spaced ones).
        """
        super().load_state_dict(state)

    def __iter__(self) -> Iterator[list[Any]]:
        check_divided_once(self, indivisible=True)
        super().__iter__()
        return PlannedPass(self)

    def _finished(self, indices, packs, members):
        """Return the indices that the dataset gets for the members of a pack."""
        return indices

    def _windows(self, plan):
        """Yield the windows of an epoch from its beginning, except empty ones."""
        len(plan.order)  # TypeError if it is endless
        start, first = (0, 0), 0
        while start is not None:
            entry = (*start, (self.world_size, self.batches_per_step, first))
            window = StepWindow(plan, entry, self.window, self.last)
            start, first = window.after, window.stop
            if window.packs is not None:
                yield window

    def _epoch_plan(self, epoch=None, mixture=None):
        """Return the `EpochPlan` of an epoch; default: of the next pass. `mixture` is a state's."""
        epoch = self.epoch if epoch is None else epoch
        order = self.order(epoch)._order if self.mixture is None else self.mixture._order_of(self.seed, epoch, mixture)
        return EpochPlan(self._documents, order, mix(self.seed, epoch if self.shuffle else 0, _PLAN))

    def _batches_after(self, position):
        """Return the number of batches of an epoch; `position` is its beginning."""
        key = self.seed, self.epoch if self.shuffle else 0
        if self._counted is None or self._counted[0] != key:
            self._counted = key, len(self._epoch_plan())
        steps, rest = divmod(self._counted[1], self.world_size * self.batches_per_step)
        return (steps + bool(rest and self.last != "drop")) * self.batches_per_step

    # ---- the state

    @property
    def _drawn(self):
        return f"{'padded batches' if self._PADDED else 'packs'}, {'shuffled' if self.shuffle else 'given'}"

    @property
    def _digests(self):
        if self._lengths_digest is None:
            documents = self._documents
            self._lengths_digest = digest_of_array(documents.lengths, f"cumulative {documents.cumulative}")
        return {"indices": self._lengths_digest, "weights": None}

    @property
    def _options(self):
        """dict: the options that determine the plan, as a state has them."""
        limits = {name: [digest_of_array(numbers), most] for name, (numbers, most) in self.limits.items()}
        cost = [*self.cost] if isinstance(self.cost, tuple) else digest_of_array(self.cost)
        names = "max_tokens", "max_documents", "overflow", "document_multiple_of", "last", "window"
        mixture = None if self.mixture is None else self.mixture._identity
        return {**{name: getattr(self, name) for name in names}, "limits": limits, "cost": cost, "mixture": mixture}

    @property
    def _identity(self):
        """dict: what another plan must have in common with this one."""
        return {"lengths": [len(self._documents), self._digests["indices"]], "order": self._drawn, **self._options}

    def _state(self, epoch, position, log=(), mixture=None):
        windows = _until(log, position)
        if position and not windows:
            raise ValueError(
                f"more than {_MOST_LAG} batches are in flight, and the sampler has forgotten the part of the plan "
                "where this state is: use fewer workers or a smaller prefetch_factor"
            )
        return {
            **super()._state(epoch, position),
            "options": self._options,
            "batches_per_step": self.batches_per_step,
            "windows": [[*entry[:2], *map(list, entry[2:])] for entry in windows],
            "mixture": mixture,
        }

    def _state_at(self, delivered):
        epoch, beginning, *more = self._beginning
        position = delivered * self.world_size + beginning % self.world_size
        if self._begun is not None:
            more[:1] = [self._log]
            if self._newest is not None:
                more[1:] = [self._saved_mixture(self._newest, self._log, position)]
        return self._state(epoch, position, *more)

    def _saved_mixture(self, order, log, position):
        """Return what a state has of the mixture: from the windows' first part on, as far as it has been read."""
        if self.mixture is None:
            return None
        windows = _until(log, position)
        return order.saved(windows[0][0] * PART if windows else 0, order.furthest - 1)

    def _checked(self, state):
        """Return (epoch, position, entries of windows) of a state that is one of this plan."""
        name = f"{type(self).__module__}.{type(self).__name__}"
        if isinstance(state, Mapping) and not state.keys() >= {"options", "windows"}:
            raise ValueError(f"this is no state of {name}; its keys are {sorted(map(str, state))[:8]}")
        if isinstance(state, Mapping):
            saved = {"lengths": [state.get("samples"), state.get("indices")], "order": state.get("order")}
            why = "other documents would be skipped than were delivered. Resume with the same lengths and options"
            saved.update(mapping("options", state["options"]))
            compare(self._identity, saved, ("this sampler", "the state"), why)
        epoch, position = super()._checked(state)
        windows, mixture = _until(_entries(state["windows"], position), position), state.get("mixture")
        if self.mixture is None or (mixture is None and not position):
            return epoch, position, windows, None
        return epoch, position, windows, checked_saved(mixture, self.mixture.sizes)

    def _compared_plan(self, epoch, mixture=None):
        """Return `_epoch_plan`, after a comparison with other ranks."""
        self._compare_ranks(epoch)
        return self._epoch_plan(epoch, mixture)

    def _compare_ranks(self, epoch):
        """Raise an error in all ranks if one has another plan."""
        if not self.check_ranks or self._compared:
            return
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError("check_ranks=True compares ranks by torch.distributed, which is not initialized")
        own = {**self._identity, "seed": self.seed, "epoch": epoch, "world_size": self.world_size}
        own["batches_per_step"] = self.batches_per_step
        own["weights of the first step"] = None if self.mixture is None else self.mixture._rates_at(0)
        found = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, own)
        for rank, other in enumerate(found):
            compare(found[0], other, ("rank 0", f"rank {rank}"), "all ranks must have the same plan")
        self._compared = True


class PlannedPass(_Pass):
    """The packs of a rank in one epoch."""

    def __init__(self, sampler):
        super().__init__(sampler)
        self.log, self.window = [], None

    def __next__(self):
        sampler = self.sampler
        self._begin(lambda epoch: sampler._compared_plan(epoch, *self.cursor[3:]))
        sampler._newest = self.order.order
        epoch, position = self.cursor[:2]
        window = self._window_at(position)
        packs, pack = window.packs, window.sequence[position - window.first + sampler.rank]
        members = slice(packs.bounds[pack], packs.bounds[pack + 1])
        indices = packs.documents[members].tolist()
        if (cut := packs.cut[members]).any():
            for at in np.flatnonzero(cut).tolist():
                start, stop = packs.starts[members][at], packs.stops[members][at]
                indices[at] = Piece(indices[at], int(start), int(stop))
        indices = sampler._finished(indices, packs, members)
        self.cursor = epoch, position + sampler.world_size
        return indices

    def state_dict(self):
        if self.order is None:
            return super().state_dict()
        epoch, position = self.cursor[:2]
        mixture = self.sampler._saved_mixture(self.order.order, self.log, position)
        return {**self.sampler._state(epoch, position, self.log, mixture), "seed": self.seed}

    def _count(self):
        super()._count()
        self.sampler._newest = None
        self.log, self.window = [*self.cursor[2]] if len(self.cursor) > 2 else [], None
        self.sampler._log = self.log

    def _window_at(self, position):
        """Return the window that has a position; raise StopIteration if all have been delivered."""
        sampler = self.sampler
        division = sampler.world_size, sampler.batches_per_step
        while True:
            if self.window is None:
                *before, last = self.log or [(0, 0)]
                if len(last) == 2 or last[-1][:2] != division:
                    last = *(each for each in last if type(each) is int or each[2] < position), (*division, position)
                self.log[:] = [*before, last]
                self.window = StepWindow(self.order, last, sampler.window, sampler.last)
            if position < self.window.stop:
                return self.window
            after = self.window.after
            if after is None:
                raise StopIteration
            # A call that a handler interrupts reads the last entry again.
            self.window = None
            reach = position - _MOST_LAG * sampler.world_size
            kept = [entry for entry, newer in zip(self.log, self.log[1:]) if newer[2][2] > reach]
            self.log[:] = [*kept, self.log[-1], (*after, (*division, position))]


def _check_mixture(mixture, n, shuffle):
    if not isinstance(mixture, MixedSampler):
        raise TypeError(f"mixture must be a slipring.tokens.MixedSampler, not {shown(mixture)}")
    if sum(mixture.sizes) != n:
        raise ValueError(f"mixture has {sum(mixture.sizes)} samples in all sources, lengths are of {n} documents")
    if not shuffle:
        raise ValueError("shuffle=False cannot be used with a mixture, which sets the order: give shuffle to it")


def _until(log, position):
    """Return the entries of windows, and of their divisions, that begin at or before a position."""
    found = [tuple(each for each in entry if type(each) is int or each[2] <= position) for entry in log]
    return [entry for entry in found if len(entry) > 2]


def _entries(windows, position):
    """Return the entries of windows in a state, as tuples; raise an error unless they are such."""
    if not isinstance(windows, (list, tuple)) or not all(isinstance(entry, (list, tuple)) for entry in windows):
        raise TypeError(f"the state's windows must be a list of lists, not {shown(windows)}")
    found, first = [], 0
    for entry in windows:
        if len(entry) < 3 or not all(isinstance(each, (list, tuple)) and len(each) == 3 for each in entry[2:]):
            raise ValueError(f"each of the state's windows must be two ints and lists of three, not {shown(entry)}")
        start = [integer("the start of a window in the state", each, 0, 1 << 62) for each in entry[:2]]
        divisions = []
        for ranks, batches, at in entry[2:]:
            integer("ranks of a window in the state", ranks, 1, 1 << 20)
            integer("batches_per_step of a window in the state", batches, 1, 1 << 20)
            first = integer("the position of a window in the state", at, first, 1 << 62)
            divisions.append((int(ranks), int(batches), int(at)))
        found.append((*start, *divisions))
    if position and (not found or found[0][2][2] > position):
        raise ValueError(f"the state has no window of position {position}: it is more than {_MOST_LAG} batches behind")
    return found


def _ranges(firsts, sizes):
    """Return the numbers first, first + 1, ... of several ranges, one after the other."""
    return np.repeat(firsts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
