"""The iterator without workers: torch's own iterator, with a position that can be saved and resumed."""

import itertools
import time

from torch.utils.data import IterDataPipe, MapDataPipe, default_convert
from torch.utils.data.graph_settings import apply_sharding

from slipring._core import seeding, skipping
from slipring._core._ring import in_a_handler, now
from slipring._core._rng_guard import RngGuard
from slipring._core.fetch import (
    MapFetcher,
    copied,
    cut_off,
    generator_ended,
    is_stateful,
    load_dataset,
    load_iterator,
    load_stream,
    since,
    skip_batches,
    states_of,
    was_last,
)
from slipring._core.reshard import places_of
from slipring._core.source import Making
from slipring._core.state import header
from slipring.errors import state_half_made
from slipring.torch import private
from slipring.torch.collate import convert
from slipring.torch.epoch import Epoch
from slipring.torch.preload import FAILED
from slipring.torch.state import iteration as state
from slipring.torch.state.generators import generator_of
from slipring.torch.state.order import Order, described, share


class Timed:
    """A collate function that measures its own time, and the time and skipped samples of the reads since `begin`."""

    __slots__ = ("begun", "collate_fn", "meter", "skipped")

    def __init__(self, collate_fn, meter):
        self.collate_fn, self.meter = collate_fn, meter

    def begin(self):
        self.begun, self.skipped = time.perf_counter_ns(), skipping.apart.skipped

    def __call__(self, samples):
        read = time.perf_counter_ns()
        self.meter.fetch_ns += read - self.begun
        self.meter.skipped_samples += skipping.apart.skipped - self.skipped
        batch = self.collate_fn(samples)
        self.meter.collate_ns += time.perf_counter_ns() - read
        return batch


class InlineIterator(Epoch, private.SingleProcessIterator):
    """Batches that this process makes when they are requested; they lie in no slot.

    `state_dict` queries Stateful objects directly, because they always stand just after the last batch.
    """

    _asks = False  # what was read since, or could be, holds in place of what a saved state says

    def __init__(self, loader):
        resume = self._go_on(loader)
        if self._before.get(0):
            self._load_epoch_before(loader)
        self._begin_as_torch(loader, resume)
        if self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        resume = self._seeded(loader, resume)
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            apply_sharding(self._dataset, self._world_size, self._rank)
        self._meter = loader._engines.inline
        self._spent_from = 0
        collate = convert if self._collate_fn is default_convert else self._collate_fn
        self._timed, self._share = Timed(collate, self._meter), share(loader)
        place = None if resume is None else places_of(resume).get(0)
        self._dataset_fetcher, skip = self._open(loader, place)
        self._index = None  # what is in flight, in a list
        self._generator, self._rank_drawn = generator_of(loader), self._drawn_as(loader)
        self._mover, self._several = loader._mover(), loader._several
        self._part = None  # a batch on its way to a device, in a list
        self._parts = []  # batches of a step
        self._pin_memory = self._pin_memory and self._mover is None
        self._header = header(described(loader))
        self._per_batch = loader.rng != "worker" and self._dataset_kind == private.DatasetKind.Map
        self._positions = self._order = None
        if self._dataset_kind == private.DatasetKind.Map:
            self._order = Order(loader, self._sampler_iter, self._rng_before, resume)
            self._lists = self._order.lists()
            self._done = set(self._order.above)  # delivered before, and to be skipped
        if self._order is None or is_stateful(self._dataset):
            self._positions = state.Positions(resume, self._before)
            dataset_iter = getattr(self._dataset_fetcher, "dataset_iter", None)
            # (A generator has not begun yet: what its dataset says now may be of an earlier pass.)
            self._asks = resume is None and (self._order is not None or is_stateful(dataset_iter))
        self._making = Making()
        skip_batches(self._read_once_more, skip)
        self._read_again(resume)

    def _load_epoch_before(self, loader):
        """Load what the dataset keeps from the previous epoch.

        It runs before torch draws from the generators: a state may have put them where that epoch ended.
        """
        if loader._dataset_kind == private.DatasetKind.Map:
            load_dataset(loader.dataset, self._before[0])
        else:
            load_stream(loader.dataset, self._before[0])

    def _open(self, loader, place):
        """Return (torch's fetcher at `place`, how many of its batches to skip).

        torch's own construction would call iter(dataset) before the dataset has loaded its state.
        """
        load_dataset(self._dataset, place)
        what = self._dataset, self._auto_collation, self._timed, self._drop_last
        if self._dataset_kind == private.DatasetKind.Iterable:
            fetcher = _StreamFetcher(*what)
        else:
            fetcher = _MapFetcher(*what, loader._concurrency, self._share is not None)
        if place is None or self._dataset_kind == private.DatasetKind.Map:
            return fetcher, 0
        load_iterator(fetcher.dataset_iter, place)
        fetcher.ended = was_last(place)
        return fetcher, since(place) if place["states"] else place["batches"]

    def _read_once_more(self):
        try:
            return [self._dataset_fetcher.fetch(self._next_index())]
        except StopIteration:
            return None
        finally:
            self._dataset_fetcher.read = []

    def _next_index(self):
        index = self._drawn_index()
        self._timed.begin()
        return index

    def _drawn_index(self):
        if self._order is None:  # what torch's own gives, from a generator that an exception would end
            return [None] * self._index_sampler.batch_size if self._auto_collation else None
        while self._index is None:
            seq = self._order.seq
            for indices in self._lists:  # no call comes between the list and its place
                self._index = [indices if self._auto_collation else indices[0]]
                break
            else:
                raise StopIteration
            if seq in self._done:
                self._index = None
        return self._index[0]

    def _next_data(self):
        if self._ready is None:
            if self._positions is None:
                self._next_step()
            else:
                self._next_tracked()
        ready = self._ready
        return None if ready is None else ready[0]  # None: another thread that asks has taken it already

    def _next_tracked(self):
        making = self._making
        with making.lock:
            try:
                making.busy = True
                self._next_step()
            finally:
                making.busy = False

    def _next_step(self):
        """Make the next step into `_ready`; it stays there until it is handed out, even if a signal handler raises."""
        self._settle()
        if self._mover is None:
            self._make()
        else:
            self._moved()

    def _is_begun(self):
        return self._part is not None or bool(self._parts)

    def _failed(self, seq, number):
        self._positions.failed(number)

    def _make(self):
        """Make the next batch into `_ready`, or into `_part` if it has yet to be moved to a device."""
        order = self._order
        if not self._spent_from:
            self._spent_from = now()
        try:
            if self._per_batch:
                data = self._with_seed()
            else:
                data = self._dataset_fetcher.fetch(self._next_index())
                if self._pin_memory:
                    data = private.pin_memory.pin_memory(data, self._pin_memory_device)
            # Now: noted later, a state would be of behind the next one.
            notes = [(None, 0, self._states())] if self._positions is not None else []
        except StopIteration:
            self._finished = True
            self._asks = True
            # What is too little for a last batch, or step, is dropped, with its notes.
            self._dataset_fetcher.read = []
            self._index = self._part = None
            self._parts, self._made = [], []
            raise
        except Exception as error:
            if in_a_handler(error):
                raise  # the same batch is made again
            # An exception of the dataset is what there was to deliver: a resume goes on behind it.
            if order is None:
                self._made.append((None, 0, FAILED))
            else:
                if self._index is not None:
                    self._made.append((order.seq - 1, None, None))
                if self._positions is not None:
                    self._made.append((None, 0, self._states()))
            self._dataset_fetcher.read = []
            self._index = None
            raise
        if self._index is not None:
            notes = [(order.seq - 1, None, None), *notes]
        # No call from here on: all of it has happened, or nothing.
        self._made += notes
        if self._mover is None:
            self._ready = [data]
        else:  # never in `_ready`: a thread that leaves next() would take it there, and not on its device
            self._part = [data]
        self._dataset_fetcher.read = []
        self._index = None
        self._meter.batches += 1
        self._meter.spent_ns += now() - self._spent_from
        self._spent_from = now()

    def _states(self):
        """Return the states to record with a batch; None: they are queried later.

        If a step has several batches, they are queried at once, because a later batch of the step may fail.
        """
        self._asks = not self._several
        if not self._several:
            return None
        try:
            return copied(self._state_now())
        except Exception as error:
            if in_a_handler(error):
                raise
            return error.with_traceback(None)  # raised where the state is asked for

    def _state_now(self):
        """Return the current states of dataset and iterator; None if neither has one."""
        dataset_iter = getattr(self._dataset_fetcher, "dataset_iter", None)
        states = states_of(self._dataset, dataset_iter)
        if states and getattr(self._dataset_fetcher, "ended", False):
            states["last"] = True
        return states or None

    def _catch_up(self):
        if self._positions is None:
            self._settle()
            return
        with self._making.at_rest():
            self._settle()
            if self._asks and self._is_halfway():
                raise state_half_made()
            if self._asks:
                self._positions.put(0, copied(self._state_now()))

    def _is_halfway(self):
        """Return whether samples were read for a batch that has not been handed out."""
        pending = self._ready, self._part, self._index, self._parts or None
        return pending != (None,) * 4 or bool(getattr(self._dataset_fetcher, "read", None))

    def _moved(self):
        """Make the next step's batches on their devices, into `_ready`."""
        parts = self._parts
        while len(parts) < len(self._mover.places):
            if self._part is None:
                self._make()
            try:
                self._mover.follow_caller()
                part = self._mover.copy_to_device(len(parts), self._part[0], -1)
            except Exception as error:
                if not in_a_handler(error):
                    self._part = None  # it is what there was to deliver: the next batch comes next
                raise
            parts += (part,)
            self._part = None
        moved = [self._mover.hand_over(part) for part in parts]
        self._ready = [moved if self._several else moved[0]]
        self._parts = []

    def _with_seed(self):
        """Return the next batch, with generators seeded for it and then restored, as with any number of workers."""
        with RngGuard():
            index = self._next_index()
            share, seq = self._share, self._order.seq - 1
            epoch = 0 if share is None else share.epoch(0, self._order.origin or 0)
            seed = seeding.batch_seed(self._base_seed, epoch, seq, 0, self._rank_drawn)
            seeding.set_batch_seed(seed, seed)
            seeding.seed_globals(seed)
            if share is not None:
                share.begin(self._base_seed, epoch, seq, 0)
            data = self._dataset_fetcher.fetch(index)
        return private.pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data


class _MapFetcher(private.MapFetcher):
    """torch's map fetcher, with concurrent reads of a batch's samples where that is requested or possible."""

    def __init__(self, dataset, auto_collation, collate_fn, drop_last, concurrency, by_sample):
        super().__init__(dataset, auto_collation, collate_fn, drop_last)
        self.reader = MapFetcher(dataset, None, concurrency, by_sample)

    def fetch(self, possibly_batched_index):
        reader = self.reader
        try:
            if self.auto_collation:
                data = reader.samples(possibly_batched_index)
            else:
                data = reader.one(possibly_batched_index)
        finally:
            reader.failed = None  # whose traceback would be kept
        return self.collate_fn(data)


class _StreamFetcher(private.StreamFetcher):
    """torch's stream fetcher, which keeps a batch's samples until the batch is made, even if a handler raises."""

    def __init__(self, *what):
        super().__init__(*what)
        self.read, self.cut_off = [], None
        self.draws = map(next, itertools.repeat(self.dataset_iter))  # nobody calls iter() again

    def fetch(self, possibly_batched_index):
        want = len(possibly_batched_index) if self.auto_collation else 1
        read = self.read
        if self.cut_off is not None:
            raise generator_ended("the dataset's iterator") from self.cut_off
        if len(read) < want and not self.ended:
            try:
                read.extend(itertools.islice(self.draws, want - len(read)))
            except BaseException as error:
                self.cut_off = cut_off(self.dataset_iter, error)
                raise
            self.ended = len(read) < want and self.auto_collation
        if not read or (self.drop_last and len(read) < want):
            raise StopIteration
        return self.collate_fn(list(read) if self.auto_collation else read[0])
