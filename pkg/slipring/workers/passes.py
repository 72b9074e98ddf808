"""Which part of a stream is to be read where the caller runs."""

import random
import sys

from slipring.ring._ring import mix
from slipring.workers import seeding
from slipring.workers.info import get_worker_info


def here(passes):
    """Return (worker, workers, the pass's seed) where this runs: in slipring's workers, torch's, or none.

    Parameters
    ----------
    passes : int
        That have begun in this process.
    """
    seed, info = seeding.stream_seed(), get_worker_info()
    if seed is None and info is None and (torch := sys.modules.get("torch.utils.data")) is not None:
        info = torch.get_worker_info()
    if seed is None:
        # torch's persistent workers have one seed for all passes, which they begin together.
        seed = random.getrandbits(64) if info is None else mix(info.seed - info.id, passes)
    return (0, 1, seed) if info is None else (info.id, info.num_workers, seed)
