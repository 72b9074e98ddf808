"""The answers of torch's loader to `LoaderCore`: torch's draws in torch's order, its attributes and its words."""

import dataclasses
import functools
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate
from torch.utils.data.graph_settings import apply_sharding

from slipring._core.options.checks import instance
from slipring._core.options.rule import refuse
from slipring._core.options.values import Options
from slipring._core.passes import state as states
from slipring._core.passes._device import DeviceIteration
from slipring._core.passes._iteration import Iteration
from slipring._core.passes._local import LocalIteration
from slipring._core.passes._sharing import SharedIteration
from slipring._core.passes.frontend import Frontend, PassNumbers, PassOrder
from slipring._core.passes.loader import NewestPass
from slipring._core.passes.prefetch import Preloader
from slipring._core.passes.reshard import begin_source
from slipring._core.passes.sharing import Lead, Reader
from slipring._core.passes.source import rank_stride, rank_that_draws
from slipring._core.workers.fetch import load_ended
from slipring._core.workers.job import Job
from slipring._core.workers.pool_client import address_of
from slipring._core.workers.stateful import is_stateful
from slipring.options import OF_WORKERS, LoaderOptions, TorchOptions, Workers
from slipring.torch import private, remote, share
from slipring.torch.collate import core_collate
from slipring.torch.contexts import start_of
from slipring.torch.generators import as_state, as_text, generator_of, seed_generator_of, state_of, text_of
from slipring.torch.iterators import (
    TorchDeviceIteration,
    TorchIteration,
    TorchLocalIteration,
    TorchSharedIteration,
    check_length,
    fields,
)
from slipring.torch.order import Order, batch_size_of, end_epoch_before, kind_of_order, source_of
from slipring.torch.torchdata_states import is_theirs, translated
from slipring.torch.worker import TorchWorker, init_thread

REFUSED = {"workers.start_method": "torch has multiprocessing_context= for it"}
OF_THE_CORE = [name for name in TorchOptions.__annotations__ if name in LoaderOptions.__annotations__]


class _SamplerUntouched:
    """A loader for torch's beginning of an epoch, with no sampler for torch to call iter() on."""

    _index_sampler = ()

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)


# ---- generators and states


@dataclasses.dataclass
class Generators:
    """The generators of a pass."""

    order: Any  # None: torch's global one
    seeds: Any  # of the workers' seeds; None: the order's
    rng_seeds: str | None  # the state of `seeds` before the base seed was drawn
    keeps_seed: bool  # whether the next epoch of persistent workers has the same seed
    before: Any  # the state of `order` before ``iter(sampler)``


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


def _check_generators(generator, *texts):
    """Raise ValueError unless generators such as `generator` (None: torch's global one) can have these states."""
    for text in texts:
        try:
            if text is not None:
                torch.Generator("cpu" if generator is None else generator.device).set_state(as_state(text))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"the state has a text that is no state of the loader's generator: {error}") from None


def _keep(reading):
    """Do nothing at the end of a reader's pass: its segment is the lead's."""


# ---- the loader


class TorchFrontend(Frontend):
    """See `Frontend`."""

    num_workers: int
    prefetch_factor: int | None
    _is_reusable = True
    _iterator: Any = None  # as in torch: that of persistent workers
    _epochs = 0  # number of epochs begun
    _bounds: tuple[int, int] | None = None  # (least, most), if the loader tunes the number of workers
    _worker_class = TorchWorker
    _sharing: Any = None  # the loader's part in share=: a `Lead`, a `Reader`, or None
    _is_made_once = False  # only the lead has the dataset

    def _options(self, preload_depth):
        instance("workers", self.workers, Workers, OF_WORKERS)  # users may set it between epochs
        refuse({"workers": self.workers}, REFUSED, "slipring.torch.DataLoader")
        method, context = start_of(self.multiprocessing_context)
        if self.workers.pool is not None and self.multiprocessing_context is None:
            method = None  # its own process forks the workers
        return Options(
            batch_size=(self.batch_size or 1) if self._auto_collation else None,
            batch_sampler=self.batch_sampler if self._auto_collation and self.batch_size is None else None,
            num_workers=self.num_workers,
            timeout=self.timeout,
            prefetch_factor=max(1, self.prefetch_factor or 1),
            persistent_workers=bool(self.persistent_workers),
            in_order=bool(self.in_order),
            context=context,
            worker_init_fn=self.worker_init_fn,
            preload_depth=preload_depth * max(1, len(self._devices)),
            bounds=self._bounds,
            readers=self._sharing.n_readers if isinstance(self._sharing, Lead) else 0,
            **{
                **{name: getattr(self, name) for name in OF_THE_CORE},
                "workers": dataclasses.replace(self.workers, start_method=method),
            },
        )

    @property
    def _options_now(self):
        return self._options(self._preload_depth)

    @property
    def _tuned(self):
        return self._bounds and (self.num_workers, *self._bounds)

    def _put_num_workers(self, num_workers):
        self.num_workers = num_workers
        if self.prefetch_factor is None:
            self.prefetch_factor = 2  # torch's default with workers

    @property
    def _sends_states(self):
        return self._several  # a batch of a step may fail after others were made: then their states count

    @property
    def _is_map(self):
        return self._dataset_kind == private.DatasetKind.Map

    def __getstate__(self) -> dict[str, Any]:
        if self.share is not None:
            raise TypeError(
                "a loader with share= cannot be pickled or copied, because its ranks are connected: make one in each "
                "rank"
            )
        return super().__getstate__()

    # ---- the beginning of a pass: torch's draws, in torch's order

    def _end_pass(self, iterator):
        if self._iterator is not iterator:
            return
        position = iterator.position
        if self.rng == "worker":  # as in torch, the workers' generators continue after all requested batches
            iterator.drain_requested(position.delivered + len(position.beyond))
        iterator.close()

    def _beginning(self) -> Any:
        return super()._beginning() if self._sharing is None else share.beginning(self, self._sharing)

    def _engine_for(self, options: Any, job: Any, live_on: bool) -> tuple[Any, Any]:
        if isinstance(self._sharing, Reader):
            if options.workers.pool is not None:  # also here, the loader has a number, as in the lead
                self._engines.number.of(address_of(options.workers.pool))
            return self._sharing.begin(), _keep
        return super()._engine_for(options, job, live_on)

    def _new_iterator(self, options):
        if self._target is not None or (self.num_workers and self._preload_depth):
            kind = TorchDeviceIteration
        elif isinstance(self._sharing, Reader):
            kind = TorchSharedIteration
        else:
            kind = TorchIteration if self.num_workers else TorchLocalIteration
        return kind.__new__(kind)

    def _numbers(self, iterator, loaded):
        self._release_order()
        seeds = seed_generator_of(self)
        if seeds is not None and loaded is not None and loaded.rng_seeds is not None:
            seeds.set_state(as_state(loaded.rng_seeds))  # from before that epoch's seed
        rng_seeds, resume = text_of(seeds), loaded
        if loaded is not None and loaded.finished and not loaded.seeded:
            begin_next_epoch(self, loaded)
            resume = None
        before = state_of(generator_of(self))
        keeps_seed = bool(self.persistent_workers and self.num_workers) and self.rng == "worker"
        if self._iterator is iterator:
            iterator._num_workers = self.num_workers
            private.BaseIterator._reset(iterator, self)
            if not keeps_seed:  # each epoch needs its own seed
                iterator._base_seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator).item()
            iterator._epoch += 1
        else:
            self._begin_as_torch(iterator, resume)
            iterator._epoch = 0
        iterator._factor = self.prefetch_factor
        if resume is not None:
            if resume.seed is not None:
                iterator._base_seed = resume.seed
            if resume.finished:  # persistent workers have drawn their seed in an earlier epoch
                begin_next_epoch(self, resume)
                before, resume = state_of(generator_of(self)), None
            if resume is None or not self._is_map:
                iterator._sampler_iter = iter(iterator._index_sampler)
        # If each epoch has a seed of its own, the number is for records alone.
        number = iterator._epoch if keeps_seed else self._epochs
        if self.rng == "sample":
            number = 0
        elif isinstance(self.dataset, IterDataPipe):
            number = iterator._shared_seed
        own = Generators(generator_of(self), seeds, rng_seeds, keeps_seed, before)
        return PassNumbers(iterator._base_seed, number, resume, own)

    def _begin_as_torch(self, iterator, resume):
        """Run torch's beginning of an epoch, which also calls iter(sampler).

        If the iteration resumes, `Order` makes that call instead, after it has loaded the state and restored the
        generator: a second call might begin another pass.
        """
        begun = self if resume is None else _SamplerUntouched(self)
        # torch draws a seed. If the state has one, the draw is useless, and the program has restored its generator.
        seeded = resume is not None and resume.seed is not None and self.generator is None
        now = torch.get_rng_state() if seeded else None
        private.BaseIterator.__init__(iterator, begun)
        if seeded:
            torch.set_rng_state(now)
        iterator._index_sampler = self._index_sampler
        if self.num_workers == 0 and iterator._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self.num_workers and isinstance(self.dataset, IterDataPipe):
            # torch draws a second seed for the first epoch, and uses the first.
            private.share_dist_seed(self.generator, iterator._pg)

    def _release_order(self):
        """Drop the indices of the last epoch that have not been drawn, before the next one draws others."""
        newest = self._newest
        if not isinstance(newest, NewestPass) or newest.source is None or newest.source.is_stateful is not False:
            return
        iterator = newest.iterator()
        if iterator is None or not iterator.is_live:
            newest.source.release()

    def _pci_addresses(self):
        return self._addresses()

    def _job(self, iterator, options):
        init, epoch_seeds = self.worker_init_fn, self.rng == "sample"
        is_pipe = isinstance(self.dataset, (IterDataPipe, MapDataPipe))
        if options.num_workers == 0:
            collate_fn = self.collate_fn if self.collate_fn is default_collate else core_collate(self.collate_fn)
            epoch_seeds = epoch_seeds or isinstance(self.dataset, IterDataPipe)
            if is_pipe:
                apply_sharding(self.dataset, iterator._world_size, iterator._rank)
        else:
            collate_fn = core_collate(self.collate_fn)
            keeps_seed = bool(self.persistent_workers) and self.rng == "worker"
            epoch_seeds = epoch_seeds or keeps_seed or isinstance(self.dataset, IterDataPipe)
            if init is not None and options.method == "thread":
                init = functools.partial(init_thread, init)
            if is_pipe:
                init = functools.partial(private.sharding_worker_init_fn, init, iterator._world_size, iterator._rank)
        return Job(
            dataset=self.dataset,
            is_stream=not self._is_map,
            options=options.for_worker(collate_fn=collate_fn, worker_init_fn=init, drop_last=bool(self.drop_last)),
            worker_class=TorchWorker,
            rank=rank_that_draws(self.rank, self.batch_sampler, self.sampler),
            rank_stride=self._rank_stride,
            epoch_seeds=epoch_seeds,
            tracked=not self._is_map or is_stateful(self.dataset),
        )

    @property
    def _rank_stride(self):
        if self.rng != "sample":
            return None
        source, group, _ = source_of(self)
        batched_by_it = source if self._auto_collation and not group else None
        return rank_stride(self.dataset, not self._is_map, batched_by_it, source, group, self.rank)

    def _order(self, iterator, options, numbers):
        resume = numbers.resume
        order = Order(self, iterator._sampler_iter, numbers.own.before, resume)
        if options.workers.chunk_size is not None and options.num_workers:
            order.check = options.check_ranges
        first = 0 if resume is None else resume.delivered or 0
        return PassOrder(order.lists(), order, first, order.origin or 0)

    def _hooks(self, iterator, options):
        hooks = {
            "before_return": self._before_return(iterator),
            "is_recorded": private.profiler_enabled,
            "recording": functools.partial(torch.autograd.profiler.record_function, iterator._profile_name),
        }
        if iterator._pin_memory and not isinstance(iterator, DeviceIteration):
            hooks["finish"] = functools.partial(private.pin_memory.pin_memory, device=iterator._pin_memory_device)
        if options.num_workers:
            hooks["rebuild"] = remote.rebuild
            hooks["reword"] = functools.partial(remote.in_torchs_words, timeout=iterator._timeout)
            hooks["dispatch_before_return"] = self.rng == "worker"
        if isinstance(self._sharing, Lead):
            hooks["lead"] = self._sharing
        return hooks

    def _before_return(self, iterator):
        if self._is_map or iterator._IterableDataset_len_called is None:
            return None
        # A bound method would make the iterator refer to itself.
        return functools.partial(check_length, weakref.ref(iterator))

    def _begin_in(self, iterator, arguments, hooks):
        options, maker = arguments[:2]
        engine = maker if options.num_workers else None
        if not isinstance(iterator, DeviceIteration):
            self._unpin(engine)
            iterator.begin(*arguments, **hooks)
            return iterator
        depth = self._preload_depth if options.num_workers else 0
        if options.num_workers:
            kind = SharedIteration if isinstance(self._sharing, Reader) else Iteration
            core = kind(*arguments, no_timeout=depth > 0, **hooks)
        else:
            core = LocalIteration(*arguments, **hooks)
        try:
            mover = self._mover(engine)
            iterator.begin(core, Preloader(core, mover, depth, options.timeout or None, self._several))
        except BaseException:
            core.close()
            raise
        iterator.requested_early = options.prefetch_depth + depth * len(mover.devices)
        return core

    def _count_pass(self, iterator, newest):
        iterator.newest = newest
        self._epochs += 1

    # ---- states

    def _described(self):
        source, group, _ = source_of(self)
        return states.Described(
            is_stream=not self._is_map,
            dataset=self.dataset,
            num_workers=self.num_workers,
            rank=self.rank,
            in_order=bool(self.in_order),
            source=source,
            group=group,
            batch_size=batch_size_of(self),
            order=kind_of_order(self),
        )

    def _fields(self, newest, position):
        if newest is None:
            rng_next, rng_seeds = state_of(generator_of(self)), seed_generator_of(self)
            return dict(rng_next=as_text(rng_next), rng_seeds=text_of(rng_seeds))
        return fields(newest, position)

    def _is_current(self, loaded):
        return True

    def _checked(self, state_dict, takes_number):
        here = self._described()
        if self._is_made_once and here.is_stream and not isinstance(state_dict, Mapping):
            raise ValueError(
                "load_state_dict() with a list of states divides an iterable dataset again, which each rank of share= "
                "must do: give share= the dataset itself in each rank, not a function that makes it"
            )
        if isinstance(state_dict, Mapping) and is_theirs(state_dict):
            state_dict = translated(self, states.header(here), state_dict)
        found = states.checked(here, state_dict, takes_number)
        _check_generators(generator_of(self), found.rng, found.rng_before_iter, found.rng_next)
        if (seeds := seed_generator_of(self)) is not None:
            _check_generators(seeds, found.rng_seeds)
        return found

    def _put_state(self, state):
        if state.finished:
            begin_source(source_of(self)[0], state)
        return state

    def _waits(self, snapshot):
        return {}, {"lead": self._sharing.connection.name} if isinstance(self._sharing, Reader) else {}

    def _load_ended(self, position, is_stream):
        load_ended(self.dataset, position, is_stream)  # it may restore generators, from which torch draws afterwards

    def _forget_iterator(self):
        self._iterator = None
