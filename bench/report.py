"""The tables of a run of `bench`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bench.baselines import find
from bench.record import Cell, Table, rounded
from bench.summary import Row, Spread, Verdict
from bench.workload import Workload

LOADERS = ("batches/s", "MB/s", "× torch", "× SPDL", "of the roofline, %", "consumer's CPU, µs per batch")
CROPS = (
    "batches/s",
    "images/s",
    "× torch",
    "error, mean (largest)",
    "of the roofline, %",
    "consumer's CPU, µs per batch",
)
KEPT = ("images/s", "× no cache", "hits, %", "memory, MB", "error, mean (largest)", "consumer's CPU, µs per batch")

AGAINST = {
    "roofline": "≥ this share of the roofline, %",
    "torch": "≥ × the better of torch's rows",
    "spdl": "≥ × SPDL",
    "exact": "≥ × the fastest whose largest error is at most 2",
    "threads": "thread workers ≥ this share of processes, %",
    "drop_in": "`slipring.torch` ≥ × the better of torch's rows",
    "plain": "≥ × slipring without a cache",
    "half": "room for half of the images: ≥ × slipring without a cache",
    "mapped": "≥ × FFCV raw, emulated, in torch's loader",
    "cpu": "≤ µs of the consumer's CPU per batch",
}
IN_PERCENT = ("roofline", "threads")


def tables(workloads: Iterable[Workload], summary: dict[str, Any]) -> dict[str, Table]:
    """Print a table for each workload, and that of the targets; return them."""
    made = {}
    for workload in workloads:
        print(f"\n({workload.key}) {workload.title}. {workload.purpose}")
        made[workload.key] = _table(workload, summary["tables"][workload.key])
    if summary["targets"]:
        made["targets"] = _targets(summary["targets"])
    return made


def notes(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons for missing baselines, and other events."""
    for key, rows in summary["tables"].items():
        yield from (f"({key}) {find(row.baseline).label}: {note}" for row in rows for note in row.notes)


def _table(workload: Workload, rows: list[Row]) -> Table:
    columns, cells = (KEPT, _kept) if workload.epochs else (CROPS, _crops) if workload.crops else (LOADERS, _loaders)
    table = Table("loader", *columns)
    for row in rows:
        table.add(find(row.baseline).label, *(cells(row) if row.rate else [None] * len(columns)))
    return table


def _loaders(row: Row) -> list[Cell]:
    return [_cell(row.rate), _short(row.mb_per_s), _cell(row.to_torch), _cell(row.to_spdl), *_costs(row)]


def _crops(row: Row) -> list[Cell]:
    return [_cell(row.rate), _short(row.images_per_s), _cell(row.to_torch), _error(row), *_costs(row)]


def _costs(row: Row) -> list[Cell]:
    return [_cell(row.to_roofline, 100), _cell(row.cpu_us)]


def _kept(row: Row) -> list[Cell]:
    per_batch = row.images_per_s / row.rate.median if row.rate and row.images_per_s else 0
    hits, memory = (None if value is None else value * scale for value, scale in ((row.hits, 100), (row.memory, 1e-6)))
    rate = _cell(row.rate, per_batch)
    return [rate, _cell(row.to_plain), _short(hits), _short(memory), _error(row), _cell(row.cpu_us)]


def _error(row: Row) -> str | None:
    return None if row.error_mean is None else f"{row.error_mean:.2f} ({row.error_max})"


def _cell(spread: Spread | None, scale: float = 1.0) -> Cell:
    return None if spread is None else [rounded(v * scale) for v in (spread.median, spread.low, spread.high)]


def _short(value: float | None) -> float | None:
    return None if value is None else rounded(value)


def _targets(verdicts: list[Verdict]) -> Table:
    print("\ntargets, by the medians of this run:")
    table = Table("workload", "target", "bound", "measured", "met", labels=2)
    for verdict in verdicts:
        against = verdict.target.against
        scale = 100 if against in IN_PERCENT else 1
        met = None if verdict.met is None else "yes" if verdict.met else "no"
        bound = rounded(verdict.target.bound * scale)
        table.add(verdict.workload, AGAINST[against], bound, _cell(verdict.measured, scale), met)
    return table
