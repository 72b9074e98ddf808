"""The iterators: torch's base class for what an epoch begins with, slipring's ring for the batches."""

import contextlib
import functools

import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import dataloader as _theirs
from torch.utils.data._utils import pin_memory

from slipring import seeding
from slipring._iterator import LoaderIterator
from slipring.engine import exiting
from slipring.errors import LoaderTimeout, WorkerDied
from slipring.fetch import load_dataset, load_stream, open_stream, was_last
from slipring.torch import remote, state
from slipring.torch.order import Order, generator_of, state_of
from slipring.torch.preload import FAILED, Feed, Preload, Steps
from slipring.torch.worker import TorchJob, TorchWorker

_profiler_enabled = torch.autograd._profiler_enabled


class _Stateful:
    """What both iterators know about their place."""

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
        if self._order is None or _profiler_enabled():
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


class InlineIterator(_Stateful, _theirs._SingleProcessDataLoaderIter):
    """Batches made by this process, when they are asked for; nothing lies in a slot."""

    def __init__(self, loader):
        resume = self._go_on(loader)
        if self._before.get(0):
            self._tell_of_epoch_before(loader)
        super().__init__(loader)
        resume = self._seeded(loader, resume)
        self._generator = generator_of(loader)
        self._meter = loader._keeper.inline
        self._mover, self._several = loader._mover(), loader.devices is not None
        self._parts, self._made = [], []  # batches of a step, and what is to be noted when it is handed out
        self._pin_memory = self._pin_memory and self._mover is None
        self._header = state.header(loader)
        self._per_batch = loader.rng == "batch" and self._dataset_kind == _theirs._DatasetKind.Map
        self._positions = self._order = None
        if self._dataset_kind == _theirs._DatasetKind.Map:
            self._order = Order(loader, self._sampler_iter, self._rng_before, resume)
            self._lists = self._order.lists()
            self._done = set(self._order.above)  # delivered before, and to be skipped
        if self._order is None or state.is_stateful(self._dataset):
            self._positions = state.Positions(resume, self._before)
            if resume is not None:
                self._open(state.places_of(resume).get(0))
            dataset_iter = getattr(self._dataset_fetcher, "dataset_iter", None)
            if resume is None and (self._order is not None or state.is_stateful(dataset_iter)):
                # (A generator has not begun yet: what its dataset says now may be of an earlier pass.)
                self._positions.put(0, state.states_as_bytes(self._dataset, dataset_iter))
        self._read_again(resume)

    def _tell_of_epoch_before(self, loader):
        """Before torch draws from the generators: a state may have put them where that epoch ended."""
        if loader._dataset_kind == _theirs._DatasetKind.Map:
            load_dataset(loader.dataset, self._before[0])
        else:
            load_stream(loader.dataset, self._before[0])

    def _open(self, place):
        if self._order is not None:
            load_dataset(self._dataset, place)
            return
        self._dataset_fetcher.dataset_iter, skip = open_stream(self._dataset, place)
        self._dataset_fetcher.ended = was_last(place)
        for _ in range(skip):
            with contextlib.suppress(Exception):  # it was raised then
                self._dataset_fetcher.fetch(self._next_index())

    def _next_index(self):
        if self._order is None:
            return super()._next_index()
        while True:
            ticket, indices = self._order.ticket, next(self._lists)
            if ticket not in self._done:
                return indices if self._auto_collation else indices[0]

    def _next_data(self):
        try:
            if self._mover is None:
                return self._make()
            moved = self._moved()
            return moved if self._several else moved[0]
        finally:
            if not self._parts:
                self._settle()

    def _settle(self):
        made, self._made = self._made, []
        for ticket, states in made:
            if ticket is not None:
                self._order.delivered(ticket)
            if states is FAILED:
                self._positions.failed(0)
            elif states is not None:
                self._positions.note(0, states[0])

    def _make(self):
        order = self._order
        before = None if order is None else order.ticket
        try:
            data = self._with_seed() if self._per_batch else super()._next_data()
        except StopIteration:
            self._finished = True
            if self._positions is not None:
                self._positions.put(0, self._states())
            raise
        except Exception:
            if order is None:
                self._made.append((None, FAILED))
            elif self._positions is not None:
                self._made.append((None, (self._states(),)))
            raise
        finally:
            # An exception of the dataset is what there was to deliver: a resume goes on behind it.
            if order is not None and order.ticket != before:
                self._made.append((order.ticket - 1, None))
        if self._positions is not None:
            self._made.append((None, (self._states(),)))
        self._meter.batches += 1
        return data

    def _states(self):
        """What dataset and iterator say of themselves now."""
        dataset_iter = getattr(self._dataset_fetcher, "dataset_iter", None)
        last = getattr(self._dataset_fetcher, "ended", False)
        return state.states_as_bytes(self._dataset, dataset_iter, last)

    def _moved(self):
        """The next step's batches on their devices."""
        while len(self._parts) < len(self._mover.places):
            data = self._make()
            self._mover.follow_caller()
            self._parts.append(self._mover.bring(len(self._parts), data, -1))
        parts, self._parts = self._parts, []
        return [self._mover.hand_over(part) for part in parts]

    def _with_seed(self):
        """The batch, the generators seeded for it and put back: as with any number of workers."""
        saved, place = seeding.save_globals(), seeding.swap_place((None, None))
        try:
            index = self._next_index()
            seed = seeding.batch_seed(self._base_seed, 0, self._order.ticket - 1, 0, self._rank)
            seeding.set_batch_seed(seed)
            seeding.seed_globals(seed)
            data = self._dataset_fetcher.fetch(index)
        finally:
            seeding.swap_place(place)
            seeding.restore_globals(saved)
        return pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data


class WorkersIterator(_Stateful, _theirs._BaseDataLoaderIter):
    """Batches made by workers, in slots."""

    def __next__(self):
        if not self._simple or _profiler_enabled():
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
        elif self._before and self._core is None:  # workers that are there know it
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
        engine, give_back = loader._keeper.lend(options, job)
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
            rank=self._rank,
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
        """What an exception of next() means for the place; deaths and timeouts get torch's words."""
        if isinstance(error, StopIteration):
            self._finished = True
        elif isinstance(error, (WorkerDied, LoaderTimeout)):
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
