"""Where an epoch begins, goes on, and is: for the iterators with workers and without."""

import contextlib

import torch

from slipring.engine import exiting
from slipring.sampler import rank_of
from slipring.torch import state
from slipring.torch.order import generator_of, state_of

profiler_enabled = torch.autograd._profiler_enabled


class Epoch:
    """An epoch that knows its place: what both iterators share."""

    foreign = False
    _plan = None
    _keeps_seed = False  # from epoch to epoch
    home = None  # weak reference to the loader, whose newest iterator this is or was
    known_as = None  # the weak reference by which the loader knows the newest

    def __del__(self, exiting=exiting):
        # After a `break` nobody but the loader can say where the iteration was.
        loader = None if self.home is None or exiting() else self.home()
        if loader is not None and loader._latest is self.known_as:
            loader._left = self.state_dict()

    def _go_on(self, loader):
        """Take over what load_state_dict() has left, before torch's own beginning of an epoch."""
        resume, loader._resume = loader._resume, None
        self._finished = False
        self._before = state.ended_places(loader, resume)  # what datasets know from the epoch before
        if resume is not None and resume["finished"] and not resume.get("seeded"):
            state.begin_next_epoch(loader, resume)
            resume = None
        self._rng_before = state_of(generator_of(loader))
        return resume

    def _drawn_as(self, loader):
        """The rank whose random numbers are drawn: where torch.distributed is not in use, the sampler's."""
        return self._rank or rank_of(loader.batch_sampler, loader.sampler)

    def _seeded(self, loader, resume):
        """The same behind torch's own beginning; returns the state to go on from in mid-epoch, or None."""
        if resume is None:
            return None
        if resume["base_seed"] is not None:
            self._base_seed = resume["base_seed"]
        if resume["finished"]:  # workers that persist have drawn their seed in an earlier epoch
            state.begin_next_epoch(loader, resume)
            self._rng_before = state_of(generator_of(loader))
            self._sampler_iter = iter(self._index_sampler)
            return None
        self._num_yielded = resume.get("yielded", 0)
        return resume

    def _read_again(self, resume):
        """Drop what was delivered before, where nothing says how much of it each worker has read."""
        with contextlib.suppress(StopIteration):
            for _ in range(0 if resume is None else resume.get("dropped", 0)):
                self._next_data()

    def __next__(self):
        # torch's own notes each step for a profiler, which costs more than the batch, and counts a stream's
        # samples against its length.
        if self._order is None or profiler_enabled():
            return super().__next__()
        data = self._next_data()
        self._num_yielded += 1
        return data

    def state_dict(self):
        """Return the place after the batch that was handed out last; see `DataLoader.state_dict`."""
        self._catch_up()
        if self._finished and isinstance(self._plan, state.TrackedPlan):
            for number, states in self._plan.ends.items():
                self._positions.put(number, states)
        told = {
            **self._header,
            "base_seed": self._base_seed,
            "finished": self._finished,
            **(self._positions.state() if self._positions is not None else {}),
            **(self._order.state() if self._order is not None else {}),
        }
        if self._finished:
            told["rng_next"] = state.next_epochs_rng(self._generator)
            told["seeded"] = self._keeps_seed
        return told

    def _catch_up(self):
        """Bring the place up to date where that was put off."""
