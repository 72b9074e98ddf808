"""Are large batches faster if they are copied past the caches? ``python -m bench.stores``.

Purpose
    The rate with ``SLIPRING_COPY=streaming`` divided by the rate with ``SLIPRING_COPY=memcpy``.
Data
    The workloads of ``python -m bench``, those with large batches by default.
Machine, command, result
    Printed. Each rate comes from its own process, and a pair is measured in turn.
Bias
    As in ``python -m bench``: nothing reads the batches but their first elements.
"""

from __future__ import annotations

import argparse
import os

from bench.baselines import find
from bench.machine import describe
from bench.record import Table, finish, option, spread
from bench.runner import Plan, run
from bench.workloads import WORKLOADS


def rate(key: str, way: str, workers: int, window_s: float) -> float:
    """Return batches per second of slipring with one way of copying."""
    os.environ["SLIPRING_COPY"] = way  # the measuring process inherits it
    plan = Plan((WORKLOADS[key],), workers, 1, warm_s=1.0, window_s=window_s, limit_s=45.0, only=("slipring",))
    (answer,) = run(plan)["rounds"][key]["slipring"]
    return float(answer["rate"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.stores")
    parser.add_argument("workloads", nargs="*", default=["b", "c", "b2", "c2"], metavar="workload")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--pairs", type=int, default=4, metavar="N")
    parser.add_argument("--window", type=float, default=1.2, metavar="S", help="timed seconds (1.2)")
    option(parser)
    options = parser.parse_args()
    about = describe([find("slipring")])
    ratios = []
    for key in options.workloads:
        pairs = [
            [rate(key, way, options.workers, options.window) for way in ("streaming", "memcpy")]
            for _ in range(options.pairs)
        ]
        ratios.append(spread(streaming / plain for streaming, plain in pairs))
    table = Table("streaming ÷ memcpy", "workers", *options.workloads, labels=2)
    table.add(f"{about['cpu']}, {about['cores']} cores", options.workers, *ratios)
    finish(options.record, about, {"stores": table}, f"{options.pairs} pairs")


if __name__ == "__main__":
    main()
