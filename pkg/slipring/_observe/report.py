"""A loader's report as data: its verdict, and the figures behind it. `rendering` shows it."""

from __future__ import annotations

import builtins
import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring._watch import NO_INDEX
from slipring._core.ring.text import seconds
from slipring._observe import rendering
from slipring._observe.peers import seen_from
from slipring._observe.ranks import gather, judged
from slipring._observe.rates import Figures
from slipring._observe.snapshot import Stage, index_text, part_shares
from slipring._observe.verdict import FEW, Known, Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING_KNOWN = Known()
SLOWEST = 10  # batches and samples that are listed


@dataclasses.dataclass(frozen=True)
class WorkerRow:
    """One worker's part of a report; times in seconds.

    Attributes
    ----------
    worker, pid : int
    batches : int
    fetch_s, collate_s : float
        For a batch, on average.
    busy : float
        Share of its time, since it began to serve, in which it does not wait for tasks.
    on_cpu : float
        Share of its busy time in which it has a processor.
    private_bytes : int or None
        Its private memory.
    """

    worker: int
    pid: int
    batches: int
    fetch_s: float
    collate_s: float
    busy: float
    on_cpu: float
    private_bytes: int | None


class Report:
    """A loader's verdict and figures at one moment. ``print`` shows it; notebooks and rich render it.

    Attributes
    ----------
    verdict : Verdict
    stages : dict of str to Stage
        By name, since the loader's segment was made: "queued", "fetch", "collate", "ready", "waited", "copy", "step",
        "lease".
    shares : dict of str to float
        Shares of "fetch" and "collate" in the workers' time; of "read", "decode", "resize", "augment" and "your_code"
        in fetching, if the dataset reports them; of "hits" in the lookups of a cache.
    workers : list of Row
    slowest_batches, slowest_samples : list of dict
        The ten that took longest to make, or to read, since the beginning.
    reads : dict of str to int
        Remote reads for the batches of this segment: "attempts"; those that failed, by reason ("timeouts", "broken",
        "refused", "rejected"); "bytes"; "ns" of those that succeeded, "lost_ns" of the others and of the pauses after
        them.
    waits : dict of str to float
        Seconds that workers have waited or worked, by the source's own names; only of `slipring.ray.Loader`.
    memory : dict
        Bytes: "segment", "workers", "cache", and "budget", which the pool allows the segment, if it is limited.
    numa : dict
        Where the slots lie, if memory can lie on several NUMA nodes, or ``Workers(numa=)`` is a node. "node": the node
        from which their memory is taken, or None if the system chooses; "slots": node -> how many of the slots that the
        loop has used lie there, as far as the system tells. Otherwise empty.
    ranks : list of dict
        The verdict of each rank's loader, if requested; the rank that waits longest comes first. Each also has the
        seconds from batch to batch ("batch_s"), the seconds in which the rank's workers make a batch ("supply_s"), the
        seconds of a step without waiting for other ranks ("own_s"), the bytes of the batches in its slots
        ("memory_bytes"), the bytes that its pool allows its segment ("budget_bytes", None without a limit), and whether
        its next batch waits for memory ("waits_for_memory").

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(100), batch_size=10, num_workers=1) as loader:
    ...     total = sum(batch.sum() for batch in loader)
    ...     report = loader.report()
    >>> report.dict()["batches"], len(report.workers)
    (10, 1)
    """

    def __init__(
        self,
        name: str,
        snapshot: Any,
        stats: Any,
        known: Known = NOTHING_KNOWN,
        *,
        cache: Any = None,
        tuning: str = "",
        headroom: Any = None,
        waits: Mapping[str, float] | None = None,
        numa: Mapping[str, Any] | None = None,
    ) -> None:
        self.name: str = name
        self.at_ns: int = snapshot.at_ns
        self.verdict: Verdict = verdict(snapshot, known)
        self.stages: dict[str, Stage] = snapshot.stages
        self.sums: dict[str, int] = dict(snapshot.sums)
        self.reads: dict[str, int] = dict(snapshot.segment_info["reads"])
        self.push: bool = snapshot.segment_info["push"]
        self.shares: dict[str, float] = _shares(self.sums, self.stages)
        self.workers: list[WorkerRow] = [] if self.push else _rows(snapshot, known)
        self.slowest_batches: list[dict[str, Any]] = (
            [] if self.push else [_batch(row) for row in snapshot.slowest[:SLOWEST]]
        )
        self.slowest_samples: list[dict[str, Any]] = [
            _sample(row) for row in snapshot.slowest_samples[:SLOWEST] if row["slowest_ns"]
        ]
        self.memory: dict[str, Any] = {
            "segment": stats.bytes_committed if self.push else stats.slot_bytes_committed,
            "workers": [b for b in known.private_bytes if b is not None],
            "cache": None if cache is None else cache.bytes,
            "budget": snapshot.segment_info.get("budget") or None,
        }
        self.slots: dict[str, int] = {
            "all": snapshot.segment_info["n_slots"],
            "used": snapshot.segment_info["used_slots"],
        }
        self.numa: dict[str, Any] = dict(numa or {})
        self.backing: str | None = stats.backing
        self.tuning: str = tuning
        self.headroom: dict[str, Any] | None = _headroom(headroom, snapshot)
        self.ranks: list[dict[str, Any]] = []
        self.waits: dict[str, float] = dict(waits or {})
        self.rates: dict[str, float] = _rates(snapshot)
        self._snapshot, self._known = snapshot, known

    def gathered(self, ring: Any = None) -> Report:
        """Return this report with the verdicts of all ranks, if torch.distributed is used; all ranks must call this.

        Without torch.distributed, the ranks are the processes on this machine that share the workers of `ring`, the
        segment of a loader with a pool.
        """
        self.ranks = gather(self.verdict, self._snapshot) or ([] if ring is None else seen_from(ring))
        found = judged(self.ranks)
        if found:
            self.verdict = Verdict(*found, self.verdict.wait_share, self.verdict.data_bound)
        return self

    # ---- as data

    def dict(self) -> builtins.dict[str, Any]:
        """Return all of it as dicts, lists, numbers and text."""
        return {
            "name": self.name,
            "verdict": dataclasses.asdict(self.verdict),
            "batches": self.sums["batches"],
            "bytes": self.sums["bytes"],
            "errors": self.sums["errors"],
            **self.rates,
            "stages": {name: dataclasses.asdict(stage) for name, stage in self.stages.items() if stage.count},
            "shares": self.shares,
            "reads": self.reads,
            "waits": self.waits,
            "workers": [dataclasses.asdict(row) for row in self.workers],
            "slowest_batches": self.slowest_batches,
            "slowest_samples": self.slowest_samples,
            "memory": self.memory,
            "slots": self.slots,
            "backing": self.backing,
            "numa": self.numa,
            "tuning": self.tuning,
            "headroom": self.headroom,
            "ranks": self.ranks,
        }

    def json(self, indent: int | None = None) -> str:
        """Return the same as JSON text."""
        return json.dumps(self.dict(), indent=indent)

    def scalars(self, prefix: str = "slipring/") -> Mapping[str, float]:
        """Return name -> number, for TensorBoard, W&B and MLflow.

        Rates are those of the remembered batches; quantiles, in ms, are those of all batches.
        """
        numbers = {
            "batches_per_s": self.rates["batches_per_s"],
            "mb_per_s": self.rates["mb_per_s"],
            "wait_share": self.verdict.wait_share,
            "workers_busy_share": float(np.mean([row.busy for row in self.workers])) if self.workers else 0.0,
        }
        for name, stage in self.stages.items():
            if stage.count:
                numbers |= {f"{name}_ms_p50": stage.p50_s * 1e3, f"{name}_ms_p99": stage.p99_s * 1e3}
        return {prefix + name: float(value) for name, value in numbers.items()}

    # ---- as text

    def __str__(self) -> str:
        return rendering.text(self)

    def __repr__(self) -> str:
        return f"<slipring report: {self.name}: {self.verdict.sentence}>"

    def __rich__(self) -> Any:
        """Return the object that rich prints."""
        return rendering.group(self)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return rendering.page(self)


# ---- figures


def _shares(sums, stages):
    made = stages["fetch"].total_s + stages["collate"].total_s
    found = {"fetch": stages["fetch"].total_s / made, "collate": stages["collate"].total_s / made} if made else {}
    found |= part_shares(stages["fetch"].total_s * 1e9, sums.get)
    if sums["hits"] + sums["misses"]:
        found["hits"] = sums["hits"] / (sums["hits"] + sums["misses"])
    return found


def _rates(snapshot):
    """Return the rates over the remembered batches, or over all of them, without the time between two runs."""
    if not snapshot.segment_info["n_slots"]:  # no batch is remembered
        per = 1e9 / max(1, snapshot.segment_info["loop_ns"])
        return {"batches_per_s": snapshot.sums["batches"] * per, "mb_per_s": snapshot.sums["bytes"] / 1e6 * per}
    table = snapshot.table[snapshot.table["kind"] == 1] if snapshot.segment_info["push"] else snapshot.taken
    times = np.sort(table["taken_at"][table["taken_at"] > 0]).astype(np.float64)
    spent = float((table["waited_ns"] + table["step_ns"]).sum()) / 1e9
    if snapshot.segment_info["push"]:
        spent = (times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0
    per = 1 / spent if spent > 0 else 0.0
    return {"batches_per_s": len(table) * per, "mb_per_s": float(table["bytes"].sum()) / 1e6 * per}


def _rows(snapshot, known):
    rows = []
    for number in np.flatnonzero(snapshot.reported).tolist():
        participant, number = snapshot.participants[number], number - 1
        made, idle = float(participant["fetch_ns"] + participant["collate_ns"]), float(participant["idle_ns"])
        n = max(1, int(participant["batches"]))
        sizes = known.private_bytes
        rows.append(
            WorkerRow(
                number,
                int(participant["pid"]),
                int(participant["batches"]),
                float(participant["fetch_ns"]) / n / 1e9,
                float(participant["collate_ns"]) / n / 1e9,
                made / (made + idle) if made + idle else 0.0,
                min(1.0, float(participant["cpu_ns"]) / max(1.0, float(participant["reported_ns"]))),
                sizes[number] if number < len(sizes) else None,
            )
        )
    return rows


def _first(row):
    return "" if row["first_index"] == NO_INDEX else index_text(row["first_index"])


def _batch(row):
    return {
        "epoch": int(row["epoch"]),
        "seq": int(row["seq"]),
        "worker": int(row["participant"]) - 1,
        "first": _first(row),
        "rows": int(row["rows"]),
        "bytes": int(row["bytes"]),
        "fetch_s": float(row["fetch_ns"]) / 1e9,
        "collate_s": float(row["collate_ns"]) / 1e9,
    }


def _sample(row):
    return {
        "sample": index_text(row["slowest_index"]),
        "seconds": float(row["slowest_ns"]) / 1e9,
        "epoch": int(row["epoch"]),
        "seq": int(row["seq"]),
        "worker": int(row["participant"]) - 1,
    }


def _headroom(alone, snapshot):
    """Compare the step's duration without loading with that of the remembered batches."""
    if alone is None:
        return None
    alone = float(getattr(alone, "step_s", alone))
    if not 0 < alone < math.inf:
        raise ValueError(f"headroom must be seconds of a step alone, above 0, or a replay that has run, not {alone!r}")
    found = Figures(snapshot)
    n, spent = int((~found.first).sum()), found.all
    if found.has_loop:
        n, spent = snapshot.segment_info["loop_steps"], snapshot.segment_info["loop_ns"]
    if n < FEW:
        text = f"The step alone takes {seconds(alone)}. Too early to tell what it takes with data: {n} steps so far."
        return {"step_alone_s": alone, "step_s": None, "gain": None, "sentence": text}
    now = float(spent) / n / 1e9
    gain = max(0.0, 1 - alone / now) if now else 0.0
    return {
        "step_alone_s": alone,
        "step_s": now,
        "gain": gain,
        "sentence": f"The step alone takes {seconds(alone)} and with its data {seconds(now)}: no loader can "
        f"save more than {gain:.0%} of the time.",
    }


Report.__module__ = "slipring.monitor"  # its pickle and its repr have its public name
