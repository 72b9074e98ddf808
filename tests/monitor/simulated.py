"""Jobs on a simulated clock, seen through the real `Snapshot`.

A test sets how long each part takes. The simulation moves batches through slots, from the sampler to a worker and the
loop, and keeps the records of a real segment. Nothing here depends on the speed of the machine.
"""

import dataclasses
import os

import numpy as np

from tests.support.inside import (
    NO_SLOT,
    PARTICIPANT,
    PARTS,
    READ_COUNTS,
    RECORD,
    RETIRED,
    SLOT,
    STAGES,
    STATES,
    Known,
    Snapshot,
    bucket_of,
    durations,
    verdict,
)

MS = 1_000_000  # ns
BEGIN = 1_000 * MS  # the clock's first value: 0 is no stamp
PID = 1 << 30  # worker 0's; no process has such a pid
FOLD, REMEMBERED = 64, 1024  # SR_FOLD and SR_RECORDS of csrc/layout.h
SERVING = 2
OTHER_NAMESPACE = 1  # of pids: the rules do not look for these processes in /proc
NEVER = 1 << 62
UNFINISHED = ("published_at", "fetched_at", "fetch_ns", "collate_ns", "slowest_ns")


@dataclasses.dataclass(frozen=True)
class Making:
    """A batch that a worker is about to make."""

    epoch: int
    number: int
    worker: int


def _of(value, *which):
    """Return a number, or the result of a function in place of a number."""
    return value(*which) if callable(value) else value


class Job:
    """A loader and its loop, after the loop has taken `batches` batches and done the last step.

    All times are in ms. `fetch`, `collate` and `missed` may be functions of a `Making`; `cpu` and `queued` may be
    functions of a worker's number.

    Parameters
    ----------
    workers : int
        0: the loop makes its batches itself.
    batches, epochs, of : int
        Batches that the loop takes in each epoch, and the number of them in the last one. If there are more than the
        loop took, some are in flight at the end.
    fetch, collate, step, draw : float
        The time for one batch, and the sampler's for its indices.
    wake : float
        The time to wake an idle worker, or the loop.
    start : float
        A worker's time to start: in the first epoch, and in each one if not `persistent`.
    cpu, queued : float
        Shares of a worker's busy time: on a processor, and ready to run without one.
    sleepy, parts : dict
        Index of a sample -> its additional time; name of a part of `fetch` ("read", "your_code") -> its share.
    missed : float
        Share of a batch's samples that are not in the cache (None: no cache). Only these take time.
    keep : int
        Batches that the loop keeps in addition to that of its step.
    preload, copy : int, float
        A thread takes the batches, this many ahead of the loop, and copies each one to the device.
    budget : int
        Bytes that the pool allows the segment; 0: no limit.
    resized : dict
        Number of a batch -> the number of workers from then on.
    """

    def __init__(
        self, *, workers=2, batches=100, epochs=1, of=None, fetch=1.0, collate=0.0, step=1.0, wake=0.0, draw=0.0,
        start=0.0, persistent=True, cpu=1.0, queued=0.0, sleepy=None, parts=None, missed=None, keep=0, preload=0,
        copy=0.0, slots=None, prefetch=2, rows=4, nbytes=1600, threads=False, in_order=True, resized=None,
        budget=0,
    ):  # fmt: skip
        self.fetch, self.collate, self.step = fetch, collate, step
        self.wake, self.draw, self.start = int(wake * MS), int(draw * MS), int(start * MS)
        self.cpu, self.queued, self.missed = cpu, queued, missed
        self.sleepy, self.parts = sleepy or {}, parts or {}
        self.keep, self.preload, self.copy, self.rows, self.nbytes = keep, preload, copy, rows, nbytes
        self.persistent, self.prefetch, self.in_order = persistent, prefetch, in_order
        self.threads, self.resized, self.workers = threads, resized or {}, workers
        self.most = max(self.workers, *self.resized.values(), 0)
        self.n_slots, self.budget = slots or 2 * self.most + 16, budget
        self.clock, self.run, self.copied = BEGIN, 0, 0
        self.lying = [None] * self.n_slots  # slot -> record of its last batch
        self.taken_slots = set()  # leased, or with a task
        self.recorded = []
        self.began = [NEVER] * self.most
        self.left = [None] * self.most  # when each worker ended
        self._begin()
        self.loop_steps = self.loop_wait = self.loop_ns = 0
        self.loop_free, self.got = BEGIN, []
        for epoch in range(epochs):
            last = epoch == epochs - 1
            self._epoch(epoch, batches, max(batches, of or 0) if last else batches)

    # ---- the simulation

    def _begin(self):
        self.began[: self.workers] = [self.clock + self.start] * self.workers
        self.free_at = list(self.began)

    def _epoch(self, epoch, taken, n):
        self.run += 1
        if epoch and not self.persistent:
            self._begin()
        in_flight, kept, previous, self.drawn = [], [], None, 0
        for number in range(taken):
            asked = self.clock
            self._resize(number)
            self._dispatch(epoch, n, in_flight)
            batch = in_flight[0] if self.in_order else min(in_flight, key=lambda b: int(b["published_at"]))
            in_flight.remove(batch)
            if batch["published_at"] > self.clock:
                self.clock = int(batch["published_at"]) + self.wake
            batch["taken_at"], batch["waited_ns"] = self.clock, self.clock - asked
            batch["step_ns"] = 0 if previous is None else max(1, asked - previous)
            previous = self.clock
            self._keep(batch, kept)
            if self.preload:
                self._hand_on(batch)
            else:
                self.clock += int(_of(self.step, number) * MS)
        self._dispatch(epoch, n, in_flight)
        if n == taken:
            for batch in kept:
                self._free(batch)

    def _resize(self, number):
        if number not in self.resized:
            return
        wanted = self.resized[number]
        for worker in range(self.workers, wanted):
            self.began[worker] = self.free_at[worker] = self.clock
            self.left[worker] = None
        for worker in range(wanted, self.workers):
            self.left[worker] = max(self.clock, self.free_at[worker])
        self.workers = wanted

    def _dispatch(self, epoch, n, in_flight):
        ahead = self.prefetch * self.workers
        while len(in_flight) < ahead and self.drawn < n and len(self.taken_slots) < self.n_slots:
            self.clock += self.draw
            in_flight.append(self._task(epoch, self.drawn))
            self.drawn += 1

    def _task(self, epoch, number):
        """Return a batch of the first free worker."""
        slot = next(slot for slot in range(self.n_slots) if slot not in self.taken_slots)
        self._record(slot)
        worker = min(range(self.workers), key=lambda w: max(self.clock, self.free_at[w]))
        making = Making(epoch, number, worker)
        share = 1.0 if self.missed is None else _of(self.missed, making)
        fetch = int(_of(self.fetch, making) * MS * share)
        indices = range(number * self.rows, (number + 1) * self.rows)
        extra = {index: int(self.sleepy.get(index, 0) * MS) for index in indices}
        slowest = max(extra, key=extra.get)
        batch = np.zeros(1, RECORD)[0]
        batch["run"], batch["epoch"], batch["seq"] = self.run, epoch, number
        batch["kind"], batch["rows"] = 1, self.rows
        batch["participant"], batch["slot"], batch["bytes"] = worker + 1, slot, self.nbytes
        batch["first_index"], batch["slowest_index"] = indices[0], slowest
        batch["slowest_ns"] = fetch // self.rows + extra[slowest]
        batch["fetch_ns"], batch["collate_ns"] = (fetch + sum(extra.values()), int(_of(self.collate, making) * MS))
        for name, part in self.parts.items():
            batch[PARTS[name]] = int(part * batch["fetch_ns"])
        if self.missed is not None:
            batch["misses"] = round(share * self.rows)
            batch["hits"] = self.rows - batch["misses"]
        batch["dispatched_at"] = self.clock
        batch["claimed_at"] = max(self.clock + self.wake, self.free_at[worker])
        batch["idle_ns"] = batch["claimed_at"] - self.free_at[worker]
        batch["fetched_at"] = batch["claimed_at"] + batch["fetch_ns"]
        batch["published_at"] = batch["fetched_at"] + batch["collate_ns"]
        self.free_at[worker] = int(batch["published_at"])
        self.lying[slot] = batch
        self.taken_slots.add(slot)
        return batch

    def _record(self, slot):
        """Add the slot's last batch to the flight recorder, because the slot is used again."""
        batch = self.lying[slot]
        if batch is not None:
            batch["number"] = len(self.recorded) + 1
            self.recorded.append(batch)

    def _keep(self, batch, kept):
        kept.append(batch)
        if len(kept) > self.keep + 1:
            self._free(kept.pop(0))
        elif len(kept) > self.n_slots - self.workers - 1:  # too few slots would be left: the loop gets a copy
            self.copied += 1
            self._free(kept.pop())

    def _free(self, batch):
        batch["freed_at"] = self.clock + 1
        self.taken_slots.discard(int(batch["slot"]))

    def _hand_on(self, batch):
        """Copy a batch in the preloading thread, and give it to the loop."""
        batch["copy_ns"] = int(self.copy * MS)
        self.clock += int(batch["copy_ns"])
        if len(self.got) >= self.preload:  # at most so many batches wait for the loop
            self.clock = max(self.clock, self.got[-self.preload])
        got, step = max(self.clock, self.loop_free), int(_of(self.step, len(self.got)) * MS)
        if self.got:  # the first batch waits for the workers to start
            self.loop_wait += got - self.loop_free
            self.loop_ns += got - self.loop_free + step
            self.loop_steps += 1
        self.loop_free = got + step
        self.got.append(got)

    # ---- observation

    def known(self, **others):
        """Return the `Known` of the loader's own process."""
        share = self.copied / max(1, len(self.recorded) + sum(batch is not None for batch in self.lying))
        return Known(**{"copied_share": share, "in_order": self.in_order, "persistent": self.persistent, **others})

    def snapshot(self, later=0.0, waits=False):
        """Return the `Snapshot` of the job, `later` than its end; `waits`: meanwhile the loop waits for a batch."""
        at_ns = self.clock + int(later * MS)
        return Snapshot(SimulatedWatch(self, at_ns, waits), at_ns)

    def verdict(self, later=0.0, waits=False, **known):
        """Return the real `Verdict` on the job."""
        return verdict(self.snapshot(later, waits), self.known(**known))


class SimulatedWatch:
    """A `Watch` of a job's segment at one moment."""

    def __init__(self, job, at_ns, waits):
        self.job, self.at_ns, self.waits = job, at_ns, waits

    def segment_info(self):
        job = self.job
        return {
            "label": "simulated", "push": False, "closed": False, "n_slots": job.n_slots,
            "used_slots": sum(batch is not None for batch in job.lying), "n_participants": job.most + 1, "run": job.run,
            "recorded": len(job.recorded), "folded": self._folded, "loop_steps": job.loop_steps,
            "loop_wait_ns": job.loop_wait, "loop_ns": job.loop_ns, "capacity": job.nbytes, "total": 0, "data_off": 0,
            "stride": 0, "pid_namespace": OTHER_NAMESPACE, "ready_waiters": int(self.waits), "budget": job.budget,
            "reads": dict.fromkeys(READ_COUNTS, 0),
        }  # fmt: skip

    @property
    def _folded(self):
        return len(self.job.recorded) // FOLD * FOLD

    def records(self, since=0):
        kept = [batch for batch in self.job.recorded if batch["number"] >= since][-REMEMBERED:]
        return np.array(kept, RECORD)

    def slowest(self, samples=False):
        folded = np.array(self.job.recorded[: self._folded], RECORD)
        cost = folded["slowest_ns"] if samples else folded["fetch_ns"] + folded["collate_ns"]
        return folded[np.argsort(cost, kind="stable")[::-1][:16]]

    def totals(self):
        folded = np.array(self.job.recorded[: self._folded], RECORD)
        sums = {"batches": len(folded), "errors": 0, "folded": self._folded}
        for name in ("bytes", "rows", *PARTS.values(), "hits", "misses"):
            sums[name] = int(folded[name].sum())
        stages = {}
        for name, ns in durations(folded).items():
            stages[name] = int(ns.sum()), int(ns.max(initial=0)), np.bincount(bucket_of(ns), minlength=256)
        assert set(stages) == set(STAGES)
        return sums, stages

    def slots(self):
        seen = []
        for batch in self.job.lying:
            if batch is not None:
                seen.append(np.zeros(1, SLOT)[0])
                seen[-1]["task_rows"], seen[-1]["task_kind"] = self.job.rows, 1
                seen[-1]["state"], seen[-1]["batch"] = self._as_of_now(batch)
        return np.array(seen, SLOT)

    def _as_of_now(self, batch):
        """Return the state of a batch's slot, and the batch without stamps in the future."""
        batch = batch.copy()
        if int(batch["slot"]) not in self.job.taken_slots:
            state = "free"
        elif batch["taken_at"]:
            state = "leased"
        elif batch["published_at"] <= self.at_ns:
            state = "ready"
        elif batch["claimed_at"] <= self.at_ns:
            state = "claimed"
            for name in UNFINISHED:
                batch[name] = 0
        else:
            state = "task"
            for name in (*UNFINISHED, "claimed_at", "participant"):
                batch[name] = 0
        return STATES.index(state), batch

    def participants(self):
        job = self.job
        made = np.zeros(job.most + 1, PARTICIPANT)
        made["at_slot"], made["pid"][0], made["status"][0] = NO_SLOT, os.getpid(), 1
        everything = np.array([*job.recorded, *(batch for batch in job.lying if batch is not None)], RECORD)
        for worker in range(job.most):
            participant, its = made[worker + 1], everything[everything["participant"] == worker + 1]
            under_way = its[(its["claimed_at"] <= self.at_ns) & (its["published_at"] > self.at_ns)]
            its = its[its["published_at"] <= self.at_ns]
            if job.began[worker] <= self.at_ns:
                participant["pid"] = made["pid"][0] if job.threads else PID + worker
                participant["status"] = SERVING
            if job.left[worker] is not None:
                participant["retiring"] = RETIRED
            participant["batches"], participant["bytes"] = len(its), its["bytes"].sum()
            for name in ("fetch_ns", "collate_ns", "idle_ns"):
                participant[name] = its[name].sum()
            busy = int(participant["fetch_ns"] + participant["collate_ns"])
            participant["reported_ns"], participant["waiting"] = busy, not len(under_way)
            participant["cpu_ns"] = busy * _of(job.cpu, worker)
            participant["queued_ns"] = busy * _of(job.queued, worker)
            last = int(its["fetched_at"].max()) if len(its) else job.began[worker]
            participant["at_since"] = job.left[worker] or last
            if len(under_way):
                self._under_way(participant, under_way[0])
        return made

    def _under_way(self, participant, batch):
        """Set the sample that a worker reads; none if it has read its whole batch."""
        job, at = self.job, int(batch["claimed_at"])
        each = int(batch["slowest_ns"]) - int(job.sleepy.get(int(batch["slowest_index"]), 0) * MS)
        for row in range(job.rows):
            end = at + each + int(job.sleepy.get(int(batch["first_index"]) + row, 0) * MS)
            if self.at_ns < end:
                participant["at_slot"], participant["at_row"], participant["at_since"] = (batch["slot"], row, at)
                return
            at = end
        participant["at_since"] = at
