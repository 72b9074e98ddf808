"""The iterator without workers: torch's own, which also knows its place."""

import contextlib

from torch.utils.data import dataloader as _theirs
from torch.utils.data._utils import pin_memory

from slipring import seeding
from slipring.fetch import load_dataset, load_stream, open_stream, was_last
from slipring.torch import state
from slipring.torch.epoch import Epoch
from slipring.torch.order import Order, generator_of
from slipring.torch.preload import FAILED


class InlineIterator(Epoch, _theirs._SingleProcessDataLoaderIter):
    """Batches made by this process, when they are asked for; nothing lies in a slot."""

    def __init__(self, loader):
        resume = self._go_on(loader)
        if self._before.get(0):
            self._tell_of_epoch_before(loader)
        super().__init__(loader)
        resume = self._seeded(loader, resume)
        self._generator, self._rank_drawn = generator_of(loader), self._drawn_as(loader)
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
            seed = seeding.batch_seed(self._base_seed, 0, self._order.ticket - 1, 0, self._rank_drawn)
            seeding.set_batch_seed(seed)
            seeding.seed_globals(seed)
            data = self._dataset_fetcher.fetch(index)
        finally:
            seeding.swap_place(place)
            seeding.restore_globals(saved)
        return pin_memory.pin_memory(data, self._pin_memory_device) if self._pin_memory else data
