"""What the ranks of a job say, each of its own loader."""

import dataclasses
import sys

from slipring._core import process


def gather(verdict):
    """Return the verdicts of all ranks as dicts with their rank, the one that waits longest first.

    Empty where torch.distributed is not in use. It is a collective call: every rank must come here.
    """
    known = process.global_rank()
    if known is None:
        return []
    rank, ranks = known
    found = [None] * ranks
    told = {"rank": rank, **dataclasses.asdict(verdict)}
    sys.modules["torch"].distributed.all_gather_object(found, told)
    return sorted(found, key=lambda each: -each["wait_share"])


def slowest(ranks):
    """Return what holds all ranks up, as a sentence; empty where none waits much longer than the others.

    Steps of ranks wait for each other: all are as slow as the one that waits longest for its data.
    """
    if len(ranks) < 2:
        return ""
    first, others = ranks[0], ranks[1:]
    usual = sorted(each["wait_share"] for each in others)[len(others) // 2]
    if not first["data_bound"] or first["wait_share"] < 2 * usual:
        return ""
    return (
        f"Rank {first['rank']} holds up all {len(ranks)}: it waits {first['wait_share']:.0%} of its time for data, the "
        f"others {usual:.0%}. There: {first['sentence']}"
    )
