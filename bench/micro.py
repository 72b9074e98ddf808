"""The cost of single parts: ``python -m bench.micro``.

Purpose
    How long do one trip through the ring, a queue's message, seeding, collating and streaming copies take,
    a cache hit (`bench.hits`), and a consumer without a loader?
Data
    As in workloads (b) and (d), and photographs for the cache; all in one process, except for copies, which two
    processes make at the same time.
Machine, command, result
    Printed. Figures in docs/ come from this program.
Bias
    Everything is warm, no process sleeps or competes for the caches: these are lower bounds.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import statistics
import struct
import time
import traceback
from collections.abc import Callable

import numpy as np

from bench import hits
from bench.collate import leaves, numbered
from bench.machine import describe
from bench.record import Table, finish, option, rounded, spread
from bench.workloads import WORKLOADS

ROUNDS = 7


def per_call(function: Callable[[], object], calls: int = 5000) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(times)


def round_trip() -> float:
    """Dispatch, claim, publish and take an empty batch."""
    from slipring._core.codec._codec import receive
    from slipring._core.codec._encode import Encoder
    from slipring._core.ring._order import IndexOrder, Slices
    from slipring._core.ring._ring import Ring

    ring, encoder, indices = Ring(20, 3), Encoder(), Slices(IndexOrder(64), 64)
    indices.advance()

    def once() -> None:
        ring.dispatch(ring.pick_free(), indices, 0, 0, 0, 0, 0, 0, 0, False)
        encoder.publish(ring.claim(1, 1.0), [0])
        receive(ring, ring.wait_ready(-1, 1), 0)

    return per_call(once)


def queueing(slots: int) -> float:
    """Put and get a message of 100 bytes, with a queue that is filled completely and emptied again."""
    from slipring import Queue

    queue, message = Queue(slots), b"x" * 100

    def once() -> None:
        for _ in range(slots):
            queue.put(message)
        for _ in range(slots):
            queue.get()

    once()
    return per_call(once, 4000 // slots) / slots


def seeding() -> tuple[float, float]:
    """Seed random and numpy; the same and torch, once it is imported."""
    from slipring._core.workers.seeding import batch_seed, seed_globals

    def once() -> None:
        seed_globals(batch_seed(1, 2, 3, 0, 0))

    without = per_call(once)
    import torch  # noqa: F401

    return without, per_call(once)


def collating() -> float:
    """Collate 64 samples of 32 float32 and a label."""
    from slipring import default_collate

    rows = np.random.default_rng(0).random((64, 32), np.float32)
    samples = [(rows[i], i) for i in range(64)]
    return per_call(lambda: default_collate(samples))


def copying(way: str, workers: int = 2, row: int = 3 * 224 * 224, rows: int = 256, slots: int = 5) -> float:
    """Copy batches of ready images into shared memory; return batches per second of all processes."""
    from slipring._core.ring._segment import copy_bytes

    receiver, sender = os.pipe()
    source = np.ones((2 * rows, row), np.uint8)
    for _ in range(workers):
        if os.fork() == 0:
            try:
                rate = _copy_for_a_second(copy_bytes, source, way, rows, slots)
                os.write(sender, struct.pack("d", rate))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
    os.close(sender)
    for _ in range(workers):
        os.wait()
    return sum(struct.unpack("d", os.read(receiver, 8))[0] for _ in range(workers))


def _copy_for_a_second(copy: Callable[..., None], source: np.ndarray, way: str, rows: int, slots: int) -> float:
    shared = mmap.mmap(-1, slots * rows * source.shape[1])
    target = np.frombuffer(shared, np.uint8).reshape(slots, rows, source.shape[1])
    target[:] = 0
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < 1.0:
        for i in range(rows):
            copy(target[done % slots, i], source[(done * rows + i) % len(source)], way)
        done += 1
    return done / (time.perf_counter() - begin)


def chosen(workers: int = 2) -> str | None:
    """Let a loader of ready images choose its way of copying; return its choice."""
    from slipring import Loader

    workload = WORKLOADS["b"]
    with Loader(workload.dataset(None), workload.batch_size, num_workers=workers) as loader:
        for _ in loader:
            if (told := loader.stats().large_copies) is not None:
                return told
    return None


def without_loader(key: str, rate: float, workers: int = 2, seconds: float = 2.0) -> float:
    """Consume batches without a loader: sleep, read each leaf, drop the batch; return CPU µs per batch.

    This is the cost of a consumer that waits, with any loader. As many processes as there
    are workers make the workload's batches meanwhile, and use the caches. `rate` is in batches/s.
    """
    workload = WORKLOADS[key]
    dataset = workload.dataset(None)
    batches = [numbered(dataset, workload.batch_size, number) for number in range(4)]
    others = []
    for _ in range(workers):
        others.append(os.fork())
        if others[-1] == 0:
            try:
                number, batch = 0, None
                while True:
                    batch = numbered(dataset, workload.batch_size, number, batch)
                    number += 1
            finally:
                os._exit(0)
    try:
        count, begin, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < seconds:
            time.sleep(1 / rate)
            batch = tuple(leaf[:] for leaf in leaves(batches[count % 4]))
            for leaf in batch:
                leaf.item(0)
            del batch
            count += 1
        return (time.process_time() - cpu) / count * 1e6
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    """Measure and print."""
    from slipring._core.ring._segment import copy_ways

    parser = argparse.ArgumentParser(prog="python -m bench.micro")
    option(parser)
    options = parser.parse_args()
    about = describe((), "torch")
    trip, collate, (without, with_torch) = round_trip(), collating(), seeding()
    floors = [(key, without_loader(key, rate)) for key, rate in (("a", 33), ("b", 600), ("c", 400))]
    ways = copy_ways()
    rates = [[copying(way) for way in ways] for _ in range(ROUNDS)]
    copies = [(f"{way}, per second", [rate[i] for rate in rates]) for i, way in enumerate(ways)]
    ratios = [(f"{way} ÷ memcpy", [rate[i] / rate[0] for rate in rates]) for i, way in enumerate(ways) if i]
    steps = Table("step", "µs")
    for what, figure in (
        ("dispatch, claim, publish and take an empty batch, in one process", trip),
        *((f"put and get a message of 100 bytes, queue of {n} slots", queueing(n)) for n in (8, 64, 1000)),
        ("collate 64 × (32 float32, label)", collate),
        ("seed random and numpy, per batch", without),
        ("seed random, numpy and torch, per batch", with_torch),
        *((f"a consumer without a loader in workload ({key}), CPU per batch", floor) for key, floor in floors),
    ):
        steps.add(what, rounded(figure))
    found = hits.table()
    copying_batches = Table("batches of 38.5 MB, two processes at once", "median")
    for what, values in copies + ratios:
        copying_batches.add(what, spread(values))
    copying_batches.add("the way that a loader chooses here", str(chosen()))
    finish(options.record, about, {"steps": steps, "hits": found, "copies": copying_batches})


if __name__ == "__main__":
    main()
