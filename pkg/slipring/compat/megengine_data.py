"""What MegEngine's loader is given: bases of datasets, transforms and collators, and samplers."""

import numpy as np

from slipring import BatchSampler, default_collate
from slipring.compat.refusals import refusing_by
from slipring.options import integer


class StreamDataset:
    """Base of datasets that are iterated. (MegEngine's own, and anything with only ``__iter__``, will do.)"""

    def __iter__(self):
        raise NotImplementedError


class Transform:
    """Base of transforms. (MegEngine's own, and anything with these two methods, will do.)"""

    def apply(self, sample):
        """Return the transformed sample."""
        return sample

    def apply_batch(self, samples):
        """Return the samples of a batch transformed."""
        return [self.apply(sample) for sample in samples]


class Collator:
    """Base of collators. (MegEngine's own, and anything with `apply`, will do.)"""

    def apply(self, samples):
        """Return the batch: `slipring.default_collate`, in the slot."""
        return default_collate(samples)


# ---- samplers, as `megengine.data.sampler` has them: they give the indices of whole batches


class MapSampler:
    """Base of samplers of indices: what `sample` returns, in batches.

    Parameters
    ----------
    dataset
        With a length.
    batch_size : int
    drop_last : bool
        Drop a last batch that is not full.
    num_samples : int, optional
        Per epoch and all ranks; default the dataset's length.
    world_size, rank : int, optional
        This rank's share, as `slipring.BatchSampler` has it.
    seed : int, optional
        Of the order. Ranks must have the same: where there are several, the default is 0.

    Raises
    ------
    ValueError
        Naming the argument, its value and the rule.
    """

    @refusing_by(ValueError)
    def __init__(self, dataset, batch_size=1, drop_last=False, num_samples=None, world_size=None, rank=None,
                 seed=None):  # fmt: skip
        self.world_size = 1 if world_size is None else world_size
        self.rank = 0 if rank is None else rank
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        integer("num_samples", num_samples, 1, optional=True)
        self.num_samples = len(dataset) if num_samples is None else num_samples
        self._batches(self.num_samples)  # refuses what does not fit
        self.seed = 0 if seed is None and self.world_size > 1 else seed
        self.rng = np.random.RandomState(self.seed)

    def sample(self):
        """Return the indices of an epoch, for all ranks."""
        raise NotImplementedError

    def _batches(self, indices):
        return BatchSampler(
            indices, self.batch_size, drop_last=self.drop_last, rank=self.rank, world_size=self.world_size
        )

    def __iter__(self):
        yield from self._batches(list(self.sample()))

    def __len__(self):
        return len(self._batches(self.num_samples))


class SequentialSampler(MapSampler):
    """Indices in order: all, or those given."""

    def __init__(self, dataset, batch_size=1, drop_last=False, indices=None, world_size=None, rank=None):
        n = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, n, world_size, rank)
        self.indices = indices

    def sample(self):
        return range(len(self.dataset)) if self.indices is None else self.indices


class RandomSampler(MapSampler):
    """All indices, or those given, once each, in another order in every epoch."""

    def __init__(self, dataset, batch_size=1, drop_last=False, indices=None, world_size=None, rank=None,
                 seed=None):  # fmt: skip
        n = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, n, world_size, rank, seed)
        self.indices = indices

    def sample(self):
        return self.rng.permutation(len(self.dataset) if self.indices is None else self.indices).tolist()


class ReplacementSampler(MapSampler):
    """`num_samples` indices drawn with replacement, by weight where weights are given.

    Parameters
    ----------
    weights : sequence of float, optional
        One per sample of the dataset; need not sum up to one.
    """

    @refusing_by(ValueError)
    def __init__(self, dataset, batch_size=1, drop_last=False, num_samples=None, weights=None,
                 world_size=None, rank=None, seed=None):  # fmt: skip
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        self.weights = BatchSampler(len(dataset), weights=weights).weights

    def sample(self):
        return self.rng.choice(len(self.dataset), self.num_samples, p=self.weights).tolist()


class Infinite:
    """Another sampler, epoch after epoch, without end."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.batch_size = getattr(sampler, "batch_size", None)
        self._batches = iter(sampler)

    def __iter__(self):
        return self

    def __next__(self):
        for _ in range(2):
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = iter(self.sampler)
        raise StopIteration  # it has no batches at all

    def __len__(self):
        return np.iinfo(np.int64).max


class StreamSampler:
    """Says how many samples of a stream make a batch."""

    @refusing_by(ValueError)
    def __init__(self, batch_size=1):
        integer("batch_size", batch_size, 1)
        self.batch_size = batch_size
