"""The loop of a worker: claim a task, fetch its samples, collate them into the slot, publish the slot."""

import contextlib
import pickle
from functools import partial

from slipring._core.codec._encode import BATCH, EMPTY, END, ERROR, Encoder, range_done
from slipring._core.codec._rows import DROP, LIST, NO_SAMPLES
from slipring._core.ring._ring import FINISH, TASK_NEXT, mix
from slipring._core.ring._segment import now
from slipring._core.ring.sample_marks import take_position
from slipring._core.ring.worker_info import WorkerInfo, inform_torch, set_worker_info
from slipring._core.workers import error_record, ranges, seeding
from slipring._core.workers.concurrency import Concurrency
from slipring._core.workers.fetch import MapFetcher, StreamFetcher, dataset_shrank, delivered, load_dataset, load_stream
from slipring._core.workers.heap import Heap
from slipring._core.workers.stateful import SnapshotInterval, StateError, pickled_states
from slipring.errors import SlipringError


class Worker:
    """A worker that fills slots, in a process of its own (`owns_process`) or in a thread.

    Worker `number`, from 0, is participant ``number + 1`` of the segment. A thread shares the global generators and the
    dataset with others.

    `inherited` is (iteration, batches, state) of a worker that died and whose stream this worker continues: the state
    is the newest that it published in that iteration, after that many batches; None: it published none. If no worker
    had this number before, `inherited` is None. `concurrency` is that of a process in which several workers take turns;
    without it, the worker makes its own.
    """

    method_argument = "Workers(start_method={!r})"  # how users give this loader the start method
    threads = "Workers(start_method='thread')"  # how users ask for worker threads
    # Without workers, as torch: batches and exceptions are passed on as they are, and datasets whose generators are not
    # seeded for each batch draw from the caller's.
    local_as_torch = False
    loaded = False  # the map dataset has loaded the state from which it resumes
    keeps_globals = True  # a state has the process's own generators too
    next_sequence = 0  # the batch of its stream that comes next, in this iteration

    @classmethod
    def check_start(cls, job):
        """Raise an exception if a worker process that starts now could not work."""

    @classmethod
    def environment(cls, job):
        """Return environment variables that a worker process starts with, besides those of the program."""
        return {}

    @classmethod
    def not_sent(cls, error):
        """Hook, called before an exception is raised that prevented the start of a worker."""

    @classmethod
    def adapt(cls, fetcher):
        """Hook: convert batches that the dataset itself makes or collates, such as arrays to tensors."""

    def __init__(self, ring, number, job, owns_process, inherited=None, concurrency=None):
        self.ring = ring
        self.number, self.inherited = number, inherited
        self.participant = number + 1
        self.job, self.options = job, job.options
        self.owns_process = owns_process
        self.encoder = Encoder()
        self.concurrency = concurrency
        if concurrency is None:
            self.concurrency = Concurrency(job.options.workers.fetch_threads)
        self.fetcher = MapFetcher(job, self.concurrency)
        self.adapt(self.fetcher)
        self.stream = None
        self.iteration = None
        self.epoch = 0  # of the current iteration, for seeds
        self.base_seed = 0

    # ---- life

    def begin(self, base_seed):
        """Set the worker's info and seeds, run `worker_init_fn`, and report that the worker serves."""
        self._introduce(base_seed)
        if self.owns_process:
            self._seed_process(base_seed)
        if self.options.worker_init_fn is not None:
            self.options.worker_init_fn(self.number)
        if self.job.rank_stride is not None:
            self.fetcher.dataset.seeds_globals = self.owns_process
        self.ring.serve(self.participant)

    def _seed_process(self, base_seed):
        seeding.seed_globals(base_seed + self.number)

    def _introduce(self, base_seed):
        self.base_seed = base_seed
        self.info = WorkerInfo(self.number, self.job.num_workers, base_seed + self.number, self.job.dataset)
        set_worker_info(self.info, whole_process=self.owns_process)
        inform_torch()

    def serve(self):
        """Work until the segment is closed."""
        heap = Heap() if self.owns_process else None
        while (writer := self.ring.claim(self.participant, -1)) is not None:
            self.work(writer)
            if heap is not None:
                heap.record_batch(writer.used)

    def close(self):
        """End the worker's own threads and its event loop."""
        self.concurrency.close()

    # ---- one task

    def work(self, writer):
        """Do one claimed task and publish the result."""
        with writer:
            self._attempt(self._do, writer, now())

    def _do(self, writer, begun):
        inform_torch()  # the dataset may have imported it meanwhile
        self._enter_iteration(writer)
        if writer.kind == TASK_NEXT:
            self._stream(writer, begun)
        elif writer.range == FINISH:
            self._finish(writer, begun)
        else:
            self._map(writer, begun)

    def _attempt(self, make, writer, begun):
        """Call ``make(writer, begun)``, and publish the exception that it raises."""
        try:
            make(writer, begun)
        except Exception as error:
            last = self._fail(writer, error)
        except BaseException as error:
            if self.owns_process:
                raise  # SystemExit ends it
            last = self._fail(writer, error)
        else:
            return
        if last:
            self._attempt(self._finish, writer, now())

    def forget_iteration(self):
        """Drop everything that belongs to the current iteration."""
        self.iteration = self.stream = None
        self.next_sequence = 0
        self.snapshots = SnapshotInterval(self.options.snapshot_interval)  # of a map dataset

    def _enter_iteration(self, writer):
        if writer.iteration == self.iteration:
            return
        self.forget_iteration()
        self._introduce(writer.seed)
        self.epoch = self.job.epoch_of(writer.epoch)
        if self.job.seeds_once:
            # Once per worker and iteration.
            seed = writer.seed + self.number
            seeding.set_batch_seed(seed, stream=mix(writer.seed, self.epoch))
            # With rng="worker" generators stay as worker_init_fn has left them.
            own = self.options.rng == "worker" and self.options.worker_init_fn is not None
            if self.owns_process and not own:
                seeding.seed_globals(seed)
        self._resume_dataset(writer)
        self.iteration = writer.iteration

    def _resume_dataset(self, writer):
        """Load the state of a map dataset, in the first iteration that has a task for this worker."""
        job = self.job
        if self.loaded or job.is_stream or job.resume is None:
            return
        self.loaded = True
        position = job.resume.get(self.number) or {}
        load_dataset(job.dataset, position)
        if delivered(position):
            self.snapshots.go_on(writer.seq - job.num_workers)
        self._make_again(writer, position.get("again", ()))

    def _make_again(self, writer, batches):
        """Make again, and drop, the batches that a Stateful map dataset made after the states that it has loaded."""
        if not batches:
            return
        writer.__exit__()  # the slot is for the batch that is due
        try:
            for seq, indices in batches:
                with contextlib.suppress(Exception):  # it was raised when the batch was delivered
                    self.fetcher.box(self._read(writer, seq, indices, 0, len(indices), None), indices)
        finally:
            writer.__enter__()

    def _seed(self, writer, seq, first_row):
        seeding.begin_rows(self.job, writer.seed, writer.epoch, seq, first_row, self.owns_process)

    def _map(self, writer, begun):
        """Make a range of a batch's rows. A whole batch is the range from 0 to its length."""
        indices, whole = writer.indices(), writer.range is None
        first, end = (0, len(indices)) if whole else writer.rows_of(writer.range)
        rows = self._read(writer, writer.seq, indices, first, end, None if whole else self.encoder)
        fetched = rows.fetched_at(begun)
        if whole:
            box = self.fetcher.box(rows, indices)
            del rows  # no other reference keeps samples when the batch is published
            self._publish(writer, box, begun, fetched, self._state_of_dataset(writer))
        else:
            finishes = self.fetcher.finish_batch is not None
            box = ranges.staged(rows, end - first, self.job.dataset, finishes)
            del rows  # its arrays lie in the slot, which others may publish from now on
            if box is None:
                last = range_done(writer, begun, fetched)
            else:
                last = self.encoder.stage(writer, box, BATCH, begun, fetched)
            if last:
                self._finish(writer, now())

    def _read(self, writer, seq, indices, first, end, encoder):
        """Return a `RowWriter` with the samples of rows ``first:end``.

        `encoder` is None if this worker makes all rows of the batch.
        """
        self._seed(writer, seq, first)
        fetcher = self.fetcher
        makes_whole = encoder is None and fetcher.into is not None
        share = encoder and partial(ranges.share_layout, encoder)
        rows = fetcher.row_writer(first, end, LIST if makes_whole else self.rules(fetcher), share)
        if makes_whole:
            rows.take_batch(fetcher.whole(indices))
        else:
            fetcher.read(indices, rows)
        return rows

    def _publish(self, writer, box, begun, fetched, state):
        kind = BATCH
        if box[0] is NO_SAMPLES:
            box, kind = [None], EMPTY
        self.encoder.publish(writer, box, kind, begun, fetched, state=state)

    def _state_of_dataset(self, writer):
        """Return the state of a map dataset after this batch, as bytes; None if none is due."""
        if not self.job.tracked or not self.snapshots.due(writer.seq):
            return None
        return pickled_states([("dataset", self.job.dataset)])

    def rules(self, fetcher):
        """Return how samples become a batch; see `Fetcher.rules`."""
        return fetcher.rules()

    def _stream(self, writer, begun):
        self._check_sequence(writer)
        if self.stream is None:
            self.stream = self._begin_stream(writer)
        # `missing` batches were read after the loaded states. A dead worker's replacement also reads again all that the
        # dead worker has published.
        missing = -self.stream.position
        while not self.stream.ended and self.stream.position < writer.sequence:
            self._repeat(writer)
        if self.stream.position < 0:
            raise dataset_shrank(missing, missing + self.stream.position)
        more = self.stream.read(self.rules(self.stream))
        rows, self.stream.rows = self.stream.rows, None
        fetched = rows.fetched_at(begun)
        box = self.stream.box(rows) if more else [None]
        del rows  # no other reference keeps samples when the batch is published
        state = self._state_of_stream(not more)
        if more:
            self._publish(writer, box, begun, fetched, state)
        else:
            self.encoder.publish(writer, box, END, state=state)

    def _state_of_stream(self, always):
        """Return the state to send with a batch, an error or the stream's end: bytes, or None if none is due."""
        if not (self.job.tracked or self.options.respawns):
            return None
        return self.stream.states(always, self._generators if self.options.respawns else None)

    def _generators(self):
        return seeding.position(self.owns_process and self.keeps_globals)

    def _check_sequence(self, writer):
        """Raise an error if a batch would be skipped although no worker has died: it would be lost silently."""
        heir = self.next_sequence == 0 and self.inherited is not None
        if writer.sequence > self.next_sequence and not heir:
            raise SlipringError(
                f"worker {self.number} got the task for batch {writer.sequence} of its stream where batch "
                f"{self.next_sequence} comes next: a fault of slipring, please report it"
            )
        self.next_sequence = writer.sequence + 1

    def _begin_stream(self, writer):
        (iteration, batches, state), self.inherited = self.inherited or (None, 0, None), None
        states = None if state is None else pickle.loads(state)
        resumed = self.job.resume_position(self.number, writer.iteration)
        if states is None or isinstance(states, StateError):
            return self._open_stream(resumed, delivered(resumed))
        position = {"batches": batches, "states": states}
        if iteration != writer.iteration:  # the dataset is as an earlier iteration left it, if that one reached its end
            return self._open_stream({**position, "batches": 0, "ended": True} if states.get("last") else None, 0)
        if states.get("last"):
            load_stream(self.job.dataset, position)
            stream = _ended(self.job)
        else:
            stream = self._open_stream(position, delivered(resumed))
        stream.position = batches
        if "generators" in states:
            seeding.go_on(states["generators"])
        return stream

    def _open_stream(self, position, before):
        """Return the fetcher of this iteration.

        `position` is where to begin; None: at the start. An earlier iteration delivered `before` batches of the pass.
        """
        return StreamFetcher(self.job.dataset, self.job, position, not self.owns_process, self.number, before)

    def _repeat(self, writer):
        """Read and drop a batch that was published, with its errors and the draws of collate_fn."""
        with contextlib.suppress(Exception):
            collates = self.options.collate_fn is not None
            if self.stream.read(LIST if collates else DROP) and collates:
                self.stream.collate(self.stream.rows)
        writer.rewind()

    def _finish(self, writer, begun):
        """Put the ranges of a batch together: this worker made the last one."""
        results = ranges.range_results(writer)
        if results is None:
            return
        rows = ranges.assembled(writer, results, self.rules(self.fetcher), self.options.skip_none)
        del results
        self._seed(writer, writer.seq, writer.n_rows)
        box = self.fetcher.box(rows, writer.asked_for)
        in_place = rows.in_place
        del rows
        if not in_place:
            writer.rewind()  # the batch overwrites the rows and the staged samples, unless it refers to them
        self._publish(writer, box, begun, begun, self._state_of_dataset(writer))

    # ---- errors

    def _culprit(self, writer, error):
        """Return index and row of the sample that raised an exception; (None, None) if it was no single sample."""
        row, asked = take_position(error), writer.asked_for
        if row is None or asked is None or row >= len(asked):
            return None, None
        first = 0 if writer.range in (None, FINISH) else writer.rows_of(writer.range)[0]
        return asked[row], first + row

    def _describe(self, writer, error):
        culprit = self._culprit(writer, error)
        return error_record.record(error, self.number, writer.seq, writer.asked_for, culprit=culprit)

    def _fail(self, writer, error):
        """Publish an exception; return whether this worker must now put the ranges of the batch together."""
        if writer.kind == TASK_NEXT and self.stream is None:
            self.stream = _ended(self.job)  # it could not begin
        described, state = self._describe(writer, error), None
        if writer.range not in (None, FINISH):
            allocation_error = error_record.allocation_error(error)
            del error
            return ranges.end_with_error(self.encoder, writer, described, allocation_error)
        if writer.kind == TASK_NEXT and self.stream.position > writer.sequence and self.stream.continues_after_errors:
            # Repeating and dropping the read would lose rows if it succeeds: a server may have failed.
            state = self._state_of_stream(True)
        writer.rewind()
        try:
            self.encoder.publish(writer, [described], ERROR, state=state)
        except error_record.NO_MEMORY:
            writer.rewind(hard=True)
            self.encoder.publish(writer, [error_record.shortened(described)], ERROR, state=state)
        return False


def _ended(job):
    """Return a stream that is at its end."""
    stream = StreamFetcher((), job)
    stream.ended = True
    return stream
