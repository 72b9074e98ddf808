"""The orders of torch's own samplers, as arrays with 8 bytes per index in place of lists with 40.

Indices and draws are those of torch 2.13's `RandomSampler.__iter__` and `DistributedSampler.__iter__`.
"""

import itertools

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from slipring._core.passes.reshard import position_of
from slipring._core.ring._order import IndexOrder
from slipring.sampler import BatchSampler

_CHUNK = 4096  # indices that become ints at once
_OF_RANDOM, _OF_DISTRIBUTED = RandomSampler.__iter__, DistributedSampler.__iter__


def indices_of(sampler):
    """Return an iterator like ``iter(sampler)``: the same indices, drawn from the same generators at the same time."""
    made_by = type(sampler).__iter__
    if made_by is _OF_RANDOM and not sampler.replacement and _on_cpu(sampler.generator):
        return _random(sampler)
    if made_by is _OF_DISTRIBUTED and _has_its_length(sampler) and _on_cpu(None):
        return listed(order_of_ranks(sampler), sampler.rank, sampler.num_samples, sampler.num_replicas)
    return iter(sampler)


def order_of_ranks(sampler):
    """Return the `IndexOrder` of an epoch that all ranks of a DistributedSampler share."""
    n = len(sampler.dataset)
    if not sampler.shuffle:
        return IndexOrder(n)
    return _drawn(n, torch.Generator().manual_seed(sampler.seed + sampler.epoch))


def listed(order, first, count, step=1):
    """Return an iterator over `count` indices as ints, at the positions first, first + step, ... of an `IndexOrder`.

    All of it is compiled code, so no signal handler can raise within it and lose indices.
    """
    parts = map(order.part, itertools.count(first, _CHUNK * step), itertools.repeat(_CHUNK), itertools.repeat(step))
    return itertools.islice(itertools.chain.from_iterable(map(np.ndarray.tolist, parts)), count)


def _on_cpu(generator):
    return torch.get_default_device().type == "cpu" and (generator is None or generator.device.type == "cpu")


def _has_its_length(sampler):
    """Return whether the dataset still has the length known to a DistributedSampler; if not, torch raises an error."""
    n, total = len(sampler.dataset), sampler.total_size
    return n > 0 and (n >= total if sampler.drop_last else n <= total < n + sampler.num_replicas)


def _drawn(n, generator):
    drawn = np.empty(n, np.int64)  # numpy requests huge pages, which make a permutation faster
    torch.randperm(n, generator=generator, out=torch.from_numpy(drawn))
    return IndexOrder.stored(drawn)


def _random(sampler):
    n, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        generator = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    for _ in range(sampler.num_samples // n):
        yield from listed(_drawn(n, generator), 0, n)
    rest = sampler.num_samples % n
    if rest or generator is sampler.generator:  # torch draws it in any case, and the user's generator shows that
        yield from listed(_drawn(n, generator), 0, rest)


# ---- the rest of the order of all ranks after a position


def wrapped_source(source, resume):
    """Return the source of the indices: a `RemainingOrder` if a state resumes with other batches than the sampler's."""
    if resume is None or resume.origin is None or isinstance(source, BatchSampler):
        return source
    return RemainingOrder(source, position_of(resume, resume.ranks))


class RemainingOrder:
    """The indices after a position in the order that a DistributedSampler gives its rank; all ranks get as many."""

    def __init__(self, sampler, position):
        self.sampler, self.position = sampler, position

    def __iter__(self):
        sampler, ranks = self.sampler, self.sampler.num_replicas
        left = max(0, len(sampler.dataset) - self.position)  # negative if the last step was not full
        # Without drop_last the first indices of the order follow the last, as at the end of torch's epochs.
        count = left // ranks if sampler.drop_last else -(-left // ranks)
        return listed(order_of_ranks(sampler), self.position + sampler.rank, count, ranks)
