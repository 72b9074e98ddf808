"""Paddle's BatchSampler."""

import numpy as np

from slipring.compat.refusals import refusing_by
from slipring.dispatch import grouped
from slipring.options import flag, integer


class BatchSampler:
    """Lists of indices, drawn as `paddle.io.BatchSampler` draws them.

    Parameters
    ----------
    dataset, sampler
        One of the two; a sampler gives indices.
    shuffle : bool
    batch_size : int
    drop_last : bool

    Raises
    ------
    ValueError, TypeError
        Naming the argument, its value and the rule; they are also the AssertionErrors that paddle raises.
    """

    @refusing_by(AssertionError)
    def __init__(self, dataset=None, sampler=None, shuffle=False, batch_size=1, drop_last=False):
        integer("batch_size", batch_size, 1)
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        if (dataset is None) == (sampler is None):
            raise ValueError("either dataset or sampler must be given, and not both")
        if sampler is not None and shuffle:
            raise ValueError("shuffle=True and sampler exclude each other: the sampler sets the order")
        self.dataset, self.sampler, self.shuffle = dataset, sampler, shuffle
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self):
        indices = self.sampler
        if indices is None:
            n = len(self.dataset)
            indices = np.random.choice(np.arange(n), n, replace=False).tolist() if self.shuffle else range(n)
        return grouped(indices, self.batch_size, self.drop_last)

    def __len__(self):
        n = len(self.dataset if self.sampler is None else self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
