"""How fast are the adapters of slipring.adapters, compared with the loaders whose signatures they have?

Purpose
    Batches per second of each adapter and of the original with the same arguments, on ready images (workload b).
Data
    As in workload (b): 256 uint8 images of 3 x 224 x 224, ready in memory, and labels.
Machine, command, result
    ``python -m bench.adapters`` prints them; ``--json`` as JSON. Each loader in a process of its own, in turn
    (A B A B); ratios are formed within a round, figures are medians with the lowest and the highest.
Bias
    As in workload (b): nothing is decoded, so only the loader takes time. An adapter whose original is not installed
    has a rate and no ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from bench import machine, record, runner
from bench.baselines import ADAPTERS
from bench.workloads import WORKLOADS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.adapters", description="Compare adapters with their originals.")
    parser.add_argument("adapters", nargs="*", default=list(ADAPTERS), metavar="adapter", help=", ".join(ADAPTERS))
    parser.add_argument("--workload", default="b", choices=sorted(WORKLOADS))
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (5)")
    parser.add_argument("--window", type=float, default=1.5, metavar="S", help="timed seconds (1.5)")
    record.option(parser)
    options = parser.parse_args()
    if unknown := set(options.adapters) - set(ADAPTERS):
        parser.error(f"no adapter {', '.join(sorted(unknown))}; there are {', '.join(ADAPTERS)}")
    adapters = [ADAPTERS[key] for key in dict.fromkeys(options.adapters)]
    baselines = [baseline for adapter in adapters for baseline in (adapter.ours, adapter.theirs)]
    workload = replace(WORKLOADS[options.workload], baselines=tuple(baseline.key for baseline in baselines))
    about = machine.describe(baselines)
    plan = runner.Plan(
        workloads=(workload,),
        workers=options.workers,
        repeats=options.repeats,
        warm_s=1.0,
        window_s=options.window,
        limit_s=45.0,
    )
    outcome = runner.run(plan)
    rounds, missing = outcome["rounds"][workload.key], outcome["missing"]
    print(f"({workload.key}) {workload.title}; batches per second, {options.workers} workers")
    rates_of = "the original, batches/s", "slipring's adapter, batches/s"
    table = record.Table("original", *rates_of, "ratio", "target", "met")
    notes = []
    for adapter in adapters:
        ours, theirs = rounds[adapter.ours.key], rounds[adapter.theirs.key]
        ratios = [a["rate"] / b["rate"] for a, b in zip(ours, theirs) if "rate" in a and "rate" in b]
        met = None if not ratios else "yes" if statistics.median(ratios) >= adapter.target else "no"
        rates = [record.spread(r["rate"] for r in found if "rate" in r) for found in (theirs, ours)]
        table.add(adapter.label, *rates, record.spread(ratios), adapter.target, met)
        for baseline, found in ((adapter.ours, ours), (adapter.theirs, theirs)):
            said = [missing[baseline.key]] if baseline.key in missing else [r["error"] for r in found if "error" in r]
            notes += [f"{baseline.label}: {text}" for text in dict.fromkeys(said)]
    print(*notes, sep="\n")
    record.finish(options.record, about, {"adapters": table})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
