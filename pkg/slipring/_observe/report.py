"""A loader's report: its verdict, and the figures behind it."""

from __future__ import annotations

import builtins
import dataclasses
import html
import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring._watch import NO_INDEX
from slipring._core.ring.text import count, mb, megabytes, seconds
from slipring._observe.ranks import gather, judged
from slipring._observe.rates import Figures
from slipring._observe.retries import text_of
from slipring._observe.snapshot import Stage, index_text, part_name, part_shares
from slipring._observe.verdict import FEW, Known, Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NOTHING_KNOWN = Known()
SLOWEST = 10  # batches and samples that are listed
WIDE = 1000  # columns of a report as text, so that no sentence is wrapped
HTML = '<pre style="white-space: pre-wrap">{code}</pre>'
STAGE_NAMES = {
    "queued": "waits for a worker",
    "fetch": "fetch",
    "collate": "collate",
    "ready": "waits for the loop",
    "waited": "the loop waits",
    "copy": "copy to the device",
    "step": "the step",
    "lease": "kept by the loop",
}


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
        Bytes: "segment", "workers", "cache".
    numa : dict
        Where the slots lie, if memory can lie on several NUMA nodes, or `Workers.numa` is a node. "node": the node from
        which their memory is taken, or None if the system chooses; "slots": node -> how many of the slots that the loop
        has used lie there, as far as the system tells. Otherwise empty.
    ranks : list of dict
        The verdict of each rank's loader, if requested; the rank that waits longest comes first. Each also has the
        seconds from batch to batch ("batch_s"), the seconds in which the rank's workers make a batch ("supply_s"), and
        the seconds of a step without waiting for other ranks ("own_s").

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(100), batch_size=10, num_workers=2) as loader:
    ...     total = sum(batch.sum() for batch in loader)
    ...     report = loader.report()
    >>> report.dict()["batches"], len(report.workers)
    (10, 2)
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
        self.waits: dict[str, float] = {}
        self.rates: dict[str, float] = _rates(snapshot)
        self._snapshot, self._known = snapshot, known

    def add_waits(self, waits: Mapping[str, float], **known: Any) -> None:
        """Add the times that the source reports, by its own names, and update the verdict.

        Parameters
        ----------
        waits : dict of str to float
            In seconds.
        **known
            Fields of `slipring._observe.verdict.Known` that follow from these times.
        """
        self.waits = dict(waits)
        self.verdict = verdict(self._snapshot, dataclasses.replace(self._known, **known))

    def gathered(self) -> Report:
        """Return this report with the verdicts of all ranks, if torch.distributed is used; all ranks must call this."""
        self.ranks = gather(self.verdict, self._snapshot)
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
        told = {
            "batches_per_s": self.rates["batches_per_s"],
            "mb_per_s": self.rates["mb_per_s"],
            "wait_share": self.verdict.wait_share,
            "workers_busy_share": float(np.mean([row.busy for row in self.workers])) if self.workers else 0.0,
        }
        for name, stage in self.stages.items():
            if stage.count:
                told |= {f"{name}_ms_p50": stage.p50_s * 1e3, f"{name}_ms_p99": stage.p99_s * 1e3}
        return {prefix + name: float(value) for name, value in told.items()}

    # ---- as text

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return (title, head, rows) of each table, all text."""
        found = [("Stages of a batch", ["", "p50", "p90", "p99", "max", "in all"], self._stage_rows())]
        if self.workers:
            head = ["worker", "pid", "batches", "fetch", "collate", "busy", "on CPU", "memory"]
            found.append(("Workers", head, [_texts_of(row) for row in self.workers]))
        if self.waits:
            found.append(("By the source's names", ["", "in all"], [[k, seconds(s)] for k, s in self.waits.items()]))
        if self.slowest_batches:
            head = ["epoch", "batch", "from", "rows", "worker", "fetch", "collate"]
            rows = [
                [
                    *(str(b["epoch"]), str(b["seq"]), b["first"], str(b["rows"]), str(b["worker"])),
                    *(seconds(b["fetch_s"]), seconds(b["collate_s"])),
                ]
                for b in self.slowest_batches
            ]
            found.append(("Slowest batches", head, rows))
        if self.slowest_samples:
            rows = [[s["sample"], seconds(s["seconds"]), str(s["seq"]), str(s["worker"])] for s in self.slowest_samples]
            found.append(("Slowest samples", ["", "took", "batch", "worker"], rows))
        if self.ranks:
            rows = [
                [
                    *(str(r["rank"]), f"{r['wait_share']:.1%}", seconds(r["supply_s"]), seconds(r["own_s"])),
                    *(r["cause"], r["sentence"]),
                ]
                for r in self.ranks
            ]
            found.append(("Ranks, by waiting", ["rank", "waits", "a batch from its workers", "own step", "", ""], rows))
        return found

    def _stage_rows(self):
        rows = []
        for name, text in STAGE_NAMES.items():
            stage = self.stages[name]
            if stage.count and stage.max_s:
                times = (stage.p50_s, stage.p90_s, stage.p99_s, stage.max_s, stage.total_s)
                rows.append([text, *map(seconds, times)])
        return rows

    def notes(self) -> list[str]:
        """Return the lines of text besides the tables."""
        rates = f"{self.rates['batches_per_s']:,.1f} batches/s, {self.rates['mb_per_s']:,.1f} MB/s"
        lines = [f"{self.sums['batches']:,} batches, {mb(self.sums['bytes'])} MB; lately {rates}."]
        if self.reads["attempts"]:
            lines.append(text_of(self.reads))
        shares = self.shares.items()
        parts = [f"{part_name(name)} {share:.0%}" for name, share in shares if name not in ("fetch", "collate")]
        if parts:
            lines.append(f"Of fetching: {', '.join(parts)}.")
        workers = sum(self.memory["workers"])
        told = [f"segment {megabytes(self.memory['segment'])} ({self.slots['used']} of {self.slots['all']} slots used)"]
        told += [f"workers {megabytes(workers)} of their own"] if workers else []
        told += [f"cache {megabytes(self.memory['cache'])}"] if self.memory["cache"] is not None else []
        lines.append(f"Memory: {', '.join(told)}.")
        if self.numa:
            lines.append(_numa_text(**self.numa))
        if self.headroom is not None:
            lines.append(self.headroom["sentence"])
        if self.tuning:
            lines.append(f"Workers: {self.tuning}")
        return lines

    def __str__(self) -> str:
        try:
            return "\n".join(map(str.rstrip, self._drawn().export_text().splitlines()))
        except ImportError:
            return "\n".join(self._plain())

    def __repr__(self) -> str:
        return f"<slipring report: {self.name}: {self.verdict.sentence}>"

    def _plain(self):
        """Return the report as six lines at most, for programs without rich."""
        lines = [f"{self.name}: {self.verdict}", *self.notes()[:1]]
        lines.append(f"Medians: {', '.join(f'{row[0]} {row[1]}' for row in self._stage_rows()) or 'no batches yet'}.")
        if self.workers:
            busy, on_cpu = (np.mean([getattr(row, name) for row in self.workers]) for name in ("busy", "on_cpu"))
            lines.append(f"{count(len(self.workers), 'worker', 'workers')}: {busy:.0%} busy, {on_cpu:.0%} on a CPU.")
        lines += [" ".join(self.notes()[1:])]
        if self.slowest_samples:
            slowest = (f"{each['sample']} ({seconds(each['seconds'])})" for each in self.slowest_samples[:3])
            lines.append(f"Slowest samples: {', '.join(slowest)}.")
        return lines

    def _drawn(self):
        """Return a rich console that has recorded the report."""
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=WIDE, highlight=False, legacy_windows=False)
        console.print(self)
        return console

    def __rich__(self) -> Any:
        """Return the object that rich prints."""
        from rich.console import Group
        from rich.text import Text

        style = "bold red" if self.verdict.data_bound else "bold green"
        parts: list[Any] = [Text(f"{self.name}: {self.verdict}", style=style), Text(), Text("\n".join(self.notes()))]
        for title, head, rows in self.tables():
            parts += [Text(), table(head, rows, title=title)]
        return Group(*parts)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        try:
            return str(self._drawn().export_html(inline_styles=True, code_format=HTML))
        except ImportError:
            return f"<pre>{html.escape(str(self))}</pre>"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: Iterable[int] = (0,), title: str = "") -> Any:
    """Return rich's table of texts; `left` has the numbers of the columns that are aligned to the left.

    If it has no title, the last column alone may be wrapped.
    """
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for at, name in enumerate(head):
        whole = not title and at < len(head) - 1
        drawn.add_column(name, justify="left" if at in left else "right", overflow="fold", no_wrap=whole)
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return drawn


# ---- figures


def _shares(sums, stages):
    made = stages["fetch"].total_s + stages["collate"].total_s
    found = {"fetch": stages["fetch"].total_s / made, "collate": stages["collate"].total_s / made} if made else {}
    found |= part_shares(stages["fetch"].total_s * 1e9, sums.get)
    if sums["hits"] + sums["misses"]:
        found["hits"] = sums["hits"] / (sums["hits"] + sums["misses"])
    return found


def _numa_text(node, slots):
    source = "the nodes that the system chooses" if node is None else f"node {node}"
    lie = ", ".join(f"{count(n, 'slot lies', 'slots lie')} on node {at}" for at, n in slots.items())
    return f"NUMA: slots take their memory from {source}{lie and '; '}{lie}."


def _rates(snapshot):
    """Return the rates over the remembered batches, without the time between two runs."""
    table = snapshot.table[snapshot.table["kind"] == 1] if snapshot.segment_info["push"] else snapshot.taken
    times = np.sort(table["taken_at"][table["taken_at"] > 0]).astype(np.float64)
    spent = float((table["waited_ns"] + table["step_ns"]).sum()) / 1e9
    if snapshot.segment_info["push"]:
        spent = (times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0
    per = 1 / spent if spent > 0 else 0.0
    return {"batches_per_s": len(table) * per, "mb_per_s": float(table["bytes"].sum()) / 1e6 * per}


def _rows(snapshot, known):
    rows = []
    for number in np.flatnonzero(snapshot.told).tolist():
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


# ---- texts


def _texts_of(row):
    memory = "" if row.private_bytes is None else megabytes(row.private_bytes)
    return [
        *(str(row.worker), str(row.pid), f"{row.batches:,}", seconds(row.fetch_s), seconds(row.collate_s)),
        *(f"{row.busy:.0%}", f"{row.on_cpu:.0%}", memory),
    ]


Report.__module__ = "slipring.monitor"  # its pickle and its repr have its public name
