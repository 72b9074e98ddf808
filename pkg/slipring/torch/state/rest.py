"""The rest of the order of all ranks after a position, and one rank's part of it."""

import copy
import itertools

from torch.utils.data.distributed import DistributedSampler

from slipring.sampler import BatchSampler


def position_of(state, ranks):
    """Return how many samples of the order had been delivered to all ranks together, in an epoch that is not finished.

    `ranks` says how they were divided, see `slipring.torch.state.elastic.divided`; for a `slipring.BatchSampler` it
    includes the sampler's own position.
    """
    step = ranks["batch_size"] * ranks["world_size"]
    if "position" in ranks:
        return ranks["position"] - len(state["ahead"]) * step
    return (state["origin"] or 0) + state["yielded"] * step


def source_behind(source, resume):
    """Return the source of the indices: a `Rest` if a state resumes with other batches than torch's sampler makes."""
    if resume is None or resume["origin"] is None or isinstance(source, BatchSampler):
        return source
    return Rest(source, position_of(resume, resume["ranks"]))


class Rest:
    """The indices that a DistributedSampler gives its rank of the order after a position; all ranks get as many."""

    def __init__(self, sampler, position):
        self.sampler, self.position = sampler, position

    def __iter__(self):
        sampler = self.sampler
        whole, n = copy.copy(sampler), len(sampler.dataset)
        whole.rank, whole.num_replicas, whole.num_samples, whole.total_size = 0, 1, n, n
        order = list(DistributedSampler.__iter__(whole))
        left, ranks = order[self.position :], sampler.num_replicas
        if sampler.drop_last:
            left = left[: len(left) // ranks * ranks]
        else:  # as torch does at the end of an epoch
            left += itertools.islice(itertools.cycle(order), -len(left) % ranks)
        return iter(left[sampler.rank :: ranks])
