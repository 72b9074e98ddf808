"""Batches that this process makes on request, outside slots."""

from torch.utils.data import IterDataPipe, MapDataPipe, default_collate, default_convert
from torch.utils.data.graph_settings import apply_sharding

from slipring._core.codec._collate import LIST, RowWriter
from slipring._core.passes._iteration import END_OF_STREAM
from slipring._core.ring import sample_marks
from slipring._core.ring._segment import now
from slipring._core.ring.sample_marks import count_in, counted_in, take_position
from slipring._core.workers import seeding
from slipring._core.workers._rng_guard import RngGuard
from slipring._core.workers.fetch import MapFetcher, StreamFetcher, load_dataset, load_stream, skip_batches
from slipring._core.workers.stateful import attempt, copied, is_stateful, stateful_parts, states_of
from slipring.errors import state_half_made
from slipring.torch import private
from slipring.torch.collate import core_collate


def load_epoch_before(loader, place):
    """Load what the dataset keeps from the previous epoch.

    Call it before torch draws from the generators, whose states at the end of that epoch it may restore.
    """
    if loader._dataset_kind == private.DatasetKind.Map:
        load_dataset(loader.dataset, place)
    else:
        load_stream(loader.dataset, place)


class LocalFetcher:
    """The fetcher of an iteration of torch's loader without workers; see `_iteration.LocalEngine`.

    Parameters
    ----------
    iterator : torch's iterator, after the beginning of its epoch
    loader : DataLoader
    place : dict or None
        The position of a resumed epoch; see `slipring._core.workers.fetch.open_stream`.
    share : Share or None
        For ``rng="sample"``.
    origin : int
        The offset of sequence number 0 in a step.
    rank : int
        The rank whose random numbers are drawn.
    """

    death_fd, resizing = -1, False
    kept = state = None

    def __init__(self, iterator, loader, place, share, origin, rank):
        self.meter, self.spent_from = loader._engines.inline, 0
        self.seed, self.share, self.rank = iterator._base_seed, share, rank
        self.epoch = 0 if share is None else share.epoch(0, origin)
        # With several devices, a batch of a step may fail after others were made: then their states count.
        self.sends_states = loader._several
        self.resumed, self.begun = place is not None, False
        dataset = self.dataset = iterator._dataset
        if isinstance(dataset, (IterDataPipe, MapDataPipe)):
            apply_sharding(dataset, iterator._world_size, iterator._rank)
        collate = iterator._collate_fn
        self.collate_fn = collate if collate is default_collate else core_collate(collate)
        self.batched = iterator._auto_collation
        self.skip_none = loader.skip_none
        self.is_seeded = loader.rng != "worker" and iterator._dataset_kind == private.DatasetKind.Map
        self.stream = self.reader = None
        if iterator._dataset_kind == private.DatasetKind.Map:
            load_dataset(dataset, place)
            self.reader = MapFetcher(
                *(dataset, self.collate_fn, loader._concurrency, share is not None),
                *(not self.batched, self.skip_none),
            )
            if collate is default_collate and (own := self.reader.own_collate) is not None:
                self.reader.collate_fn = lambda samples: default_convert(own(samples))
        else:
            size = iterator._index_sampler.batch_size if self.batched else None
            self.stream = StreamFetcher(
                dataset, self.collate_fn, size, iterator._drop_last, place, skip_none=self.skip_none
            )
            skip_batches(self._read_again, -self.stream.position)

    def _read_again(self):
        return (self.stream.read(LIST) and [self.stream.collate(self.stream.rows)]) or None

    def make(self, seq, indices):
        """Return the next batch, or `END_OF_STREAM` at the end of an iterable dataset."""
        before = counted_in()
        try:
            count_in(self.meter)
            return self._make(seq, indices)
        finally:
            count_in(before)

    def _make(self, seq, indices):
        self.spent_from = self.spent_from or now()
        self.kept = self.begun = True
        if self.reader is None:
            batch = self._next_of_stream(indices[1])
        elif self.is_seeded:
            with RngGuard():  # seeded for the batch, as in workers
                seed = seeding.batch_seed(self.seed, self.epoch, seq, 0, self.rank)
                seeding.set_batch_seed(seed, seed)
                seeding.seed_globals(seed)
                if self.share is not None:
                    self.share.begin(self.seed, self.epoch, seq, 0)
                batch = self._of_map(indices)
        else:
            batch = self._of_map(indices)
        self.state = self._states() if self.sends_states else None
        return batch

    def _of_map(self, indices):
        reader, begun, skipped = self.reader, now(), sample_marks.apart.skipped
        rows = RowWriter(0, len(indices), LIST, skip_none=self.skip_none)
        try:
            if reader.into is None:
                reader.read(indices, rows)
            else:
                rows.take_batch(reader.whole(indices))
        except Exception as error:
            take_position(error)  # the caller has no use for it
            raise
        return self._collated(begun, skipped, lambda: reader.collate(rows))

    def _next_of_stream(self, position):
        stream, begun, skipped = self.stream, now(), sample_marks.apart.skipped
        if not stream.read(LIST, again=stream.position > position):
            return END_OF_STREAM
        return self._collated(begun, skipped, lambda: stream.collate(stream.rows))

    def _collated(self, begun, skipped, collate):
        meter, read = self.meter, now()
        meter.fetch_ns += read - begun
        meter.skipped_samples += sample_marks.apart.skipped - skipped
        batch = collate()
        there = now()
        meter.collate_ns += there - read
        meter.batches += 1
        meter.spent_ns += there - self.spent_from
        self.spent_from = there
        return batch

    def _states(self):
        states, error = attempt(self._states_now)
        return copied(states) if error is None else error.with_traceback(None)  # state_dict() raises it

    def _states_now(self):
        if self.stream is not None:
            return self.stream.states_now()
        return states_of(stateful_parts(self.dataset, None)) or None

    def states_now(self, half_made):
        """See `slipring._core.workers.worker.Worker.states_now`."""
        begun = self.begun or not (self.resumed or self._tells_of_an_earlier_pass())
        if self.sends_states or not begun:
            return False, None
        states = copied(self._states_now())
        if states and (half_made or self.kept):
            raise state_half_made()
        return True, states

    def _tells_of_an_earlier_pass(self):
        """Return whether the dataset may still have an earlier pass's position: a generator has not begun yet."""
        return self.stream is not None and not is_stateful(self.stream.iterator)

    def drop(self):
        """Drop the samples of the batch that was made."""
        if self.stream is not None:
            self.stream.rows = None

    def forget_iteration(self):
        """Drop the dataset's iterator."""
        self.stream = None
