"""The rest of the order of all ranks after a position, and one rank's part of it."""

from slipring._core.reshard import position_of
from slipring.sampler import BatchSampler
from slipring.torch.samplers import listed, order_of_ranks


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
        sampler, ranks = self.sampler, self.sampler.num_replicas
        left = max(0, len(sampler.dataset) - self.position)  # the last step counts as a whole one
        # Without drop_last the order's first indices follow its last ones, as at the end of any epoch of torch's.
        count = left // ranks if sampler.drop_last else -(-left // ranks)
        return listed(order_of_ranks(sampler), self.position + sampler.rank, count, ranks)
