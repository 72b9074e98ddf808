"""What does collation of documents cost?

Purpose
    CPU time of the worker per batch of 70 documents with 65,536 tokens in three fields: through ``spans``, through
    ``__getitem__``, as nested tensors' parts, and with transformers' collator and ``torch.cat``.
Data
    Lognormal lengths, scaled to the budget; random int64 ids in one array per field, larger than the caches. The
    samples of ``__getitem__`` are views of it.
Baseline
    One new array in the slot for each field, copied from the same memory in one piece.
Bias
    One worker process, whose CPU time the kernel counts, while the consumer only takes the batches. Candidates take
    turns in each round, and a ratio is formed within a round. transformers' collator is given arrays, which it turns
    to lists.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import slipring
from bench import cpu
from slipring import tokens

DOCUMENTS, BUDGET, BATCHES = 70, 1 << 16, 64
FIELDS = ("input_ids", "labels", "weights")
ONE_ARRAY = "one new array"
IN_ORDER = (ONE_ARRAY, "transformers' collator")


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


class OneArray(Documents):
    """The batch of the same bytes, copied in one piece."""

    def fetch_into(self, indices: Sequence[int], empty: Callable[..., np.ndarray]) -> dict[str, np.ndarray]:
        made = {}
        start, stop = self.ends[indices[0]], self.ends[indices[-1] + 1]
        for name, values in self.flat.items():
            made[name] = empty(BUDGET, np.int64)
            made[name][...] = values[start:stop]
        return made


def concatenated(samples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Join the documents of each field by ``torch.cat``."""
    import torch

    return {name: torch.cat([torch.from_numpy(sample[name]) for sample in samples]) for name in FIELDS}


def candidates() -> dict[str, tuple[type[Documents], Any]]:
    """Return the dataset and the collator of each candidate that is installed."""
    found: dict[str, tuple[type[Documents], Any]] = {
        ONE_ARRAY: (OneArray, None),
        "Flat, spans": (Spans, tokens.Flat()),
        "Flat, __getitem__": (Documents, tokens.Flat()),
        "Jagged, spans": (Spans, tokens.Jagged()),
        "Jagged, __getitem__": (Documents, tokens.Jagged()),
        "Flat as transformers', spans": (Spans, tokens.Flat("transformers")),
        "Flat as transformers', __getitem__": (Documents, tokens.Flat("transformers")),
    }
    try:
        import torch  # noqa: F401

        found["torch.cat"] = Documents, concatenated
        from transformers import DataCollatorWithFlattening

        flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
        found["transformers' collator"] = Documents, partial(flattening, return_tensors="pt")
    except ModuleNotFoundError as error:
        print(f"left out: {error}")
    return found


def microseconds(dataset: Documents, collate: Any, shuffled: bool, seconds: float) -> float:
    """Return the CPU time of the worker per batch, over at least so many seconds."""
    order = np.arange(len(dataset))
    if shuffled:
        np.random.default_rng(1).shuffle(order)
    order = order.reshape(BATCHES, DOCUMENTS).tolist()
    with slipring.Loader(dataset, batch_sampler=order * 1000, collate_fn=collate, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(BATCHES):  # every slot has its pages then
            next(batches)
        before, made = _of_worker(), 0
        while (used := _of_worker() - before) < seconds:
            for _ in range(4):
                next(batches)
            made += 4
        return used / made * 1e6


def _of_worker() -> float:
    return cpu.of_job(os.getpid()) - time.process_time()


def main(rounds: int = 5, seconds: float = 0.4) -> dict[str, list[float]]:
    """Measure all candidates; return the CPU time per batch of each round, in µs."""
    found = [
        (f"{name}, {order}", order == "shuffled", *made)
        for name, made in candidates().items()
        for order in (["in order"] if name in IN_ORDER else ["in order", "shuffled"])
    ]
    us: dict[str, list[float]] = {name: [] for name, *_ in found}
    for _ in range(rounds):
        for name, shuffled, dataset, collate in found:
            us[name].append(microseconds(dataset(), collate, shuffled, seconds))
    base = us[found[0][0]]
    for name, figures in us.items():
        ratios = [figure / one for figure, one in zip(figures, base)]
        least, most = min(ratios), max(ratios)
        print(
            f"{name:46} {statistics.median(figures):8.0f} µs {statistics.median(ratios):8.2f} ({least:.2f}-{most:.2f})"
        )
    return us


if __name__ == "__main__":
    main()
