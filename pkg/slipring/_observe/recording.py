"""All batches of a job from one moment to another, copied from the flight recorder before it overwrites them."""

import numpy as np

from slipring._core.ring._segment import now
from slipring._observe.snapshot import ENDED, empty, states

LEAST_S, MOST_S = 0.001, 0.01  # between two looks: the recorder of a job that is idle may be full 20 ms later
FEW, MANY = 128, 256  # records at a look, of 1024: fewer make it look less often, more make it look more often


class Recording:
    """The records of a job from now on, complete if `poll` is called often enough."""

    def __init__(self, job):
        self.job, self.watch = job, job.watch
        self.begun_at = self.ended_at = now()  # CLOCK_MONOTONIC, in ns
        self.lost = 0  # records that were overwritten before they were read
        # The batches, of `RECORD`, that still lay in their slots at the end; those in use have no `freed_at`.
        self.open = empty()
        self._next = self.watch.segment_info()["recorded"] + 1
        self._kept = []
        self._pause = LEAST_S

    def poll(self):
        """Copy the new records; return after how many seconds to call this again."""
        got = self.watch.records(self._next)
        n = len(got)
        if n:
            got = self._without_gap(got)
        if len(got):
            last = int(got["number"][-1])
            self.lost += last - self._next + 1 - len(got)
            self._next = last + 1
            self._kept.append(got if len(got) > MANY else got.copy())  # a few must not keep the memory of all
        if n > MANY:
            self._pause = max(LEAST_S, self._pause / 2)
        elif n < FEW:
            self._pause = min(MOST_S, self._pause * 1.25)
        return self._pause

    def _without_gap(self, got):
        """Return the records before the first gap, unless that is old.

        A process of a queue may just be writing the missing record, so the recording waits for it for a while.
        """
        expected = np.arange(self._next, self._next + len(got), dtype=np.uint64)
        whole = int(np.argmin(got["number"] == expected)) if (got["number"] != expected).any() else len(got)
        late = int(got["number"][-1]) - self._next > MANY
        return got if late else got[:whole]

    def end(self):
        """Copy the remaining batches of the recorder and the slots."""
        slots = self.watch.slots()
        self.poll()
        self.ended_at = now()
        lying = slots["batch"].copy()
        used = np.array([state not in ("free", "trimmed") for state in states(slots)], bool)
        lying["freed_at"][used] = 0  # it belongs to the previous batch
        kept = {key for part in self._kept for key in zip(part["run"].tolist(), part["seq"].tolist())}
        keys = zip(lying["run"].tolist(), lying["seq"].tolist())
        new = np.array([key not in kept for key in keys], bool)
        begun = (lying["dispatched_at"] > 0) | (lying["claimed_at"] > 0)
        freed_before = (lying["freed_at"] > 0) & (lying["freed_at"] < self.begun_at) & (lying["published_at"] > 0)
        self.open = lying[new & begun & ~freed_before & (lying["kind"] < ENDED)]

    def table(self):
        """Return all batches, of `RECORD`; those that were in a slot at the end have the number 0."""
        return np.concatenate([*self._kept, self.open])
