"""States of torch's loader.

The protocol is torchdata's: the loader has ``state_dict()`` and ``load_state_dict()``. So may a dataset, its iterator
and a sampler (``Stateful``).
"""

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from slipring._core.passes import state as core
from slipring.torch import torchdata_states
from slipring.torch.generators import as_state, as_text, generator_of, seed_generator_of, state_of, text_of
from slipring.torch.order import described, end_epoch_before


@dataclasses.dataclass
class TorchPass:
    """A loader's knowledge of its newest iteration, kept after the iterator is gone.

    Attributes
    ----------
    described : slipring._core.passes.state.Described
        The loader when the iteration began.
    position : Position
    source : Order or None
        None: the dataset is iterable.
    seed : int
        The workers' base seed.
    seeded : bool
        Whether the next epoch of persistent workers has the same seed.
    generator, seeds : torch.Generator or None
        The generators of the order (None: torch's global one) and of the workers' seeds (None: the order's).
    rng_seeds : str or None
        The state of `seeds` before `seed` was drawn.
    iterator : weakref.ref
    """

    described: Any
    position: Any
    source: Any
    seed: int
    seeded: bool
    generator: Any
    seeds: Any
    rng_seeds: Any
    iterator: weakref.ref

    def state(self):
        """Return the `State` of the iteration's position."""
        iterator = self.iterator()
        if iterator is not None:
            iterator.ask_state()
        position, more = (self.position.copy(), {}) if self.source is None else self.source.state()
        if position.finished:
            more = {**more, **dict(rng_next=text_of(self.generator), seeded=self.seeded)}
        rng_seeds = text_of(self.seeds) if position.finished else self.rng_seeds
        return core.built(self.described, position, seed=self.seed, rng_seeds=rng_seeds, **more)

    def release(self):
        """Drop the indices that have not been drawn, before the next epoch draws others."""
        iterator = self.iterator()
        is_live = iterator is not None and iterator.is_live
        if self.source is not None and self.source.is_stateful is False and not is_live:
            self.source.release()


def initial(loader):
    """Return the `State` of an iteration that has not begun; Stateful objects may add theirs."""
    return core.initial(
        described(loader),
        rng_next=as_text(state_of(generator_of(loader))),
        rng_seeds=text_of(seed_generator_of(loader)),
    )


def begin_next_epoch(loader, state):
    """Set the generator to its state after a finished epoch, and let a Stateful sampler end that epoch."""
    end_epoch_before(loader, state)
    text = state.rng_next
    if text is None:
        return
    generator = generator_of(loader)
    if generator is None:
        torch.set_rng_state(as_state(text))
    else:
        generator.set_state(as_state(text))


def checked(loader, state):
    """Return the state to resume from, in slipring's form. Errors are those of `DataLoader.load_state_dict`."""
    here = described(loader)
    if isinstance(state, Mapping) and torchdata_states.is_theirs(state):
        state = torchdata_states.translated(loader, core.header(here), state)
    found = core.checked(here, state, loader._tuner is not None)
    _check_generators(generator_of(loader), found.rng, found.rng_before_iter, found.rng_next)
    if (seeds := seed_generator_of(loader)) is not None:
        _check_generators(seeds, found.rng_seeds)
    return found


def _check_generators(generator, *texts):
    """Raise ValueError unless generators such as `generator` (None: torch's global one) can have these states."""
    for text in texts:
        try:
            if text is not None:
                torch.Generator("cpu" if generator is None else generator.device).set_state(as_state(text))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"the state has a text that is no state of the loader's generator: {error}") from None
