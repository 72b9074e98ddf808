"""What a shared batch costs its consumer: ``python -m bench.sharing``.

Purpose
    How long does the consumer take to share a batch with n readers, and by how much does each further reader delay it?
Data
    Batches of 100 int64 numbers, one at a time. Readers that are awake are all in one other process, which asks for the
    next batch without a pause. Readers that sleep are processes; the consumer waits until all of them sleep, and then
    shares a batch. In the last column as many processes sleep on a bare futex, and one call wakes all of them.
Machine, command, result
    Printed. The median of the batches of a round, and of these the least, because other programs only add to it.
Bias
    The time includes taking the batch and decoding it, which does not depend on the readers. Readers on more than one
    CPU would compete for the slot's control word.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import platform
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, rounded
from slipring._core.codec._codec import COPY_NEVER, receive
from slipring._core.codec._encode import BATCH, Encoder
from slipring._core.codec._shared import SharedReader
from slipring._core.ring._ring import Ring

READERS = 0, 1, 2, 4, 8
SLOTS = 4
FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
WAIT, WAKE, ALL = 0, 1, (1 << 31) - 1

libc = ctypes.CDLL(None)


class Consumer:
    """A segment whose batches this process makes and shares."""

    def __init__(self) -> None:
        self.ring, self.encoder, self.value = Ring(SLOTS, 2, readers=max(READERS)), Encoder(), np.arange(100)

    def share(self) -> int:
        """Make a batch and share it; return the nanoseconds of the second part."""
        self.ring.dispatch(self.ring.wait_free(-1), [0], 0, 0, 0, 0, 0, 0, 0, False)
        fill = self.ring.claim(1, -1)
        with fill:
            fill.indices()
            self.encoder.publish(fill, [self.value], BATCH)
        begin = time.perf_counter_ns()
        receive(self.ring, fill.slot, COPY_NEVER, True)
        return time.perf_counter_ns() - begin


def forked(part: Callable[[int], object], n: int) -> list[int]:
    """Run `part` in n processes; return their pids."""
    pids = []
    for number in range(n):
        pid = os.fork()
        if pid == 0:
            try:
                part(number)
            finally:
                os._exit(1)
        pids.append(pid)
    return pids


def wait_asleep(pids: list[int]) -> None:
    """Wait until all processes sleep on a futex."""
    for pid in pids:
        while "futex" not in Path(f"/proc/{pid}/wchan").read_text():
            os.sched_yield()


def medians(pids: list[int], ready: Callable[[list[int]], None], batches: int, measured: Callable[[], int]) -> float:
    """Return the median of what `measured` returns whenever the processes are ready; end them."""
    try:
        times = []
        for _ in range(batches):
            ready(pids)
            times.append(measured())
        return statistics.median(times)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def awake(n: int, batches: int) -> float:
    """Return the median nanoseconds with n readers that do not sleep."""
    consumer = Consumer()
    ring = consumer.ring

    def poll(_: int) -> None:
        ring.in_child()
        readers = [SharedReader(ring, number) for number in range(n)]
        while True:
            for reader in readers:
                reader.take()

    def wait_taken(_: list[int]) -> None:
        while ring.circulating < SLOTS:
            pass  # another program's turn on this CPU would empty the caches

    polling = forked(poll, 1)
    for number in range(n):
        ring.wait_serving(ring.n_participants + number, -1)
    return medians(polling, wait_taken, batches, consumer.share)


def asleep(n: int, batches: int) -> float:
    """Return the median nanoseconds with n readers that sleep."""
    consumer = Consumer()

    def read(number: int) -> None:
        consumer.ring.in_child()
        reader = SharedReader(consumer.ring, number)
        while reader.wait(-1):
            reader.take()

    return medians(forked(read, n), wait_asleep, batches, consumer.share)


def bare(n: int, batches: int) -> float:
    """Return the median nanoseconds to wake n processes that sleep on a futex."""
    word = ctypes.c_uint32.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))

    def sleep(number: int) -> None:
        while True:
            libc.syscall(FUTEX, ctypes.byref(word), WAIT, word.value, None, None, 0)

    def wake() -> int:
        begin = time.perf_counter_ns()
        libc.syscall(FUTEX, ctypes.byref(word), WAKE, ALL, None, None, 0)
        return time.perf_counter_ns() - begin

    return medians(forked(sleep, n), wait_asleep, batches, wake)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=300, help="per round")
    option(parser)
    options = parser.parse_args()
    about = describe((), "numpy")
    kinds = {"readers awake, µs": awake, "readers asleep, µs": asleep, "a bare wake-up of as many, µs": bare}
    found: dict[int, list[float]] = {n: [] for n in READERS}
    for n in READERS:
        for measure in kinds.values():
            found[n].append(min(measure(n, options.batches) for _ in range(options.rounds)) / 1e3)
    table = Table("readers", *kinds)
    for n, times in found.items():
        table.add(str(n), *map(rounded, times))
    first, last = min(filter(None, READERS)), max(READERS)
    further = [(b - a) / (last - first) for a, b in zip(found[first], found[last], strict=True)]
    table.add("each further reader", *map(rounded, further))
    finish(options.record, about, {"sharing": table})


if __name__ == "__main__":
    main()
