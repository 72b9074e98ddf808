"""The cost of rebatching a stream of Arrow blocks: ``python -m bench.stream``.

Purpose
    How long does a tiny batch take, and how close is a wide one to the speed of memory?
Data
    Tiny: 64 rows of (32 float32, a number) from blocks of 10,000. Wide: 96 rows of 147 KiB of uint8 from blocks of 256.
    The blocks are record batches in memory, which repeat. A copy is numpy's copy of as many rows as a batch has,
    from a block to a warm array.
Machine, command, result
    Printed: each way in its own process, in turn; median and range of the rounds.
Bias
    No code reads the batches. numpy's way starts from arrays, ours from record batches. Both hand-written ways write to
    one array, or leave the rows in their blocks; only ``stream`` sends the batch, in a slot.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, spread

WINDOW_S = 0.7
FORMS = {"tiny": (64, 10_000, 32, np.float32), "wide": (96, 256, 150_528, np.uint8)}


def blocks(form: str) -> list[Any]:
    """Return eight record batches of rows (x: a list of a fixed size, y: a number)."""
    import pyarrow as pa

    _, rows, width, dtype = FORMS[form]
    made = []
    for number in range(8 if form == "tiny" else 3):
        values = pa.array(np.full(rows * width, number, dtype))
        lists = pa.FixedSizeListArray.from_arrays(values, width)
        made.append(pa.record_batch({"x": lists, "y": np.arange(rows)}))
    return made


def endless(given: list[Any]) -> Iterator[Any]:
    while True:
        yield from given


def arrays(form: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield the blocks as arrays, without end."""
    width = FORMS[form][2]
    seen = [
        {"x": block["x"].flatten().to_numpy().reshape(-1, width), "y": block["y"].to_numpy()} for block in blocks(form)
    ]
    return endless(seen)


def pieces(source: Iterator[Any], size: int, rows_of: Callable[[Any], int]) -> Iterator[list[tuple[Any, int, int]]]:
    """Yield the parts (block, from, to) of each batch of `size` rows."""
    batch: list[tuple[Any, int, int]] = []
    missing = size
    for block in source:
        at, rows = 0, rows_of(block)
        while at < rows:
            stop = min(rows, at + missing)
            batch.append((block, at, stop))
            missing -= stop - at
            at = stop
            if missing == 0:
                yield batch
                batch, missing = [], size


def copy(form: str) -> Iterator[int]:
    """Copy as many rows as a batch has from a block to the same array: the speed of memory."""
    size = FORMS[form][0]
    kept = None
    for block in arrays(form):
        for at in range(0, len(block["y"]) - size + 1, size):
            rows = block["x"][at : at + size]
            if kept is None:
                kept = np.zeros_like(rows)
            np.copyto(kept, rows)
            yield kept.nbytes


def numpy(form: str) -> Iterator[int]:
    """Concatenate the slices into arrays that are reused (np.concatenate)."""
    size = FORMS[form][0]
    kept: dict[str, np.ndarray] = {}
    for parts in pieces(arrays(form), size, lambda block: len(block["y"])):
        for name in ("x", "y"):
            cut = [block[name][first:last] for block, first, last in parts]
            if name not in kept:
                kept[name] = np.zeros((size, *cut[0].shape[1:]), cut[0].dtype)
            np.concatenate(cut, out=kept[name])
        yield kept["x"].nbytes


def pyarrow(form: str) -> Iterator[int]:
    """Combine a table of the slices into arrays (combine_chunks)."""
    import pyarrow as pa

    size, _, width, _ = FORMS[form]
    for parts in pieces(endless(blocks(form)), size, lambda block: block.num_rows):
        table = pa.Table.from_batches([block.slice(first, last - first) for block, first, last in parts])
        together = table.combine_chunks()
        x = together["x"].chunk(0).flatten().to_numpy().reshape(-1, width)
        yield x.nbytes


def rebatched(form: str) -> Iterator[int]:
    """slipring's rebatching alone, into ordinary memory."""
    from slipring.streams import Stream

    for batch in Stream(endless(blocks(form)), FORMS[form][0]):
        yield batch["x"].nbytes


def delivered(form: str, **way: Any) -> Iterator[int]:
    """slipring.stream: rebatched into slots, and handed over."""
    import slipring

    with slipring.stream(endless(blocks(form)), FORMS[form][0], **way) as loader:
        for batch in loader:
            yield batch["x"].nbytes


def by_thread(form: str) -> Iterator[int]:
    """The same, with a thread that prefetches."""
    return delivered(form, num_workers=1)


BASELINES = {"copy": copy, "numpy": numpy, "pyarrow": pyarrow, "rebatched": rebatched, "stream": delivered,
          "stream, a thread ahead": by_thread}  # fmt: skip
NAMES = {
    "copy": "numpy's copy of the same number of bytes",
    "numpy": "`np.concatenate` by hand, from arrays",
    "pyarrow": "`combine_chunks` by hand; copies only batches that cross a block's end",
    "rebatched": "rebatching alone, into ordinary memory",
    "stream": "`slipring.stream`, `num_workers=0`",
    "stream, a thread ahead": "`slipring.stream`, one prefetching thread",
}


def measure(baseline: str, form: str) -> dict[str, float]:
    """Return wall and processor microseconds per batch, and GB/s, after a warm-up."""
    with contextlib.closing(BASELINES[baseline](form)) as made:
        count = nbytes = 0
        for window in range(2):
            count = nbytes = 0
            began, busy = time.perf_counter(), time.process_time()
            while time.perf_counter() - began < WINDOW_S * (window + 1):
                for _ in range(20 if form == "tiny" else 1):
                    nbytes += next(made)
                    count += 1
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
    return {"us": seconds / count * 1e6, "cpu_us": busy / count * 1e6, "gb_s": nbytes / seconds / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("BASELINE", "FORM"), help=argparse.SUPPRESS)
    option(parser)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(*asked.one)))
        return
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        form: {baseline: [] for baseline in BASELINES} for form in FORMS
    }
    for _ in range(asked.rounds):
        for form, answers in found.items():
            for baseline, answer in answers.items():
                command = [sys.executable, "-m", "bench.stream", "--one", baseline, form]
                answer.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    tables = {form: Table("way", "µs per batch", "CPU, µs", "GB/s", "÷ the copy") for form in FORMS}
    for form, answers in found.items():
        for baseline, answer in answers.items():
            ratio = [one["gb_s"] / base["gb_s"] for one, base in zip(answer, answers["copy"])]
            row = [spread(one[what] for one in answer) for what in ("us", "cpu_us", "gb_s")]
            tables[form].add(NAMES[baseline], *row, spread(ratio))
    finish(asked.record, describe((), "pyarrow"), tables)


if __name__ == "__main__":
    main()
