"""The cost of observing a job: ``python -m bench.watching``.

Purpose
    How long does `slipring top` take to show a job, how much of a processor does it use, and how much slower is a job
    while `slipring trace` records it?
Data
    A job of tiny batches (four float32 each, made by one worker, dropped by the loop) at full speed. For
    `top` also a job that is stopped by SIGSTOP and leaves it the processors.
Machine, command, result
    Printed. "attach" is the observer's time from the job's PID to the snapshot and the drawn frame. "whole
    command" is `python -m slipring top PID --once`, most of which is the interpreter and its imports. The slowdown is
    the ratio of the same job's rates in turns of a few seconds, without and with the trace (A-B-A-B-...), while it
    records; the time to write the file afterwards is not included.
Bias
    Tiny batches are the worst case: a batch of a millisecond has a twentieth of their records per second. On two
    processors, the job's two processes use both, and an observer slows them down.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

from bench.machine import describe
from bench.record import Cell, Table, finish, option, rounded, spread

JOB = """
import sys, numpy as np, slipring
class Tiny:
    def __len__(self): return 1 << 40
    def fetch_into(self, indices, empty): return empty(4, np.float32)
with slipring.Loader(Tiny(), 1, num_workers=1) as loader:
    for number, batch in enumerate(loader):
        del batch
        if number == 1000: print("runs", flush=True)
"""


class Job:
    """The job of tiny batches, in its own process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.pid = self.process.pid

    def taken(self) -> int:
        """Return the number of batches so far."""
        from slipring._observe.jobs import attach

        return int(attach(self.pid)[0].watch.segment_info()["recorded"])

    def rate(self, seconds: float) -> float:
        """Return the batches per second, over so many seconds."""
        before, began = self.taken(), time.perf_counter()
        time.sleep(seconds)
        return (self.taken() - before) / (time.perf_counter() - began)

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def attach_s(pid: int) -> float:
    """Return the time from a PID to a drawn frame, in this process."""
    from slipring._cli.look import ParticipantSampler
    from slipring._cli.view import FrameView
    from slipring._observe.jobs import attach

    began = time.perf_counter()
    job = attach(pid)[0]
    view = FrameView()
    with view.screen.capture():
        view.screen.print(view.draw(ParticipantSampler(job).frame()))
    return time.perf_counter() - began


def command_s(pid: int) -> float:
    """Return the time of the whole command."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "slipring", "top", str(pid), "--once"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def top_share(pid: int, seconds: float) -> float:
    """Return `top`'s share of a processor with a frame per second, without its first second."""
    top = subprocess.Popen([sys.executable, "-m", "slipring", "top", str(pid)], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1.5)
        before, began = cpu_s(top.pid), time.perf_counter()
        time.sleep(seconds)
        return (cpu_s(top.pid) - before) / (time.perf_counter() - began)
    finally:
        top.send_signal(signal.SIGINT)
        top.wait()


def cpu_s(pid: int) -> float:
    """Return the exact processor time of a process."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def traced(job: Job, seconds: float, folder: str) -> tuple[float, int, float]:
    """Return (batches per second, lost records, share of a processor) during a trace."""
    from slipring._observe.jobs import attach
    from slipring._observe.recording import Recording

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        recording = Recording(attach(job.pid)[0])
        used = resource.getrusage(resource.RUSAGE_SELF)
        end = time.monotonic() + seconds + 0.4
        while time.monotonic() < end:
            time.sleep(recording.poll())
        now = resource.getrusage(resource.RUSAGE_SELF)
        spent = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        os.write(writer, f"{recording.lost} {spent / (seconds + 0.4)}".encode())
        os._exit(0)
    time.sleep(0.2)
    rate = job.rate(seconds)
    os.waitpid(child, 0)
    lost, share = os.read(reader, 100).split()
    os.close(reader)
    os.close(writer)
    return rate, int(lost), float(share)


OF_TOP = (
    "attach and draw a frame, ms",
    "`top PID --once`, the whole command, ms",
    "share of a CPU, a frame per second, %",
)


def of_top(pid: int, seconds: float) -> list[Cell]:
    """Measure what `OF_TOP` names."""
    attached = spread([attach_s(pid) for _ in range(10)][1:], 1e3)
    return [attached, spread((command_s(pid) for _ in range(5)), 1e3), rounded(top_share(pid, seconds) * 100)]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.watching", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="pairs of A and B")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each A, and each B")
    parser.add_argument("--top", type=float, default=10.0, help="seconds of `top`")
    option(parser)
    args = parser.parse_args()
    about = describe()
    job = Job()
    try:
        running = of_top(job.pid, args.top)
        os.kill(job.pid, signal.SIGSTOP)
        stopped = of_top(job.pid, args.top)
        os.kill(job.pid, signal.SIGCONT)
        without, with_it, lost, shares = [], [], 0, []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(args.rounds):
                without.append(job.rate(args.seconds))
                rate, missed, share = traced(job, args.seconds, folder)
                with_it.append(rate)
                shares.append(share)
                lost += missed
    finally:
        job.end()
    top = Table("`slipring top`", "that job", "the same job, stopped")
    for what, here, there in zip(OF_TOP, running, stopped, strict=True):
        top.add(what, here, there)
    trace = Table("`slipring trace`", "measured")
    trace.add("batches/s without a trace", spread(without))
    trace.add("batches/s with a trace", spread(with_it))
    trace.add("change of the rate, %", spread((b / a - 1 for a, b in zip(without, with_it)), 100))
    trace.add("share of a CPU, %", spread(shares, 100))
    trace.add("lost records", lost)
    finish(args.record, about, {"top": top, "trace": trace})


if __name__ == "__main__":
    main()
