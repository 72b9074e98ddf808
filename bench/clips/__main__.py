"""Clips of videos: ``python -m bench.clips``.

Purpose
    How many samples per second do workers decode, how often is a frame decoded, and how much memory does it take?
Data
    Made by PyAV's encoders: a camera pans over a smooth scene with grain. "Windows" are samples of a robot dataset: of
    each of 4 cameras 2 frames, 0.1 s apart, 640 × 480, AV1 with a key frame every second frame, no transform. "Random
    clips" are 16 frames, every fourth, of H.264 in groups of 250 frames, 340 × 256, cropped to 224 × 224.
Baselines
    torch's loader with a dataset that seeks and decodes for each sample, by PyAV or by torchcodec. It keeps all
    decoders open, one thread each.
Machine, command, result
    Printed. Each measurement has its own process, and candidates take turns in each round. The clock of an epoch runs
    from its first batch to its last one. The first epoch fills the cache. Memory is that of all processes in a
    pause of the second epoch, when 16 batches are in flight, whether by one worker or by eight; shared memory counts
    once.
Bias
    The consumer only touches each page. At the first batch, the batches that workers have prepared are ready.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from bench import apart, memory
from bench.clips.candidates import BASELINES, CACHED, CANDIDATES, OURS, link_ffmpeg
from bench.clips.videos import WORKLOADS, Order
from bench.machine import describe
from bench.record import Table, finish, head, line, option, spread

EPOCHS = 3
MANY = 8  # workers, for the memory
IN_FLIGHT = 2  # batches per worker; of one worker in place of many, as many as theirs together
PAUSE_S = 4.0  # in which the workers make all batches in flight
PER_VIDEO = 8  # samples of "random clips" that an epoch has of a video
LEAST = {"windows": 3.0, "random clips": 1.5}  # the targets: times the best baseline's rate


def count_decoded(folder: str) -> None:
    """Count the frames that slipring decodes in this process and in processes that it forks, in a file."""
    from slipring.clips import _reader

    decode = _reader.frames_of

    def counted(*args: Any) -> Any:
        frames, error = decode(*args)
        with open(f"{folder}/decoded", "ab", buffering=0) as file:
            file.write(b"." * len(frames))
        return frames, error

    _reader.frames_of = counted


def measured(name: str, workload: str, folder: str, workers: int, quick: bool) -> dict[str, Any]:
    """Read some epochs; return the samples per second of each, and how often a frame is decoded."""
    multiprocessing.set_start_method("fork")  # the workers inherit what counts their frames
    order = _order(workload, quick)
    work = order.workload
    loader = CANDIDATES[name](folder, order, workers, IN_FLIGHT)
    decoded = Path(folder, "decoded")
    decoded.write_bytes(b"")
    if name in OURS:
        count_decoded(folder)
    rates, values = [], 0
    for _ in range(EPOCHS):
        began, batches = 0.0, 0
        for batch in loader:
            values += touched(batch)
            batches += 1
            began = began or time.perf_counter()
        rates.append((batches - 1) * work.batch / (time.perf_counter() - began))
    return {"rates": rates, "decoded": decoded.stat().st_size / (work.videos * work.frames), "values": values}


def memory_used(name: str, workload: str, folder: str, workers: int, quick: bool) -> dict[str, Any]:
    """Read an epoch, and pause in the next one until the workers have made all batches; return the bytes of memory."""
    loader = CANDIDATES[name](folder, _order(workload, quick), workers, IN_FLIGHT * MANY // workers)
    for batch in loader:
        touched(batch)
    touched(next(again := iter(loader)))
    time.sleep(PAUSE_S)
    used = memory.of_job(os.getpid())
    del again  # only now: an iteration that ends releases its batches
    return {"memory": used}


def touched(batch: Any) -> int:
    """Read a value of each page of a batch; return the number of its values."""
    pixels = batch if hasattr(batch, "shape") else batch.pixels
    pixels.view(-1)[::4096].sum()
    return int(pixels.numel())


def _order(workload: str, quick: bool) -> Order:
    work = WORKLOADS[workload].quick() if quick else WORKLOADS[workload]
    return Order(work, None if work.together > 1 else PER_VIDEO)


def answer(measure: Any, name: str, workload: str, folder: str, workers: int, quick: bool) -> dict[str, Any]:
    """Call a function of this module in a process of its own; its failure becomes the answer."""
    command = [sys.executable, "-m", "bench.clips", "--call", measure.__name__, name, workload, folder, str(workers)]
    return apart.answer(command + ["--quick"] * quick)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.clips", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--quick", action="store_true", help="small videos, for a test of this program")
    option(parser)
    parser.add_argument("--call", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        warnings.simplefilter("ignore")  # more workers than processors are intended
        function, name, workload, folder, workers = options.call
        print(json.dumps(globals()[function](name, workload, folder, int(workers), options.quick)))
        return 0
    about = describe((), "av", "torch", "torchcodec")
    rates = Table("workload", "loader", "first epoch, samples/s", "later epochs, samples/s", "÷ best of torch, first",
                  "÷ best of torch, later", "frames decoded, × all frames", labels=2)  # fmt: skip
    used = Table("workload", "loader", "1 worker, MB", f"{MANY} workers, MB", "ratio", labels=2, quiet=True)
    targets = Table("workload", "target", "bound", "measured", "met", labels=2, quiet=True)
    missing = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as libraries:
        link_ffmpeg(libraries)
        os.environ.update(LD_LIBRARY_PATH=libraries, SVT_LOG="0")  # the encoder is quiet
        for workload, least in LEAST.items():
            Path(folder, workload).mkdir()
            where = str(Path(folder, workload))
            _order(workload, options.quick).workload.write(where)
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in CANDIDATES}
            for _ in range(options.rounds):
                for name, answers in found.items():
                    if not any("missing" in one for one in answers):
                        answers.append(answer(measured, name, workload, where, options.workers, options.quick))
            missing += [f"{name}: {one['missing']}" for name, all_ in found.items() for one in all_ if "missing" in one]
            found = {name: answers for name, answers in found.items() if "missing" not in answers[0]}
            if len({one["values"] for answers in found.values() for one in answers}) != 1:
                raise AssertionError(f"the loaders have read different amounts: {found}")
            best = [
                [max(found[name][n]["rates"][epoch] for name in BASELINES if name in found) for epoch in range(EPOCHS)]
                for n in range(options.rounds)
            ]
            for name, answers in found.items():
                rates.add(workload, name, *_row(name, answers, best))
            ratios = _ratios(found[CACHED], best, later=True)
            targets.add(workload, "≥ × the best of torch, later epochs", least, ratios, _met(ratios[0] >= least))
            often = spread([one["decoded"] for one in found[CACHED]])
            targets.add(workload, "≤ × each frame is decoded, all epochs", 1.2, often, _met(often[0] <= 1.2))
            memories = {
                name: [answer(memory_used, name, workload, where, n, options.quick)["memory"] / 1e6 for n in (1, MANY)]
                for name in (CACHED, *BASELINES)
                if name in found
            }
            for name, (one, many) in memories.items():
                used.add(workload, name, round(one), round(many), round(many / one, 2))
            more = memories[CACHED][1] / memories[CACHED][0]
            targets.add(workload, f"≤ × memory of 1 worker, {MANY} workers", 1.2, round(more, 2), _met(more <= 1.2))
    for table in (used, targets):
        print("\n" + "\n".join([*head(table.columns, 2), *map(line, table.rows)]))
    finish(options.record, about, {"rates": rates, "memory": used, "targets": targets}, "; ".join(missing))
    return 0


def _row(name: str, answers: list[dict[str, Any]], best: list[list[float]]) -> list[Any]:
    first, later = ([rate for one in answers for rate in one["rates"][part]] for part in (slice(1), slice(1, None)))
    decoded = spread([one["decoded"] for one in answers]) if name in OURS else None
    return [spread(first), spread(later), _ratios(answers, best, False), _ratios(answers, best, True), decoded]


def _ratios(answers: list[dict[str, Any]], best: list[list[float]], later: bool) -> list[float]:
    """Return the spread of the ratios of rates in the same round and epoch."""
    epochs = range(1, EPOCHS) if later else range(1)
    found = spread([one["rates"][n] / other[n] for one, other in zip(answers, best) for n in epochs])
    assert found is not None
    return found


def _met(is_met: bool) -> str:
    return "yes" if is_met else "no"


if __name__ == "__main__":
    sys.exit(main())
