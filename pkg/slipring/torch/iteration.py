"""The iterators of torch's loader: torch's base class begins an epoch, and `Iteration` delivers the batches."""

import dataclasses
import functools
import warnings
import weakref

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from slipring._core.passes._iteration import DeviceIteration, Iteration, LocalEngine, Position
from slipring._core.passes.ahead import Ahead
from slipring._core.passes.reshard import places_of
from slipring._core.passes.source import StreamPlan, rank_that_draws
from slipring._core.passes.state import at_end, ended_places, loadable, next_pass, positions_of, raw_places
from slipring._core.workers.fetch import shorter
from slipring._core.workers.seeding import Share
from slipring._core.workers.stateful import is_stateful
from slipring.torch import private, remote
from slipring.torch.collate import core_collate
from slipring.torch.generators import as_state, generator_of, seed_generator_of, state_of, text_of
from slipring.torch.local import LocalFetcher, load_epoch_before
from slipring.torch.order import Order, described, share
from slipring.torch.states import TorchPass, begin_next_epoch
from slipring.torch.worker import TorchJob, TorchWorker, init_thread


class _SamplerUntouched:
    """A loader for torch's beginning of an epoch, with no sampler for torch to call iter() on."""

    _index_sampler = ()

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)


class TorchPasses:
    """Torch's beginning of an epoch, and the attributes of torch's iterator that MosaicML, PyG and Lightning use."""

    def __init__(self, loader):
        loader._release_order()
        self._take_number(loader)
        self._epoch = 0
        resume = self._put_generators(loader)
        before = ended_places(loader.num_workers, resume)  # what datasets keep from the previous epoch
        resume = self._end_epoch_before(loader, resume)
        if loader.num_workers == 0 and before.get(0):
            load_epoch_before(loader, before[0])
        self._rng_before = state_of(generator_of(loader))
        self._begin_as_torch(loader, resume)
        if loader.num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        keeps_workers = bool(loader.persistent_workers and loader.num_workers)
        self._keeps_seed = keeps_workers and loader.rng == "worker"
        if not keeps_workers and loader.num_workers:
            before = {}  # new workers begin with the loader's dataset
        self._begin_pass(loader, self._seeded(loader, resume), before)
        if loader.num_workers and isinstance(self._dataset, IterDataPipe):
            # torch draws a second seed for the first epoch, and uses the first.
            private.share_dist_seed(loader.generator, self._pg)
        self._read_again(0 if resume is None else resume.dropped)
        if loader._skips_empty_rest:
            begin = functools.partial(TorchPasses._begin_next, loader=loader)
            self._iteration.next_pass = next_pass(self._pass.described, resume, begin)

    def _begin_next(self, loader):
        """Begin the epoch after one whose rest, after a resume, has no batch."""
        if loader._newest is not self._pass:
            raise StopIteration  # the next epoch has begun in another iterator
        if loader._iterator is self:
            self._begin_another(loader, False)
        else:
            TorchPasses.__init__(self, loader)

    # ---- torch's draws, in torch's order

    def _put_generators(self, loader):
        """Take over the loaded state; return the seeds' generator to its state before that epoch's seed."""
        resume, loader._resume = loader._resume, None
        self._seeds = seed_generator_of(loader)
        if self._seeds is not None and resume is not None and resume.rng_seeds is not None:
            self._seeds.set_state(as_state(resume.rng_seeds))
        self._rng_seeds = text_of(self._seeds)
        return resume

    @staticmethod
    def _end_epoch_before(loader, resume):
        if resume is None or not resume.finished or resume.seeded:
            return resume
        begin_next_epoch(loader, resume)
        return None

    def _begin_as_torch(self, loader, resume):
        """Run torch's beginning of an epoch, which also calls iter(sampler).

        If the iteration resumes, `Order` makes that call instead, after it has loaded the state and restored the
        generator: a second call might begin another pass.
        """
        begun = loader if resume is None else _SamplerUntouched(loader)
        # torch draws a seed. If the state has one, the draw is useless, and the program has restored its generator.
        seeded = resume is not None and resume.seed is not None and loader.generator is None
        now = torch.get_rng_state() if seeded else None
        private.BaseIterator.__init__(self, begun)
        if seeded:
            torch.set_rng_state(now)
        self._index_sampler = loader._index_sampler

    def _seeded(self, loader, resume):
        """Apply the state after torch's beginning; return it if the epoch resumes in its middle, else None."""
        if resume is None:
            return None
        if resume.seed is not None:
            self._base_seed = resume.seed
        if resume.finished:  # persistent workers have drawn their seed in an earlier epoch
            begin_next_epoch(loader, resume)
            self._rng_before = state_of(generator_of(loader))
            self._sampler_iter = iter(self._index_sampler)
            return None
        if self._dataset_kind == private.DatasetKind.Iterable:
            self._sampler_iter = iter(self._index_sampler)
        return resume

    def _read_again(self, count):
        """Drop the batches delivered before, if the state has only their total and not each worker's number."""
        for done in range(count):
            try:
                next(self)
            except StopIteration:
                raise shorter(count, done) from None

    def _reset(self, loader, first_iter=False):
        self.restart(lambda: self._begin_another(loader, first_iter))

    def _begin_another(self, loader, first_iter):
        """Begin the next epoch of persistent workers."""
        position = self.position
        before = at_end(raw_places(position)) if position.finished else {}
        had = self._num_workers
        self._end_epoch_before(loader, self._put_generators(loader))
        self._rng_before = state_of(generator_of(loader))
        if loader.rng == "worker":  # as in torch, their generators continue after all requested batches
            self._drain(position.delivered + len(position.beyond) + self._prefetched)
        self.close()
        loader._release_order()
        self._take_number(loader)  # now: the tuner may have changed it at the end of the last epoch
        private.BaseIterator._reset(self, loader, first_iter)
        if not self._keeps_seed:  # each epoch needs its own seed
            self._base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        self._epoch += 1
        self._begin_pass(loader, None, before if had == loader.num_workers else {}, live_on=True)

    @staticmethod
    def _take_number(loader):
        if loader._tuner is not None:
            loader.num_workers = loader._tuner.workers

    # ---- a pass

    def _begin_pass(self, loader, resume, before, live_on=False):
        """Begin a pass of the core. `before` is {worker: place} at the end of the previous epoch."""
        self._num_workers = loader.num_workers  # torch's iterator has this attribute
        self._factor = loader.prefetch_factor
        is_map = self._dataset_kind == private.DatasetKind.Map
        tracked = not is_map or is_stateful(self._dataset)
        order = Order(loader, self._sampler_iter, self._rng_before, resume) if is_map else None
        places = before if resume is None else places_of(resume)
        options = loader._core_options()
        first, beyond = (0, ()) if resume is None else (resume.delivered or 0, resume.beyond)
        if not is_map:  # workers count what they have delivered
            first, beyond = first + len(beyond), ()
        position = Position(
            self._epoch_word(loader, order),
            first,
            beyond,
            positions_of(loader.num_workers, places) if tracked else None,
            0 if resume is None else resume.next_worker,
        )
        loader._epochs += 1
        if is_map:
            order.position, plan = position, order.lists()
            if options.workers.chunk_size is not None and loader.num_workers:
                order.check = options.check_ranges
        else:
            plan = StreamPlan(max(1, loader.num_workers), options.in_order, position.next_worker)
        self._pass = TorchPass(
            described(loader), position, order, self._base_seed, self._keeps_seed,
            generator_of(loader), self._seeds, self._rng_seeds, weakref.ref(self),
        )  # fmt: skip
        tuner = None if loader._engines.lent else loader._tuner
        if loader.num_workers == 0:
            place, origin = None if resume is None else places.get(0), (order.origin if order else 0) or 0
            fetcher = LocalFetcher(self, loader, place, share(loader), origin, self._rank_drawn(loader))
            engine, on_end = LocalEngine(fetcher, fetcher.meter), _nothing
        else:
            job = self._job(loader, options, tracked)
            if places and tracked:
                job = dataclasses.replace(job, resume=places if resume is not None else loadable(places))
            engine, on_end = loader._engines.lend(options, job, live_on)
        hooks = {
            "rebuild": remote.rebuild,
            "reword": functools.partial(remote.in_torchs_words, timeout=self._timeout),
            "before_return": self._before_return(),
            "dispatch_before_return": bool(loader.num_workers) and loader.rng == "worker",
            "is_recorded": private.profiler_enabled,
            "recording": functools.partial(torch.autograd.profiler.record_function, self._profile_name),
            "tuner": tuner if loader.num_workers else None,
        }
        self._begin_core(loader, (options, engine, self._base_seed, plan, position, on_end), hooks)
        loader._engines.iterators.add(self)
        loader._newest = self._pass

    def _epoch_word(self, loader, order):
        if loader.rng == "sample":
            return Share.epoch(0, order.origin or 0)
        if isinstance(self._dataset, IterDataPipe):
            return self._shared_seed
        # If each epoch has its own seed, this number serves the records alone.
        return self._epoch if self._keeps_seed else loader._epochs

    @staticmethod
    def _rank_drawn(loader):
        return rank_that_draws(loader.rank, loader.batch_sampler, loader.sampler)

    def _job(self, loader, options, tracked):
        init = loader.worker_init_fn
        if init is not None and options.method == "thread":
            init = functools.partial(init_thread, init)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init = functools.partial(private.sharding_worker_init_fn, init, self._world_size, self._rank)
        return TorchJob(
            dataset=self._dataset,
            is_stream=self._dataset_kind != private.DatasetKind.Map,
            options=options.for_worker(
                collate_fn=core_collate(loader.collate_fn), worker_init_fn=init, drop_last=bool(self._drop_last)
            ),
            rank=self._rank_drawn(loader),
            worker_class=TorchWorker,
            share=share(loader),
            tracked=tracked,
            epoch_seeds=self._keeps_seed or loader.rng == "sample" or isinstance(self._dataset, IterDataPipe),
        )

    def _before_return(self):
        if self._dataset_kind == private.DatasetKind.Map or self._IterableDataset_len_called is None:
            return None
        # A bound method would make the iterator refer to itself.
        return functools.partial(_check_length, weakref.ref(self))

    def state_dict(self):
        """Return the position after the latest delivered batch; see `DataLoader.state_dict`."""
        return self._pass.state().dict()

    # ---- attributes of torch's iterator that libraries use

    def _shutdown_workers(self):
        self.close()

    @property
    def _workers(self):
        """list: the workers' processes; empty if the iteration is closed."""
        engine = self._iteration._engine
        pool = None if engine is None else engine.pool
        return list(getattr(pool, "processes", {}).values())

    @property
    def _prefetch_factor(self):
        return self._factor

    @property
    def _num_yielded(self):
        """int: number of delivered batches, including those in a loaded state."""
        position = self.position
        if position is None:  # torch reads it before there is a position
            return 0
        if self._dataset_kind == private.DatasetKind.Iterable:
            return sum(worker.batches for worker in position.workers)
        return position.delivered + len(position.beyond)

    @_num_yielded.setter
    def _num_yielded(self, value):
        """Ignore the 0 that torch sets at the beginning: the position counts."""


def _check_length(iterator):
    """Warn as torch does if an iterable dataset yields more samples than its length; `iterator` is a weak reference."""
    it = iterator()
    if it is None or it._num_yielded < it._IterableDataset_len_called:
        return
    text = (
        f"Length of IterableDataset {it._dataset} was reported to be {it._IterableDataset_len_called}"
        f"(when accessing len(dataloader)), but {it._num_yielded + 1} samples have been fetched. "
    )
    if it._num_workers > 0:
        text += (
            "For multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
        )
    warnings.warn(text, stacklevel=2)


def _nothing(engine):
    """Do nothing, as there is no engine to take back."""


class TorchIteration(TorchPasses, Iteration, private.BaseIterator):
    """Batches in their slots, or made by this process."""

    _prefetched = 0  # batches that count as requested if an epoch is left early

    def _begin_core(self, loader, arguments, hooks):
        if loader.num_workers:
            loader._unpin(arguments[1])
        pin = functools.partial(private.pin_memory.pin_memory, device=self._pin_memory_device)
        self.begin(*arguments, finish=pin if self._pin_memory else None, **hooks)

    def _drain(self, upto):
        self.drain()

    @property
    def _iteration(self):
        return self


class TorchDeviceIteration(TorchPasses, DeviceIteration, private.BaseIterator):
    """Batches on devices, or pinned."""

    def _begin_core(self, loader, arguments, hooks):
        options, engine = arguments[:2]
        depth = loader._ahead if loader.num_workers else 0
        core = Iteration(*arguments, no_timeout=depth > 0, **hooks)
        try:
            mover = loader._mover(engine if loader.num_workers else None)
            timeout = options.timeout or None
            self.begin(core, Ahead(core, mover, depth, timeout, loader._several))
        except BaseException:
            core.close()
            raise
        self._prefetched = options.look_ahead + depth * len(mover.places)

    def _drain(self, upto):
        self.core.drain(upto if self.ahead.depth else 0)

    @property
    def _iteration(self):
        return self.core
