"""Where an iteration is, and how the next one goes on from there.

The protocol is torchdata's: ``state_dict()`` and ``load_state_dict()`` of the loader, and of a dataset, its
iterator or a sampler that have them (``Stateful``).
"""

import copy
import pickle
import warnings

import torch
from torch.utils.data import BatchSampler

from slipring.dispatch import StreamPlan
from slipring.fetch import is_stateful, states_of
from slipring.torch import foreign

FORMAT = 1
_END = object()


# ---- generators, as text that any format of checkpoint can carry


def generator_of(loader):
    """The generator that sets the order: the loader's, the sampler's own, or torch's global one (None)."""
    return loader.generator or getattr(loader.sampler, "generator", None)


def _as_text(state):
    return None if state is None else state.numpy().tobytes().hex()


def _as_state(text):
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


# ---- map datasets: the order of indices


class Order:
    """Lists of indices, one per ticket, and what is needed to go on after any of them.

    Parameters
    ----------
    loader : DataLoader
    made : iterator
        The index sampler's, not yet used.
    resume : dict, optional
        A state.
    """

    def __init__(self, loader, made, resume=None):
        # Not the loader itself: with persistent workers it keeps the iterator that keeps this.
        self.in_order, self.sampler = loader.in_order, loader.sampler
        self.resume = resume
        self.ticket = 0 if resume is None else resume["yielded"]
        self.low = self.ticket  # every ticket before it has been delivered
        self.above = set() if resume is None else set(resume["above"])  # delivered beyond that
        self.generator = generator_of(loader)
        self.began = None  # the generator's state before the first draw
        # A state of torchdata's has that of a generator which torch's sampler would make by itself.
        self.samplers_rng = resume is not None and bool(resume.get("rng_is_the_samplers"))
        self._text = None
        sampler = loader._index_sampler
        self.group = 0
        if type(sampler) is BatchSampler and (is_stateful(sampler.sampler) or _iter_is_stateful(sampler)):
            # torch's own batching cannot say where its sampler is: the same lists are made here.
            self.group, self.drop_last, sampler = sampler.batch_size, sampler.drop_last, sampler.sampler
            made = iter(sampler)
        told = None if resume is None else resume["sampler"]
        if told is not None and is_stateful(sampler) and not is_stateful(made):
            sampler.load_state_dict(told)
            made = iter(sampler)
        self.teller = made if is_stateful(made) else sampler if is_stateful(sampler) else None
        if told is not None and self.teller is made:
            made.load_state_dict(told)
        self.to_skip = 0 if told is not None or resume is None else resume["yielded"]
        self.at = told  # the teller's state after the last ticket delivered
        self.after = {}  # ticket -> the teller's state after it was drawn
        self.made = made
        self.single = not loader._auto_collation

    @property
    def must_be_told(self):
        """bool: whether `delivered` must be called for every ticket; else `low` alone says it all."""
        return self.teller is not None or not self.in_order or bool(self.above)

    def lists(self):
        """Yield a list of indices per ticket."""
        try:
            yield self._noted(self._first())
            if self.teller is None and not self.group and not self.single:
                while True:  # `for` would call iter() again, which begins some samplers anew
                    drawn = next(self.made)
                    self.ticket += 1
                    yield drawn if type(drawn) is list else list(drawn)
            while True:
                yield self._noted(self._draw())
        except StopIteration:
            return

    def _noted(self, indices):
        if self.teller is not None:
            self.after[self.ticket] = copy.deepcopy(self.teller.state_dict())
        self.ticket += 1
        return indices

    def _first(self):
        """The first draw of the epoch: here samplers ask their generator for the whole order."""
        own = self.generator
        if self.resume is None or self.resume["rng"] is None:
            self.began = torch.get_rng_state() if own is None else own.get_state()
            return self._skip()
        self.began = _as_state(self.resume["rng"])
        if own is not None:
            own.set_state(self.began)
            return self._skip()
        if self.samplers_rng:
            return self._with_generator(self.sampler)
        now = torch.get_rng_state()
        torch.set_rng_state(self.began)
        try:
            return self._skip()
        finally:
            torch.set_rng_state(now)

    def _with_generator(self, sampler):
        """The first draw of a sampler that is to have begun with a generator in that state."""
        sampler.generator = torch.Generator()
        sampler.generator.set_state(self.began)
        try:
            return self._skip()
        finally:
            sampler.generator = None

    def _undrawn(self):
        """The generator's state, as text, where nothing has been drawn yet."""
        if self.resume is not None and self.resume["rng"] is not None:
            return self.resume["rng"]
        return _as_text(torch.get_rng_state() if self.generator is None else self.generator.get_state())

    def _skip(self):
        for _ in range(self.to_skip):
            self._draw()
        return self._draw()

    def _draw(self):
        if not self.group:
            drawn = next(self.made)
            return [drawn] if self.single else drawn if type(drawn) is list else list(drawn)
        drawn = []
        while len(drawn) < self.group:
            index = next(self.made, _END)
            if index is _END:
                if not drawn or self.drop_last:
                    raise StopIteration
                break
            drawn.append(index)
        return drawn

    def delivered(self, ticket):
        """Note that a ticket's batch has been handed out."""
        if ticket < self.low:
            return  # an exception that was no batch's came behind it
        self.above.add(ticket)
        # Not past what is yet to be drawn, and skipped: the teller is asked behind it.
        while self.low in self.above and (self.teller is None or self.low in self.after):
            self.above.discard(self.low)
            self.at = self.after.pop(self.low, None)
            self.low += 1

    def state(self):
        """Return this order's part of the state."""
        if self._text is None and self.began is not None:
            self._text = _as_text(self.began)
        return {
            "yielded": self.low,
            "above": sorted(self.above) if self.above else [],
            "rng": self._text if self.began is not None else self._undrawn(),
            "sampler": self.at,
            **({"rng_is_the_samplers": True} if self.samplers_rng else {}),
        }


def _iter_is_stateful(sampler):
    return is_stateful(type(sampler.sampler).__iter__) or hasattr(sampler.sampler, "__stateful_iter__")


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
    """How far each worker has come."""

    def __init__(self, resume=None):
        self.workers = {}  # number -> [batches and exceptions delivered, states as bytes]
        self.last = -1
        if resume is not None:
            self.last = resume["last_worker"]
            self.workers = {
                int(k): [v["batches"], pickle.dumps(v["states"])] for k, v in resume["workers"].items()
            }

    def unpack(self, tracked):
        """Note whose batch it is, and return it."""
        number, batch, states = tracked
        self.note(number, states)
        return batch

    def note(self, number, states):
        """Note that a batch of that worker has been handed out, and the states it has sent along."""
        place = self.workers.setdefault(number, [0, None])
        place[0] += 1
        place[1] = states
        self.last = number

    def failed(self, number):
        """Note that an exception has come in a batch's place; who cannot say where it was counts it too."""
        place = self.workers.setdefault(number, [0, None])
        place[0] += 1
        if place[1] is None:  # a state is of the batch before, from where it is raised again
            self.last = number

    def put(self, number, states):
        """Have these be the worker's latest states, with no batch."""
        self.workers.setdefault(number, [0, None])[1] = states

    def state(self):
        """Return the workers' part of the state."""
        return {
            "last_worker": self.last,
            "workers": {
                number: {"batches": batches, "states": None if states is None else pickle.loads(states)}
                for number, (batches, states) in sorted(self.workers.items())
            },
        }


# ---- a whole state


def initial(loader):
    """Return the state of an iteration that has not begun."""
    generator = generator_of(loader)
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return {**header(loader), "base_seed": None, "finished": True, "rng_next": _as_text(state)}


def header(loader):
    """Return what every state begins with."""
    return {
        "slipring": FORMAT,
        "kind": "stream" if loader._dataset_kind else "map",
        "num_workers": loader.num_workers,
    }


def next_epochs_rng(generator):
    """Return the state of the generator that the next epoch draws from; None: torch's global one."""
    return None if generator is None else _as_text(generator.get_state())


def begin_next_epoch(loader, state):
    """Put the generator where a finished epoch has left it."""
    text = state.get("rng_next")
    if text is None:
        return
    generator = generator_of(loader)
    if generator is None:
        torch.set_rng_state(_as_state(text))
    else:
        generator.set_state(_as_state(text))


def ended_places(loader, state):
    """Return {number: place} of the workers at the end of an epoch, where the state is one of that kind.

    Datasets that live on from epoch to epoch are told it, as they know it without an interruption. With
    another number of workers nothing of it can hold.
    """
    if state is None or not state["finished"] or state["num_workers"] != loader.num_workers:
        return {}
    places = {int(number): place for number, place in state.get("workers", {}).items()}
    return {number: {**place, "ended": True} for number, place in places.items() if place["states"]}


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
        if kind == "stream" and any(not p["states"] and p["batches"] for p in state["workers"].values()):
            warnings.warn(
                "the iterable dataset has no state_dict()/load_state_dict(), nor has its iterator: each "
                "worker reads again, and drops, what was delivered before",
                stacklevel=3,
            )
    return copy.deepcopy(state)
