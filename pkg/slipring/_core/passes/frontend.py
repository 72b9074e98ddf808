"""What `LoaderCore` asks of a loader's class. The answers here are those of `slipring.Loader`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from slipring._core.passes import reshard
from slipring._core.passes import state as states
from slipring._core.passes._iteration import Iteration
from slipring._core.passes._local import LocalIteration
from slipring._core.passes.source import map_plan, rank_stride, rank_that_draws, steps_before
from slipring._core.ring._ring import mix
from slipring._core.workers import error_record
from slipring._core.workers._rng_guard import RngGuard
from slipring._core.workers.fetch import load_ended
from slipring._core.workers.job import Job
from slipring._core.workers.stateful import is_stateful
from slipring._core.workers.worker import Worker
from slipring.sampler import BatchSampler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from slipring._core.options.values import Options
    from slipring._core.passes.engine import EngineCache
    from slipring._core.passes.source import SamplerSource
    from slipring._core.passes.state import Described, State

MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64


class PassNumbers(NamedTuple):
    """The numbers with which a pass begins.

    `seed` is the base seed. `epoch` is the number that the tasks carry; with ``rng="sample"`` the offset in a step is
    added to it. `resume` is the `State` within which the pass begins, or None. `own` has the values that only this
    frontend needs for a state.
    """

    seed: int
    epoch: int
    resume: State | None
    own: Any = None


class PassOrder(NamedTuple):
    """The order of a map dataset's samples in a pass.

    `plan` is an iterator over tasks, `source` the `SamplerSource` whose state belongs to the loader's, or None.
    `first` is the plan's first sequence number, `origin` the offset of sequence number 0 in a step of all ranks.
    """

    plan: Any
    source: SamplerSource | None
    first: int = 0
    origin: int = 0


class Frontend:
    """The questions of `LoaderCore`, in the order in which a pass asks them."""

    options: Options
    dataset: Any
    is_stream: bool
    seed: int
    epoch: int
    _engines: EngineCache

    _keeps_states = True  # the states of workers' datasets travel with the batches
    _is_reusable = False  # close() leaves the loader usable
    _skips_empty_rest = True  # a pass that resumes after the last batch continues with the next epoch
    _sends_states = False  # without workers: query the dataset's state with each batch

    # Attributes that a copy of the loader, here or in another process, does not take over.
    _OWN = frozenset({"_engines", "_tuner", "_closed", "_newest", "_iterator", "_epochs"})

    # An adapter may have its own worker class, and its own way to rebuild exceptions; see `Job` and `Iteration`.
    _worker_class, _rebuild = Worker, staticmethod(error_record.rebuild)

    @property
    def _options_now(self) -> Options:
        """Options: those of the next pass."""
        return self.options

    @property
    def _tuned(self) -> tuple[int, int, int] | None:
        """tuple or None: the first, least and most numbers of workers, if the loader finds the best one."""
        return None if self.options.bounds is None else (self.options.num_workers, *self.options.bounds)

    def _put_num_workers(self, num_workers: int) -> None:
        """Give the next pass this number of workers."""
        self.options = dataclasses.replace(self.options, num_workers=num_workers)

    # ---- the beginning of a pass

    def _end_pass(self, iterator: Any) -> None:
        """Prepare an iterator for a new pass in it."""

    def _new_iterator(self, options: Options) -> Any:
        """Return an iterator that has not begun."""
        kind = Iteration if options.num_workers else LocalIteration
        return kind.__new__(kind)

    def _numbers(self, iterator: Any, loaded: State | None) -> PassNumbers:
        """Return the numbers of the next pass. `loaded` is the state that was loaded for it."""
        resume = loaded if loaded is not None and self._is_current(loaded) and not loaded.finished else None
        return PassNumbers(mix(self.seed, self.epoch) & MASK_62, self.epoch, resume)

    def _job(self, iterator: Any, options: Options) -> Job:
        """Return the job of the workers."""
        return Job(
            self.dataset,
            self.is_stream,
            options.for_worker(),
            self._worker_class,
            rank_that_draws(options.rank, options.batch_sampler, options.sampler),
            self._rank_stride,
            tracked=self._keeps_states and (self.is_stream or is_stateful(self.dataset)),
        )

    def _pci_addresses(self) -> Iterable[str | None]:
        """Return the PCI address of each device that reads from the slots; None for one that has none."""
        return ()

    @property
    def _rank_stride(self) -> Any:
        o = self.options
        if o.rng != "sample":
            return None
        return rank_stride(self.dataset, self.is_stream, o.batch_sampler, o.sampler, o.batch_size, o.rank)

    def _beginning(self) -> AbstractContextManager[Any]:
        """Return the context in which a pass begins."""
        return contextlib.nullcontext()

    def _engine_for(self, options: Options, job: Job, live_on: bool) -> tuple[Any, Any]:
        """Return the engine of a pass with workers, and the callback for the pass's end; see `EngineCache.lend`."""
        return self._engines.lend(options, job, live_on)

    def _on_end(self, on_end: Any) -> Any:
        """Return the callback for the end of the pass; its argument must be passed to `on_end`."""
        return on_end

    def _order(self, iterator: Any, options: Options, numbers: PassNumbers) -> PassOrder:
        """Return the order of a map dataset."""
        resume = numbers.resume
        plan, source = map_plan(options, self.dataset, numbers.seed, resume)
        if resume is None or isinstance(options.batch_sampler, BatchSampler):  # which has begun its pass
            return PassOrder(plan, source, *steps_before(options.batch_sampler))
        return PassOrder(plan, source, resume.delivered or 0, resume.origin or 0)

    def _hooks(self, iterator: Any, options: Options) -> dict[str, Any]:
        """Return the functions that the pass calls; see `Iteration`."""
        return {"rebuild": self._rebuild}

    def _begin_in(self, iterator: Any, arguments: tuple[Any, ...], hooks: dict[str, Any]) -> Any:
        """Begin a pass in an iterator, and return the `Pass`."""
        iterator.begin(*arguments, **hooks)
        return iterator

    def _count_pass(self, iterator: Any, newest: Any) -> None:
        """Count a pass that has begun; `newest` is its `NewestPass`."""
        self.epoch += 1

    # ---- states

    def _described(self) -> Described:
        """Return the properties that a state must match."""
        o = self.options
        source = o.sampler if o.batch_sampler is None else o.batch_sampler
        size = (o.batch_size or 0) if o.batch_sampler is None else getattr(source, "batch_size", None)
        order = None
        if source is None and not self.is_stream:
            order = f"shuffled, {len(self.dataset)} samples" if o.shuffle else "ascending"
        return states.Described(
            is_stream=self.is_stream,
            dataset=self.dataset,
            num_workers=o.num_workers,
            rank=o.rank,
            in_order=o.in_order,
            source=source,
            group=(o.batch_size or 1) if o.batch_sampler is None else 0,
            batch_size=size if type(size) is int else None,
            order=order,
        )

    def _fields(self, newest: Any, position: Any) -> dict[str, Any]:
        """Return the fields of a state that depend on the loader. Both arguments are None before the first pass."""
        if newest is None:
            return dict(epoch=self.epoch, seed=self.seed)
        more = dict(epoch=self.epoch if position.finished else newest.epoch, seed=self.seed)
        if isinstance(sampler := self.options.batch_sampler, BatchSampler):
            more |= dict(sampler_iterator=(sampler._state_at(position.delivered),))
        return more

    def _is_current(self, loaded: State) -> bool:
        """Return whether the next pass begins in the loaded state; setting `epoch` to another one drops it."""
        return loaded.epoch == self.epoch

    def _checked(self, state_dict: Any, takes_number: bool) -> State:
        """Return the state to resume from; see `states.checked`. Nothing changes."""
        return states.checked(self._described(), state_dict, takes_number)

    def _put_state(self, state: State) -> State:
        """Take over the fields of a checked state that the loader itself has; return the state for the next pass."""
        reshard.begin_source(self.options.batch_sampler, state)
        if state.seed is not None:
            self.seed = int(state.seed)
        if state.epoch is not None:
            self.epoch = state.epoch
        return dataclasses.replace(state, epoch=self.epoch)

    def _load_ended(self, position: dict[str, Any], is_stream: bool) -> None:
        """Let a dataset of this process load what it keeps from the epoch that ended at `position`."""
        RngGuard().call(load_ended, self.dataset, position, is_stream)

    # ---- the rest

    def _forget_iterator(self) -> None:
        """Drop an iterator that the loader would use again."""

    def _waits(self, snapshot: Any) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the seconds that the source reports, by its own names, and the fields of `Known` that they give."""
        return {}, {}
