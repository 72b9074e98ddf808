"""Ranks that need the same batches: ``python -m bench.ranks``.

Purpose
    (k) The tensor- and context-parallel ranks of a machine need the same batches. How fast do they get them, and how
    much CPU, memory and reading does it take?
Data
    Compressed images of 3 × 224 × 224 bytes in files, in the page cache, 64 in a batch; decompressing one takes about
    half a millisecond. The dataset has a list of names, as a large dataset has in Python objects.
Baselines
    slipring's loader with share=, which gets the dataset in each rank; a loader for each rank, slipring's and torch's;
    and torch's loader in rank 0, whose batches get to the others by `torch.distributed` over gloo, by ZeroMQ's PUB/SUB,
    or by a queue of `torch.multiprocessing` for each rank. Only ranks that read the dataset make it.
Machine, command, result
    Printed. Each measurement has its own processes, and candidates take turns in each round. A loader has one worker.
    Time runs from a barrier after the first batches to a barrier after the last one. CPU seconds are those of all
    ranks and workers. Memory is what all processes have after the first batches less what the ranks had before they
    made their datasets and loaders, with all modules imported; shared memory counts once. "Bytes read" are those that
    the dataset reads, by the bytes that one stream needs.
Bias
    The ranks only touch each page of a batch. The baselines that send know the shapes of the tensors. Where each rank
    has a loader, n workers share the cores of the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from typing import Any

from bench import apart
from bench.machine import describe
from bench.ranks.candidates import BATCH, CANDIDATES
from bench.ranks.processes import FIRST, measured
from bench.record import Table, finish, option, spread

OURS, OWN = tuple(CANDIDATES)[:2]


def measured_apart(name: str, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own; its failure becomes the answer."""
    command = [sys.executable, "-m", "bench.ranks", "--measure", name, str(n)]
    command += [f"--batches={options.batches}", f"--names={options.names}"]
    return apart.answer(command)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.ranks", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="(1 2 4 8)")
    add("--rounds", type=int, default=3, metavar="N", help="(3)")
    add("--batches", type=int, default=100, metavar="N", help="of each measurement (100)")
    add("--names", type=int, default=1_000_000, metavar="N", help="in the list of the dataset (1,000,000)")
    option(parser)
    add("--measure", nargs=2, metavar=("CANDIDATE", "RANKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.measure:
        name, n = options.measure
        names = max(options.names, (FIRST + options.batches) * BATCH)
        print(json.dumps(measured(name, int(n), options.batches, names)))
        return
    about = describe((), "torch", *(("pyzmq",) if importlib.util.find_spec("zmq") else ()))
    tables = {"sharing": Table("ranks", "candidate", "batches/s", "÷ a loader per rank", "CPU ms per batch",
                               "memory, MB", "÷ one rank", "bytes read", labels=2)}  # fmt: skip
    alone: list[float] = []
    missing: list[str] = []
    for n in options.ranks:
        names = [name for name in CANDIDATES if n > 1 or name in (OURS, OWN)]
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                if not any("missing" in found for found in answers[name]):
                    answers[name].append(measured_apart(name, n, options))
        missing += [f"{name}: {row['missing']}" for name, found in answers.items() for row in found if "missing" in row]
        answers = {name: [row for row in found if "missing" not in row] for name, found in answers.items()}
        if n == 1:
            alone = [row["memory, MB"] for row in answers[OURS]]
        for name, found in answers.items():
            tables["sharing"].add(n, name, *_figures(found, answers[OWN], alone))
    finish(options.record, about, tables, "; ".join(dict.fromkeys(missing)))


def _figures(found: list[dict[str, Any]], own: list[dict[str, Any]], alone: list[float]) -> list[Any]:
    """Return the figures of a row."""
    rates, spent, used, read = ([row[name] for row in found] for name in
                                ("batches/s", "CPU ms per batch", "memory, MB", "bytes read"))  # fmt: skip
    ratios = spread([row["batches/s"] / other["batches/s"] for row, other in zip(found, own)])
    by_one = spread([a / b for a, b in zip(used, alone)])
    return [spread(rates), ratios, spread(spent), spread(used), by_one, spread(read)]


if __name__ == "__main__":
    main()
