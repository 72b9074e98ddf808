"""The contents of a loader's state, and the checks before a state is loaded.

The protocol is torchdata's: ``state_dict()`` and ``load_state_dict()`` of the loader, and of a dataset, its iterator or
a sampler that have them (``Stateful``).
"""

import dataclasses
import logging
import pickle
import warnings
from collections.abc import Mapping
from functools import partial

from slipring._core.options.checks import MAX_EPOCH, flag, integer
from slipring._core.passes import reshard
from slipring._core.passes._inflight import WorkerPosition
from slipring._core.passes.reshard import saved_sampler, worker_positions
from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.workers.stateful import StateError, attempt, copied, is_stateful
from slipring.errors import shown
from slipring.sampler import BatchSampler

FORMAT = 1
log = logging.getLogger("slipring")
ENDED_BY_LOAD = "load_state_dict() has ended this iterator: make a new one, with iter(loader)"


@dataclasses.dataclass(frozen=True)
class Described:
    """The properties of a loader that a state must match."""

    is_stream: bool
    dataset: object
    num_workers: int
    rank: object  # the loader's ``rank=``
    in_order: bool
    source: object  # the sampler or the batch sampler; None: the loader sets the order itself
    group: int  # indices per batch that are taken from `source`; 0: it gives whole batches
    batch_size: object  # samples per batch; 0: there is no batching; None: a batch sampler does not say
    order: object  # a description of the order, outside of which a position is not valid; None: unknown


@dataclasses.dataclass(frozen=True)
class State:
    """A state of a loader. Its fields are the keys of the dict that `state_dict` returns.

    Every state has all keys, because torch.distributed.checkpoint loads those of a fresh loader's state only. It
    flattens dicts, also those in lists. Values whose keys differ from state to state stand in tuples, which it leaves
    as they are. ``docs/state.schema.json`` describes the fields.
    """

    slipring: int = FORMAT
    kind: str = "map"
    num_workers: int = 0
    batch_size: int | None = None
    order: str | None = None
    ranks: dict | None = None
    epoch: int | None = None
    seed: int | None = None
    finished: bool = True
    rng_next: str | None = None
    rng_seeds: str | None = None
    seeded: bool = False
    next_worker: int = 0
    workers: tuple = ()
    delivered: int | None = None  # None: the epoch has not begun
    beyond: list = dataclasses.field(default_factory=list)
    rng: str | None = None
    rng_before_iter: str | None = None
    rng_is_the_samplers: bool = False
    origin: int | None = None
    sampler: tuple | None = None
    sampler_iterator: tuple | None = None
    sampler_over: bool = False
    drawn: tuple = ()
    dropped: int = 0
    unknown: dict = dataclasses.field(default_factory=dict)  # fields of later versions, which are kept

    @classmethod
    def of(cls, given):
        """Return the state of a mapping, with tuples where a format such as JSON has made them lists."""
        names = {field.name for field in dataclasses.fields(cls)} - {"unknown"}
        known = {name: given[name] for name in names if name in given}
        for name in ("workers", "sampler", "sampler_iterator", "drawn"):
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        return cls(**known, unknown={name: value for name, value in given.items() if name not in names})

    @property
    def has_begun(self):
        """bool: whether a pass has delivered batches and has not come to its end."""
        batches = [position["batches"] for position in worker_positions(self).values()]
        return not self.finished and any((self.delivered, self.beyond, self.origin, self.dropped, *batches))

    def dict(self):
        """Return the dict that `state_dict` returns. The values are not copied."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        unknown = found.pop("unknown")
        return {**unknown, **found}


def unpickled(states):
    """Return the states of a dataset and its iterator as plain values; raise the error that was sent instead."""
    if isinstance(states, Exception):
        raise states
    if not isinstance(states, bytes):
        return states
    states = pickle.loads(states)
    if isinstance(states, StateError):
        raise RuntimeError(
            f"a worker's dataset (or its iterator) could not say where it is in a way that can be sent to "
            f"this process, by pickle; so there is no state of this iteration. In the worker:\n{states.text}"
        )
    states.pop("generators", None)  # only for a dead worker's replacement
    return states


def header(loader):
    """Return a state that describes the loader, without a position; `loader` is a `Described`."""
    return State(
        kind="iterable" if loader.is_stream else "map",
        num_workers=loader.num_workers,
        batch_size=loader.batch_size,
        order=None if loader.is_stream else loader.order,
        ranks=reshard.divided(loader),
    )


def next_pass(loader, resume, begin):
    """Return the function that a resumed pass without a batch calls with its iterator; None if it cannot be needed.

    `begin` begins the next epoch. If a program numbers the epochs by ``set_epoch()``, that would be the same epoch
    again, or the next one twice, so the pass only ends.
    """
    numbered = [part for part in (loader.source, loader.dataset) if callable(getattr(part, "set_epoch", None))]
    if resume is None or not resume.has_begun:
        return None
    return begin if all(isinstance(part, BatchSampler) for part in numbered) else partial(_end_empty, numbered[0])


def _end_empty(part, _):
    log.warning(
        "this pass has no batch: the loaded state is of an epoch's end, and set_epoch() of %s says which one is next",
        type(part).__name__,
    )
    raise StopIteration


def ended_positions(num_workers, state):
    """Return {number: position} of the workers at the end of an epoch, if the state was taken there; else {}.

    Datasets that persist from epoch to epoch load these states, and are then as they would be without the interruption.
    With another number of workers, none of the states is valid.
    """
    if state is None or not state.finished or state.num_workers != num_workers:
        return {}
    return at_end(worker_positions(state))


def at_end(positions):
    """Return the positions of workers at the end of a pass, as the next pass begins with them."""
    return {
        number: {**position, "batches": 0, "ended": True}
        for number, position in positions.items()
        if position["states"] or position.get("again")
    }


def loadable(positions):
    """Return the positions with states that workers can load; a state that failed is raised by `state_dict` alone."""
    found = {}
    for number, position in positions.items():
        states, error = attempt(unpickled, position["states"])
        if error is None:
            found[number] = {**position, "states": states}
    return found


def workers_of(state):
    """Return how many workers a state needs, because each position is one worker's own; 0: any number."""
    return state.num_workers if state.kind == "iterable" or state.workers else 0


def checked(loader, state, takes_number=False):
    """Return the `State` to resume from. Errors are those of `DataLoader.load_state_dict`. Nothing changes.

    `state` is a dict, a sequence of all ranks' dicts, or a `State` that was made of another library's. `takes_number`:
    the loader will have as many workers as the state needs.
    """
    start = header(loader)
    if isinstance(state, (list, tuple)):
        state = reshard.joined(loader, start, _all_states(state))
    else:
        state = _read(state)
        loader = dataclasses.replace(loader, num_workers=(takes_number and workers_of(state)) or loader.num_workers)
    kind = start.kind
    if state.kind != kind:
        raise ValueError(f"the state is of kind {state.kind!r}, the loader's dataset is of kind {kind!r}")
    state = reshard.moved(loader, state)
    if not state.finished:
        _check_counts(loader, state, start)
    if not state.finished and (kind == "iterable" or state.workers):
        if state.num_workers != loader.num_workers:
            raise AssertionError(
                f"the state is of num_workers={state.num_workers}, the loader has num_workers="
                f"{loader.num_workers}: a position in an iterable or Stateful dataset is each worker's own. "
                f"Use as many workers, or finish the epoch first{_or_divide(loader)}"
            )
        positions = worker_positions(state).values()
        if (check := getattr(loader.dataset, "check_position", None)) is not None:
            for position in positions:
                if "iterator" in (position["states"] or ()):
                    check(position["states"]["iterator"], position.get("since", 0))
        stateless = any(position["batches"] and not position["states"] for position in positions)
        if kind == "iterable" and (stateless or state.dropped):
            warnings.warn(
                "the iterable dataset has no state_dict()/load_state_dict(), nor has its iterator: each "
                "worker reads again, and drops, the batches that were delivered before",
                stacklevel=3,
            )
    return copied(state)


def _read(state):
    """Return the `State` of a dict from `state_dict`, or a given `State`, after a check of its fields."""
    if isinstance(state, State):
        _check_fields(state)
        return state
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a dict, as state_dict() returns it, not {shown(state)}")
    if state.get("slipring") != FORMAT:
        raise ValueError(
            f"this is no state of a slipring loader (of this version); its keys are {sorted(map(str, state))[:8]}"
        )
    read = State.of(state)
    _check_fields(read)
    return read


def _text(name, value):
    if not isinstance(value, (str, type(None))):
        raise TypeError(f"{name} must be a text or None, not {shown(value)}")


def _several(name, value, check=None, length=None):
    """Refuse a value that is no list, or has not `length` items, or items that `check` refuses."""
    if not isinstance(value, (list, tuple)) or len(value) != (len(value) if length is None else length):
        raise TypeError(f"{name} must be a list{f' of length {length}' if length else ''}, not {shown(value)}")
    for item in value if check else ():
        check(f"an item of {name}", item)


def _alone(name, value):
    if value is not None:
        _several(name, value, length=1)


def _ranks(name, value):
    if value is None:
        return
    if not isinstance(value, Mapping) or not {"by", "rank", "world_size"} <= value.keys():
        raise TypeError(f"{name} must be a dict with by, rank and world_size, or None, not {shown(value)}")
    for key in ("world_size", "batch_size"):
        _count(f"{name}: {key}", value.get(key, 1), 1)
    integer(f"{name}: rank", value["rank"], 0, value["world_size"] - 1)
    flag(f"{name}: in_order", value.get("in_order"))


def _check_worker(name, value):
    """Refuse a worker's position that is malformed. Bytes as states would be unpickled, which may run any code."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not {"batches", "states"} <= value.keys():
        raise TypeError(f"{name} must be a dict with batches and states, or None, not {shown(value)}")
    _count(f"{name}: batches", value["batches"])
    _count(f"{name}: since", value.get("since", 1), 1)
    _several(f"{name}: again", value.get("again", ()), partial(_several, length=2))
    flag(f"{name}: ended", value.get("ended"))
    states = value["states"]
    if states is not None and (not isinstance(states, Mapping) or "generators" in states):
        raise TypeError(
            "the states of a worker must be a dict of its dataset's and its iterator's state, as state_dict() returns "
            f"it, not {shown(states)}"
        )


def _count(name, value, least=0, optional=False):
    integer(name, value, least, (1 << 62) - 1, optional=optional)


_CHECKS = [
    ("num_workers next_worker", partial(integer, least=0, most=MAX_WORKERS)),
    ("dropped", _count),
    ("delivered origin", partial(_count, optional=True)),
    ("epoch", partial(integer, least=0, most=MAX_EPOCH, optional=True)),
    ("seed batch_size", partial(integer, least=0, most=(1 << 63) - 1, optional=True)),
    ("finished seeded sampler_over rng_is_the_samplers", flag),
    ("order rng rng_before_iter rng_next rng_seeds", _text),
    ("sampler sampler_iterator", _alone),
    ("beyond", partial(_several, check=_count)),
    ("drawn", _several),
    ("workers", partial(_several, check=_check_worker)),
    ("ranks", _ranks),
]


def _check_fields(state):
    """Raise TypeError or ValueError unless the fields of a `State` are such as ``docs/state.schema.json`` describes."""
    for names, check in _CHECKS:
        for name in names.split():
            check(f"the state's {name}", getattr(state, name))
    if len(state.workers) > max(1, state.num_workers):
        raise ValueError(f"the state is of {len(state.workers)} workers, and has num_workers={state.num_workers}")
    if state.kind == "map" and not state.finished and state.delivered is None:
        raise ValueError("the state is of the middle of an epoch, and does not say how many batches were delivered")
    if state.kind == "map" and state.ranks is not None and not {"batch_size", "in_order"} <= state.ranks.keys():
        raise ValueError(f"the state's ranks must have batch_size and in_order, not {shown(state.ranks)}")


def _all_states(states):
    """Return a list of `State`; raise TypeError if these are not every rank's states."""
    if not states or not all(isinstance(state, Mapping) and "slipring" in state for state in states):
        raise TypeError(
            "a state must be a dict, as state_dict() returns it, not a list of other things than every rank's: "
            f"{shown(states)}"
        )
    return [_read(state) for state in states]


def _or_divide(loader):
    if not (loader.is_stream and reshard.can_divide(loader.dataset)):
        return ""
    return ", or give load_state_dict() a list of all ranks' states"


def _check_counts(loader, state, start):
    """Raise ValueError if the state counts delivered batches of another size or order; `start`: `header(loader)`."""
    compared = [("batch_size", state.batch_size, start.batch_size), ("order", state.order, start.order)]
    differ = [each for each in compared if None not in each and each[1] != each[2]]
    if not differ:
        return
    if state.kind == "map":
        counts = (state.delivered or state.beyond) and not saved_sampler(state)
    else:
        positions = worker_positions(state).values()
        counts = any(each["batches"] and (not each["states"] or each.get("since")) for each in positions)
    if counts:
        name, had, has = differ[0]
        raise ValueError(
            f"the state counts batches of {name}={had or None}, the loader has {name}={has or None}: other samples "
            f"would be skipped than were delivered. Use the same {name}, or finish the epoch first"
        )


def saved_position(worker):
    """Return a `WorkerPosition` in the form that states have; None: nothing is known of the worker."""
    if not worker.batches and worker.state is None and not worker.again:
        return None
    states = unpickled(worker.state)
    return {
        "batches": worker.batches,
        "states": states,
        **({"ended": True} if worker.before else {}),
        **({"since": worker.since} if worker.since and states is not None and not worker.again else {}),
        **({"again": [*worker.again]} if worker.again else {}),
    }


def loaded_positions(num_workers, positions):
    """Return a `WorkerPosition` for each worker, from the positions {number: position} of a state."""
    made = []
    for number in range(max(1, num_workers)):
        position = positions.get(number) or {"batches": 0, "states": None}
        again, before = position.get("again", ()), bool(position.get("ended"))
        made.append(WorkerPosition(position["batches"], position["states"], position.get("since", 0), again, before))
    return made


def raw_positions(position):
    """Return {number: position} of a `Position`'s workers, with their states as they were received."""
    return {
        number: {"batches": worker.batches, "states": worker.state, "again": [*worker.again]}
        for number, worker in enumerate(position.workers or ())
    }


def initial(described, **more):
    """Return the state of a loader whose pass has not begun; Stateful objects report their initial states."""
    source, dataset = described.source, described.dataset
    said = {}
    if says_how_it_begins(source):
        said.update(sampler=(source.state_dict(),))
    if isinstance(source, BatchSampler):
        said.update(sampler_iterator=(iter(source).state_dict(),))
    if described.num_workers == 0 and says_how_it_begins(dataset):  # this process reads the dataset itself
        said.update(workers=({"batches": 0, "states": {"dataset": dataset.state_dict()}},))
    return copied(dataclasses.replace(header(described), **said, **more))


def says_how_it_begins(thing):
    """Return whether a dataset or sampler is Stateful between two passes; an iterator's state belongs to one pass."""
    return is_stateful(thing) and not hasattr(thing, "__next__")


def built(described, position, **more):
    """Return the state at a `Position`; `more` are the fields of the source, the epoch and the seed."""
    return dataclasses.replace(
        header(described),
        finished=position.finished,
        delivered=position.delivered,
        beyond=sorted(position.beyond),
        next_worker=position.next_worker,
        workers=reshard.by_number(_known(position.workers or ())),
        **more,
    )


def _known(workers):
    positions = {number: saved_position(worker) for number, worker in enumerate(workers)}
    return {number: position for number, position in positions.items() if position is not None}
