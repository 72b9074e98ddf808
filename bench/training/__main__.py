"""What does the training of an image network gain? ``python -m bench.training``.

Purpose
    How many images per second does a network learn from, and how long does the device wait, with slipring's loader and
    with torch's? How many cores have to decode for it?
Data
    The photographs of workload (f), or the user's class folders (``--data``), in random order, by the recipe *trivial*
    (crop to 224 × 224, flip, TrivialAugmentWide). uint8 goes to the device, which normalises it. A batch has 256
    images, on a CPU 32.
Networks
    On an accelerator a ResNet-18 and a ViT-S, channels last, in bfloat16 (autocast); on a CPU a small network of three
    convolutions in float32. The optimizer is AdamW.
Baselines
    torch's DataLoader with an ``ImageFolder`` and torchvision's v2 transforms: on Pillow's images; on tensors, with
    ``pin_memory=True`` and copies that do not block; and on the device, with ``decode_jpeg(device="cuda")``. All
    loaders have the same number of workers, and otherwise their defaults. The bound is one batch on the device, again
    and again.
Machine, command, result
    Printed. Each measurement has its own process, loaders take turns in each round, and the share of the bound is
    formed within a round. The device waits from the end of a step to the beginning of the next, by its own events; on a
    CPU by the host's clock. The time of a step begins at the end of the step before. CPU seconds are those of the
    process and its workers, including the network's, which the row of the bound shows. No round begins that would end
    after ``--minutes``.
Bias
    On a CPU the device is one thread of torch, and there is a worker for each other core. Both share caches and memory
    bandwidth, and the loader's threads in the training process compete with the network. The network there is nearly as
    fast as slipring's workers: with a slower one, no loader would matter. Users of torch often send float32 to the
    device, four times the bytes. The loss is read every tenth step. Copies on the network's stream, which are those of
    torch's loader, count as waiting, and so does decoding on the GPU. torchvision's images are channels first, so that
    normalising them takes a CPU a little longer. The files stay in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from bench import apart, recipes
from bench.baselines.recipes import CANDIDATES, RECIPES
from bench.machine import describe
from bench.photos import DATA, ensure
from bench.record import STARTED, Cell, Table, finish, option, rounded, spread
from bench.training.loaders import BOUND, LOADERS, ON_PIL, OURS
from bench.training.loop import measured
from bench.training.networks import NETWORKS
from slipring.torch.device.cuda import accelerator

# (rounds, seconds of each measurement, minutes at most, recipes of the table of cores)
FULL = (3, 5.0, 8.0, ("crop", "trivial", "mixed", "rand", "three", "simclr"))
QUICK = (1, 2.0, 3.0, ("trivial",))
DECODERS = ("slipring", "pil")  # of the candidates of bench.recipes
LIMIT_S = 150.0  # of a measurement: only one that hangs takes so long
# {column: (quantity, factor)}
QUANTITIES = {
    "device waits, %": ("waiting", 100),
    "CPU s per 1,000 images": ("cpu_s", 1),
    "step p50, ms": ("p50", 1e3),
    "step p99, ms": ("p99", 1e3),
}

Row = dict[str, Any]
Answers = dict[str, dict[str, list[Row]]]  # by network and loader, in the order of the rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.training", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="one short round, and one recipe in the table of cores")
    add("--network", action="append", choices=tuple(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    add("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1), metavar="N", help="(cores - 1)")
    add("--rounds", type=int, metavar="N", help=f"({FULL[0]}; quick: {QUICK[0]})")
    add("--seconds", type=float, metavar="S", help=f"of each measurement ({FULL[1]:g}; quick: {QUICK[1]:g})")
    add("--minutes", type=float, metavar="M", help=f"of the whole run ({FULL[2]:g}; quick: {QUICK[2]:g})")
    add("--data", metavar="DIR", help="class folders of your own JPEGs")
    option(parser)
    add("--measure", nargs=2, metavar=("NETWORK", "LOADER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    *defaults, keys = QUICK if options.quick else FULL
    for name, value in zip(("rounds", "seconds", "minutes"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.data is not None and not os.path.isdir(options.data):
        parser.error(f"--data {options.data}: no such folder. It must have a folder of JPEGs for each class")
    if options.measure:
        print(json.dumps(measured(*options.measure, options.data or str(DATA), options.workers, options.seconds)))
        return
    if options.data is None:
        ensure()
    about = describe((), "torch", "torchvision", "pillow")
    device = accelerator()
    if device is not None:
        about["device"] = torch.get_device_module(device).get_device_name()
    networks = options.network or (["small"] if device is None else ["ResNet-18", "ViT-S"])
    decoded = {key: [decoding(key, decoder, options) for decoder in DECODERS] for key in keys}
    answers: Answers = {network: {loader: [] for loader in LOADERS} for network in networks}
    took = 0.0
    for number in range(options.rounds):
        began = time.monotonic()
        if number and began + took > STARTED + 60 * options.minutes:
            break
        for network in networks:
            take_turns(network, answers[network], number, options)
        took = time.monotonic() - began
    tables = {network: table(network, found) for network, found in answers.items()}
    tables["cores"] = cores(decoded, answers)
    tables["targets"] = targets(decoded, answers, options.workers)
    done = max(len(found) for loaders in answers.values() for found in loaders.values())
    missing = [
        f"{loader}: {row['missing']}"
        for loaders in answers.values()
        for loader, found in loaders.items()
        for row in found
        if "missing" in row
    ]
    note = [f"rounds: {done} of {options.seconds:g} s; workers: {options.workers}", *dict.fromkeys(missing)]
    finish(options.record, about, tables, "; ".join(note))


def decoding(recipe: str, decoder: str, options: argparse.Namespace) -> float | None:
    """Return the images per second of CPU time that a candidate of `bench.recipes` makes."""
    return recipes.measured_apart(RECIPES[recipe], decoder, 0, options).get("per_cpu_s")


def take_turns(network: str, answers: dict[str, list[Row]], number: int, options: argparse.Namespace) -> None:
    """Measure each loader once, in each round another one first; append to `answers`."""
    loaders = list(answers)
    first = number % len(loaders)
    for loader in loaders[first:] + loaders[:first]:
        if not any("missing" in row for row in answers[loader]):
            answers[loader].append(measured_apart(network, loader, options))


def measured_apart(network: str, loader: str, options: argparse.Namespace) -> Row:
    """Measure in a new process; its failure becomes the answer."""
    command = [sys.executable, "-m", "bench.training", f"--workers={options.workers}", f"--seconds={options.seconds}"]
    command += [*(("--data", options.data) if options.data else ()), "--measure", network, loader]
    return apart.answer(command, LIMIT_S)


def quantity(rows: Sequence[Row], name: str) -> list[float]:
    """Return a quantity of the rounds that were measured."""
    return [row[name] for row in rows if "missing" not in row]


def table(network: str, answers: dict[str, list[Row]]) -> Table:
    """Print and return the table of a network."""
    print(f"\n{network}")
    made = Table("loader", "images/s", "of the bound, %", *QUANTITIES)
    bound = quantity(answers[BOUND], "per_s")
    for loader, rows in answers.items():
        rates = quantity(rows, "per_s")
        shares = [rate / most for rate, most in zip(rates, bound)]
        figures = [spread(rates), spread(shares, 100)]
        figures += [spread(quantity(rows, name), scale) for name, scale in QUANTITIES.values()]
        made.add(loader, *figures)
    return made


def cores(decoded: dict[str, list[float | None]], answers: Answers) -> Table:
    """Print and return the table of the cores that decode as fast as a network learns."""
    names = [CANDIDATES[decoder].label for decoder in DECODERS]
    rates = {network: quantity(found[BOUND], "per_s") for network, found in answers.items()}
    columns = [
        f"{name}: {what}" for name in names for what in ("images/s per core", *(f"cores for {n}" for n in rates))
    ]
    made = Table("recipe", *columns)
    for recipe, found in decoded.items():
        cells: list[Cell] = []
        for per_core in found:
            cells.append(per_core and rounded(per_core))
            for consumed in rates.values():
                needed = per_core and consumed and statistics.median(consumed) / per_core
                cells.append(rounded(needed) if needed else None)
        made.add(recipe, *cells)
    return made


def targets(decoded: dict[str, list[float | None]], answers: Answers, workers: int) -> Table:
    """Print and return the table of the targets; without enough cores, or with little to gain, one is not judged."""
    made = Table("network", "target", "bound", "measured", "met", labels=2)
    per_core = decoded["trivial"][0]
    for network, found in answers.items():
        bound, rates = (quantity(found[loader], "per_s") for loader in (BOUND, OURS))
        waits, others = (quantity(found[loader], "waiting") for loader in (OURS, ON_PIL))
        shares = [rate / most for rate, most in zip(rates, bound)]
        if shares and per_core:
            enough = workers * per_core >= statistics.median(bound)
            met = _met(statistics.median(shares) >= 0.97, enough)
            made.add(network, "≥ this share of the bound, %", 97, spread(shares, 100), met)
        if waits and others:
            met = _met(statistics.median(waits) < 0.02, statistics.median(others) > 0.3)
            made.add(network, "the device waits for less than this share, %", 2, spread(waits, 100), met)
    return made


def _met(met: bool, applies: bool) -> str:
    return "–" if not applies else "yes" if met else "no"


if __name__ == "__main__":
    main()
