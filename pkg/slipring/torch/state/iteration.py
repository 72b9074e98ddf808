"""The position of an iteration, and how the next one resumes there.

The protocol is torchdata's: ``state_dict()`` and ``load_state_dict()`` of the loader, and of a dataset, its iterator
or a sampler that have them (``Stateful``).
"""

import copy
import pickle
import warnings
from collections.abc import Mapping

import torch

from slipring._core._ring import in_a_handler
from slipring._core.fetch import Unsaid, is_stateful
from slipring._core.source import StreamPlan
from slipring.errors import shown
from slipring.sampler import BatchSampler
from slipring.torch.state import elastic, foreign
from slipring.torch.state.asking import copied
from slipring.torch.state.elastic import in_turn, places_of
from slipring.torch.state.generators import (
    as_state,
    as_text,
    generator_of,
    seed_generator_of,
    state_of,
    text_of,
)
from slipring.torch.state.order import (
    batch_size_of,
    end_epoch_before,
    kind_of_order,
    saved_state_of,
    source_of,
)

FORMAT = 2

# Every state has all keys, because torch.distributed.checkpoint loads those of a fresh loader's state only. It flattens
# dicts, also those in lists: what has other keys from state to state stands in tuples, which it leaves as they are.
_NOTHING = {
    "base_seed": None,
    "finished": True,
    "rng_next": None,
    "rng_seeds": None,
    "seeded": False,
    "last_worker": -1,
    "workers": (),
    "yielded": None,  # the epoch has not begun
    "above": [],
    "rng": None,
    "rng_iter": None,
    "rng_is_the_samplers": False,
    "origin": None,
    "sampler": None,
    "sampler_iterator": None,
    "sampler_over": False,
    "ahead": (),
    "dropped": 0,
}


# ---- what workers send along


class TrackedPlan(StreamPlan):
    """A `slipring._core.source.StreamPlan` that keeps the states of the workers' streams at their end."""

    def __init__(self, num_workers, in_order, first):
        super().__init__(num_workers, in_order, first)
        self.ends = {}  # worker number -> the states as bytes, or None

    def ended(self, worker, last):
        super().ended(worker, last)
        if last is not None:  # not of a worker that could not begin
            self.ends[worker] = last[2]


class Place:
    """The position of one worker; `saved_state` is what a state says of it."""

    def __init__(self, saved_state=None):
        saved_state = saved_state or {}
        self.batches = saved_state.get("batches", 0)  # batches and exceptions delivered
        self.ended = bool(saved_state.get("ended"))  # the states are of the epoch before
        self.put(copied(saved_state.get("states")))
        self.since, self.again = saved_state.get("since", 0), list(saved_state.get("again", ()))

    def put(self, states):
        """Make these the latest states."""
        # What dataset and iterator last reported: bytes as a worker sent them, the dict itself, the exception that
        # came instead, or None.
        self.states = states
        # Batches delivered since those states, and exceptions delivered after the last of these batches.
        self.since = self.missed = 0
        # The same for a map dataset, whose worker must read again: [sequence number, indices] of each.
        self.again, self.missed_lists = [], []

    def passed(self, asked):
        """Record a batch that came without states; `asked`: [sequence number, indices] of a map dataset, else None."""
        self.since, self.missed = self.since + self.missed + 1, 0
        if asked is not None:
            self.again = [*self.again, *self.missed_lists, asked]  # another list: see `Positions.after`
            self.missed_lists = []

    def plain(self):
        """Return the place as plain values, with its states unpickled."""
        return {**self.raw(), "states": _unpickled(self.states)}

    def raw(self):
        """Return the place as plain values, with its states as they are here."""
        behind = self.since + self.missed  # also exceptions: they are raised again, and dropped
        again = [*self.again, *self.missed_lists]
        return {
            "batches": self.batches,
            "states": self.states,
            **({"ended": True} if self.ended else {}),
            **({"since": behind} if behind and self.states is not None and not again else {}),
            **({"again": again} if again else {}),
        }


def _unpickled(states):
    if isinstance(states, Exception):
        raise states
    if not isinstance(states, bytes):
        return states
    states = pickle.loads(states)
    if isinstance(states, Unsaid):
        raise RuntimeError(
            f"a worker's dataset (or its iterator) could not say where it is in a way that can be sent to "
            f"this process, by pickle; so there is no state of this iteration. In the worker:\n{states.text}"
        )
    return states


class Positions:
    """How far each worker has come: according to `resume`, a state, or else to `before`.

    `before` is {number: place} of the workers that live on from an epoch that has ended, see `ended_places`.
    """

    def __init__(self, resume, before):
        self.workers = {}  # number -> Place
        self.last = -1
        if resume is not None:
            self.last, before = resume["last_worker"], places_of(resume)
        for number, place in before.items():
            self.workers[number] = Place(place)

    def at(self, number):
        """Return that worker's Place."""
        return self.workers.setdefault(number, Place())

    def after(self, number, states, asked=None):
        """Return a worker's Place after one more batch, which came with `states` or None; `asked`: see `Place.passed`.

        The stored Place does not change, so that a signal handler that raises leaves nothing half done.
        """
        place = copy.copy(self.at(number))
        place.batches, place.ended = place.batches + 1, False
        if states is not None:
            place.put(states)
        else:
            place.passed(asked)
        return place

    def failed(self, number):
        """Record that an exception has come in a batch's place: it counts as a batch."""
        place = self.at(number)
        place.batches += 1
        place.missed += 1
        self.last = number

    def lost(self, number, asked):
        """Record the same for a map dataset, whose next state may be from after the exception."""
        self.at(number).missed_lists.append(asked)

    def put(self, number, states):
        """Make these the worker's latest states, without a batch."""
        place = self.at(number)
        place.ended = False
        place.put(states)

    def state(self):
        """Return the workers' part of the state."""
        return {
            "last_worker": self.last,
            "workers": in_turn({number: place.plain() for number, place in self.workers.items()}),
        }

    def ended(self):
        """Return `ended_places` of an epoch that has just ended; the states stay pickled, as unpickling may fail."""
        return _ended({number: place.raw() for number, place in self.workers.items()})


# ---- a whole state


def initial(loader):
    """Return the state of an iteration that has not begun; Stateful objects say how it begins."""
    source = source_of(loader)[0]
    state = {
        **header(loader),
        "rng_next": as_text(state_of(generator_of(loader))),
        "rng_seeds": text_of(seed_generator_of(loader)),
        **({"sampler": (source.state_dict(),)} if _says_how_it_begins(source) else {}),
        **({"sampler_iterator": (iter(source).state_dict(),)} if isinstance(source, BatchSampler) else {}),
        **({"workers": _own_place(loader.dataset)} if loader.num_workers == 0 else {}),
    }
    return copied(state)


def _says_how_it_begins(thing):
    return is_stateful(thing) and not hasattr(thing, "__next__")  # an iterator's place is of a pass


def _own_place(dataset):
    """Return the place of this process, which reads the dataset itself."""
    if not _says_how_it_begins(dataset):
        return ()
    return ({"batches": 0, "states": {"dataset": dataset.state_dict()}},)


def header(loader):
    """Return a state that describes the loader, without a position."""
    return {
        **_NOTHING,
        "slipring": FORMAT,
        "kind": "stream" if loader._dataset_kind else "map",
        "num_workers": loader.num_workers,
        "batch_size": batch_size_of(loader),
        "order": None if loader._dataset_kind else kind_of_order(loader),
        "ranks": elastic.divided(loader),
    }


def begin_next_epoch(loader, state):
    """Set the generator to where a finished epoch has left it, and let a Stateful sampler end that epoch."""
    end_epoch_before(loader, state)
    text = state["rng_next"]
    if text is None:
        return
    generator = generator_of(loader)
    if generator is None:
        torch.set_rng_state(as_state(text))
    else:
        generator.set_state(as_state(text))


def ended_places(loader, state):
    """Return {number: place} of the workers at the end of an epoch, if the state was taken there; else {}.

    Datasets that live on from epoch to epoch load these states, and so have what they have without an interruption.
    With another number of workers none of them can hold.
    """
    if state is None or not state["finished"] or state["num_workers"] != loader.num_workers:
        return {}
    return _ended(places_of(state))


def _ended(places):
    return {
        number: {**place, "batches": 0, "ended": True}
        for number, place in places.items()
        if place["states"] or place.get("again")
    }


def loadable(places):
    """Return the places with states that workers can load; a state that failed is raised by `state_dict` alone."""
    found = {}
    for number, place in places.items():
        try:
            found[number] = {**place, "states": _unpickled(place["states"])}
        except Exception as error:
            if in_a_handler(error):
                raise
    return found


def workers_of(state):
    """Return how many workers a state needs, because each place is one worker's own; 0: any number."""
    if not isinstance(state, Mapping) or (state.get("kind") != "stream" and not state.get("workers")):
        return 0
    return state.get("num_workers", 0)


def checked(loader, state):
    """Return the state to resume from, in our own form. Errors are those of `DataLoader.load_state_dict`."""
    start = header(loader)
    if isinstance(state, (list, tuple)):
        state = elastic.joined(
            loader, start, [_whole(one) if isinstance(one, Mapping) else one for one in state]
        )
    if not isinstance(state, Mapping):
        raise TypeError(f"a state must be a dict, as state_dict() returns it, not {shown(state)}")
    if foreign.is_theirs(state):
        state = foreign.translated(loader, start, state)
    if state.get("slipring") != FORMAT:
        raise ValueError(
            "this is no state of slipring.torch.DataLoader (of this version); its keys are "
            f"{sorted(map(str, state))[:8]}"
        )
    kind, state = start["kind"], _whole(state)
    if state["kind"] != kind:
        raise ValueError(f"the state is of a {state['kind']} dataset, the loader's is a {kind} dataset")
    state = elastic.moved(loader, state)
    if not state["finished"]:
        _check_counts(loader, state, start)
    if not state["finished"] and (kind == "stream" or state["workers"]):
        if state["num_workers"] != loader.num_workers:
            raise AssertionError(
                f"the state is of num_workers={state['num_workers']}, the loader has num_workers="
                f"{loader.num_workers}: a place in an iterable or Stateful dataset is each worker's own. "
                f"Use as many workers, or finish the epoch first{_or_divide(loader)}"
            )
        unsaid = any(place["batches"] and not place["states"] for place in places_of(state).values())
        if kind == "stream" and (unsaid or state["dropped"]):
            warnings.warn(
                "the iterable dataset has no state_dict()/load_state_dict(), nor has its iterator: each "
                "worker reads again, and drops, what was delivered before",
                stacklevel=3,
            )
    return copied(state)


def _whole(state):
    """Return a state with all keys, and with tuples where a format such as JSON has made them lists."""
    state = {**_NOTHING, "ranks": None, "batch_size": None, "order": None, **state}
    tuples = (name for name, value in state.items() if isinstance(value, list) and name in _IN_TUPLES)
    return {**state, **{name: tuple(state[name]) for name in tuples}}


_IN_TUPLES = ("workers", "sampler", "sampler_iterator", "ahead")


def _or_divide(loader):
    if not (loader._dataset_kind and elastic.can_divide(loader.dataset)):
        return ""
    return ", or give load_state_dict() a list of all ranks' states"


def _check_counts(loader, state, start):
    """Raise ValueError if the state counts delivered batches of another size or order; `start`: `header(loader)`."""
    compared = [(name, state[name], start[name]) for name in ("batch_size", "order")]
    differ = [each for each in compared if None not in each and each[1] != each[2]]
    if not differ:
        return
    if state["kind"] == "map":
        counts = (state["yielded"] or state["above"]) and not saved_state_of(state)
    else:
        places = places_of(state).values()
        counts = any(place["batches"] and (not place["states"] or place.get("since")) for place in places)
    if counts:
        name, had, has = differ[0]
        raise ValueError(
            f"the state counts batches of {name}={had or None}, the loader has {name}={has or None}: other samples "
            f"would be skipped than were delivered. Use the same {name}, or finish the epoch first"
        )
