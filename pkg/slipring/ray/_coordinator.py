"""An actor of Ray's, between its executor and the ingest, that records which worker got which blocks of an epoch.

Why there is an actor: a ``ray.data.DataIterator`` can be pickled into another driver's process, but Ray gives each
block of a pass once. The blocks that a killed process had taken would be lost to the epoch. A reference that is pickled
outside of Ray's calls is never released, so references cannot go through slipring's own pipes. A thread of the training
process would need neither a process nor an actor, but it would copy, collate and run Ray's executor in the process
whose GIL the training needs. A worker that is itself an actor of Ray's cannot inherit slots.
"""

import threading

import ray
from ray.data.dataset import MaterializedDataset


class Coordinator:
    """Draw block references from a ``ray.data.DataIterator`` for the workers of one loader.

    No block's bytes pass through it. The actor reserves no CPU, is on the loader's node, and ends with the process
    that started it. Several threads call it concurrently. With `keep`, it keeps blocks until they are released, so
    that it can hand them out again; else it drops each block as it hands it out. With `turns`, block i belongs to
    worker ``i % turns``; with 0, to the first worker that requests one.
    """

    def __init__(self, iterator, keep, turns):
        self.iterator, self.keep, self.turns = iterator, keep, turns
        self.source = None  # the iterator that each pass executes
        self.lock = threading.Lock()  # held by the thread that draws
        self.run, self.over, self.generation = None, set(), 0
        self._end()

    def reset(self, generation, timeout):
        """Forget all passes of earlier generations, so that an epoch can begin again; refuse their late calls.

        Wait at most `timeout` seconds for a call that is drawing (0: forever); return False if that is too short.
        """
        if not self.lock.acquire(timeout=timeout or -1):
            return False
        try:
            if generation > self.generation:
                self._end()
                self.run, self.over, self.generation = None, set(), generation
        finally:
            self.lock.release()
        return True

    def end(self, run):
        """End a pass whose batches are no longer needed."""
        with self.lock:
            if run == self.run:
                self._end()
                self.run = None

    def take(self, run, worker, number, first=0):
        """Return a worker's block of that number, or None if there are fewer.

        A block is ([reference], (first, end) of its rows or None for all, its size in bytes). If the data has ended
        with an exception, it is returned and not raised: Ray would log it for each outstanding call. `run` is the
        pass, as (generation, the pass's seed); a new one starts the data again. A block can be requested again while
        it is kept. A call costs both processes more than its work, so this one includes `release`, with `first`.
        """
        # Before the lock: a thread that draws may be waiting for this room in the store.
        self.release(run, worker, first)
        with self.lock:
            if run != self.run:
                if run in self.over or run[0] != self.generation:
                    return RuntimeError("another iteration over the same ray.data.DataIterator has begun")
                self._end()
                self._begin(run)
            drawn = self.drawn
            while number >= drawn.get(worker, 0):
                if self.blocks is None:
                    return self.failure
                self._draw(worker)
            held = self.held[worker]
            if number not in held:
                raise RuntimeError(f"block {number} of worker {worker} was given back already")
            return held[number] if self.keep else held.pop(number)

    def release(self, run, worker, first):
        """Drop a worker's blocks with numbers below `first`."""
        if run == self.run:
            held = self.held.get(worker, {})
            for number in [number for number in list(held) if number < first]:
                held.pop(number, None)

    def stats(self):
        """Return Ray's statistics of the execution."""
        return (self.source or self.iterator).stats()

    def kept(self):
        """Return the number of kept blocks."""
        return sum(len(held) for held in self.held.values())

    def _begin(self, run):
        self.run, self.number = run, 0
        self.over.add(run)
        try:
            if self.source is None:
                self.source = _with_blocks(self.iterator)
            self.bundles, _, self.executor = self.source._to_ref_bundle_iterator()
        except Exception as error:  # making the first block has failed
            self.failure = error
            return
        self.blocks = (part for bundle in self.bundles for part in _parts(bundle))

    def _draw(self, worker):
        """Draw the next block and add it to those of its worker."""
        try:
            block = next(self.blocks, None)
        except Exception as error:
            block, self.failure = None, error
        if block is None:
            self._finish()
            return
        if self.turns:
            worker = self.number % self.turns
        self.number += 1
        ray.wait(block[0], timeout=0, fetch_local=True)  # bring it to this node
        number = self.drawn.get(worker, 0)
        self.held.setdefault(worker, {})[number] = block
        self.drawn[worker] = number + 1

    def _end(self):
        """End a pass, finished or not."""
        if getattr(self, "blocks", None) is not None:
            self._finish()
        self.drawn, self.held, self.failure, self.blocks = {}, {}, None, None

    def _finish(self):
        self.blocks = self.bundles = None
        self.source._on_iteration_end(self.executor)
        self.executor = None


def _with_blocks(iterator):
    """Return an iterator that has a materialized dataset's blocks, so that a pass executes nothing.

    Ray drops its cache of these blocks when it pickles the iterator for this actor. Without the cache, each pass would
    begin with an execution. Other iterators are returned as they are.
    """
    data = getattr(iterator, "_base_dataset", None)
    return data.materialize().iterator() if isinstance(data, MaterializedDataset) else iterator


def _parts(bundle):
    """Yield the blocks of a ``RefBundle``."""
    slices = bundle.slices or (None,) * len(bundle.block_refs)
    for reference, about, part in zip(bundle.block_refs, bundle.metadata, slices):
        rows = None if part is None else (part.start_offset, part.end_offset)
        yield [reference], rows, about.size_bytes
