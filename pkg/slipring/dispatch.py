"""What is to be done, in which order: tickets and the tasks behind them."""

import numpy as np

from slipring._ring import mix
from slipring._slices import Slices

_SHUFFLE = 0x5348554646  # keeps the order's seed apart from the batches'


def map_plan(options, dataset, seed):
    """Return the batches of one epoch of a map dataset.

    An iterator that gives, per ticket, a list of indices as the sampler gave them; `Slices` where slipring
    itself sets the order.
    """
    if options.batch_sampler is not None:
        return _Listed(iter(options.batch_sampler), options)
    if options.sampler is not None:
        return grouped(iter(options.sampler), options.batch_size or 1, options.drop_last)
    return _sliced(len(dataset), options, seed)


def _sliced(length, options, seed):
    order = None
    if options.shuffle:
        order = np.random.Generator(np.random.Philox(key=mix(seed, _SHUFFLE))).permutation(length)
    return Slices(length, min(options.batch_size or 1, 1 << 62), options.drop_last or False, order)


class _Listed:
    """The batches of a sampler. No generator: an exception ends those, Ctrl-C too, for who goes on.

    Attributes
    ----------
    would_wait : callable or None
        Whether the next one would have to be waited for; None: it never must, or does not say so.
    """

    def __init__(self, batches, options):
        self.batches, self.options = batches, options
        self.would_wait = getattr(batches, "would_wait", None)

    def __next__(self):
        indices = list(next(self.batches))
        self.options.check_ranges(len(indices))
        return indices

    def close(self):
        """Nobody asks any more: they may be made in a thread."""
        end = getattr(self.batches, "close", None)
        if end is not None:
            end()


def grouped(items, size, drop_last=False):
    """Yield lists of `size` items, at last of those that are left."""
    group = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group and not drop_last:
        yield group


class StreamPlan:
    """Whose turn it is: each worker makes its own batches of an iterable dataset.

    Parameters
    ----------
    num_workers : int
    in_order : bool
        In turn; else whoever has least to do, so that a slow worker does not end up with all tasks.
    first : int
        Whose turn is the first.
    """

    def __init__(self, num_workers, in_order, first=0):
        self.turn = [(first + k) % num_workers for k in range(num_workers)]
        self.sequence = [0] * num_workers
        self.pending = [0] * num_workers
        self.in_order = in_order

    def __next__(self):
        if not self.turn:
            raise StopIteration
        worker = self.turn[0] if self.in_order else min(self.turn, key=self.pending.__getitem__)
        self.turn.remove(worker)
        self.turn.append(worker)
        self.sequence[worker] += 1
        self.pending[worker] += 1
        return worker, self.sequence[worker] - 1

    def came(self, worker):
        """A batch (or an error, or the end) has come from the worker."""
        self.pending[worker] -= 1

    def ended(self, worker, last):
        """The worker's stream is at its end; `last`: what `StreamFetcher.last` has sent with it."""
        if worker in self.turn:
            self.turn.remove(worker)
