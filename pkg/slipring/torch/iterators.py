"""The iterator over workers: torch's base class for what an epoch begins with, the ring for the batches."""

import functools

import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import dataloader as _theirs
from torch.utils.data._utils import pin_memory

from slipring._iterator import LoaderIterator
from slipring.errors import LoaderTimeout, WorkerDied, WorkerError
from slipring.torch import remote, state
from slipring.torch.epoch import Epoch, profiler_enabled
from slipring.torch.order import Order, generator_of
from slipring.torch.preload import FAILED, Feed, Preload, Steps
from slipring.torch.worker import TorchJob, TorchWorker


class WorkersIterator(Epoch, _theirs._BaseDataLoaderIter):
    """Batches made by workers, in slots."""

    def __next__(self):
        if not self._simple or profiler_enabled():
            return super().__next__()
        try:
            data = next(self._core)
        except Exception as error:
            self._note_end(error)
            raise
        self._num_yielded += 1
        return data

    def __init__(self, loader):
        self._core = self._preload = None
        resume = self._go_on(loader)
        super().__init__(loader)
        self._generator = generator_of(loader)
        self._epoch = 0
        self._keeps_seed = bool(loader.persistent_workers) and loader.rng == "worker"
        if not loader.persistent_workers:
            self._before = {}  # they begin with the dataset as the loader has it
        self._begin(loader, self._seeded(loader, resume))
        if isinstance(self._dataset, IterDataPipe):
            # torch draws a second seed for the first epoch, and uses the first.
            _theirs._share_dist_seed(loader.generator, self._pg)
        self._read_again(resume)

    def _reset(self, loader, first_iter=False):
        last = self.state_dict() if self._positions is not None and self._finished else None
        self._go_on(loader)
        if loader.rng == "worker":  # as torch: their generators go on from behind what was asked for
            self._stop_preload()
            try:
                self._core.drain(self._asked_for())
            except (WorkerDied, LoaderTimeout) as error:
                raise remote.in_torchs_words(error, self._timeout) from error
        self.close()
        super()._reset(loader, first_iter)
        if not self._keeps_seed:  # seeds come from it: each epoch needs its own
            self._base_seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        self._epoch += 1
        self._before = state.ended_places(loader, last)
        self._begin(loader, None)

    def _begin(self, loader, resume):
        self._preload = None
        self._header = state.header(loader)
        is_map = self._dataset_kind == _theirs._DatasetKind.Map
        tracked = not is_map or state.is_stateful(self._dataset)
        self._positions = state.Positions(resume, self._before) if tracked else None
        self._order = Order(loader, self._sampler_iter, self._rng_before, resume) if is_map else None
        epoch = self._epoch if loader.rng == "worker" else 0
        if isinstance(self._dataset, IterDataPipe):
            epoch = self._shared_seed
        options = loader._core_options()
        job = self._job(loader, options, tracked)
        if resume is not None and tracked:
            job = job.resumed(state.places_of(resume))
        elif self._before:
            job = job.resumed(self._before)
        if is_map:
            first = self._order.ticket
            plan = self._order.lists()
            if options.chunk_size is not None:
                plan = _checked(plan, options)
        else:
            first = 0
            plan = state.TrackedPlan(options.num_workers, options.in_order, self._positions.last + 1)
        self._plan = plan
        engine, give_back = loader._keeper.lend(options, job, live_on=self._core is not None)
        self._core = LoaderIterator(
            options,
            engine,
            self._base_seed,
            epoch,
            plan,
            give_back,
            rebuild=remote.rebuild,
            first_ticket=first,
            done=self._order.above if is_map else (),
            eager=loader.rng == "worker",
            patient=loader._ahead > 0,
        )
        loader._keeper.iterators.add(self)
        self._last_ticket, self._several = first - 1, loader.devices is not None
        self._read_ahead = options.look_ahead
        mover = loader._mover(engine)
        if mover is not None:
            self._read_ahead += loader._ahead * len(mover.places)
            steps = Steps(Feed(self._core, tracked), mover)
            self._preload = Preload(steps, loader._ahead, options.timeout or None)
        self._pin_memory = self._pin_memory and mover is None
        told = tracked or self._pin_memory or self._preload is not None
        self._simple = is_map and not (told or self._order.must_be_told)

    def _job(self, loader, options, tracked):
        init = loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init = functools.partial(_theirs._sharding_worker_init_fn, init, self._world_size, self._rank)
        return TorchJob(
            dataset=self._dataset,
            is_stream=self._order is None,
            collate_fn=loader._core_collate(),
            worker_init_fn=init,
            num_workers=options.num_workers,
            batch_size=(loader.batch_size or 1) if self._auto_collation else None,
            drop_last=bool(self._drop_last),
            rng=loader.rng,
            rank=self._drawn_as(loader),
            worker_class=TorchWorker,
            tracked=tracked,
            marked=options.respawns,
        )

    @property
    def foreign(self):
        """bool: whether this process has inherited the iterator by a fork."""
        engine = self._core._engine
        return engine is not None and engine.foreign

    def _next_data(self):
        if self._preload is not None:
            return self._next_moved()
        try:
            data = next(self._core)
        except Exception as error:
            self._note_end(error)
            raise
        if self._positions is not None:
            data = self._positions.unpack(data)
        self._last_ticket = self._core.last_ticket
        self._delivered(self._last_ticket)
        if self._pin_memory:
            data = pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _next_moved(self):
        try:
            batches = self._preload.next(self._account)
        except Exception as error:
            self._note_end(error)
            raise
        return batches if self._several else batches[0]

    def _account(self, note):
        ticket, worker, states = note
        if states is FAILED:
            self._failed(ticket, worker)
            return
        if worker is not None:
            self._positions.note(worker, states)
        self._last_ticket = ticket
        self._delivered(ticket)

    def _note_end(self, error):
        """What an exception of next() means for the place; deaths and timeouts get torch's words.

        Those without a cause: of another loader's, which the dataset uses, the worker has told already.
        """
        if isinstance(error, StopIteration):
            self._finished = True
        elif isinstance(error, (WorkerDied, LoaderTimeout)) and not isinstance(error.__cause__, WorkerError):
            raise remote.in_torchs_words(error, self._timeout) from error
        elif self._preload is None:
            self._failed(self._core.last_ticket, self._core.last_worker)

    def _failed(self, ticket, worker):
        """An exception has come in a ticket's place, or behind the one that was delivered last."""
        if self._order is None and ticket != self._last_ticket:
            self._positions.failed(worker)
        self._last_ticket = ticket
        self._delivered(ticket)

    def _delivered(self, ticket):
        if self._order is not None and self._order.must_be_told and ticket >= 0:
            self._order.delivered(ticket)

    def _catch_up(self):
        order = self._order
        if order is not None and not order.must_be_told:
            last = self._core.last_ticket if self._preload is None else self._last_ticket
            order.low = max(order.low, last + 1)

    def _asked_for(self):
        """Tickets that count as asked for when an epoch is broken off, however far the thread has got."""
        return 0 if self._preload is None else self._last_ticket + 1 + self._read_ahead

    def _stop_preload(self):
        if self._preload is not None:
            self._preload.stop()

    def close(self):
        """End the iteration."""
        self._stop_preload()
        if self._core is not None:
            self._core.close()


def _checked(lists, options):
    for indices in lists:
        options.check_ranges(len(indices))
        yield indices
