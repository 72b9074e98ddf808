"""Plan the tasks of a pass: which indices, or which worker's next batch, belong to each sequence number."""

from slipring._core._iteration import Grouped as grouped
from slipring._core._iteration import Listed, StreamPlan
from slipring._core._ring import IndexOrder, Slices, mix

__all__ = ["StreamPlan", "grouped", "map_plan"]

_SHUFFLE = 0x5348554646  # keeps the order's seed apart from the batches'


def map_plan(options, dataset, seed):
    """Return an iterator over the batches of one epoch of a map dataset.

    It yields, per task, a list of indices as the sampler gave them. If slipring itself sets the order, it is a
    `Slices`.
    """
    if options.batch_sampler is not None:
        return Listed(iter(options.batch_sampler), options.check_ranges)
    if options.sampler is not None:
        return grouped(options.sampler, options.batch_size or 1, options.drop_last)
    n = len(dataset)
    order = IndexOrder.shuffled(n, mix(seed, _SHUFFLE)) if options.shuffle else IndexOrder(n)
    return Slices(order, min(options.batch_size or 1, 1 << 62), options.drop_last or False)
