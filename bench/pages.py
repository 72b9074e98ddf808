"""The figures of the benchmark pages, and the charts: ``python -m bench.pages``.

A page has tables that this program writes after a marker, from the results in ``docs/benchmarks/results``::

    <!-- table: RESULT | TABLE | COLUMN; COLUMN | ROWS -->

RESULT is a file's name; ``A + B`` joins the rows of two. Without columns the table has all of them, without a table
the first one is meant. If several tables are named, ``TABLE; TABLE``, their columns stand next to each other in the
rows of the same name. ROWS is a regular expression for the names of rows. ``<!-- losses -->`` stands for the table of
`LOSSES`, ``<!-- runs -->`` for that of the commands, dates and machines of all results. ``--check`` only compares, and
``--commands`` lists the commands that measure everything again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.record import RECORDED, ROOT, Cell, head, line, load, number

DOCS = ROOT / "docs"
CHART, TRAINING_CHART = DOCS / "bench.png", DOCS / "benchmarks" / "training.png"
PAGES = (DOCS / "benchmarks.md", *sorted((DOCS / "benchmarks").glob("*.md")), RECORDED / "README.md")
BLOCK = re.compile(r"^(<!-- (table|losses|runs)(?:: ([^>]*?))? -->\n)(?:\|.*\n)*", re.M)
NAMES = {"pillow": "Pillow", "opencv-python-headless": "OpenCV", "av": "PyAV"}  # of packages, in text

read: Callable[[str], dict[str, Any]] = cache(load)


@dataclass(frozen=True)
class Loss:
    """A case in which slipring loses or gains little.

    Parameters
    ----------
    case
        The measured work and the unit of the figures, in Markdown.
    result, table, column
        Where both figures stand.
    ours, other
        The rows; of several labels, with commas between them.
    other_column
        The column of the other figure, if not `column`.
    named
        What slipring is compared with; None: `other`.
    less
        Less is better.
    ratio
        The column with the median of the rounds' ratios, in the row `ours`; None: the medians are divided.
    """

    case: str
    result: str
    table: str
    column: str
    ours: str
    other: str
    other_column: str | None = None
    named: str | None = None
    less: bool = False
    ratio: str | None = None

    def row(self) -> tuple[float, list[Cell]]:
        """Return slipring's speed as a multiple of the other's, and the row."""
        table = read(self.result)["tables"][self.table]
        own = value(table, self.ours, self.column)
        other = value(table, self.other, self.other_column or self.column)
        times = value(table, self.ours, self.ratio) if self.ratio else own / other
        speed = 1 / times if self.less else times
        return speed, [
            self.case,
            own,
            f"{self.named or self.other}: {number(other)}",
            f"{number(speed)} ×",
            self.result,
        ]


RATE = "batches/s"
SHARE = "≥ this share of the roofline, %"
TARGET = "≤ µs of the consumer's CPU per batch"
BOUND = "≥ this share of the bound, %"
TORCH = "slipring.torch.DataLoader"
FIRST, STREAMS = "[first batch](benchmarks/first-batch.md)", "[rebatching a stream](benchmarks/streams.md)"

LOSSES = (
    Loss("(a) photographs, batches/s", "ready", "a", RATE, "slipring", "SPDL, shared-memory pools"),
    Loss("(a) photographs, batches/s", "ready", "a", RATE, "slipring", "torch, tensor samples"),
    Loss("(a) share of the roofline, %", "ready", "targets", "measured", f"a, {SHARE}", f"a, {SHARE}",
         other_column="bound", named="target"),
    *(
        Loss(f"({key}) µs of the consumer's CPU per batch", "ready", "targets", "measured", f"{key}, {TARGET}",
             f"{key}, {TARGET}", other_column="bound", named="target", less=True)
        for key in "abc"
    ),
    *(
        Loss(f"({key}) {what}, batches/s", "ready", key, RATE, "slipring", "roofline (no hand-over)")
        for key, what in (("d", "tiny batches"), ("e", "many leaves"))
    ),
    Loss("(h) a recipe in Pillow and numpy, batches/s", "new-arrays", "h", RATE, "slipring",
         "SPDL, shared-memory pools"),
    Loss("(i) Python code, batches/s", "new-arrays", "i", RATE, "slipring", "webdataset MultiLoader"),
    Loss("(f-large) [JPEGs of 1600 × 1200](benchmarks/images.md), batches/s", "crops", "f-large", RATE,
         "slipring.images", "TurboLoader", named="TurboLoader, with larger errors"),
    Loss("(g) a cache of encoded files, images/s", "cache", "g", "images/s", "slipring, 100 %, encoded",
         "slipring, no cache"),
    Loss(f"`slipring.torch`, one worker: end after the {FIRST}, at rest, s", "starts", "starts", "end, at rest, s",
         f"1, {TORCH}", "1, torch", named="torch", less=True, ratio="end, at rest, ÷ torch"),
    Loss("a [GPU](benchmarks/device.md) with a step of 50 ms, images/s", "device-gpu", "loops", "images/s",
         "50 ms, slipring, `device=`", "50 ms, torch", named="torch"),
    Loss("a [training](benchmarks/training.md) on a CPU: share of the rate without a loader, %", "training-cpu",
         "targets", "measured", f"small, {BOUND}", f"small, {BOUND}", other_column="bound", named="target"),
    Loss("[Ray's](benchmarks/streams.md#ray-data) tasks make the blocks meanwhile, batches/s", "ray", "ray", RATE,
         "made, slipring", "made, iter_torch_batches", named="Ray's iterator", ratio="rate ÷ Ray's"),
    Loss("[Ray](benchmarks/streams.md#ray-data): short epochs of text, batches/s", "ray-short-text", "ray", RATE,
         "short text, slipring", "short text, iter_batches", named="Ray's iterator", ratio="rate ÷ Ray's"),
    Loss("[random clips](benchmarks/clips.md) of videos without a cache, samples/s", "clips", "rates",
         "later epochs, samples/s", "random clips, slipring.clips", "random clips, torch, torchcodec",
         named="torchcodec", ratio="÷ best of torch, later"),
    Loss(f"{STREAMS}: tiny batches, µs", "streams", "tiny", "µs per batch", "`slipring.stream`, `num_workers=0`",
         "`np.concatenate` by hand, from arrays", named="`np.concatenate` by hand", less=True),
    Loss(f"{STREAMS}: wide batches, µs", "streams", "wide", "µs per batch", "`slipring.stream`, `num_workers=0`",
         "`combine_chunks` by hand; copies only batches that cross a block's end", named="`combine_chunks` by hand",
         less=True),
    *(
        Loss(f"[`num_workers=\"auto\"`](benchmarks/core.md#the-number-of-workers), {work}: auto ÷ best fixed number",
             result, "auto", "auto ÷ best fixed", work, work, other_column="best fixed number",
             named="best fixed number", ratio="auto ÷ best fixed")
        for work, result in (("tiny", "tuning-tiny"), ("memory-bound", "tuning"))
    ),
    Loss("[a string](benchmarks/core.md#strings-in-forked-workers) of a `StringList`, µs", "strings", "strings",
         "read one, µs", "a StringList", "a list", named="of a list", less=True),
    Loss('[`rng="sample"`](benchmarks/core.md#random-numbers-per-sample), ms for 20,000 samples', "random-numbers",
         "seeds", 'rng="sample", ms', "without torch", "without torch", other_column='rng="batch", ms',
         named='`rng="batch"`', less=True),
)  # fmt: skip

GREY = "The roofline does the same work and delivers nothing."
RECIPES = "recipes + recipes-more + recipes-once + recipes-parts + recipes-objects"

# Title, result, table, column, slipring's rows, column of ratios.
Panels = tuple[tuple[str, str, str, str, Sequence[str] | None, str | None], ...]
PANELS: Panels = (
    ("Training crops of photographs, batches of 256 per second", "crops", "f", RATE,
     ("slipring.images", "slipring.images, threads"), "× torch"),
    ("Datasets that make new arrays, batches of 256 per second", "new-arrays", "b2", RATE,
     ("slipring", "slipring.torch, numpy samples"), "× torch"),
    ("Whole recipes by CPU time, × torch with torchvision (timm: with timm)", RECIPES, "ratio", "slipring.images",
     None, None),
    ("2 ms of Python per sample, batches of 32 per second", "new-arrays", "i", RATE,
     ("slipring", "slipring.torch, numpy samples"), "× torch"),
)  # fmt: skip

TRAINED = ("slipring.torch, images.Folder", "slipring.torch, from_torchvision")
TRAINING_PANELS: Panels = (
    ("A small network on one core, images per second", "training-cpu", "small", "images/s", TRAINED, None),
    ("Time that it waits for data, % of the step", "training-cpu", "small", "device waits, %", TRAINED, None),
)


def value(table: Mapping[str, Any], row: str, column: str) -> float:
    """Return a figure of a table: the median of a spread."""
    found = _rows(table)[row][column]
    return float(found[0] if isinstance(found, list) else found)


def _rows(table: Mapping[str, Any]) -> dict[str, dict[str, Cell]]:
    """Return {label, label: {column: cell}}."""
    return {
        ", ".join(map(_label, row[: table["labels"]])): dict(zip(table["columns"], row, strict=True))
        for row in table["rows"]
    }


def _label(cell: Cell) -> str:
    return cell if isinstance(cell, str) else number(cell)  # type: ignore[arg-type]


def joined(name: str) -> list[dict[str, Any]]:
    """Return the results of ``A + B``."""
    return [read(each.strip()) for each in name.split("+")]


def merged(asked: str, link: str) -> list[str]:
    """Return the lines of the table that a marker asks for, with a link to its run."""
    name, tables, columns, rows = [part.strip() for part in f"{asked} | | |".split(" |")][:4]
    results, chosen = joined(name), _split(columns)
    names = _split(tables) or [next(iter(results[0]["tables"]))]
    firsts = [results[0]["tables"][each] for each in names]
    labels = firsts[0]["labels"]
    shown = [chosen or first["columns"][labels:] for first in firsts]
    heads = list(firsts[0]["columns"][:labels])
    heads[0] += f" ([{name}]({link}))"
    for each, found in zip(names, shown):
        heads += found if len(names) == 1 else [each if len(found) == 1 else f"{each}: {column}" for column in found]
    lines = head(heads, labels)
    for result in results:
        of_names = [_rows(result["tables"][each]) for each in names]
        for key in of_names[0]:
            if re.search(rows, key):
                cells = list(of_names[0][key].values())[:labels]
                for found, wanted in zip(of_names, shown):
                    cells += [found.get(key, {}).get(column) for column in wanted]
                lines.append(line(cells))
    return lines


def runs() -> list[str]:
    """Return the table of the commands, dates and machines of all results."""
    lines = head(("run", "command", "date", "machine and versions", "conditions"), 5)
    for path in sorted(RECORDED.glob("*.json")):
        result = read(path.stem)
        about = result["machine"]
        date = ", ".join([about["date"][:10], *([f"commit {about['commit']}"] if about.get("commit") else ())])
        lines.append(line((path.stem, f"`{about['command']}`", date, _machine(about), result.get("note", ""))))
    return lines


def _machine(about: Mapping[str, Any]) -> str:
    versions = [f"{NAMES.get(name, name)} {what}" for name, what in about.get("versions", {}).items() if what != "-"]
    parts = [about.get("device"), about["cpu"], f"{about['cores']} cores"]
    parts += [f"{about['ram_gib']} GiB" if about.get("ram_gib") else None, about.get("kernel")]
    parts += [f"Python {about['python']}" if about.get("python") else None, *versions, about.get("decoder")]
    if about.get("load_before") is not None:
        parts.append(f"load before {about['load_before']}")
    return ", ".join(part for part in parts if part)


def losses() -> list[str]:
    """Return the table of the cases in which slipring loses or gains little, the worst first."""
    rows = sorted((loss.row() for loss in LOSSES), key=lambda found: found[0])
    return [
        *head(("case", "slipring", "compared with", "slipring's speed", "[run](benchmarks/results/README.md)"), 1),
        *(line(row) for _, row in rows),
    ]


def regenerated(text: str) -> str:
    """Return a page with the tables as the results have them."""

    link = f"{'benchmarks/' if '<!-- losses -->' in text else ''}results/README.md"

    def block(match: re.Match[str]) -> str:
        kind = match[2]
        lines = losses() if kind == "losses" else runs() if kind == "runs" else merged(match[3], link)
        return match[1] + "\n".join(lines) + "\n"

    return BLOCK.sub(block, text)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def small_print(results: Iterable[Mapping[str, Any]], grey: str = GREY) -> str:
    """Return the text under a chart; `grey` explains its grey bars."""
    sources = dict.fromkeys(f"{r['machine']['date'][:10]}, {_machine(r['machine'])}." for r in results)
    first = "Bars: median of the rounds; whiskers: lowest and highest round."
    return "\n".join([f"{first} {grey}", *sources])


def draw(path: Path, title: str, asked: Panels, grey: str = GREY) -> None:
    """Draw a chart of recorded results."""
    from bench.chart import Panel, draw

    panels, results = [], []
    for name, result, table, column, ours, ratio in asked:
        results += (found := joined(result))
        rows = [row for one in found for row in one["tables"][table]["rows"]]
        panels.append(Panel(name, found[0]["tables"][table] | {"rows": rows}, column, ours, ratio))
    draw(panels, title, small_print(results, grey), [path])


def commands() -> list[str]:
    """Return the commands that measure the results again."""
    found = []
    for path in sorted(RECORDED.glob("*.json")):
        about = read(path.stem)["machine"]
        duration = f"  # {about['seconds']} s" if "seconds" in about else ""
        found.append(f"{about['command']} --record {path.stem}{duration}")
    return found


def main() -> int:
    """Write the pages and the chart, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; the exit status is 1 if a page differs")
    parser.add_argument("--commands", action="store_true", help="list the commands that measure everything again")
    options = parser.parse_args()
    if options.commands:
        print(*commands(), sep="\n")
        return 0
    different = [path for path in PAGES if regenerated(path.read_text()) != path.read_text()]
    for path in different:
        print(f"{path.relative_to(ROOT)} {'differs from the results' if options.check else 'written'}")
        if not options.check:
            path.write_text(regenerated(path.read_text()))
    if options.check:
        return 1 if different else 0
    draw(CHART, "slipring and other loaders, 2 workers", PANELS)
    grey = "The same batch again: without a loader."
    draw(TRAINING_CHART, "Training from JPEGs, TrivialAugmentWide", TRAINING_PANELS, grey)
    return 0


if __name__ == "__main__":
    sys.exit(main())
