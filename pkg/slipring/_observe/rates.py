"""The quantities that the rules of a verdict need from a `Snapshot`: waiting times, steps, and the workers' load."""

import dataclasses
import math

import numpy as np

from slipring._observe.snapshot import published, states

WINDOW_S = 5.0  # the time that rates cover


class Figures:
    """Times and shares of the batches that a `Snapshot` remembers, and of those in progress."""

    def __init__(self, snapshot, cpus=1):
        self.snapshot, self.cpus = snapshot, cpus  # the CPUs that the loop's process may keep busy
        table = snapshot.taken
        self.table = table
        self.first = table["step_ns"] == 0  # the first of their runs: they wait for workers to begin, or for the caller
        # The first wait of a loader occurs once in its life, and is no part of its rate.
        self.waited = np.where(self.first & (table["run"] == 1), 0.0, table["waited_ns"].astype(np.float64))
        self.step = table["step_ns"].astype(np.float64)
        self.made_in = (table["fetch_ns"] + table["collate_ns"]).astype(np.float64)
        steady = ~self.first
        self.steady_wait, self.steady_step = self.waited[steady].sum(), self.step[steady].sum()
        self.first_wait = self.waited[self.first].sum()
        self.wait_now, self.step_now = self._under_way()
        self.all_wait = self.waited.sum() + self.wait_now
        self.all = self.all_wait + self.step.sum() + self.step_now
        segment_info = snapshot.segment_info
        self.has_loop = segment_info["loop_steps"] > 0
        self.loop_share = segment_info["loop_wait_ns"] / max(1, segment_info["loop_ns"])
        serving = snapshot.serving
        self.n_workers = max(1, len(serving))
        self.busy = min(1.0, self.made_in[steady].sum() / max(1.0, self._capacity(steady)))
        reported_ns = max(1.0, float(serving["reported_ns"].sum()))
        self.on_cpu = min(1.0, float(serving["cpu_ns"].sum()) / reported_ns)
        # The kernel counts each delay until a process has a processor, also when it is woken between two batches.
        self.queued = min(float(serving["queued_ns"].sum()) / reported_ns, 1 - self.on_cpu)

    def _under_way(self):
        """Return the ns of the wait and of the step that have not ended: one of them is 0, or both if no loop runs."""
        snapshot, table = self.snapshot, self.table
        if not len(table) or snapshot.segment_info["push"]:
            return 0.0, 0.0
        since = float(max(0, snapshot.at_ns - int(table["taken_at"][-1])))
        if snapshot.segment_info["ready_waiters"]:  # after a step whose end is not known
            return max(0.0, since - float(np.median(self.step))), 0.0
        lying = snapshot.slots[snapshot.slots["batch"]["run"] == snapshot.segment_info["run"]]
        ahead = {"task", "claimed", "shared", "ready"} & set(states(lying))
        return 0.0, since if ahead else 0.0

    def _capacity(self, steady):
        """Return the ns that all workers had for the batches: each worker's while it existed.

        A worker whose batches are all remembered began with the first of them. A worker without a batch reports its
        beginning.
        """
        table, snapshot = self.table[steady], self.snapshot
        took = (self.waited + self.step)[steady]
        reported = snapshot.reported
        done = published(snapshot.table)
        found = 0.0
        for number, participant in enumerate(snapshot.participants):
            if number == 0 or not participant["pid"]:
                continue
            its = done[done["participant"] == number]
            there = np.ones(len(table), bool)
            if len(its) + 2 >= participant["batches"]:  # one or two may not be visible yet
                there &= table["taken_at"] >= (its["claimed_at"].min() if len(its) else participant["at_since"])
            if not reported[number]:  # it was there until it left
                there &= table["taken_at"] <= participant["at_since"]
            found += float(took[there].sum())
        return found or float(took.sum())

    @property
    def wait_share(self):
        """float: the part of the loop's time spent waiting."""
        return self.loop_share if self.has_loop else (self.all_wait / self.all if self.all else 0.0)

    @property
    def sampling_share(self):
        """float: the part of the waiting that was not for a worker, because the batch was already there.

        The loop then waited for the next task: for the sampler, or the plan's iterator.
        """
        waited = self.table["waited_ns"].astype(np.float64)
        there = self.table["published_at"] <= self.table["taken_at"] - self.table["waited_ns"]
        steady = ~self.first
        return float(waited[steady & there].sum() / max(1.0, waited[steady].sum() + self.wait_now))

    @property
    def first_fetches(self):
        """float: the ns that each worker's first batch took to fetch; 0 if the first batch is no longer remembered."""
        table = self.table[self.table["run"] == 1]
        if not (table["step_ns"] == 0).any():
            return 0.0
        _, first = np.unique(table["participant"], return_index=True)
        return float(table["fetch_ns"][first].sum())

    @property
    def loop_step_ns(self):
        """float: an average step in ns, also if a thread takes the batches; 0 if it is unknown."""
        segment_info = self.snapshot.segment_info
        if self.has_loop:
            return max(0.0, (segment_info["loop_ns"] - segment_info["loop_wait_ns"]) / segment_info["loop_steps"])
        steady = ~self.first
        return float(self.step[steady].mean()) if steady.any() else 0.0

    @property
    def enough(self):
        """int: the number of workers that would make a batch in the time of a step; 0 if it is unknown."""
        steady, step = ~self.first, self.loop_step_ns
        return max(1, math.ceil(self.made_in[steady].mean() / step)) if step and steady.any() else 0

    @property
    def computing(self):
        """float: the part of the workers' busy time in which they compute, or would if they had a CPU."""
        return self.on_cpu + self.queued


# ---- recently


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates at which the loop has received batches recently."""

    batches: float  # per second
    bytes: float  # per second
    waiting: float | None  # the part of the time in which the loop waited, from 0 to 1; None: unknown
    over_s: float  # the time that these figures cover

    def dict(self):
        """Return the fields, for JSON."""
        return dataclasses.asdict(self)


def rates(snapshot, before=None, window_s=WINDOW_S):
    """Return the `Rates` of a `Snapshot`, over `window_s` seconds or as far as its table reaches back.

    `before` is an earlier Snapshot: if a thread takes the batches for the loop, only sums say how long the loop waited.
    """
    got = snapshot.taken
    if not len(got):
        return Rates(0.0, 0.0, _of_loop(snapshot, before), 0.0)
    begin = max(snapshot.at_ns - int(window_s * 1e9), int(got["taken_at"][0]))
    lately = got[got["taken_at"] > begin]
    lasted = max(1e-9, (snapshot.at_ns - begin) / 1e9)
    waiting = _of_loop(snapshot, before)
    if waiting is None and not snapshot.segment_info["push"]:
        waited = int(lately["waited_ns"].sum())
        all_of_it = waited + int(lately["step_ns"].sum())
        if snapshot.segment_info["ready_waiters"]:  # it waits just now
            since = snapshot.at_ns - max(begin, int(got["taken_at"][-1]))
            waited, all_of_it = waited + since, all_of_it + since
        waiting = waited / all_of_it if all_of_it > 0 else None
    return Rates(len(lately) / lasted, int(lately["bytes"].sum()) / lasted, waiting, lasted)


def _of_loop(snapshot, before):
    """Return the waiting share of a loop for which a thread takes the batches; None if there is no such thread."""
    now, then = snapshot.segment_info, {"loop_ns": 0, "loop_wait_ns": 0}
    if not now["loop_steps"]:
        return None
    if before is not None and now["loop_ns"] > before.segment_info["loop_ns"]:
        then = before.segment_info
    return (now["loop_wait_ns"] - then["loop_wait_ns"]) / max(1, now["loop_ns"] - then["loop_ns"])


def lately(snapshot, window_s=WINDOW_S):
    """Return a snapshot's batches published in the last `window_s` seconds; if there are none, all it remembers."""
    done = published(snapshot.table)
    recent = done[done["published_at"] > snapshot.at_ns - int(window_s * 1e9)]
    return recent if len(recent) else done
