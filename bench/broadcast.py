"""Messages to several readers: ``python -m bench.broadcast``, or ``make bench-broadcast``.

Purpose: how long after a put does a sleeping reader have the message, and what CPU time does a reader take that waits,
or gets 500 messages per second? Each measurement has its own processes; rounds go through all ways in turn.

Bias: the futex is called through ctypes, and carries no message. A reader reads a byte of each page of a message before
it stops the clock, because other ways have copied the bytes by then. The ways without a wake-up for all readers send a
message to each of them in turn. ZeroMQ sends arrays without pickle and without a copy on the writer's side.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import machine, record

AT_ONCE = "1 B, at once"  # put as soon as the last reader has the message before: readers do not sleep yet
SIZES = {"1 B": 1, AT_ONCE: 1, "1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
READERS = (1, 8)
PER_S = 500
LEFT_OUT = 0.2  # of the messages, at the beginning
PAUSE_S = 0.002  # after the last reader has a message: all readers sleep again
LIMIT_S = 120

Get = Callable[[], Any]
Put = Callable[[Any], Any]


class Slipring:
    """slipring.Broadcast"""

    SPIN_US = 0.0

    def __init__(self, readers: int) -> None:
        import slipring

        self.broadcast = slipring.Broadcast(readers, maxsize=4)
        self.handle = self.broadcast.handle

    def reader(self, number: int) -> Get:
        return self.handle.open(number, spin=self.SPIN_US).get

    def writer(self) -> Put:
        self.broadcast.wait_until_ready()
        return self.broadcast.put


class Spinning(Slipring):
    """slipring.Broadcast, spin=50"""

    SPIN_US = 50.0


class TorchQueues:
    """a torch.multiprocessing.Queue per reader"""

    def __init__(self, readers: int) -> None:
        import torch

        self.torch = torch
        self.queues: list[Any] = [torch.multiprocessing.Queue(4) for _ in range(readers)]

    def reader(self, number: int) -> Get:
        def get() -> Any:
            value = self.queues[number].get()
            return value.numpy() if isinstance(value, self.torch.Tensor) else value

        return get

    def writer(self) -> Put:
        def put(value: Any) -> None:
            if isinstance(value, np.ndarray):  # a new tensor: one that was sent is in shared memory already
                value = self.torch.from_numpy(value).clone()
            for queue in self.queues:
                queue.put(value)

        return put


class ZeroMQ:
    """ZeroMQ, PUB/SUB over ipc"""

    def __init__(self, readers: int) -> None:
        import zmq

        self.zmq, self.readers = zmq, readers
        self.address = f"ipc://@slipring-bench-{os.getpid()}"

    def reader(self, number: int) -> Get:
        socket: Any = self.zmq.Context().socket(self.zmq.SUB)
        socket.setsockopt(self.zmq.SUBSCRIBE, b"")
        socket.connect(self.address)

        def get() -> Any:
            frame = socket.recv(copy=False)
            return np.frombuffer(frame, np.uint8)

        return get

    def writer(self) -> Put:
        self.socket: Any = self.zmq.Context().socket(self.zmq.XPUB)
        self.socket.setsockopt(self.zmq.XPUB_VERBOSE, 1)
        self.socket.bind(self.address)
        for _ in range(self.readers):
            self.socket.recv()
        return lambda value: self.socket.send(value, copy=False)


class Futex:
    """a bare futex, no message"""

    WAIT, WAKE = 0, 1

    def __init__(self, readers: int) -> None:
        self.word = np.frombuffer(mmap.mmap(-1, 4096), np.uint32)
        self.address = ctypes.c_void_p(self.word.ctypes.data)
        self.call = ctypes.CDLL(None).syscall
        self.number = {"x86_64": 202, "aarch64": 98}[platform.machine()]  # of the system call

    def reader(self, number: int) -> Get:
        seen = 0

        def get() -> bytes:
            nonlocal seen
            while self.word[0] == seen:
                self.call(self.number, self.address, self.WAIT, seen, None, None, 0)
            seen += 1
            return b"x"

        return get

    def writer(self) -> Put:
        def put(value: Any) -> None:
            self.word[0] += 1
            self.call(self.number, self.address, self.WAKE, 1 << 30, None, None, 0)

        return put


WAYS = {way.__name__: way for way in (Slipring, Spinning, TorchQueues, ZeroMQ, Futex)}


def touch(value: Any) -> int:
    return int(value[::4096].sum()) if isinstance(value, np.ndarray) else len(value)


def read(way: Any, number: int, messages: int, got: Any, cpu: Any) -> None:
    """Get messages in a reader's process; record when each was there, and the share of a CPU for all but the first."""
    get = way.reader(number)
    began = used = 0.0
    for i in range(messages):
        touch(get())
        got[number, i] = time.monotonic_ns()
        if i == 0:
            began, used = time.monotonic(), time.process_time()
    cpu[number] = (time.process_time() - used) / (time.monotonic() - began) * 100
    os._exit(0)


def measure(name: str, what: str, size: int, readers: int, messages: int, pause_s: float) -> dict[str, Any]:
    """Return latencies in µs, or for ``what`` "cpu" the readers' shares of a CPU in %; in this process."""
    try:
        way = WAYS[name](readers)
    except ImportError as error:
        return {"missing": str(error)}
    got = np.frombuffer(mmap.mmap(-1, 8 * readers * messages), np.int64).reshape(readers, messages)
    cpu = np.frombuffer(mmap.mmap(-1, 8 * readers))
    sent = np.zeros(messages, np.int64)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=read, args=(way, k, messages, got, cpu), daemon=True) for k in range(readers)]
    for process in processes:
        process.start()
    put = way.writer()
    value: Any = b"x" * size if size < 1 << 10 else np.ones(size, np.uint8)
    for i in range(messages):
        if pause_s:
            time.sleep(pause_s)
        sent[i] = time.monotonic_ns()
        put(value)
        while what == "latency" and not got[:, i].all():
            if pause_s:
                time.sleep(0.0005)
    for process in processes:
        process.join()
    if what == "latency":
        each = (got - sent)[:, int(messages * LEFT_OUT) :].reshape(-1) / 1000
        return {"median": float(np.median(each)), "p99": float(np.percentile(each, 99))}
    return {"cpu": float(np.mean(cpu))}


def ask(*arguments: Any) -> dict[str, Any]:
    """Run one measurement in its own process."""
    command = [sys.executable, "-m", "bench.broadcast", "--one", *map(str, arguments)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        return dict(json.loads(child.communicate(timeout=LIMIT_S)[0]))
    except (subprocess.TimeoutExpired, ValueError):
        return {"missing": "no answer"}
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def rounds(options: argparse.Namespace) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Measure everything in turn; return the answers by (what, size or load, readers, way)."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for readers in READERS:
            for label, size in SIZES.items():
                if label == AT_ONCE and readers > 1:  # it needs a CPU for each reader
                    continue
                messages = max(10, options.messages // (1 + (size >> 18)))
                for name in WAYS:
                    if name != "Futex" or size == 1:
                        key, pause_s = ("latency", label, str(readers), name), 0 if label == AT_ONCE else PAUSE_S
                        found.setdefault(key, []).append(ask(name, "latency", size, readers, messages, pause_s))
        for label, pause_s in (("no message", options.window), (f"{PER_S} per second", 1 / PER_S)):
            messages = max(2, round(options.window / pause_s))
            for name in WAYS:
                for readers in READERS:
                    key = ("cpu", label, str(readers), name)
                    found.setdefault(key, []).append(ask(name, "cpu", 1, readers, messages, pause_s))
    return found


def latency_table(found: dict[tuple[str, ...], list[dict[str, Any]]], readers: int) -> record.Table:
    """Return the table of latencies for a number of readers."""
    print(f"\nreaders: {readers}")
    table = record.Table("message", "way", "median, µs", "p99, µs", "median ÷ futex", labels=2)
    for (what, label, count, name), answers in found.items():
        if what != "latency" or count != str(readers):
            continue
        futex = found.get((what, label, count, "Futex"), [])
        fine = [answer for answer in answers if "median" in answer]
        # Of the same round: the machine's speed changes from round to round.
        ratios = [a["median"] / f["median"] for a, f in zip(answers, futex) if "median" in a and "median" in f]
        table.add(
            label, str(WAYS[name].__doc__),
            record.spread(answer["median"] for answer in fine),
            record.rounded(statistics.median(answer["p99"] for answer in fine)) if fine else None,
            record.rounded(statistics.median(ratios)) if ratios else None,
        )  # fmt: skip
    return table


def cpu_table(found: dict[tuple[str, ...], list[dict[str, Any]]]) -> record.Table:
    """Return the table of the CPU time of one reader, among 1 and among several."""
    cases = list(dict.fromkeys((label, readers) for what, label, readers, _ in found if what == "cpu"))
    table = record.Table("way", *(f"{label}, of {readers}, % of a CPU" for label, readers in cases))
    for name in WAYS:
        cells = [found["cpu", label, readers, name] for label, readers in cases]
        table.add(str(WAYS[name].__doc__), *(record.spread(a["cpu"] for a in cell if "cpu" in a) for cell in cells))
    return table


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.broadcast", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=500, help="per measurement; fewer large ones")
    parser.add_argument("--window", type=float, default=2.0, metavar="S", help="of CPU time")
    record.option(parser)
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, what, *figures, pause_s = options.one
        print(json.dumps(measure(name, what, *map(int, figures), float(pause_s))), flush=True)
        os._exit(0)
    about = machine.describe((), "pyzmq", "torch")
    found = rounds(options)
    tables = {f"readers: {readers}": latency_table(found, readers) for readers in READERS}
    record.finish(options.record, about, {**tables, "cpu": cpu_table(found)})


if __name__ == "__main__":
    main()
