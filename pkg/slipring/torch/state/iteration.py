"""The position of an iteration, and how the next one resumes there.

The protocol is torchdata's: ``state_dict()`` and ``load_state_dict()`` of the loader, and of a dataset, its iterator
or a sampler that have them (``Stateful``).
"""

import copy
from collections.abc import Mapping

import torch

from slipring._core import state as core
from slipring._core.fetch import copied
from slipring._core.reshard import in_turn, places_of
from slipring._core.state import at_end, unpickled
from slipring.torch.state import foreign
from slipring.torch.state.generators import (
    as_state,
    as_text,
    generator_of,
    seed_generator_of,
    state_of,
    text_of,
)
from slipring.torch.state.order import described, end_epoch_before

# ---- how far each worker has come


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
        return {**self.raw(), "states": unpickled(self.states)}

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


class Positions:
    """How far each worker has come: according to `resume`, a state, or else to `before`.

    `before` is {number: place} of the workers that live on from an epoch that has ended, see `ended_places`.
    """

    def __init__(self, resume, before):
        self.workers = {}  # number -> Place
        self.next = 0
        if resume is not None:
            self.next, before = resume["next_worker"], places_of(resume)
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
        self.next = number + 1

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
            "next_worker": self.next,
            "workers": in_turn({number: place.plain() for number, place in self.workers.items()}),
        }

    def ended(self):
        """Return `ended_places` of an epoch that has just ended; the states stay pickled, as unpickling may fail."""
        return at_end({number: place.raw() for number, place in self.workers.items()})


# ---- a whole state


def initial(loader):
    """Return the state of an iteration that has not begun; Stateful objects say how it begins."""
    return core.initial(
        described(loader),
        rng_next=as_text(state_of(generator_of(loader))),
        rng_seeds=text_of(seed_generator_of(loader)),
    )


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


def checked(loader, state):
    """Return the state to resume from, in our own form. Errors are those of `DataLoader.load_state_dict`."""
    here = described(loader)
    if isinstance(state, Mapping) and foreign.is_theirs(state):
        state = foreign.translated(loader, core.header(here), state)
    return core.checked(here, state)
