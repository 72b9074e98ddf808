"""The tables that end a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.question import Question, Target
from bench.rivals import find
from bench.summary import Row, Spread, Verdict

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

AGAINST = {
    "roofline": "of the roofline, at least",
    "torch": "× torch (the better, where there are two), at least",
    "spdl": "× SPDL, at least",
    "exact": "× the best that is at most 2 levels off, at least",
    "threads": "by thread workers, of that by processes, at least",
    "drop_in": "× torch (the better of two) by slipring.torch, at least",
    "cpu": "µs of the consumer's CPU per batch, at most",
}


def show(
    console: Console, questions: Iterable[Question], summary: dict[str, Any], machine: dict[str, Any]
) -> None:
    """Print everything."""
    for question in questions:
        console.print(_table(question, summary["tables"][question.key]))
        for row in summary["tables"][question.key]:
            for note in row.notes:
                console.print(f"  {find(row.rival).label}: {note}", style="yellow", markup=False)
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


def _table(question: Question, table: list[Row]) -> Table:
    result = Table(title=f"({question.key}) {question.title}", caption=question.asks, title_justify="left")
    result.add_column("loader", no_wrap=True)
    for name in CROPS if question.crops else COLUMNS:
        result.add_column(name, justify="right", no_wrap=True)
    for row in table:
        result.add_row(
            find(row.rival).label,
            number(row.rate and row.rate.median),
            f"{number(row.rate.low)} – {number(row.rate.high)}" if row.rate else "",
            number(row.images_per_s if question.crops else row.mb_per_s),
            number(row.to_torch and row.to_torch.median, 2),
            _error(row) if question.crops else number(row.to_spdl and row.to_spdl.median, 2),
            f"{row.to_roofline.median:.0%}" if row.to_roofline else "–",
            number(row.cpu_us and row.cpu_us.median),
            style="bold" if row.rival == question.roles.ours else "",
        )
    return result


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
            f"({verdict.question})",
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
