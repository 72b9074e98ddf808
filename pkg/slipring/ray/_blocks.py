"""The ingest in a worker: it joins the cluster, takes blocks, and copies their rows into slots."""

from __future__ import annotations

import collections
import math
import secrets
import signal
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from slipring._core.passes._rebatch import Rebatcher, Shuffler
from slipring._core.ring._ring import mix
from slipring._core.workers.worker import Worker
from slipring.errors import BlockError, ImageError
from slipring.ray import _cluster as cluster
from slipring.streams._blocks import BlockReader
from slipring.streams._source import Stream, StreamPass


def join(address, namespace, worker):
    """Join the cluster as a separate driver; a worker process calls it once, before it serves."""
    import ray

    if not ray.is_initialized():
        ray.init(address, namespace=namespace, log_to_driver=False, logging_level="error", configure_logging=False)
    elif (other := ray.get_runtime_context().gcs_address) != address:
        raise RuntimeError(
            f"the process of worker {worker} is in the Ray cluster at {other}, but the loader's data is in the one at "
            f"{address}. A worker process imports the program's main module, which called ray.init(): call it under "
            "`if __name__ == '__main__':`"
        )
    # Ray's handler prints the native stack. The program sends this signal to a worker that does not end by itself.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class BlockWorker(Worker):
    """A worker of whose code only a `collate_fn` can draw from the process's own generators."""

    @classmethod
    def check_start(cls, job):
        """Raise an exception if the program has left the cluster, or the `Coordinator` has died."""
        cluster.check(job.dataset.address, job.dataset.coordinator)

    @classmethod
    def environment(cls, job):
        """Make ray.init() in the program's main module, which a worker imports, join the cluster and not start one."""
        return {"RAY_ADDRESS": job.dataset.address}

    @property
    def keeps_globals(self):
        """bool: whether snapshots include the process's own generators; only a `collate_fn` draws from them."""
        return self.job.dataset.collate_fn is not None


class BlockStream(Stream):
    """Batches of the blocks that a `Coordinator` hands out, as an iterable dataset for a loader's workers.

    `address` is the cluster's. `coordinator` is the pickled handle of the actor, and `split` comes from
    `cluster.split_of`. `collate_fn` converts each batch into the delivered value; None delivers the batch itself. A
    worker requests `prefetch` blocks in advance. With `keep`, the coordinator keeps blocks until they are released. The
    other options are those of `slipring.stream`.
    """

    _keys = ("rows", "shuffled", "divided", "execution", "from")
    _source_name = "the data"

    def __init__(
        self, address, coordinator, split, batch_size, *, collate_fn, image_columns, prefetch, keep, **options
    ):
        super().__init__(_no_blocks, batch_size, **options)
        self.address, self.coordinator = address, coordinator
        self.collate_fn, self.image_columns = collate_fn, image_columns
        self.rank, self.world_size = split
        self.prefetch, self.keep = prefetch, keep
        self.key = secrets.token_hex(8)  # the loader's name for the coordinator
        self.generation = 0  # the coordinator's number for these passes: see `Coordinator.reset`

    def __iter__(self):
        self._passes += 1
        return BlockPass(self)

    def check_position(self, state, since):
        """See `Stream`; the state must also be of the same rank of a split."""
        super().check_position(state, since)
        had = state["divided"][2:]
        if had != [self.rank, self.world_size]:
            raise ValueError(
                f"the state is of rank {had[0]} of {had[1]}, the loader reads as rank {self.rank} of "
                f"{self.world_size}: each has a part of its own. Resume with as many ranks, each with its own state, "
                "or finish the epoch first"
            )


def _no_blocks(worker, num_workers):
    return ()


class BlockPass(StreamPass):
    """One pass of a worker over its blocks.

    Its state has "waits": the ns spent so far waiting for references, waiting for blocks, copying, and collating.
    """

    _skipped = BlockError, ImageError
    _copied = _collated = 0

    def _begin(self, seed, rows=0, raised=0):
        super()._begin(seed, rows, raised)
        self._blocks = None
        self._from = 0, 0  # the first block to read, and the number of rows before it

    def open(self):
        from ray import cloudpickle

        stream = self._stream
        block, before = self._from
        self._coordinator = cloudpickle.loads(stream.coordinator)
        self._block_reader = CountingReader(stream, before, self._raised)
        row_seed = mix(self._seed, self._worker)
        self._run = stream.generation, self._seed
        image_columns = None if stream.image_columns is None else stream.image_columns.seeded(row_seed)
        self._blocks = Blocks(
            self._coordinator,
            self._run,
            self._worker,
            block,
            stream.prefetch,
            self._block_reader,
            image_columns,
            # A block that lasts more than one batch: the next request waits for a `release`, which saves a call.
            2 * stream.batch_size if stream.keep else 0,
        )
        self._done = self._from  # the block in which the last batch ended, and the rows before that block
        common = self._blocks, self._block_reader, stream.batch_size, stream.drop_last
        if stream.shuffle_buffer:
            self.made = Shuffler(*common, stream.shuffle_buffer, np.random.Generator(np.random.Philox(key=row_seed)))
        else:
            self.made = Rebatcher(*common)
        self._before = before
        self.made.skip(self.rows_to_skip - before)

    def catch_up(self):
        large, self._blocks.large = self._blocks.large, 0  # many blocks may be skipped: request each in advance
        super().catch_up()
        self._blocks.large = large

    def __next__(self):
        if self.made is None:
            self.open()
        stream, blocks = self._stream, self._blocks
        if stream.keep:  # the batches of these rows are published, so no worker needs their blocks again
            blocks.release(self._done[0])
        waited = blocks.waited
        begun = time.perf_counter_ns()
        batch = super().__next__()
        made = time.perf_counter_ns()
        self._copied += made - begun - (blocks.waited - waited)
        if stream.collate_fn is not None:
            batch = stream.collate_fn(batch)
            self._collated += time.perf_counter_ns() - made
        self._done = blocks.position
        return batch

    @property
    def _rows(self):
        """int: rows of the stream up to the end of the last batch."""
        return self.rows_to_skip if self.made is None else max(self.rows_to_skip, self._before + self.made.made)

    @property
    def _divided(self):
        return [*super()._divided, self._stream.rank, self._stream.world_size]

    def state_dict(self) -> dict[str, Any]:
        blocks = self._blocks
        asked_ns, got_ns = (0, 0) if blocks is None else (blocks.asked_ns, blocks.got_ns)
        return {
            **super().state_dict(),
            "rows": self._rows,
            "execution": [self._stream.key, self._stream.generation],
            # The first block needed, and the number of rows before it. Another execution reads from the first block.
            "from": list(self._from if blocks is None else self._done),
            "raised": self._raised if blocks is None else self._block_reader.raised,
            "waits": [asked_ns, got_ns, self._copied, self._collated],
        }

    def load_state_dict(self, state):
        super().load_state_dict(state)
        stream = self._stream
        if not stream.shuffle_buffer and state["execution"] == [stream.key, stream.generation]:
            self._from = tuple(state["from"])


class CountingReader(BlockReader):
    """A `BlockReader` of blocks that counts the rows of valid blocks.

    Blocks with numbers below `known` have raised their errors in an earlier pass. `raised` is that number for this
    pass.
    """

    def __init__(self, stream, rows, known):
        super().__init__(stream)
        self.rows, self.batches = rows, rows // stream.batch_size
        self.known = self.raised = known

    def read(self, given, number, batch):
        try:
            block = super().read(given, given.number, self.batches + batch)
        except BlockError:
            if given.number < self.known:
                return None
            self.raised = given.number + 1
            raise
        if block is not None:
            self.rows += block.rows
        return block


class Coming:
    """A requested block: first its reference, then the block, which a Ray thread fetches during the copying."""

    def __init__(self, call):
        self.taken = call.future()  # the result of `Coordinator.take`
        # A Future of the block, or of None if there is no reference; made by `get`.
        self.block = None

    def get(self):
        """Fetch the block as soon as its reference arrives; without this call it stays in the store unread."""
        if self.block is None:
            self.block = Future()
            # A future keeps its callbacks. A callback bound to this object would be a cycle that keeps the block.
            self.taken.add_done_callback(partial(_taken, self.block))


def _taken(block, taken):
    """Fetch a block whose reference has arrived. This runs in Ray's thread, where an exception would be lost."""
    try:
        found = None if taken.exception() is not None else taken.result()
        if isinstance(found, tuple):
            found[0][0].future().add_done_callback(partial(_got, block))
        else:  # reading `taken` gives the reason
            block.set_result(None)
    except BaseException as error:
        block.set_exception(error)


def _got(block, got):
    error = got.exception()
    if error is not None:
        block.set_exception(error)
    else:
        block.set_result(got.result())


class Blocks:
    """The blocks of one worker, in order, as `Columns`. An exception costs at most the block that it concerns.

    `first` is the number of the first block; `run` and `worker` are those of `Coordinator.take`. `depth` blocks are
    requested before they are needed. After a block of at least `large` rows, the next request is made by the next
    `release`, in the same call; 0: never.
    """

    def __init__(self, coordinator, run, worker, first, depth, reader, image_columns, large):
        import ray

        from slipring.ray import _columns as columns  # imports pyarrow and Ray's data

        self._ray, self._columns = ray, columns
        self._coordinator, self._run, self._worker, self._depth = coordinator, run, worker, depth
        self._block_reader, self._image_columns, self.large = reader, image_columns, large
        self._calls = collections.deque()  # requested, not yet taken
        self._next = first  # number of the next block to request
        self._parts = []
        # The number of the latest block; (that number, the rows before it).
        self.at, self.position, self._released = first, (first, reader.rows), first
        # Blocks so far, and the time spent waiting for references and for blocks.
        self.count = self.asked_ns = self.got_ns = 0

    @property
    def waited(self):
        """int: the ns spent waiting for references and blocks."""
        return self.asked_ns + self.got_ns

    def __iter__(self):
        return self

    def __next__(self):
        while not self._parts:
            self._take()
        return self._columns.Columns(self._parts.pop(), self.at, self._image_columns, self._block_reader.rows)

    def _take(self):
        """Take the next block's record batches. Nothing refers to the previous block now."""
        begun = time.perf_counter_ns()
        self._ask(1)
        number, coming = self._next - len(self._calls), self._calls[0]
        coming.get()
        taken = coming.taken.result()
        asked = time.perf_counter_ns()
        self.asked_ns += asked - begun
        if taken is None:
            raise StopIteration
        if isinstance(taken, Exception):
            raise taken  # every later call raises it too: the data is not at its end
        self._calls.popleft()
        self.at, self.position = number, (number, self._block_reader.rows)
        self.count += 1
        references, rows, _ = taken
        del taken
        try:
            # ray.get makes Ray fetch this block before the others.
            block = coming.block.result() if coming.block.done() else self._ray.get(references[0])
        finally:
            del coming, references
            self.got_ns += time.perf_counter_ns() - asked
        self._parts = self._columns.batches_of(block, rows)[::-1]
        if sum(part.num_rows for part in self._parts) < (self.large or math.inf):
            self._ask_ahead()

    def release(self, first):
        """Make the coordinator drop blocks with numbers below `first`, and request the next ones, in one call."""
        before, self._released = self._released, first
        asked = self._ask_ahead()
        if first > before and not asked:
            self._coordinator.release.remote(self._run, self._worker, first)

    def _ask_ahead(self):
        asked = self._ask(self._depth)
        if self._calls:
            self._calls[0].get()
        return asked

    def _ask(self, depth):
        """Request blocks until `depth` of them are outstanding; return whether there was a call."""
        missing = depth - len(self._calls)
        for _ in range(missing):
            call = self._coordinator.take.remote(self._run, self._worker, self._next, self._released)
            self._calls.append(Coming(call))
            self._next += 1
        return missing > 0
