"""What does the collation of documents cost?

Purpose
    CPU time of a worker per batch of 70 documents, 65,536 tokens in the mean, in three fields: by slipring's collators
    through ``spans`` and through ``__getitem__``, by ``torch.cat``, and by transformers' collator.
Data
    Lognormal lengths (6.5, 0.8), 70 of them scaled to the budget; random int64 ids, 100 MB in one array per field. The
    samples of ``__getitem__`` are views. Documents are read in order, and shuffled. A second table is about batches
    that stay lists of 70 arrays or tensors: the CPU time of the training process for each.
Baseline
    One new array of numpy per field, copied from the same memory in one piece, in order; and arrays of
    ``slipring.empty``, which are written in the slot, so that nothing is copied a second time.
Machine, command, result
    Printed. There is one worker, whose CPU time the kernel counts. Candidates take turns in each round; ratios are
    formed within a round. transformers' collator makes five fields, as `Flat` in its format does.
Bias
    The consumer only takes the batches. Reading 70 views from ``__getitem__`` is a part of the cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import slipring
from bench import cpu
from bench.record import Table, spread
from slipring import tokens

DOCUMENTS, BUDGET, BATCHES = 70, 1 << 16, 64
FIELDS = ("input_ids", "labels", "weights")


class Documents:
    """Views of flat memory."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        lengths = draw.lognormal(6.5, 0.8, (BATCHES, DOCUMENTS))
        scaled = (lengths * (BUDGET / lengths.sum(1, keepdims=True))).astype(np.int64)
        scaled[:, -1] += BUDGET - scaled.sum(1)
        self.ends = np.concatenate([[0], np.cumsum(scaled)])
        self.flat = {name: draw.integers(0, 32_000, self.ends[-1]) for name in FIELDS}

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start, stop = self.ends[index], self.ends[index + 1]
        return {name: values[start:stop] for name, values in self.flat.items()}


class Spans(Documents):
    """The same documents without an object for each."""

    def spans(self, indices: Sequence[int]) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        at = np.asarray(indices)
        return {name: (values, self.ends[at], self.ends[at + 1]) for name, values in self.flat.items()}


class InSlot(Documents):
    """The batch of the same bytes, in order, written in the slot in one piece."""

    def fetch_into(self, indices: Sequence[int], empty: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch."""
        start, stop = self.ends[indices[0]], self.ends[indices[-1] + 1]
        made = {}
        for name, values in self.flat.items():
            made[name] = empty(BUDGET, np.int64)
            made[name][...] = values[start:stop]
        return made


class NewArrays(InSlot):
    """The same in new arrays of numpy."""

    def fetch_into(self, indices: Sequence[int], empty: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch."""
        return super().fetch_into(indices, np.empty)


def concatenated(samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Join the documents of each field by ``torch.cat``."""
    import torch

    return {name: torch.cat([torch.from_numpy(sample[name]) for sample in samples]) for name in FIELDS}


def candidates() -> dict[str, tuple[type[Documents], Any]]:
    """Return the dataset and the collator of each candidate that is installed."""
    found: dict[str, tuple[type[Documents], Any]] = {
        "one new array": (NewArrays, None),
        "one array in the slot": (InSlot, None),
    }
    for name, collate in (
        ("Flat", tokens.Flat()),
        ("Jagged", tokens.Jagged()),
        ("Padded", tokens.Padded()),
        ("Flat('transformers')", tokens.Flat("transformers")),
    ):
        found[f"{name}, spans"] = Spans, collate
        found[f"{name}, __getitem__"] = Documents, collate
    if importlib.util.find_spec("torch"):
        found["torch.cat"] = Documents, concatenated
    if importlib.util.find_spec("transformers"):
        from transformers import DataCollatorWithFlattening

        theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
        found["transformers' collator"] = Documents, partial(theirs, return_tensors="pt")
    return found


def seconds_per_batch(dataset: Documents, collate: Any, shuffled: bool, least: float) -> float:
    """Return the CPU time of the worker per batch, measured for at least so many seconds of it."""
    order = np.arange(len(dataset))
    if shuffled:
        np.random.default_rng(1).shuffle(order)
    batches = order.reshape(BATCHES, DOCUMENTS).tolist() * 1000
    with slipring.Loader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=1) as loader:
        iterator = iter(loader)
        for _ in range(BATCHES):  # every slot has its pages then
            next(iterator)
        before, made, used = _of_worker(), 0, 0.0
        while used < least:
            for _ in range(4):
                next(iterator)
            made, used = made + 4, _of_worker() - before
        return used / made


def as_list(samples: list[Any]) -> list[Any]:
    """Leave a batch a list."""
    return samples


class Ragged(Documents):
    """One field of the documents, as arrays."""

    def __getitem__(self, index: int) -> Any:
        return self.flat["input_ids"][self.ends[index] : self.ends[index + 1]]


class RaggedTensors(Ragged):
    """The same as tensors."""

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(super().__getitem__(index))


def seconds_per_array(loader: Any) -> float:
    """Return the consumer's CPU time for an array or tensor of a list, in the second epoch."""
    for _ in loader:
        pass
    began, count = time.thread_time(), 0
    for batch in loader:
        count += len(batch)
    return (time.thread_time() - began) / count


def lists(rounds: int) -> Table:
    """Return the table of batches that stay lists."""
    options: dict[str, Any] = {"batch_size": DOCUMENTS, "collate_fn": as_list, "num_workers": 1}
    rows: dict[str, Callable[[], Any]] = {"slipring.Loader, arrays": lambda: slipring.Loader(Ragged(), **options)}
    if importlib.util.find_spec("torch"):
        import torch

        from slipring.torch import DataLoader

        options_of_torch = {**options, "persistent_workers": True}
        rows["slipring.torch.DataLoader, tensors"] = lambda: DataLoader(RaggedTensors(), **options_of_torch)
        rows["torch's DataLoader, tensors"] = lambda: torch.utils.data.DataLoader(RaggedTensors(), **options_of_torch)
    spent: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, make in rows.items():
            spent[name].append(seconds_per_array(make()))
    table = Table("loader", "consumer's CPU µs per array")
    for name, figures in spent.items():
        table.add(name, spread(figures, 1e6))
    return table


def _of_worker() -> float:
    return cpu.of_job(os.getpid()) - time.process_time()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--seconds", type=float, default=0.4, help="of CPU time per candidate and round (0.4)")


def tables(options: argparse.Namespace) -> dict[str, Table]:
    """Measure, and return the tables."""
    rows = [
        (name, order, *made)
        for name, made in candidates().items()
        for order in ("in order", "shuffled")
        if order == "in order" or made[0] in (Documents, Spans)
    ]
    spent: list[list[float]] = [[] for _ in rows]
    for _ in range(options.rounds):
        for figures, (_, order, dataset, collate) in zip(spent, rows, strict=True):
            figures.append(seconds_per_batch(dataset(), collate, order == "shuffled", options.seconds))
    table = Table("candidate", "documents", "CPU µs per batch", "of one new array", "of one in the slot", labels=2)
    for figures, (name, order, *_) in zip(spent, rows, strict=True):
        ratios = [[one / base for one, base in zip(figures, spent[at], strict=True)] for at in (0, 1)]
        table.add(name, order, spread(figures, 1e6), *map(spread, ratios))
    return {"collation": table, "lists": lists(options.rounds)}
