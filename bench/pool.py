"""One pool of workers for all ranks of a machine, against a group for each: ``python -m bench.pool``.

Purpose
    Four ranks take their batches in lockstep, as a training does that synchronizes its gradients. Is one pool as fast
    as four loaders with as many workers in all? And how much faster is it if the samples of one rank take longer?
Data
    Samples that compute for a fixed CPU time ("CPU"), or wait for a fixed time as a remote read does ("waits"); those
    of the slow rank take `--slower` times as long. The datasets are made of a few numbers, so that the workers' time
    is all that counts.
Machine, command, result
    Printed: steps per second of all ranks together, the median of `--rounds`; the two ways take turns.
Bias
    Samples have no bytes to speak of, and steps take no time: only the division of the workers is measured. The first
    steps of an epoch, in which the workers fill the queues, count. With fewer processors than workers, the kernel gives
    the processors of idle workers to the slow rank anyway, so the slow rank that computes has no target there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any

from bench.machine import describe
from bench.record import Table, finish, option

RANKS, BATCH = 4, 8


class Work:
    """Samples of which each takes its `seconds`: it computes or waits."""

    def __init__(self, n: int, seconds: float, slower: float, computes: bool) -> None:
        self.n = n
        self.times = [seconds, slower]
        self.computes = computes

    def __len__(self) -> int:
        return 2 * self.n

    def __getitem__(self, index: int) -> int:
        seconds = self.times[0] * (self.times[1] if index >= self.n else 1)
        if self.computes:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        else:
            time.sleep(seconds)
        return index


def rank(number: int, pool: str | None, workers: int, work: Work, step: Any, told: Any) -> None:
    """Take all batches of one epoch, each with the other ranks; the last rank has the second half of the samples."""
    from slipring import Loader, Workers

    first = work.n if number == RANKS - 1 else 0
    order = range(first, first + work.n)
    with Loader(work, BATCH, sampler=order, num_workers=workers, workers=Workers(pool=pool)) as loader:
        for _ in loader:  # starts the workers
            break
        step.wait()
        begun = time.monotonic()
        steps = 0
        for _ in loader:
            steps += 1
            step.wait()
        told.put(steps / (time.monotonic() - begun))
        step.wait()


def rate(pool: bool, workers: int, work: Work) -> float:
    """Return the steps per second of one epoch."""
    context = multiprocessing.get_context("spawn")
    step, told = context.Barrier(RANKS), context.Queue()
    name = f"bench-{os.getpid()}-{time.monotonic_ns()}" if pool else None
    each = workers if pool else workers // RANKS
    processes = [context.Process(target=rank, args=(n, name, each, work, step, told)) for n in range(RANKS)]
    for process in processes:
        process.start()
    rates = [told.get() for _ in processes]
    for process in processes:
        process.join()
    return min(rates)


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.pool", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="of all ranks together; divisible by 4 (8)")
    parser.add_argument("--samples", type=int, default=800, metavar="N", help="per rank and epoch (800)")
    parser.add_argument("--seconds", type=float, default=0.002, metavar="S", help="per sample (0.002)")
    parser.add_argument("--slower", type=float, default=4.0, metavar="X", help="the slow rank's samples (4)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each case (3)")
    option(parser)
    options = parser.parse_args()
    if options.workers % RANKS:
        parser.error(f"--workers={options.workers} is not divisible by {RANKS}")
    about = describe()
    table = Table("steps/s of 4 ranks", "four loaders", "one pool", "ratio")
    targets = []
    for what, computes in (("waits", False), ("CPU", True)):
        for slower, least in ((1.0, 0.95), (options.slower, 1.3)):
            work = Work(options.samples, options.seconds, slower, computes)
            found: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.rounds):
                for pool in found:
                    found[pool].append(rate(pool, options.workers, work))
            own, shared = (statistics.median(found[pool]) for pool in (False, True))
            case = f"{what}, one rank {slower:g} times as slow" if slower != 1.0 else f"{what}, equal ranks"
            table.add(case, round(own, 1), round(shared, 1), round(shared / own, 2))
            if slower == 1.0 or not computes or (os.cpu_count() or 1) >= options.workers:
                targets.append((case, shared / own, least))
    finish(options.record, about, {"pool": table})
    for case, ratio, least in targets:
        print(f"{case}: at least {least} times the rate: {'yes' if ratio >= least else 'no'}")
    return 0 if all(ratio >= least for _, ratio, least in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
