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
    """The coordinator that draws block references from a ``ray.data.DataIterator`` for the workers of one loader.

    No block's bytes pass through it. The actor reserves no CPU, lies on the loader's node, and ends with the process
    that has started it. Several threads call it concurrently. With `keep`, it keeps blocks until they are released,
    so that they can be handed out again; else it drops each block as it hands it out. With `turns`, block i belongs
    to worker ``i % turns``; 0: to the worker that asks first.
    """

    def __init__(self, iterator, keep, turns):
        self.iterator, self.keep, self.turns = iterator, keep, turns
        self.source = None  # the iterator that each pass executes
        self.lock = threading.Lock()  # of who draws
        self.run, self.over, self.generation = None, set(), 0
        self._end()

    def reset(self, generation, timeout):
        """Forget all passes of earlier generations, so that an epoch may begin again; late calls of those are refused.

        Wait at most `timeout` seconds for a call that draws (0: for ever); return False if nothing was done in time.
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
        """End a pass whose batches nobody needs any more."""
        with self.lock:
            if run == self.run:
                self._end()
                self.run = None

    def take(self, run, worker, number, first=0):
        """Return a worker's block of that number; None: there are fewer.

        A block is ([reference], (first, end) of its rows or None for all, its size in bytes). If the data has ended
        with an exception, that is returned, not raised: Ray would log it for each call that was made ahead. `run` is
        the pass, as (generation, the pass's seed); a new one starts the data again. The same number may be requested
        again as long as the block is kept. A call costs both processes more than its work, so this one includes
        `release`, with `first`.
        """
        # At once: who draws may wait for the room that this makes in the store.
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
        """Return how many blocks are kept."""
        return sum(len(held) for held in self.held.values())

    def _begin(self, run):
        self.run, self.number = run, 0
        self.over.add(run)
        try:
            if self.source is None:
                self.source = _with_blocks(self.iterator)
            self.bundles, _, self.executor = self.source._to_ref_bundle_iterator()
        except Exception as error:  # of the first block already
            self.failure = error
            return
        self.blocks = (part for bundle in self.bundles for part in _parts(bundle))

    def _draw(self, worker):
        """Add the data's next block to those of the worker that is to get it."""
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
        ray.wait(block[0], timeout=0, fetch_local=True)  # have it brought to this node
        number = self.drawn.get(worker, 0)
        self.held.setdefault(worker, {})[number] = block
        self.drawn[worker] = number + 1

    def _end(self):
        """End a pass, at its end or in the middle."""
        if getattr(self, "blocks", None) is not None:
            self._finish()
        self.drawn, self.held, self.failure, self.blocks = {}, {}, None, None

    def _finish(self):
        self.blocks = self.bundles = None
        self.source._on_iteration_end(self.executor)
        self.executor = None


def _with_blocks(iterator):
    """Return an iterator that knows the blocks of a materialized dataset, so that a pass executes nothing.

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
