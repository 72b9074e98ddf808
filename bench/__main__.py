"""The command: ``python -m bench``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import chart, machine, pages, record, report, runner, summary
from bench.baselines import BASELINES, find
from bench.baselines.images import IMAGES
from bench.baselines.kept import KEPT
from bench.record import OTHERS
from bench.workloads import WORKLOADS

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
    record.option(parser)
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
    tables, notes = report.tables(steps.workloads, found), list(report.notes(found))
    print(*notes, sep="\n")
    how = f"{steps.repeats} rounds of {steps.window_s} s, {steps.workers} workers, {outcome['seconds']:.0f} s in all"
    path = record.finish(options.record, about, tables, "; ".join([how, *notes]), outcome["rounds"])
    pictures = [OTHERS / f"{path.stem}.{suffix}" for suffix in ("png", "svg")]
    draw(steps, record.load(path.stem, path.parent), pictures)
    print(how, *pictures, sep="\n", file=sys.stderr)


def draw(steps: runner.Plan, result: dict[str, Any], pictures: list[Path]) -> None:
    """Draw a panel for each workload."""
    pictures[0].parent.mkdir(parents=True, exist_ok=True)
    panels = []
    for workload in steps.workloads:
        table, ours = result["tables"][workload.key], [find(workload.roles.ours).label]
        title = f"({workload.key})  {workload.title}"
        panels.append(
            chart.Panel(title, table, table["columns"][1], ours, "× no cache" if workload.epochs else "× torch")
        )
    chart.draw(panels, f"Batches per second with {steps.workers} workers", pages.small_print([result]), pictures)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)  # the children have been stopped; a traceback would add nothing
