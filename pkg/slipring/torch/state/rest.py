"""What is left of the order of all ranks behind a position, and a rank's part of it."""

import copy
import itertools

from torch.utils.data.distributed import DistributedSampler

from slipring.sampler import BatchSampler


def position_of(state, ranks):
    """Return how many samples of the order had been delivered, to all ranks.

    Parameters
    ----------
    state : dict
        Of an epoch that is not finished.
    ranks : dict
        How they were divided, see `slipring.torch.state.elastic.divided`; of a `slipring.BatchSampler` with its place.
    """
    step = ranks["batch_size"] * ranks["world_size"]
    if "position" in ranks:
        return ranks["position"] - len(state["ahead"]) * step
    return (state["origin"] or 0) + state["yielded"] * step


def source_behind(source, resume):
    """Return what gives the indices where a state goes on in other batches than torch's sampler would."""
    if resume is None or resume["origin"] is None or isinstance(source, BatchSampler):
        return source
    return Rest(source, position_of(resume, resume["ranks"]))


class Rest:
    """What torch's DistributedSampler gives its rank of the order behind a position; each rank as many.

    Parameters
    ----------
    sampler : DistributedSampler
    position : int
    """

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
