"""Queues compared: ``python -m bench.queue``, or ``make bench-queue``.

Purpose: how many messages per second does one producer send to one consumer, and what CPU time does each
take in both processes together? Each measurement is a separate process; rounds go through all baselines in turn.

Bias: the producer puts ready values, so that only the queue is measured; the consumer reads a byte of
each page of an array, and nothing of a small message. A queue that cannot carry such messages is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, record

SLOTS = 8
MANY = 50
IMAGES = (256, 224, 224, 3)  # uint8: 38.5 MB
TEXT = b"x" * 100

WORKLOADS = {
    "arrays": "arrays of 38.5 MB",
    "small": "messages of 100 bytes",
    "lists": f"messages of 100 bytes, {MANY} at a time",
}


def slipring(workload: str) -> Any:
    """slipring.Queue"""
    import slipring

    q = slipring.Queue(SLOTS if workload == "arrays" else 64)
    return q.put, q.get


def faster_fifo(workload: str) -> Any:
    """faster-fifo"""
    import faster_fifo

    q = faster_fifo.Queue(max_size_bytes=SLOTS * 40_000_000 if workload == "arrays" else 1_000_000)
    if workload == "lists":
        return (lambda many: q.put_many(many, timeout=60)), (lambda: q.get_many(timeout=60))
    return (lambda one: q.put(one, timeout=60)), (lambda: q.get(timeout=60))


def multiprocessing_queue(workload: str) -> Any:
    """multiprocessing.Queue"""
    q: Any = multiprocessing.Queue(SLOTS if workload == "arrays" else 64)
    return q.put, q.get


def torch_queue(workload: str) -> Any:
    """torch.multiprocessing.Queue"""
    import torch

    q: Any = torch.multiprocessing.Queue(SLOTS if workload == "arrays" else 64)
    if workload == "arrays":  # a new tensor each time: a tensor that was sent is in shared memory already
        return (lambda array: q.put(torch.from_numpy(array))), (lambda: q.get().numpy())
    return q.put, q.get


def spdl_pool(workload: str) -> Any:
    """SPDL's shared-memory pool"""
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    size = int(np.prod(IMAGES)) + 64
    iterable = iterate_in_subprocess(Source(), buffer_size=3, arena=SharedMemorySegmentPool(segment_size=size, count=6))
    iterator = iter(iterable)
    return None, lambda: next(iterator)["images"]


class Source:
    """Yield the messages in SPDL's subprocess."""

    def __call__(self) -> Source:
        return self

    def __iter__(self) -> Any:
        message = {"images": load("arrays")}
        while True:
            yield message


BASELINES = {f.__name__: f for f in (slipring, faster_fifo, multiprocessing_queue, torch_queue, spdl_pool)}
CARRIES = {"spdl_pool": {"arrays"}}  # the other baselines carry anything


def load(workload: str) -> Any:
    """Return a message."""
    if workload == "arrays":
        return np.random.default_rng(0).integers(0, 255, IMAGES, np.uint8)
    return TEXT if workload == "small" else [TEXT] * MANY


def produce(put: Any, workload: str) -> None:
    message = load(workload)
    while True:
        put(message)


def touch(workload: str, message: Any) -> int:
    """Read a message; return how many messages it represents."""
    if workload == "arrays":
        assert message.shape == IMAGES and message.reshape(-1)[::4096].sum() > 0
        return 1
    return len(message) if workload == "lists" else 1


def cpu_s(pid: int | None) -> float:
    """Return the CPU seconds of this process and of the producer."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    if pid is not None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / 100
    return total


def measure(baseline: str, workload: str, warm_s: float, window_s: float) -> dict[str, Any]:
    """Return messages per second and CPU time per message, in this process."""
    if workload not in CARRIES.get(baseline, WORKLOADS):
        return {"missing": "does not carry such messages"}
    try:
        put, get = BASELINES[baseline](workload)
    except ImportError as error:
        return {"missing": str(error)}
    if put is not None:
        producer = multiprocessing.get_context("fork").Process(target=produce, args=(put, workload), daemon=True)
        producer.start()
    touch(workload, get())
    pid = multiprocessing.active_children()[0].pid
    warm = time.perf_counter() + warm_s
    while time.perf_counter() < warm:
        touch(workload, get())
    count, began, cpu = 0, time.perf_counter(), cpu_s(pid)
    while time.perf_counter() < began + window_s:
        for _ in range(1 if workload == "arrays" else 100):
            count += touch(workload, get())
    seconds = time.perf_counter() - began
    return {"per_s": count / seconds, "cpu_us": (cpu_s(pid) - cpu) / count * 1e6}


def ask(baseline: str, workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one measurement in its own process."""
    command = [sys.executable, "-m", "bench.queue", "--one", baseline, workload]
    command += ["--warm", str(options.warm), "--window", str(options.window)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        out = child.communicate(timeout=options.warm + options.window + 60)[0]
        return json.loads(out)
    except (subprocess.TimeoutExpired, ValueError):
        return {"missing": "no answer"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.queue", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=float, default=0.5, metavar="S")
    parser.add_argument("--window", type=float, default=1.5, metavar="S")
    record.option(parser)
    parser.add_argument("--one", nargs=2, metavar=("BASELINE", "WORKLOAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.warm, options.window)), flush=True)
        for child in multiprocessing.active_children():
            child.kill()

        os._exit(0)
    about = machine.describe((), "faster-fifo", "torch", "spdl_core")
    answers: dict[str, dict[str, list[Any]]] = {q: {r: [] for r in BASELINES} for q in options.workloads}
    for _ in range(options.rounds):
        for workload in options.workloads:
            for baseline in BASELINES:
                answers[workload][baseline].append(ask(baseline, workload, options))
    tables = {WORKLOADS[workload]: report(workload, answers[workload]) for workload in options.workloads}
    record.finish(options.record, about, tables)


def report(workload: str, answers: dict[str, list[Any]]) -> record.Table:
    """Return medians, ranges, and slipring's ratios."""
    print(f"\n{WORKLOADS[workload]}:")
    table = record.Table("queue", "per second", "CPU each, µs", "slipring's rate ÷ this")
    own = statistics.median(a["per_s"] for a in answers["slipring"] if "per_s" in a)
    for baseline, given in answers.items():
        rates = sorted(a["per_s"] for a in given if "per_s" in a)
        name = str(BASELINES[baseline].__doc__)
        if not rates:
            print(f"{name}: {given[0]['missing']}")
            table.add(name, None, None, None)
            continue
        median, cpu = statistics.median(rates), statistics.median(a["cpu_us"] for a in given if "per_s" in a)
        table.add(name, record.spread(rates), record.rounded(cpu), record.rounded(own / median))
    return table


if __name__ == "__main__":
    main()
