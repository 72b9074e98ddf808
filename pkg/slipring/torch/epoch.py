"""The beginning, resumption and position of an epoch, for the iterators with and without workers."""

import os
import threading

import torch

from slipring._core.engine import exiting
from slipring._core.fetch import shorter
from slipring._core.state import ended_places
from slipring.errors import reentered
from slipring.sampler import rank_that_draws
from slipring.torch import private
from slipring.torch.preload import FAILED
from slipring.torch.private import profiler_enabled
from slipring.torch.state import iteration as state
from slipring.torch.state.generators import as_state, generator_of, seed_generator_of, state_of, text_of


class _SamplerUntouched:
    """A loader as torch's beginning of an epoch sees it, with no sampler for torch to call iter() on."""

    _index_sampler = ()

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)


class Epoch:
    """An epoch with a position that can be saved: the common base of both iterators."""

    foreign = False
    _ready = None  # what is made and not handed out, in a list
    _asking = None  # the lock of threads that ask
    _last_seq = -1
    _keeps_seed = False  # from epoch to epoch
    home = None  # weak reference to the loader, whose newest iterator this is or was
    known_as = None  # the weak reference by which the loader knows the newest

    def __del__(self, exiting=exiting):
        # After a `break` nobody but the loader can say where the iteration was.
        loader = None if self.home is None or exiting() else self.home()
        if loader is not None and loader._latest is self.known_as:
            try:
                loader._left = self.state_dict()
            except Exception as error:  # raised where the state is asked for
                loader._left = error.with_traceback(None)  # whose frames would keep this iterator

    def _go_on(self, loader):
        """Take over the state that load_state_dict() left, before torch's own beginning of an epoch."""
        resume, loader._resume = loader._resume, None
        # Recorded when the batch is delivered: (sequence number, worker, states), or None.
        self._made = []
        if self._asking is None:
            self._asking, self._pid = threading.RLock(), os.getpid()
        self._finished = False
        self._put_seeds_back(loader, resume)
        self._before = ended_places(loader.num_workers, resume)  # what datasets know from the epoch before
        if resume is not None and resume["finished"] and not resume["seeded"]:
            state.begin_next_epoch(loader, resume)
            resume = None
        self._rng_before = state_of(generator_of(loader))
        return resume

    def _put_seeds_back(self, loader, resume):
        """Set the generator of the workers' seeds to where it was before the seed of the resumed epoch."""
        self._seeds = seed_generator_of(loader)
        if self._seeds is not None and resume is not None and resume["rng_seeds"] is not None:
            self._seeds.set_state(as_state(resume["rng_seeds"]))
        self._rng_seeds = text_of(self._seeds)

    @staticmethod
    def _drawn_as(loader):
        """Return the rank whose random numbers are drawn."""
        return rank_that_draws(loader.rank, loader.batch_sampler, loader.sampler)

    def _begin_as_torch(self, loader, resume):
        """Run torch's own beginning of an epoch, which also calls iter(sampler).

        If the iteration resumes, `Order` makes that call instead, after the state is loaded and the generator is back
        where it was: a second call might begin another pass.
        """
        begun = loader if resume is None else _SamplerUntouched(loader)
        # torch draws a seed: in vain where there is one, and then the program has put its generator where it was.
        seeded = resume is not None and resume["seed"] is not None and loader.generator is None
        now = torch.get_rng_state() if seeded else None
        private.BaseIterator.__init__(self, begun)
        if seeded:
            torch.set_rng_state(now)
        self._index_sampler = loader._index_sampler

    def _seeded(self, loader, resume):
        """Apply the state after torch's own beginning; return it if the epoch resumes in its middle, else None."""
        if resume is None:
            return None
        if resume["seed"] is not None:
            self._base_seed = resume["seed"]
        if resume["finished"]:  # workers that persist have drawn their seed in an earlier epoch
            state.begin_next_epoch(loader, resume)
            self._rng_before = state_of(generator_of(loader))
            self._sampler_iter = iter(self._index_sampler)
            return None
        if self._dataset_kind == private.DatasetKind.Iterable:
            self._sampler_iter = iter(self._index_sampler)
        self._num_yielded = resume["delivered"] or 0
        return resume

    def _read_again(self, resume):
        """Drop the batches delivered before, if the state does not say how many of them each worker has read."""
        count = 0 if resume is None else resume["dropped"]
        for done in range(count):
            try:
                self._next_data()
            except StopIteration:
                raise shorter(count, done) from None
            self._ready = None

    def __next__(self):
        if self._pid != os.getpid():  # a forked child, in which no other thread will open the lock
            self._asking, self._pid = threading.RLock(), os.getpid()
        if self._asking._is_owned():
            raise reentered()
        while True:
            with self._asking:
                if self._ready is None:
                    self._step()
            # No call from here on: a handler cannot raise, nor another thread take the same.
            ready = self._ready
            if ready is not None:
                self._ready = None
                return ready[0]

    def _step(self):
        """Make the next step into `_ready`."""
        # torch's own notes each step for a profiler, which costs more than the batch, and counts a stream's
        # samples against its length.
        if self._order is None or profiler_enabled():
            super().__next__()
        else:
            self._next_data()
            self._num_yielded += 1

    def _settle(self):
        """Record what has been handed out, each batch once, wherever a signal handler raises.

        It runs before the next step is made, and when a state is requested.
        """
        if self._ready is not None or self._is_begun():
            return
        made = self._made
        while made:
            seq, number, states = made[0]
            if states is FAILED:
                del made[0]
                self._failed(seq, number)
                continue
            if number is not None:
                place = self._positions.after(number, states, self._asked(seq))
                # No call from here on: all of it has happened, or nothing.
                self._positions.workers[number] = place
                self._positions.next = number + 1
                made[0] = (seq, None, None)
            if seq is not None:
                self._delivered(seq)  # twice is once
                self._last_seq = seq
            del made[0]

    def _is_begun(self):
        """Return whether part of the next step is made, whose records wait for the rest of it."""
        return False

    def _delivered(self, seq):
        self._order.delivered(seq)

    def _asked(self, seq):
        return None if self._order is None else self._order.asked_for(seq)

    def state_dict(self):
        """Return the place after the batch that was handed out last; see `DataLoader.state_dict`."""
        self._catch_up()
        if self._finished:
            self._put_ends()
        state_now = {
            **self._header,
            "seed": self._base_seed,
            "finished": self._finished,
            "rng_seeds": text_of(self._seeds) if self._finished else self._rng_seeds,
            **(self._positions.state() if self._positions is not None else {}),
            **(self._order.state() if self._order is not None else {}),
        }
        if self._finished:
            state_now["rng_next"] = text_of(self._generator)
            state_now["seeded"] = self._keeps_seed
        return state_now

    def _put_ends(self):
        """Set each worker's position to the last state of its stream, if workers read one."""

    def _catch_up(self):
        """Bring the position up to date, if that was postponed."""
