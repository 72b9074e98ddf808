"""How much code a batch executes in the consumer: ``python -m bench.footprint``.

Purpose
    How many instructions, cache lines and pages of code does one step of the loop execute, and in which files?
Data
    Batches of (image, label), 4 × 3 × 8 × 8 uint8; the loop drops each one.
Machine, command, result
    Printed. x86-64 only: the consumer is single-stepped. The counts hardly
    depend on the machine or its load, but on the builds of Python and numpy.
Bias
    Only code, without data and the kernel; the loop's own code and a signal to itself are included.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option

TRACEME, PEEKUSER, SINGLESTEP = 0, 3, 9  # linux/ptrace.h
RIP = 16 * 8  # in struct user
WARM, STEPPED = 40, 9

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


class Images:
    """A dataset with so many samples that no epoch ends."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.zeros((3, 8, 8), np.uint8), i


def ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    """Call ptrace; OSError if it is not allowed."""
    ctypes.set_errno(0)
    result = libc.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")
    return result


def consume(kind: str) -> None:
    """Be the consumer: raise SIGSTOP before each counted step, and after the last one."""
    if kind == "torch":
        from slipring.torch import DataLoader as Loader
    else:
        from slipring import Loader
    batches = iter(Loader(Images(), 4, num_workers=1))
    for _ in range(WARM):
        next(batches)
    ptrace(TRACEME, 0)
    kill, me = os.kill, os.getpid()
    for _ in range(STEPPED):
        kill(me, signal.SIGSTOP)
        batch = next(batches)
        del batch
    kill(me, signal.SIGSTOP)
    os._exit(0)


def stepped(pid: int) -> Iterator[list[int]]:
    """Yield the addresses of the instructions from each SIGSTOP to the next."""
    _, status = os.waitpid(pid, 0)
    step: list[int] = []
    begun, pass_on = False, 0
    while os.WIFSTOPPED(status):
        stop = os.WSTOPSIG(status)
        if stop == signal.SIGSTOP:
            if begun:
                yield step
            begun, step, pass_on = True, [], 0
        elif stop == signal.SIGTRAP:
            step.append(ptrace(PEEKUSER, pid, RIP))
            pass_on = 0
        else:
            pass_on = stop
        ptrace(SINGLESTEP, pid, 0, pass_on)
        _, status = os.waitpid(pid, 0)


def files_of(pid: int) -> list[tuple[int, int, str]]:
    """Return (begin, end, file) of a process's mappings."""
    with open(f"/proc/{pid}/maps") as lines:
        rows = [line.split(maxsplit=5) for line in lines]
    ranges = [(row[0].split("-"), row[5].strip() if len(row) > 5 else "?") for row in rows]
    return [(int(begin, 16), int(end, 16), os.path.basename(name)) for (begin, end), name in ranges]


def count(kind: str, by_file_table: Table) -> list[int]:
    """Add a row for each file; return the counts of all together."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)  # so that its workers can be killed with it
        consume(kind)
    steps, files = [], []
    for step in stepped(pid):
        files = files or files_of(pid)
        steps.append(step)
    step = sorted(steps, key=len)[len(steps) // 2]
    by_file = collections.defaultdict(list)
    for at in step:
        by_file[next((name for begin, end, name in files if begin <= at < end), "?")].append(at)
    for name, found in sorted(by_file.items(), key=lambda item: -len(item[1])):
        by_file_table.add(kind, name, *counts(found))
    return counts(step)


def counts(addresses: list[int]) -> list[int]:
    """Return the numbers of instructions, cache lines and pages."""
    return [len(addresses), len({at >> 6 for at in addresses}), len({at >> 12 for at in addresses})]


def main() -> None:
    """Measure and print."""
    if os.uname().machine != "x86_64":
        sys.exit("bench.footprint knows the registers of x86-64 alone")
    parser = argparse.ArgumentParser(prog="python -m bench.footprint")
    option(parser)
    options = parser.parse_args()
    columns = ("instructions", "cache lines", "pages")
    total, by_file = Table("loader", *columns, quiet=True), Table("loader", "file", *columns, labels=2)
    for kind, name in (("slipring", "slipring.Loader"), ("torch", "slipring.torch.DataLoader")):
        total.add(name, *count(kind, by_file))
    finish(options.record, describe((), "torch"), {"all": total, "by file": by_file})


if __name__ == "__main__":
    main()
