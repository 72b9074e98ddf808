"""The memory of a pool: its process divides one budget among the segments of all loaders.

Caches of the datasets take their own budgets out of it. Each loader gets what two of its batches need, and an equal
part of the rest, but no more than its slots can use. One such part stays free for each rank that has not come yet, and
for one more loader; ranks that only read the batches of another rank need none. A segment that has more than its part
gives it back as its batches are released.
"""

import os

from slipring._core.workers.memory import caches_of

CERTAIN = 2  # batches that each loader has memory for: the one that the loop uses, and the next one
FIRST_BYTES = 8192  # of each payload, which a segment always has: SR_PAYLOAD_COMMIT
WORKER = 1  # the participant as which the pool's process, the only one that recovers it, releases memory
PAGE = 4096


class BudgetPart:
    """A loader's part of the budget.

    `least`, `most` and `target` are the bytes that two batches need, that all slots can use, and that the loader is to
    have. `slot_bytes` are the payload bytes of the largest batch that did not get them.
    """

    def __init__(self, ring):
        self.ring, self.slot_bytes, self.target = ring, 0, 0
        self.measure()

    def measure(self):
        """Update `least` and `most` from the batches so far."""
        usage = self.ring.usage
        payload = max(0, usage["largest"] - FIRST_BYTES, -(-self.slot_bytes // PAGE) * PAGE - FIRST_BYTES)
        self.least = usage["fixed"] + CERTAIN * payload
        self.most = usage["fixed"] + self.ring.n_slots * payload if payload else 1 << 62
        self.used = usage["used"]

    @property
    def limit(self):
        return self.ring.budget

    @property
    def taken(self):
        """int: bytes that no other loader can have now."""
        return max(self.limit, self.used)

    @property
    def left(self):
        """int: bytes by which the segment can grow."""
        return self.limit - self.used

    def allow(self, nbytes):
        """Let the segment take `nbytes`; if it has more, free slots release theirs."""
        self.used = self.ring.set_budget(WORKER, max(1, nbytes))["used"]


class Budget:
    """The bytes that all segments and caches of a pool may take."""

    def __init__(self, nbytes):
        self.nbytes, self.cached = nbytes, 0

    def count_caches(self, datasets):
        """Reserve the budgets of the datasets' caches, each cache once."""
        budgets = {}
        for cache in (cache for dataset in datasets for cache in caches_of(dataset)):
            file = os.fstat(cache._fd)
            budgets[file.st_dev, file.st_ino] = cache.stats().budget
        self.cached = sum(budgets.values())

    def least(self, parts):
        """Return the bytes that two batches of each loader and the caches need."""
        for part in parts:
            part.measure()
        return self.cached + sum(part.least for part in parts)

    def divide(self, parts, absent):
        """Change the parts to what they should be, as far as the others' memory allows; return whether all have theirs.

        `absent`: how many other loaders are expected.
        """
        rest = max(0, self.nbytes - self.least(parts))
        equal = _equal_part([part.most - part.least for part in parts], absent, rest)
        for part in parts:
            part.target = min(part.most, part.least + equal)
            if part.limit > part.target:
                part.allow(part.target)
        free = self.free(parts)
        limits = {part: min(part.taken, part.target) for part in parts if part.limit < part.target}
        for part in limits:
            more = min(free, max(0, part.least - limits[part]))
            limits[part] += more
            free -= more
        wanted = absent * equal + sum(part.target - limit for part, limit in limits.items())
        for part, limit in limits.items():
            part.allow(limit + min(part.target - limit, free * (part.target - limit) // max(1, wanted)))
        return all(part.limit == part.target for part in limits)

    def free(self, parts):
        """Return the bytes that no loader has."""
        return max(0, self.nbytes - self.cached - sum(part.taken for part in parts))


def _equal_part(most, absent, nbytes):
    """Return the bytes that each of several loaders gets of `nbytes`, if none gets more than its `most`.

    The parts of `absent` others have no bound.
    """
    n = len(most) + absent
    for each in sorted(most):
        if each * n > nbytes:
            break
        nbytes, n = nbytes - each, n - 1
    return nbytes // n
