"""The iterator over workers: torch's base class begins an epoch, the ring delivers the batches."""

import dataclasses
import functools
import threading

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from slipring._core._iteration import LoaderIterator, Position, WorkerPosition
from slipring._core._ring import in_a_handler
from slipring._core.fetch import is_stateful
from slipring._core.reshard import places_of
from slipring._core.seeding import Share
from slipring._core.source import StreamPlan
from slipring._core.state import header, loadable
from slipring.errors import Closed, LoaderTimeout, WorkerDied, WorkerError
from slipring.torch import private, remote
from slipring.torch.epoch import Epoch
from slipring.torch.preload import Feed, Preload, Steps
from slipring.torch.private import profiler_enabled
from slipring.torch.state import iteration as state
from slipring.torch.state.generators import generator_of
from slipring.torch.state.order import Order, described, share
from slipring.torch.worker import TorchJob, TorchWorker, init_thread


class WorkersIterator(Epoch, private.BaseIterator):
    """Batches made by workers, in slots."""

    def __next__(self):
        if not self._simple or profiler_enabled():
            return super().__next__()
        core = self._core
        try:
            # Not next(): behind a call a signal's handler may raise, and the batch would be lost. Not here.
            for data in core:
                self._num_yielded += 1
                return data
        except Exception as error:
            if self._begun_anew(core, error):
                return next(self)
            self._note_end(error)
            raise
        if self._begun_anew(core, StopIteration()):
            return next(self)
        raise StopIteration

    def __init__(self, loader):
        self._core = self._preload = self._came = None
        self._turn = threading.RLock()  # of threads that begin an epoch
        self._take_number(loader)
        resume = self._go_on(loader)
        self._begin_as_torch(loader, resume)
        self._generator = generator_of(loader)
        self._epoch = 0
        self._keeps_seed = bool(loader.persistent_workers) and loader.rng == "worker"
        if not loader.persistent_workers:
            self._before = {}  # they begin with the dataset as the loader has it
        self._begin(loader, self._seeded(loader, resume))
        if isinstance(self._dataset, IterDataPipe):
            # torch draws a second seed for the first epoch, and uses the first.
            private.share_dist_seed(loader.generator, self._pg)
        self._read_again(resume)

    def _begun_anew(self, core, error):
        """Return whether another thread began an epoch, by iter(loader), while this thread waited in the last one."""
        if not isinstance(error, (Closed, StopIteration)):
            return False
        with self._turn:
            if self._core is not core:
                return True
            self._finished = self._finished or isinstance(error, StopIteration)
            return False

    def _reset(self, loader, first_iter=False):
        with self._turn:
            self._begin_anew(loader, first_iter)

    def _begin_anew(self, loader, first_iter):
        self._settle()
        before = {}
        if self._positions is not None and self._finished:
            self._put_ends()
            before = self._positions.ended()
        had = self._num_workers
        self._go_on(loader)
        if loader.rng == "worker":  # as torch: their generators go on from behind what was asked for
            self._stop_preload()
            try:
                self._core.drain(self._asked_for())
            except (WorkerDied, LoaderTimeout) as error:
                raise remote.in_torchs_words(error, self._timeout) from error
        self.close()
        if self._order is not None:
            self._order.release()
        self._take_number(loader)  # now: the end of the last epoch may have found another one
        super()._reset(loader, first_iter)
        if not self._keeps_seed:  # seeds come from it: each epoch needs its own
            self._base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        self._epoch += 1
        self._before = before if had == loader.num_workers else {}  # each place is a worker's own
        self._begin(loader, None)

    @staticmethod
    def _take_number(loader):
        if loader._tuner is not None:
            loader.num_workers = loader._tuner.workers

    def _begin(self, loader, resume):
        self._num_workers = loader.num_workers  # as torch's class has it
        self._factor = loader.prefetch_factor
        self._header = header(described(loader))
        is_map = self._dataset_kind == private.DatasetKind.Map
        tracked = not is_map or is_stateful(self._dataset)
        self._positions = state.Positions(resume, self._before) if tracked else None
        self._order = Order(loader, self._sampler_iter, self._rng_before, resume, tracked) if is_map else None
        # Where it is no part of the seeds, which each epoch has of its own, it is told for the records alone.
        epoch = self._epoch if self._keeps_seed else loader._epochs
        if loader.rng == "sample":
            epoch = Share.epoch(0, self._order.origin or 0)
        if isinstance(self._dataset, IterDataPipe):
            epoch = self._shared_seed
        loader._epochs += 1
        options = loader._core_options()
        job = self._job(loader, options, tracked)
        if resume is not None and tracked:
            job = dataclasses.replace(job, resume=places_of(resume))
        elif self._before:
            job = dataclasses.replace(job, resume=loadable(self._before))
        if is_map:
            first = self._order.seq
            plan = self._order.lists()
            if options.workers.chunk_size is not None:
                self._order.check = options.check_ranges
        else:
            first = 0
            plan = StreamPlan(options.num_workers, options.in_order, self._positions.next)
        tuner = None if loader._engines.lent else loader._tuner
        engine, give_back = loader._engines.lend(options, job, live_on=self._core is not None)
        waited = engine.ring.meter.wait_ns
        workers = None if is_map else [WorkerPosition() for _ in range(options.num_workers)]
        core = LoaderIterator(
            options,
            engine,
            self._base_seed,
            plan,
            Position(epoch, first, self._order.above if is_map else (), workers),
            give_back,
            rebuild=remote.rebuild,
            eager=loader.rng == "worker",
            patient=loader._ahead > 0,
            tuner=tuner,
        )
        waited = engine.ring.meter.wait_ns - waited
        loader._engines.iterators.add(self)
        self._last_seq, self._several = first - 1, loader._several
        self._read_ahead = options.look_ahead
        mover, preload = loader._mover(engine), None
        if mover is not None:
            self._read_ahead += loader._ahead * len(mover.places)
            preload = Preload(Steps(Feed(core, tracked), mover), loader._ahead, options.timeout or None)
            preload.begin_ns = waited
        self._pin_memory = self._pin_memory and mover is None
        needs_every = tracked or self._pin_memory or preload is not None
        self._simple = is_map and not (needs_every or self._order.needs_every_delivery)
        self._came = self._ready = None
        # At last: a thread that reads on meanwhile gets at what is closed, and waits for its turn.
        self._preload = preload
        self._core = core

    def _job(self, loader, options, tracked):
        init = loader.worker_init_fn
        if init is not None and options.method == "thread":
            init = functools.partial(init_thread, init)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init = functools.partial(private.sharding_worker_init_fn, init, self._world_size, self._rank)
        return TorchJob(
            dataset=self._dataset,
            is_stream=self._order is None,
            options=options.for_worker(
                collate_fn=loader._core_collate(), worker_init_fn=init, drop_last=bool(self._drop_last)
            ),
            rank=self._drawn_as(loader),
            worker_class=TorchWorker,
            share=share(loader),
            tracked=tracked,
            epoch_seeds=self._keeps_seed or loader.rng == "sample" or isinstance(self._dataset, IterDataPipe),
        )

    @property
    def foreign(self):
        """bool: whether this process has inherited the iterator through a fork."""
        engine = self._core._engine
        return engine is not None and engine.foreign

    def _next_data(self):
        """Put the next batch into `_ready`, where it stays until it is handed out, and return it."""
        while (ready := self._ready) is None:
            core, preload = self._core, self._preload  # in this order; see `_begin`
            self._simple = False  # what is begun here ends here
            try:
                self._settle()
                if preload is not None:
                    preload.next(self, self._several)
                else:
                    self._receive(core)
            except Exception as error:
                if not self._begun_anew(core, error):
                    self._note_end(error)
                    raise
        return ready[0]

    def _receive(self, core):
        """Take the next batch from the core into `_ready`."""
        came = self._came
        if came is None or came[0] is not core:
            for data in core:  # no call comes between the batch and its place
                self._came = came = core, data
                break
            else:
                raise StopIteration
        data, last = came[1], core.last
        tracked = self._positions is not None
        note = (last.seq, last.worker, core.last_state) if tracked else (last.seq, None, None)
        if self._pin_memory:
            data = private.pin_memory.pin_memory(data, self._pin_memory_device)
        # No call from here on: all of it has happened, or nothing.
        self._made += (note,)
        self._ready = [data]
        self._came = None

    def _is_begun(self):
        return self._came is not None

    def _note_end(self, error):
        """Record what an exception of next() means for the position, and raise deaths and timeouts in torch's words.

        If the cause is a `WorkerError`, the error is of another loader, which the dataset uses; the worker has
        reported it already.
        """
        if isinstance(error, StopIteration) or in_a_handler(error):
            return
        self._settle()
        if isinstance(error, (WorkerDied, LoaderTimeout)) and not isinstance(error.__cause__, WorkerError):
            raise remote.in_torchs_words(error, self._timeout) from error
        elif self._preload is None:
            last = self._core.last
            self._failed(self._core.last_seq, None if last is None else last.worker)

    def _failed(self, seq, worker):
        """Record an exception that came in a batch's place, or after the batch that was delivered last."""
        if self._order is None and seq != self._last_seq:
            self._positions.failed(worker)
        elif self._order is not None and worker is not None and (asked := self._asked(seq)) is not None:
            self._positions.lost(worker, asked)
        self._last_seq = seq
        self._delivered(seq)

    def _delivered(self, seq):
        if self._order is not None and self._order.needs_every_delivery and seq >= 0:
            self._order.delivered(seq)

    def _catch_up(self):
        self._settle()
        order = self._order
        if order is not None and not order.needs_every_delivery:
            last = self._core.last_seq if self._simple else self._last_seq
            order.low_water = max(order.low_water, last + 1)

    def _put_ends(self):
        """Set each worker's position to the last state of its stream."""
        for number, worker in enumerate(self._core.position.workers or ()):
            if worker.ended and worker.state is not None:
                self._positions.put(number, worker.state)

    def _asked_for(self):
        """Return how many batches count as requested if an epoch is abandoned, however far the preload thread has got.

        0: only those in flight, because there is no preload.
        """
        return 0 if self._preload is None else self._last_seq + 1 + self._read_ahead

    def resize(self, options):
        """Continue with another number of workers; see `DataLoader.resize`."""
        core = self._core
        if core is not None:
            core.resize(options)

    def _stop_preload(self):
        if self._preload is not None:
            self._preload.stop()

    # What libraries use of torch's iterator (MosaicML's, PyG's, Lightning's)

    def _shutdown_workers(self):
        self.close()

    @property
    def _workers(self):
        """list: the workers' processes; empty if the iteration is closed."""
        engine = self._core._engine
        return [] if engine is None else list(getattr(engine.pool, "processes", {}).values())

    @property
    def _prefetch_factor(self):
        return self._factor

    def close(self):
        """End the iteration."""
        self._stop_preload()
        if self._core is not None:
            self._core.close()
