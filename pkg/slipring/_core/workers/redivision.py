"""Find Accelerate or Lightning at dividing one rank's samples among the ranks again."""

import sys

# Their modules whose objects divide batches, samples or indices, and what to do.
_ACCELERATE = "do not pass this loader to Accelerate's prepare()"
_LIGHTNING = "pass use_distributed_sampler=False to Lightning"
_REMEDIES = {
    "accelerate.data_loader": _ACCELERATE,
    "lightning_fabric.utilities.distributed": _LIGHTNING,
    "lightning.fabric.utilities.distributed": _LIGHTNING,
}


def check_divided_once(divided, has_own_order=False, indivisible=False):
    """Raise ValueError if a library divides what the caller reads of `divided` among several ranks.

    `divided` has `world_size`. With a `world_size` of 1, this is an error only if it `has_own_order`, which the other
    ranks do not have, or if it is `indivisible`: its batches differ in their numbers of samples.
    """
    if divided.world_size == 1 and not has_own_order and not indivisible:
        return
    frame = sys._getframe(1)
    while frame is not None:
        # The locals of any other frame are not touched: a reference to them could outlive them.
        remedy = _REMEDIES.get(frame.f_globals.get("__name__"))
        ranks = 1 if remedy is None else _ranks_of(frame.f_locals.get("self"))
        if ranks > 1:
            raise _refused(divided, ranks, remedy, indivisible)
        frame = frame.f_back


def hint_for(indices):
    """Return the end of the error about indices that are a sampler of torch's, which Lightning passes."""
    if not any(
        (kind.__module__, kind.__name__) == ("torch.utils.data.sampler", "Sampler") for kind in type(indices).__mro__
    ):
        return ""
    return (
        f". If Lightning makes the batch sampler again, {_LIGHTNING}; for predict(), give the loader batch_size "
        "and sampler in place of a batch sampler"
    )


def _ranks_of(divider):
    """Return among how many ranks an object of these libraries divides; 1 if it does not divide."""
    has = getattr(divider, "__dict__", {})  # not getattr(): their loaders return the attributes of others
    counts = has.get("num_processes"), has.get("num_replicas"), getattr(has.get("state"), "num_processes", None)
    return next((count for count in counts if isinstance(count, int)), 1)


def _refused(divided, ranks, remedy, indivisible):
    name = type(divided).__name__
    if indivisible:
        return ValueError(
            f"{name} has rank={divided.rank} and world_size={divided.world_size}, and its batches would be divided "
            f"among {ranks} processes, which loses batches of other than batch_size samples: {remedy}, and give {name} "
            "the rank and the world_size"
        )
    if divided.world_size == 1:
        return ValueError(
            f"{name} has seed=None, so each of {ranks} processes has another order, and some samples would be read "
            f"twice, others never: give it a seed, the same in all processes"
        )
    return ValueError(
        f"{name} has rank={divided.rank} and world_size={divided.world_size}, and its part would be divided among "
        f"{ranks} processes again, so most samples would never be read: {remedy}, or leave out rank and world_size "
        "(with the same seed in all processes)"
    )
