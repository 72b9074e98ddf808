"""Resume with other ranks, or another batch size, from the position in the order of all ranks.

A step is a batch of every rank: the next ``world_size * batch_size`` samples of one order, of which each rank takes
every `world_size`-th. `slipring.BatchSampler` and torch's DistributedSampler divide the order in this way. Training
ranks are at the same step, so one rank's state says how many samples all ranks have delivered. A stream has no such
order. Its unread part follows only from the states of all ranks together, and only a dataset that has ``rest_of`` can
divide that part again.
"""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import NamedTuple

from slipring._core.ring import process
from slipring.sampler import BatchSampler

_DISTRIBUTED = "torch.utils.data.distributed", "DistributedSampler"
ADVICE = "Resume with as many ranks and the same batch size, or from a state of the end of an epoch"


# ---- the division of samples among ranks


def divided(loader):
    """Return how samples are divided among ranks, as a dict for a state; None if it is unknown.

    "by" names the class that divides them. "rank" is the loader's `rank=` if that was given. "world_size" follows, and
    for map datasets "batch_size" and "in_order".
    """
    if loader.is_stream:
        return _of_a_stream(loader.dataset, loader.rank)
    source, group = loader.source, loader.group
    rank = rank_of(source)
    if rank is None:
        return None
    return {
        "by": _by(source),
        "rank": rank if loader.rank is None else loader.rank,
        "world_size": ranks_of(source),
        "batch_size": source.batch_size if isinstance(source, BatchSampler) else group or 1,
        "in_order": bool(loader.in_order),
    }


def _of_a_stream(dataset, given):
    rank, ranks = getattr(dataset, "rank", None), getattr(dataset, "world_size", None)
    if not (isinstance(rank, numbers.Integral) and isinstance(ranks, numbers.Integral)):
        known = process.global_rank()
        if known is None:
            return None
        rank, ranks = known
    rank = int(rank) if given is None else given
    return {"by": type(dataset).__name__, "rank": rank, "world_size": int(ranks)}


def _by(source):
    """Return the name of a division that a resumed loader can continue; else the class's own name, in a list."""
    if isinstance(source, BatchSampler):
        return "BatchSampler"
    kind = type(source)
    # By name: torch is not imported for it. (torchdata's sampler gives the same order.)
    theirs = [c for c in kind.__mro__ if (c.__module__, c.__name__) == _DISTRIBUTED]
    known = theirs and (kind.__iter__ is theirs[0].__iter__ or kind.__name__ == "StatefulDistributedSampler")
    return "DistributedSampler" if known else [kind.__name__]


# ---- one rank's state


def position_of(state, ranks):
    """Return how many samples of the order had been delivered to all ranks together, in an epoch that is not finished.

    `ranks` says how they were divided, see `divided`; for a `slipring.BatchSampler` it
    includes the sampler's own position.
    """
    step = ranks["batch_size"] * ranks["world_size"]
    if "position" in ranks:
        return ranks["position"] - len(state.drawn) * step
    return (state.origin or 0) + state.delivered * step


def begin_source(source, state):
    """Let the next pass of a `slipring.BatchSampler` begin at the position of a checked state.

    Call it when the state is loaded, so that a later ``set_epoch()`` takes precedence.
    """
    saved = saved_sampler(state).position
    if not saved or not isinstance(source, BatchSampler):
        return
    if not state.finished:
        source.load_state_dict({**saved, "position": position_of(state, division_of(state))})
    elif state.delivered is None:  # that epoch has not begun
        source.load_state_dict(saved)
    else:
        source.epoch, source.seed = int(saved["epoch"]) + 1, int(saved["seed"])


class SavedSampler(NamedTuple):
    """A Stateful sampler's part of a state: the states of the sampler and of its iterator, each in a tuple.

    None: there is no such state. `over`: the sampler was at its end, so its state may be that of its next pass.
    """

    itself: tuple | None = None
    iterator: tuple | None = None
    over: bool = False

    def __bool__(self):
        return self != SavedSampler()

    @property
    def position(self):
        """The iterator's own state of its position, or None."""
        return None if self.iterator is None else self.iterator[0]


def saved_sampler(state):
    """Return the `SavedSampler` of a state."""
    return SavedSampler(state.sampler, state.sampler_iterator, state.sampler_over)


def worker_positions(state):
    """Return {number: position} of the workers that a state describes."""
    return {number: position for number, position in enumerate(state.workers) if position is not None}


def by_number(positions):
    """Return a tuple of the positions {number: position}, by worker number; None: nothing is known of that worker."""
    return tuple(map(positions.get, range(max(positions, default=-1) + 1)))


def moved(loader, state):
    """Return a state as this rank resumes from it: at the same position, in its own batches.

    Raise ValueError if that is impossible; the message says why.
    """
    source, saved = loader.source, saved_sampler(state).position
    if isinstance(source, BatchSampler) and isinstance(saved, Mapping):
        source._checked(saved)
    if state.finished:
        return state
    now = divided(loader)
    if state.kind == "iterable":
        _check_stream(loader.dataset, state.ranks, now)
        return state
    then = division_of(state)
    if _are_alike(then, now):
        return state
    _check_division(state, then, now)
    position = position_of(state, then)
    step = now["batch_size"] * now["world_size"]
    there = {**saved, "position": position} if now["by"] == "BatchSampler" else None
    return dataclasses.replace(
        state,
        sampler=None,
        sampler_iterator=there and (there,),
        sampler_over=False,
        drawn=(),
        ranks=now,
        batch_size=loader.batch_size,
        delivered=position // step,
        origin=position % step,
    )


def division_of(state):
    """Return how a state's samples were divided. A `slipring.BatchSampler` records it, also in torchdata's states."""
    saved, ranks = saved_sampler(state).position, state.ranks
    if isinstance(saved, Mapping) and {"position", "batch_size", "world_size"} <= saved.keys():
        in_order = True if ranks is None else ranks["in_order"]
        return {"by": "BatchSampler", "in_order": in_order, **saved}
    return ranks


def _are_alike(then, now):
    """Return whether a state fits unchanged. If one division is unknown, the other must be of a single rank."""
    if then is None or now is None:
        return (then or now or {"world_size": 1})["world_size"] == 1
    same_order = then["by"] == now["by"] or not isinstance(now["by"], str)
    return same_order and all(then[name] == now[name] for name in ("rank", "world_size", "batch_size"))


def _in_words(ranks):
    if ranks is None:
        return "nothing that knows of ranks"
    size = f", batch_size={ranks['batch_size']}" if "batch_size" in ranks else ""
    by = ranks["by"] if isinstance(ranks["by"], str) else ranks["by"][0]
    return f"rank {ranks['rank']} of {ranks['world_size']}{size}, by {by}"


def _check_division(state, then, now):
    why = None
    if then is None or now is None or now["by"] != then["by"]:
        why = "another sampler has another order"
    elif now["by"] == "BatchSampler" and "position" not in then:
        why = "the state does not say where the sampler was"
    elif not isinstance(now["by"], str):
        why = (
            "it is not known how this sampler divides its order among ranks (slipring.BatchSampler's and "
            "torch's DistributedSampler's is)"
        )
    elif not then["in_order"]:
        why = "with in_order=False each rank had delivered other steps"
    elif any(position["states"] for position in worker_positions(state).values()):
        why = "the position of a Stateful map dataset is each worker's own"
    if why is not None:
        raise ValueError(f"the state is of {_in_words(then)}; here is {_in_words(now)}, and {why}. {ADVICE}")


def _check_stream(dataset, then, now):
    ranks_then, ranks_now = (1 if ranks is None else ranks["world_size"] for ranks in (then, now))
    divides = can_divide(dataset)
    moved_on = divides and then is not None and now is not None and then["rank"] != now["rank"]
    if then is None or (ranks_then == ranks_now and not moved_on):
        return
    remedy = (
        "Give load_state_dict() a list of all ranks' states: the unread part is divided again"
        if divides
        else f"{type(dataset).__name__} has no rest_of(states, num_workers), which would divide the unread part "
        "again. Resume with as many ranks, or from a state of the end of an epoch"
    )
    raise ValueError(
        f"the state is of {_in_words(then)}; here is {_in_words(now)}, and a position in an iterable dataset is "
        f"each rank's own. {remedy}"
    )


# ---- all ranks' states


def can_divide(dataset):
    """Return whether a stream can divide its unread part; see `docs/randomness.md`."""
    return callable(getattr(dataset, "rest_of", None))


def joined(loader, header, states):
    """Return one state for the states of all ranks, which may come in any order.

    `header` is the loader's own state without a position. Raise TypeError or ValueError if these are not all ranks'
    states of one moment, or if the dataset cannot divide the unread part.
    """
    ranks = [state.ranks for state in states]
    if len(states) == 1 and header.kind == "map":
        return states[0]
    if None in ranks:
        raise ValueError(
            "of a list of states each must say which rank it is of: by rank and world_size of the sampler (of an "
            "iterable dataset: its own, or torch.distributed's)"
        )
    numbers, n = sorted(one["rank"] for one in ranks), ranks[0]["world_size"]
    if numbers != list(range(n)) or {one["world_size"] for one in ranks} != {n}:
        raise ValueError(f"a list of states must have each of {n} ranks' once, not those of ranks {numbers}")
    if len({bool(state.finished) for state in states}) > 1 and header.kind == "map":
        raise ValueError("of the list of states some are of the end of an epoch, and some are not")
    states = sorted(states, key=lambda state: state.ranks["rank"])
    if header.kind == "iterable":
        return _joined_streams(loader, header, states)
    if not states[0].finished:
        positions = [position_of(state, division_of(state)) for state in states]
        if len(set(positions)) > 1:
            raise ValueError(
                f"the ranks' states are not of the same step: they are at positions {positions} of the order. "
                "Save them at the same step of all ranks"
            )
    own = header.ranks or {}
    return next((state for state in states if state.ranks["rank"] == own.get("rank")), states[0])


def _joined_streams(loader, header, states):
    if all(state.finished for state in states):
        return dataclasses.replace(states[0], workers=(), ranks=header.ranks)  # the next epoch begins at its beginning
    if not can_divide(loader.dataset):
        raise TypeError(
            f"the iterable dataset ({type(loader.dataset).__name__}) has no rest_of(states, num_workers), which "
            "divides the unread part: resume with as many ranks and workers, each rank from its own state"
        )
    reported = [_worker_states(state) for state in states]
    rest = loader.dataset.rest_of(reported, max(1, loader.num_workers))
    workers = tuple({"batches": 0, "states": one} for one in rest)
    return dataclasses.replace(header, finished=False, workers=workers)


def _worker_states(state):
    """Return the states that each worker of a rank has reported; None: it has delivered nothing."""
    positions = worker_positions(state)
    found = []
    for number in range(max(1, state.num_workers)):
        position = positions.get(number)
        if position is not None and (position.get("since") or (position["batches"] and not position["states"])):
            raise ValueError(
                f"the state of rank {state.ranks['rank']} does not say where worker {number} was, but at an "
                "earlier batch: save it with snapshot_every_n_steps=1, of a dataset whose iterators have "
                "state_dict() and load_state_dict()"
            )
        found.append(None if position is None else position["states"])
    return found


def rank_of(*samplers):
    """Return the rank whose share of the indices one of these samplers gives; None if none has a rank."""
    ranks = (getattr(sampler, "rank", None) for sampler in samplers)
    return next((int(rank) for rank in ranks if isinstance(rank, numbers.Integral)), None)


def ranks_of(sampler):
    """Return among how many ranks a sampler divides the indices; 1 if it does not say so."""
    counts = (getattr(sampler, name, None) for name in ("world_size", "num_replicas"))
    return next((int(count) for count in counts if isinstance(count, numbers.Integral)), 1)
