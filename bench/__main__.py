"""The command: ``python -m bench``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import chart, machine, report, runner, summary
from bench.baselines import BASELINES
from bench.baselines.images import IMAGES
from bench.baselines.kept import KEPT
from bench.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"

WIDTH = 120  # of the tables, if there is no terminal

# (repeats, warm-up at most, window, limit, budget), all but the first in seconds
FULL = (5, 1.0, 1.5, 45.0, None)
QUICK = (2, 0.2, 0.4, 10.0, 100.0)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    asked = "\n".join(f"  {key}  {item.title}\n     {item.purpose}" for key, item in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Compare slipring with other loaders, each in a process of its own, in turn.",
        epilog=f"workloads:\n{asked}\n\nloaders: {', '.join(BASELINES)}\nof (f): {', '.join(IMAGES)}\n"
        f"of (g): {', '.join(KEPT)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("workloads", nargs="*", default=list(WORKLOADS), metavar="workload", help="which; all by default")
    add("--quick", action="store_true", help="shorter and coarser: a few minutes")
    add("--data", metavar="DIR", help="class folders of your own JPEGs, for workloads a, f and g")
    add("--baselines", metavar="LIST", help="only these loaders, separated by commas")
    add("--workers", type=int, default=2, metavar="N", help="processes per loader (2)")
    add("--repeats", type=int, metavar="N", help=f"rounds ({FULL[0]}; quick: {QUICK[0]})")
    add("--window", type=float, metavar="S", help=f"timed seconds ({FULL[2]}; quick: {QUICK[2]})")
    add("--json", action="store_true", help="print the results as JSON instead of tables")
    add("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go (bench/results)")
    options = parser.parse_args()
    for key in options.workloads:
        if key not in WORKLOADS:
            parser.error(f"no workload {key!r}; there are {', '.join(WORKLOADS)}")
    options.baselines = tuple(options.baselines.split(",")) if options.baselines else None
    for key in options.baselines or ():
        if key not in BASELINES | IMAGES | KEPT:
            parser.error(f"no loader {key!r}; there are {', '.join(BASELINES | IMAGES | KEPT)}")
    if options.workers < 1 or (options.repeats is not None and options.repeats < 1):
        parser.error("--workers and --repeats must be at least 1")
    if options.data and not Path(options.data).is_dir():
        parser.error(f"--data: {options.data} is not a folder")
    return options


def plan(options: argparse.Namespace) -> runner.Plan:
    """Turn options into a plan; (f) runs twice, except with the user's files."""
    repeats, warm_s, window_s, limit_s, budget_s = QUICK if options.quick else FULL
    asked = [
        part
        for key in options.workloads
        for part in WORKLOADS
        if part == key or (part == f"{key}-large" and not options.data)
    ]
    return runner.Plan(
        workloads=tuple(WORKLOADS[key] for key in dict.fromkeys(asked)),
        workers=options.workers,
        repeats=options.repeats or repeats,
        warm_s=warm_s,
        window_s=options.window or window_s,
        limit_s=limit_s,
        data=str(Path(options.data).resolve()) if options.data else None,
        budget_s=None if options.repeats else budget_s,
        only=options.baselines,
        quick=options.quick,
    )


def main() -> None:
    options = arguments()
    steps = plan(options)
    about = machine.describe(steps.baselines)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with progress:
        waiting = progress.add_task("cutting photographs (once)", total=None)
        for workload in steps.workloads:
            workload.prepare(steps.data)
        progress.remove_task(waiting)
        task = progress.add_task("starting", total=steps.steps)

        def step(what: str) -> None:
            progress.update(task, description=what, advance=1)

        outcome = runner.run(steps, step)
    found = summary.summarize(steps.workloads, outcome)
    document = {
        "machine": about,
        "plan": {
            "workers": steps.workers,
            "repeats": steps.repeats,
            "window_s": steps.window_s,
            "seconds": round(outcome["seconds"], 1),
        },
        **summary.as_json(found),
        "rounds": outcome["rounds"],
        "missing": outcome["missing"],
    }
    files = save(options.out, document, steps, found, about)
    if options.json:
        json.dump(document, sys.stdout, indent=1)
        print()
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    report.show(console, steps.workloads, found, about)
    console.print(
        f"{steps.repeats} rounds of {steps.window_s} s, {steps.workers} workers, "
        f"{outcome['seconds']:.0f} s in all.   " + "   ".join(map(str, files)),
        style="dim", highlight=False, soft_wrap=True,
    )  # fmt: skip


def save(
    folder: Path, document: dict[str, Any], steps: runner.Plan, found: dict[str, Any], about: dict[str, Any]
) -> list[Path]:
    """Write the JSON file and the charts; the time is part of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = document["machine"]["date"][:19].replace(":", "").replace("T", "-")
    text, png, svg = (folder / f"{stem}.{suffix}" for suffix in ("json", "png", "svg"))
    text.write_text(json.dumps(document, indent=1) + "\n")
    chart.draw(steps.workloads, found, about, steps.workers, (png, svg))
    return [text, png, svg]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the children have been stopped; a traceback would add nothing
