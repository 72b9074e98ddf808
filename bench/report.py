"""The tables at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.baselines import find
from bench.summary import Row, Spread, Verdict
from bench.workload import Target, Workload

COLUMNS = ("batches/s", "min – max", "MB/s", "× torch", "× SPDL", "of roofline", "consumer CPU\nµs/batch")
CROPS = (
    "batches/s",
    "min – max",
    "images/s",
    "× torch",
    "error\nmean (max)",
    "of roofline",
    "consumer CPU\nµs/batch",
)
KEPT = (
    "images/s",
    "min – max",
    "× no\ncache",
    "hits",
    "memory\nMB",
    "error\nmean (max)",
    "CPU µs\n/batch",
)

AGAINST = {
    "roofline": "of the roofline, at least",
    "torch": "× torch (the better, where there are two), at least",
    "spdl": "× SPDL, at least",
    "exact": "× the best that is at most 2 levels off, at least",
    "threads": "by thread workers, of that by processes, at least",
    "drop_in": "× torch (the better of two) by slipring.torch, at least",
    "plain": "× slipring without a cache, at least",
    "half": "× slipring without a cache by one with room for half, at least",
    "mapped": "× a mapped file of decoded pictures, OpenCV's area filter and torch's loader, at least",
    "cpu": "µs of the consumer's CPU per batch, at most",
}


def show(console: Console, workloads: Iterable[Workload], summary: dict[str, Any], machine: dict[str, Any]) -> None:
    """Print everything."""
    for workload in workloads:
        console.print(_table(workload, summary["tables"][workload.key]))
        for row in summary["tables"][workload.key]:
            for note in row.notes:
                console.print(f"  {find(row.baseline).label}: {note}", style="yellow", markup=False)
    if summary["targets"]:
        console.print(_targets(summary["targets"]))
    names = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['ram_gib']} GiB, {machine['kernel']}, "
        f"load before {machine['load_before']}\nPython {machine['python']}, {names}\n"
        f"{machine['date']}   {machine['command']}",
        style="dim",
        highlight=False,
        markup=False,
    )


def _table(workload: Workload, table: list[Row]) -> Table:
    result = Table(title=f"({workload.key}) {workload.title}", caption=workload.purpose, title_justify="left")
    result.add_column("loader", no_wrap=True)
    for name in KEPT if workload.epochs else CROPS if workload.crops else COLUMNS:
        result.add_column(name, justify="right", no_wrap=True)
    cells = _kept_cells if workload.epochs else _crop_cells if workload.crops else _cells
    for row in table:
        style = "bold" if row.baseline == workload.roles.ours else ""
        result.add_row(find(row.baseline).label, *cells(row), style=style)
    return result


def _cells(row: Row) -> tuple[str, ...]:
    return _figures(row, number(row.mb_per_s), number(row.to_spdl and row.to_spdl.median, 2))


def _crop_cells(row: Row) -> tuple[str, ...]:
    return _figures(row, number(row.images_per_s), _error(row))


def _figures(row: Row, volume: str, other: str) -> tuple[str, ...]:
    return (
        number(row.rate and row.rate.median),
        f"{number(row.rate.low)} – {number(row.rate.high)}" if row.rate else "",
        volume,
        number(row.to_torch and row.to_torch.median, 2),
        other,
        f"{row.to_roofline.median:.0%}" if row.to_roofline else "–",
        number(row.cpu_us and row.cpu_us.median),
    )


def _kept_cells(row: Row) -> tuple[str, ...]:
    per_batch = row.images_per_s / row.rate.median if row.rate and row.images_per_s else 0
    return (
        number(row.images_per_s),
        f"{number(row.rate.low * per_batch)} – {number(row.rate.high * per_batch)}" if row.rate else "",
        number(row.to_plain and row.to_plain.median, 2),
        "–" if row.hits is None else f"{row.hits:.0%}",
        number(row.memory and row.memory / 1e6),
        _error(row),
        number(row.cpu_us and row.cpu_us.median),
    )


def _error(row: Row) -> str:
    return "–" if row.error_mean is None else f"{row.error_mean:.2f} ({row.error_max})"


def _targets(verdicts: list[Verdict]) -> Table:
    result = Table(title="targets, by the medians of this run", title_justify="left")
    result.add_column("")
    result.add_column("target")
    result.add_column("measured (min – max)", justify="right")
    result.add_column("met?")
    for verdict in verdicts:
        target, met = verdict.target, verdict.met
        result.add_row(
            f"({verdict.workload})",
            f"{_figure(target, target.bound)} {AGAINST[target.against]}",
            _measured(target, verdict.measured),
            "not measured" if met is None else "[green]yes[/]" if met else "[red]no[/]",
        )
    return result


def _measured(target: Target, spread: Spread | None) -> str:
    if spread is None:
        return "–"
    low, high = _figure(target, spread.low), _figure(target, spread.high)
    return f"{_figure(target, spread.median)} ({low} – {high})"


def _figure(target: Target, value: float) -> str:
    return f"{value * 100:.3g} %" if target.against in ("roofline", "threads") else number(value, 3)


def number(value: float | None, digits: int = 3) -> str:
    """Write a figure with at least so many significant digits, grouped by thousands."""
    if value is None:
        return "–"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
