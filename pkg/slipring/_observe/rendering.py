"""A `Report` as text: with rich as tables, without it as six lines, and as the HTML of a notebook."""

import html
import io

import numpy as np

from slipring._core.ring.text import count, mb, megabytes, seconds
from slipring._observe.snapshot import part_name

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
FAILED = ("refused", "timeouts", "broken", "rejected")  # the counts of remote reads that failed


def text(report):
    """Return a report as text, with its tables if rich is installed."""
    try:
        return "\n".join(map(str.rstrip, _drawn(report).export_text().splitlines()))
    except ImportError:
        return "\n".join(_plain(report))


def page(report):
    """Return a report as HTML."""
    try:
        return str(_drawn(report).export_html(inline_styles=True, code_format=HTML))
    except ImportError:
        return f"<pre>{html.escape(text(report))}</pre>"


def group(report):
    """Return a report as the object that rich prints."""
    from rich.console import Group
    from rich.text import Text

    style = "bold red" if report.verdict.data_bound else "bold green"
    parts = [Text(f"{report.name}: {report.verdict}", style=style), Text(), Text("\n".join(_notes(report)))]
    for title, head, rows in _tables(report):
        if rows := list(rows):
            left = [0, *(at for at, name in enumerate(head) if not name)]
            parts += [Text(), table(head, rows, left, title)]
    return Group(*parts)


def table(head, rows, left=(0,), title=""):
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


def remote_reads(reads):
    """Return a line about remote reads."""
    failed = {name: reads[name] for name in FAILED if reads[name]}
    outcome = ", ".join(f"{name} {count:,}" for name, count in failed.items())
    outcome = f"{sum(failed.values()):,} failed ({outcome})" if failed else "none failed"
    answered = max(1, reads["attempts"] - sum(failed.values()))
    each = seconds(reads["ns"] / answered / 1e9)
    return f"Remote reads: {reads['attempts']:,}, {outcome}; {megabytes(reads['bytes'])}, {each} each."


def _drawn(report):
    """Return a rich console that has recorded the report."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=WIDE, highlight=False, legacy_windows=False)
    console.print(group(report))
    return console


def _plain(report):
    """Return the report as six lines at most."""
    first, *notes = _notes(report)
    lines = [f"{report.name}: {report.verdict}", first]
    lines.append(f"Medians: {', '.join(f'{row[0]} {row[1]}' for row in _stages(report)) or 'no batches yet'}.")
    if report.workers:
        busy, on_cpu = (np.mean([getattr(row, name) for row in report.workers]) for name in ("busy", "on_cpu"))
        lines.append(f"{count(len(report.workers), 'worker', 'workers')}: {busy:.0%} busy, {on_cpu:.0%} on a CPU.")
    lines.append(" ".join(notes))
    if report.slowest_samples:
        slowest = (f"{each['sample']} ({seconds(each['seconds'])})" for each in report.slowest_samples[:3])
        lines.append(f"Slowest samples: {', '.join(slowest)}.")
    return lines


def _notes(report):
    """Return the lines of text besides the tables."""
    rates = f"{report.rates['batches_per_s']:,.1f} batches/s, {report.rates['mb_per_s']:,.1f} MB/s"
    lines = [f"{report.sums['batches']:,} batches, {mb(report.sums['bytes'])} MB; lately {rates}."]
    if report.reads["attempts"]:
        lines.append(remote_reads(report.reads))
    shares = report.shares.items()
    parts = [f"{part_name(name)} {share:.0%}" for name, share in shares if name not in ("fetch", "collate")]
    if parts:
        lines.append(f"Of fetching: {', '.join(parts)}.")
    memory, slots, workers = report.memory, report.slots, sum(report.memory["workers"])
    allowed = f" of {megabytes(memory['budget'])}" if memory["budget"] else ""
    sizes = [f"segment {megabytes(memory['segment'])}{allowed} ({slots['used']} of {slots['all']} slots used)"]
    sizes += [f"workers {megabytes(workers)} of their own"] if workers else []
    sizes += [f"cache {megabytes(memory['cache'])}"] if memory["cache"] is not None else []
    lines.append(f"Memory: {', '.join(sizes)}.")
    lines += [_numa(**report.numa)] if report.numa else []
    lines += [report.headroom["sentence"]] if report.headroom is not None else []
    lines += [f"Workers: {report.tuning}"] if report.tuning else []
    return lines


def _numa(node, slots):
    source = "the nodes that the system chooses" if node is None else f"node {node}"
    lie = ", ".join(f"{count(n, 'slot lies', 'slots lie')} on node {at}" for at, n in slots.items())
    return f"NUMA: slots take their memory from {source}{lie and '; '}{lie}."


def _tables(report):
    """Return (title, head, rows) of each table, all text."""
    batches = ["epoch", "batch", "from", "rows", "worker", "fetch", "collate"]
    workers = ["worker", "pid", "batches", "fetch", "collate", "busy", "on CPU", "memory"]
    ranks = ["rank", "waits", "a batch from its workers", "own step", "memory", "of", "", ""]
    return (
        ("Stages of a batch", ["", "p50", "p90", "p99", "max", "in all"], _stages(report)),
        ("Workers", workers, map(_worker, report.workers)),
        ("By the source's names", ["", "in all"], ((name, seconds(s)) for name, s in report.waits.items())),
        ("Slowest batches", batches, map(_batch, report.slowest_batches)),
        ("Slowest samples", ["", "took", "batch", "worker"], map(_sample, report.slowest_samples)),
        ("Ranks, by waiting", ranks, map(_rank, report.ranks)),
    )


def _stages(report):
    found = ((name, report.stages[stage]) for stage, name in STAGE_NAMES.items())
    return [
        [name, *map(seconds, (stage.p50_s, stage.p90_s, stage.p99_s, stage.max_s, stage.total_s))]
        for name, stage in found
        if stage.count and stage.max_s
    ]


def _worker(row):
    memory = "" if row.private_bytes is None else megabytes(row.private_bytes)
    times = seconds(row.fetch_s), seconds(row.collate_s)
    return str(row.worker), str(row.pid), f"{row.batches:,}", *times, f"{row.busy:.0%}", f"{row.on_cpu:.0%}", memory


def _batch(batch):
    numbers = (str(batch[name]) for name in ("epoch", "seq", "first", "rows", "worker"))
    return *numbers, seconds(batch["fetch_s"]), seconds(batch["collate_s"])


def _sample(sample):
    return sample["sample"], seconds(sample["seconds"]), str(sample["seq"]), str(sample["worker"])


def _rank(rank):
    times = seconds(rank["supply_s"]), seconds(rank["own_s"])
    return str(rank["rank"]), f"{rank['wait_share']:.1%}", *times, *rank_memory(rank), rank["cause"], rank["sentence"]


def rank_memory(rank):
    """Return the memory of a rank, and what its pool allows it, as texts."""
    return tuple("-" if rank[name] is None else megabytes(rank[name]) for name in ("memory_bytes", "budget_bytes"))
