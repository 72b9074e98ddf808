"""Where an iteration is, and how the next one goes on from there.

The protocol is torchdata's: ``state_dict()`` and ``load_state_dict()`` of the loader, and of a dataset, its
iterator or a sampler that have them (``Stateful``).
"""

import copy
import pickle
import warnings

import torch

from slipring.dispatch import StreamPlan
from slipring.fetch import is_stateful, states_of
from slipring.torch import foreign
from slipring.torch.order import as_state, as_text, generator_of, source_of, state_of, tell_of_epoch_before

FORMAT = 1


# ---- what workers send along


class Tracked:
    """A batch with the number of its worker and the states of dataset and iterator: a list in the slot."""

    @staticmethod
    def pack(number, batch, dataset, iterator):
        """Return the list; states go as bytes, so that nothing kept refers to the slot."""
        return [number, batch, states_as_bytes(dataset, iterator)]


def states_as_bytes(dataset, iterator, last=False):
    """Return what `slipring.fetch.states_of` says, pickled, or None. `last`: nothing comes behind."""
    states = states_of(dataset, iterator)
    if states and last:
        states["last"] = True
    return pickle.dumps(states) if states else None


class TrackedPlan(StreamPlan):
    """A `slipring.dispatch.StreamPlan` that keeps what the workers' streams say at their end.

    Attributes
    ----------
    ends : dict
        Number -> the states as bytes, or None.
    """

    def __init__(self, num_workers, in_order, first):
        super().__init__(num_workers, in_order, first)
        self.ends = {}

    def ended(self, worker, last):
        super().ended(worker, last)
        if last is not None:  # not of a worker that could not begin
            self.ends[worker] = last[2]


class Positions:
    """How far each worker has come.

    Parameters
    ----------
    resume : dict, optional
        A state.
    before : dict
        Number -> the place of a worker that lives on from an epoch which has ended, see `ended_places`.
    """

    def __init__(self, resume, before):
        # number -> [batches and exceptions delivered, states as bytes, whether those are of the epoch before]
        self.workers = {}
        self.last = -1
        if resume is not None:
            self.last, before = resume.get("last_worker", -1), places_of(resume)
        for number, place in before.items():
            states = None if place["states"] is None else pickle.dumps(place["states"])
            self.workers[number] = [place["batches"], states, bool(place.get("ended"))]

    def unpack(self, tracked):
        """Note whose batch it is, and return it."""
        number, batch, states = tracked
        self.note(number, states)
        return batch

    def note(self, number, states):
        """Note that a batch of that worker has been handed out, and the states it has sent along."""
        place = self.workers.setdefault(number, [0, None, False])
        place[:] = place[0] + 1, states, False
        self.last = number

    def failed(self, number):
        """Note that an exception has come in a batch's place; who cannot say where it was counts it too."""
        place = self.workers.setdefault(number, [0, None, False])
        place[0] += 1
        if place[1] is None:  # a state is of the batch before, from where it is raised again
            self.last = number

    def put(self, number, states):
        """Have these be the worker's latest states, with no batch."""
        self.workers.setdefault(number, [0, None, False])[1:] = states, False

    def state(self):
        """Return the workers' part of the state."""
        return {
            "last_worker": self.last,
            "workers": {
                number: {
                    "batches": batches,
                    "states": None if states is None else pickle.loads(states),
                    **({"ended": True} if ended else {}),
                }
                for number, (batches, states, ended) in sorted(self.workers.items())
            },
        }


# ---- a whole state


def initial(loader):
    """Return the state of an iteration that has not begun; what is Stateful says how it begins."""
    source = source_of(loader)[0]
    told = {
        **header(loader),
        "base_seed": None,
        "finished": True,
        "rng_next": as_text(state_of(generator_of(loader))),
        **({"sampler": source.state_dict()} if _says_how_it_begins(source) else {}),
        **({"workers": _own_place(loader.dataset)} if loader.num_workers == 0 else {}),
    }
    return copy.deepcopy(told)


def _says_how_it_begins(thing):
    return is_stateful(thing) and not hasattr(thing, "__next__")  # an iterator's place is of a pass


def _own_place(dataset):
    """The place of this process, which reads the dataset itself."""
    if not _says_how_it_begins(dataset):
        return {}
    return {0: {"batches": 0, "states": {"dataset": dataset.state_dict()}}}


def header(loader):
    """Return what every state begins with."""
    return {
        "slipring": FORMAT,
        "kind": "stream" if loader._dataset_kind else "map",
        "num_workers": loader.num_workers,
    }


def next_epochs_rng(generator):
    """Return the state of the generator that the next epoch draws from; None: torch's global one."""
    return None if generator is None else as_text(generator.get_state())


def begin_next_epoch(loader, state):
    """Put the generator where a finished epoch has left it, and tell a Stateful sampler of that epoch."""
    tell_of_epoch_before(loader, state)
    text = state.get("rng_next")
    if text is None:
        return
    generator = generator_of(loader)
    if generator is None:
        torch.set_rng_state(as_state(text))
    else:
        generator.set_state(as_state(text))


def places_of(state):
    """Return {number: place} of the workers; the numbers are text in what has gone through JSON."""
    return {int(number): place for number, place in state.get("workers", {}).items()}


def ended_places(loader, state):
    """Return {number: place} of the workers at the end of an epoch, where the state is one of that kind.

    Datasets that live on from epoch to epoch are told it, as they know it without an interruption. With
    another number of workers nothing of it can hold.
    """
    if state is None or not state["finished"] or state["num_workers"] != loader.num_workers:
        return {}
    return {
        number: {"batches": 0, "states": place["states"], "ended": True}
        for number, place in places_of(state).items()
        if place["states"]
    }


def checked(loader, state):
    """Return the state to go on from, in our own form.

    Raises
    ------
    AssertionError, ValueError
        See `DataLoader.load_state_dict`.
    """
    if foreign.is_theirs(state):
        state = foreign.translated(loader, header(loader), state)
    if state.get("slipring") != FORMAT:
        raise ValueError(
            "this is no state of slipring.torch.DataLoader (of this version); its keys are "
            f"{sorted(map(str, state))[:8]}"
        )
    kind = header(loader)["kind"]
    if state["kind"] != kind:
        raise ValueError(f"the state is of a {state['kind']} dataset, the loader's is a {kind} dataset")
    if not state["finished"] and (kind == "stream" or state.get("workers")):
        if state["num_workers"] != loader.num_workers:
            raise AssertionError(
                f"the state is of num_workers={state['num_workers']}, the loader has num_workers="
                f"{loader.num_workers}: a place in an iterable or Stateful dataset is each worker's own. "
                "Use as many workers, or finish the epoch first"
            )
        unsaid = any(place["batches"] and not place["states"] for place in places_of(state).values())
        if kind == "stream" and (unsaid or state.get("dropped")):
            warnings.warn(
                "the iterable dataset has no state_dict()/load_state_dict(), nor has its iterator: each "
                "worker reads again, and drops, what was delivered before",
                stacklevel=3,
            )
    return copy.deepcopy(state)
