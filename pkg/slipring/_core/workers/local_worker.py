"""The worker of a loader without workers: it makes batches in the caller's thread, outside of slots."""

from slipring._core.codec._encode import detached
from slipring._core.codec._rows import LIST, NO_SAMPLES
from slipring._core.ring import sample_marks
from slipring._core.ring._ring import mix
from slipring._core.ring._segment import now
from slipring._core.ring.sample_marks import count_in, counted_in, take_position
from slipring._core.ring.worker_info import WorkerInfo
from slipring._core.workers import error_record, ranges, seeding
from slipring._core.workers._rng_guard import AsWorker, LendRng, RngGuard
from slipring._core.workers.fetch import MapFetcher, StreamFetcher, listed, load_dataset, skip_batches
from slipring._core.workers.stateful import attempt, copied, is_stateful, stateful_parts, states_of
from slipring.errors import state_half_made

END_OF_STREAM = object()  # in place of a batch


class LocalWorker:
    """The maker of one pass's batches: as a worker's, but in the caller's process, which no `worker_init_fn` prepares.

    The `meter` gets the figures. `seed` is the iteration's base seed, and `epoch` the epoch word of its tasks.
    `sends_states`: query the states of a Stateful dataset with each batch, and not on request.
    """

    states = None  # the generators' states between two batches, if they continue from batch to batch
    rng_context = seeding.NO_CONTEXT  # the context from which slipring.rng() continues
    stream = fetcher = lending = None
    state = None  # the states after the batch that was made last, if they are sent with it
    has_begun = is_open = False
    asked, first_row = None, 0  # the indices that were read last, and their first row of the batch

    def __init__(self, job, meter, concurrency, seed, epoch, sends_states=False):
        self.job, self.options, self.meter, self.concurrency = job, job.options, meter, concurrency
        self.seed, self.epoch_word = seed, epoch
        self.sends_states, self.as_torch = sends_states, job.worker_class.local_as_torch
        self.resumed = (job.resume or {}).get(0)
        self.spent_from = 0
        self.is_guest = job.options.collate_fn is None and getattr(job.dataset, "draws_as_caller", False)

    def begin(self):
        """Begin the pass. Except in torch's face, an iterable dataset begins with the first batch, as in workers."""
        if self.as_torch or not self.job.is_stream:
            self._guarded(self.open)

    def open(self):
        """Begin to read the dataset, where the pass resumes; once per pass."""
        if self.is_open:
            return
        self.is_open = True
        job = self.job
        if job.is_stream:
            self.stream = StreamFetcher((), job)  # at its end, unless the dataset begins
            self.stream.ended = True
            self.stream = StreamFetcher(job.dataset, job, self.resumed)
            skip_batches(self._read_again, -self.stream.position)
            return
        self.fetcher = MapFetcher(job, self.concurrency)
        job.worker_class.adapt(self.fetcher)
        load_dataset(job.dataset, self.resumed)

    def _read_again(self):
        stream = self.stream
        return (stream.read(stream.rules()) and [stream.collate(stream.rows)]) or None

    # ---- batches

    def make(self, seq, indices):
        """Return the next batch, `NO_SAMPLES`, or `END_OF_STREAM` at the end of an iterable dataset."""
        before = counted_in()
        try:
            count_in(self.meter)
            return self._guarded(self._make_with_state, seq, indices)
        finally:
            count_in(before)

    def _guarded(self, function, *arguments):
        """Call a function, and then restore the caller's generators, or leave them to the dataset."""
        if self.as_torch and self.job.seeds_once:
            if self.lending is None:  # a single worker's numbers, unless that draws some for `finish_batch`
                own = mix(self.seed, self.job.epoch_of(self.epoch_word), 0)
                self.lending = LendRng(seeding.generator_of(own if self.options.rng == "worker" else self.seed))
            return self.lending.call(function, *arguments)
        if self.is_guest:
            return AsWorker(self, WorkerInfo(0, 1, self.seed, self.job.dataset)).call(function, *arguments)
        return RngGuard(self).call(function, *arguments)

    def _make_with_state(self, seq, indices):
        batch = self._make(seq, indices)
        self.state = self._states() if self.sends_states else None
        return batch

    def _make(self, seq, indices):
        begun, skipped, self.asked = now(), sample_marks.apart.skipped, indices
        self.spent_from = self.spent_from or begun
        if self.job.seeds_once and not (self.has_begun or self.as_torch):
            self._seed_pass()
        self.has_begun = True
        self.open()
        if self.stream is None:
            return self._collated(self.fetcher, self._read(seq, indices), begun, skipped)
        more = self.stream.read(self.stream.rules())
        rows, self.stream.rows = self.stream.rows, None
        return self._collated(self.stream, rows, begun, skipped) if more else END_OF_STREAM

    def _read(self, seq, indices):
        """Return a `RowWriter` with the samples of a batch."""
        fetcher, n = self.fetcher, len(indices)
        size = None if self.as_torch and self.job.seeds_once else self.options.workers.chunk_size
        self._seed(seq, 0)
        if size is None or size >= n:
            rows = fetcher.row_writer(0, n, fetcher.rules())
            if fetcher.into is not None:
                rows.take_batch(fetcher.whole(indices))
            else:
                fetcher.read(indices, rows)
            return rows
        samples, indices = [], listed(indices)
        for first in range(0, n, size):  # the same random numbers as if workers made these ranges
            self._seed(seq, first)
            self.asked, self.first_row = indices[first : first + size], first
            rows = fetcher.row_writer(first, first + len(self.asked), LIST)
            fetcher.read(self.asked, rows)
            part = rows.read_back()
            ranges.check_count(len(part), len(self.asked), self.job.dataset)
            samples += part
        self.asked, self.first_row = indices, 0
        self._seed(seq, n)
        rows = fetcher.row_writer(0, n, LIST)
        rows.take(samples)
        return rows

    def _seed(self, seq, first_row):
        seeding.begin_rows(self.job, self.seed, self.epoch_word, seq, first_row, True)

    def _seed_pass(self):
        seeding.set_batch_seed(self.seed, stream=mix(self.seed, self.job.epoch_of(self.epoch_word)))
        if not self.is_guest:
            seeding.seed_globals(self.seed)
            self.states = seeding.save_globals()

    def _collated(self, fetcher, rows, begun, skipped):
        meter, read = self.meter, rows.fetched_at(begun)
        (batch,) = fetcher.box(rows, None if self.stream is not None else self.asked)
        if batch is NO_SAMPLES:
            return batch
        batch = self._own(batch, rows, fetcher)
        there = now()
        meter.fetch_ns += read - begun
        meter.skipped_samples += sample_marks.apart.skipped - skipped
        meter.collate_ns += there - read
        meter.batches += 1
        meter.spent_ns += there - self.spent_from
        self.spent_from = there
        return batch

    def _own(self, batch, rows, fetcher):
        """Return a batch that no other code writes to: a dataset or collate_fn may use its arrays again."""
        if self.as_torch and not rows.is_made:
            return batch
        if not rows.in_place or any(rows.kept()) or fetcher.finish_batch is not None:
            return detached(batch, self.meter)
        self.meter.bytes += rows.nbytes
        return batch

    def record(self, error, seq):
        """Return the record of an exception that `make` raised; see `error_record.record`."""
        row, culprit = take_position(error), (None, None)
        if row is not None and self.asked is not None and row < len(self.asked):
            culprit = self.asked[row], self.first_row + row
        return error_record.record(error, 0, seq, self.asked, clear=False, culprit=culprit)

    # ---- states

    def _states(self):
        states, error = attempt(self._states_of)
        return copied(states) if error is None else error.with_traceback(None)  # state_dict() raises it

    def _states_of(self):
        if self.stream is not None:
            return self.stream.states_now()
        return states_of(stateful_parts(self.job.dataset, None)) or None

    def states_now(self, half_made):
        """Return (True, states of dataset and iterator); None as states: neither is Stateful.

        (False, None): nothing has been read in this iteration, so the loaded state still holds; or the states came with
        the batches. `half_made`: samples were read for a batch that has not been delivered; raise RuntimeError if the
        states would count them.
        """
        if self.sends_states or not (self.has_begun or self._knows_its_beginning()):
            return False, None
        states = copied(self._states_of())
        if states and half_made:
            raise state_half_made()
        return True, states

    def _knows_its_beginning(self):
        """Return whether the dataset has the position of this pass already. A generator has not begun before `next`."""
        if self.resumed:
            return False
        return not self.job.is_stream or (self.is_open and is_stateful(self.stream.iterator))

    def forget_iteration(self):
        """Drop the dataset's iterator."""
        self.stream = None
