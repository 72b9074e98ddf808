"""Which blocks of an epoch were handed out to whom: an actor of Ray's, between its executor and the last mile."""

import threading

import ray


class Ledger:
    """Draws references to blocks from a ``ray.data.DataIterator``, and hands them to the workers of one loader.

    No block's bytes come here. The actor has no processor of its own, lies on the loader's node, and ends with the
    process that has made it. It is asked from several threads at once.

    Parameters
    ----------
    iterator : ray.data.DataIterator
    keep : bool
        Hold on to blocks until they are done with, so that they can be handed out again. False: let go of them as
        they are handed out.
    turns : int
        0: whoever asks first gets the next block. Else block i is worker ``i % turns``'s.
    """

    def __init__(self, iterator, keep, turns):
        self.iterator, self.keep, self.turns = iterator, keep, turns
        self.lock = threading.Lock()  # of who draws
        self.run, self.over, self.generation = None, set(), 0
        self._end()

    def reset(self, generation, timeout):
        """Forget all passes of earlier generations: an epoch may begin once more. Who is late with one is refused.

        Parameters
        ----------
        generation : int
        timeout : float
            Seconds to wait for who draws; 0 waits for ever.

        Returns
        -------
        bool
            False: nothing was done in time.
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
        """End a pass whose batches nobody wants any more."""
        with self.lock:
            if run == self.run:
                self._end()
                self.run = None

    def take(self, run, worker, number, first=0):
        """Return the block of that number of a worker's; None: there are fewer.

        A call costs both processes more than what it does, so this one has `release` in it.

        Parameters
        ----------
        run : (int, int)
            Which pass over the data it is about, its generation and epoch; a new one begins the data again.
        worker, number : int
            The same number may be asked for again as long as the block is kept.
        first : int
            As `release` has it.

        Returns
        -------
        tuple, Exception or None
            A list with the reference, (first, end) of its rows or None for all, and its bytes. An exception is what
            the data has ended with. (Were it raised here, Ray would log it for each call that was made ahead.)
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
        """Let go of a worker's blocks with smaller numbers."""
        if run == self.run:
            held = self.held.get(worker, {})
            for number in [number for number in list(held) if number < first]:
                held.pop(number, None)

    def stats(self):
        """Return what Ray says of the execution."""
        return self.iterator.stats()

    def kept(self):
        """Return how many blocks are kept."""
        return sum(len(held) for held in self.held.values())

    def _begin(self, run):
        self.run, self.number = run, 0
        self.over.add(run)
        try:
            self.bundles, _, self.executor = self.iterator._to_ref_bundle_iterator()
        except Exception as error:  # of the first block already
            self.failure = error
            return
        self.blocks = (part for bundle in self.bundles for part in _parts(bundle))

    def _draw(self, worker):
        """Have the data's next block among those that a worker is to get."""
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
        self.iterator._on_iteration_end(self.executor)
        self.executor = None


def _parts(bundle):
    """The blocks of a ``RefBundle``."""
    slices = bundle.slices or (None,) * len(bundle.block_refs)
    for reference, about, part in zip(bundle.block_refs, bundle.metadata, slices):
        rows = None if part is None else (part.start_offset, part.end_offset)
        yield [reference], rows, about.size_bytes
