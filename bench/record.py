"""The result of a command as one JSON file, from which `bench.pages` makes the benchmark pages.

A result has the machine with the command and the date, and its tables. A cell of a table is a number, a text, None, or
``[median, lowest, highest]``. ``--record NAME`` writes to ``docs/benchmarks/results``, where the pages read it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.machine import module

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "docs" / "benchmarks" / "results"
OTHERS = ROOT / "bench" / "results"

STARTED = time.monotonic()

Cell = float | str | list[float] | None


class Table:
    """Rows of cells, printed as they are added.

    Parameters
    ----------
    columns
        The names of the columns, with their units.
    labels
        So many columns at the left name a row.
    quiet
        Print nothing.
    """

    def __init__(self, *columns: str, labels: int = 1, quiet: bool = False) -> None:
        self.columns, self.labels, self.quiet = columns, labels, quiet
        self.rows: list[list[Cell]] = []

    def add(self, *cells: Cell) -> None:
        """Append a row."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells: a row has {len(self.columns)}, {', '.join(self.columns)}")
        if not self.quiet:
            if not self.rows:
                print("\n" + "\n".join(head(self.columns, self.labels)))
            print(line(cells), flush=True)
        self.rows.append(list(cells))


def head(columns: Iterable[str], labels: int) -> list[str]:
    """Return the first two lines of a Markdown table."""
    names = list(columns)
    rule = ["---" if number < labels else "---:" for number in range(len(names))]
    return [f"| {' | '.join(names)} |", f"|{'|'.join(rule)}|"]


def line(cells: Iterable[Cell]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(map(cell, cells))} |"


def cell(value: Cell) -> str:
    """Write a cell: "551 (543 – 560)"."""
    if isinstance(value, list):
        middle, low, high = map(number, value)
        return middle if low == high else f"{middle} ({low} – {high})"
    return value if isinstance(value, str) else number(value)


def number(value: float | None, digits: int = 3) -> str:
    """Write a figure with at least that many significant digits, grouped by thousands."""
    if value is None:
        return "–"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}".replace("-", "−")


def spread(values: Iterable[float], scale: float = 1.0) -> list[float] | None:
    """Return [median, lowest, highest] with four significant digits; None without values."""
    listed = [value * scale for value in values]
    return [rounded(f(listed)) for f in (statistics.median, min, max)] if listed else None


def rounded(value: float) -> float:
    """Round to four significant digits."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def option(parser: argparse.ArgumentParser) -> None:
    """Add ``--record`` to a command's options."""
    parser.add_argument(
        "--record", metavar="NAME", help="write docs/benchmarks/results/NAME.json, for bench.pages; or a FILE.json"
    )


def finish(
    record: str | None, about: Mapping[str, Any], tables: Mapping[str, Table], note: str = "", rounds: Any = None
) -> Path:
    """Print the machine and write the result; without a name to ``bench/results``, which git ignores, with `rounds`."""
    name = record or str(OTHERS / f"{module().rpartition('.')[2]}.json")
    path = Path(name) if name.endswith(".json") else RECORDED / f"{name}.json"
    made = {
        "machine": {**about, "seconds": round(time.monotonic() - STARTED)},
        "note": note,
        "tables": {
            name: {"columns": list(table.columns), "labels": table.labels, "rows": table.rows}
            for name, table in tables.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text_of(made)
    if rounds is not None and not record:
        text = text.replace("{\n", f'{{\n "rounds": {_json(rounds)},\n', 1)
    path.write_text(text)
    print("\n" + "\n".join(f"{name}: {value}" for name, value in about.items()) + f"\n{path}", file=sys.stderr)
    return path


def text_of(result: Mapping[str, Any]) -> str:
    """Write a result as JSON with one row per line."""
    tables = []
    for name, table in result["tables"].items():
        rows = ",\n".join(f"    {_json(row)}" for row in table["rows"])
        first = f'"columns": {_json(table["columns"])},\n   "labels": {table["labels"]}'
        tables.append(f'  {_json(name)}: {{\n   {first},\n   "rows": [\n{rows}\n   ]\n  }}')
    machine = ",\n".join(f"  {_json(name)}: {_json(value)}" for name, value in result["machine"].items())
    note = f' "note": {_json(result["note"])},\n' if result.get("note") else ""
    return f'{{\n "machine": {{\n{machine}\n }},\n{note} "tables": {{\n' + ",\n".join(tables) + "\n }\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def load(name: str, folder: Path = RECORDED) -> dict[str, Any]:
    """Read a recorded result."""
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result
