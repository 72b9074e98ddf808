"""How long until a dead worker is noticed: ``python -m bench.death --deaths 100 --load 0``.

Purpose
    A worker is killed while the consumer waits in ``next()``. When does the kernel report it, when does the
    consumer notice it, and when does the dead worker's batch come?
Data
    Batches of 8 numbers. Once per epoch, at a sample and after a random delay (0 to 0.4 s), a
    worker records the time and kills itself with SIGKILL; another one replaces it and repeats the batch.
Machine, command, result
    Printed. ``--load N`` adds N processes that only compute.
Bias
    A thread of the consumer's process records when the pidfd becomes readable. That is when the consumer could
    notice the death at the earliest. The thread sleeps otherwise.
"""

from __future__ import annotations

import argparse
import functools
import mmap
import os
import random
import select
import signal
import statistics
import struct
import threading
import time
from typing import Any

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, rounded

NOTHING = 0.0


class Deadly:
    """Numbers; the process that reads the middle one dies, once each time the dataset is armed."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.page = mmap.mmap(-1, mmap.PAGESIZE)  # armed, delay, time of death, pid

    def __len__(self) -> int:
        return self.length

    def arm(self, delay: float) -> None:
        self.page[:32] = struct.pack("dddd", 1.0, delay, NOTHING, NOTHING)

    def died(self) -> tuple[float, int]:
        _, _, at, pid = struct.unpack("dddd", self.page[:32])
        return at, int(pid)

    def __getitem__(self, i: int) -> np.ndarray:
        armed, delay, _, _ = struct.unpack("dddd", self.page[:32])
        if i == self.length // 2 and armed:
            time.sleep(delay)
            self.page[:32] = struct.pack("dddd", NOTHING, delay, time.monotonic(), os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(16, i)


class Watch:
    """Records when each worker of a pool has ended, and when the pool has noticed and replaced it."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.gone: dict[int, float] = {}
        self.threads: dict[int, threading.Thread] = {}
        self.noticed: dict[int, float] = {}
        self.replaced: dict[int, float] = {}
        pool._died = functools.partial(self._died, type(pool)._died)
        self.follow()

    def _died(self, original: Any, number: int, *rest: Any) -> None:
        pid = self.pool.processes[number].pid
        self.noticed[pid] = time.monotonic()
        original(self.pool, number, *rest)
        self.replaced[pid] = time.monotonic()
        self.follow()

    def follow(self) -> None:
        """Start a thread that waits for each worker."""
        for process in self.pool.processes.values():
            if process.pid not in self.threads:
                thread = threading.Thread(target=self._wait, args=(process.pid,), daemon=True)
                self.threads[process.pid] = thread
                thread.start()

    def _wait(self, pid: int) -> None:
        fd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        self.gone[pid] = time.monotonic()
        os.close(fd)

    def times_of(self, pid: int) -> tuple[float, float, float]:
        """Return when a worker ended, was noticed and was replaced; the thread may be later than the consumer."""
        self.threads[pid].join()
        return min(self.gone[pid], self.noticed[pid]), self.noticed[pid], self.replaced[pid]


def measure(deaths: int, workers: int, rng: random.Random) -> dict[str, list[float]]:
    """Return the length of each interval at each death in milliseconds."""
    from slipring import Loader, Workers

    stretches: dict[str, list[float]] = {}
    data = Deadly(8 * 20)
    how = Workers(start_method="fork", on_death="respawn", max_restarts=deaths)
    with Loader(data, 8, num_workers=workers, workers=how, persistent_workers=True) as loader:
        sum(1 for _ in loader)
        watch = Watch(loader._engines.engine.pool)
        for _ in range(deaths):
            data.arm(rng.random() * 0.4)
            for batch in loader:
                if batch[0, 0] == len(data) // 2:
                    came = time.monotonic()
            at, pid = data.died()
            gone, noticed, replaced = watch.times_of(pid)
            for what, ms in (
                ("killed → the kernel reports the death", gone - at),
                ("reported → the consumer notices", noticed - gone),
                ("killed → the consumer notices", noticed - at),
                ("the consumer notices → another worker has started", replaced - noticed),
                ("killed → another worker delivers its batch", came - at),
            ):
                stretches.setdefault(what, []).append(1000 * ms)
    return stretches


def computing() -> int:
    """Start a process that only computes; return its pid."""
    pid = os.fork()
    if pid == 0:
        while True:
            sum(range(100_000))
    return pid


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.death", description=__doc__.splitlines()[0])
    parser.add_argument("--deaths", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--load", type=int, default=0, help="processes beside it that only compute")
    parser.add_argument("--seed", type=int, default=0)
    option(parser)
    asked = parser.parse_args()
    import logging

    logging.getLogger("slipring").setLevel(logging.ERROR)
    about = describe()
    others = [computing() for _ in range(asked.load)]
    try:
        stretches = measure(asked.deaths, asked.workers, random.Random(asked.seed))
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    table = Table("processes that compute", "event", "median, ms", "maximum, ms", labels=2)
    for what, ms in stretches.items():
        table.add(asked.load, what, rounded(statistics.median(ms)), rounded(max(ms)))
    finish(asked.record, about, {"deaths": table}, f"{asked.deaths} deaths")


if __name__ == "__main__":
    main()
