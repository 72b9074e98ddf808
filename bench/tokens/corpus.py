"""What do chunks of a corpus cost, and how soon is the first batch of a large one there?

Purpose
    CPU time per chunk of a worker, from mapped uint16 tokens to a batch of int64 inputs and labels; CPU time and memory
    to the first batch, and to the first batch of a resume, with very many documents.
Data
    Random uint16 tokens in a .npy file, in the page cache; chunks in random order. Documents have 4 tokens, so that a
    file of very many fits on a disk; their bounds are a .npy file of int64.
Baseline
    nanoGPT's batches: slices of a ``numpy.memmap`` as int64 tensors, joined by ``torch.stack``, made in the same
    process and delivered to nobody. (It maps the file for each batch, which is left out here.)
Machine, command, result
    Printed. There is one worker, whose CPU time the kernel counts. Candidates take turns in each round; ratios are
    formed within a round.
Bias
    The consumer only takes the batches. slipring's batches lie in shared memory, where the consumer reads them; the
    baseline's would have to be sent, if workers made them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

import slipring
from bench import cpu
from bench.record import Table, spread
from bench.tokens.plans import peak
from slipring import tokens

BATCH = 8
RANKS = 8
DOCUMENT = 4  # tokens


def nanogpt(path: str, chunk_tokens: int) -> Callable[[], Any]:
    """Return a function that makes a batch of random chunks as tensors of inputs and labels."""
    import torch

    data = np.load(path, mmap_mode="r")

    def batch() -> Any:
        starts = torch.randint(len(data) - chunk_tokens, (BATCH,))
        rows = [
            torch.stack(
                [torch.from_numpy(data[at + first : at + first + chunk_tokens].astype(np.int64)) for at in starts]
            )
            for first in (0, 1)
        ]
        return tuple(rows)

    return batch


def of_baseline(path: str, chunk_tokens: int, least: float) -> float:
    """Return the CPU seconds per chunk of nanoGPT's batches, in this process."""
    make = nanogpt(path, chunk_tokens)
    for _ in range(20):
        make()
    began = time.thread_time()
    for batches in count(1):
        make()
        if (used := time.thread_time() - began) >= least:
            return used / batches / BATCH
    raise AssertionError


def of_chunks(path: str, chunk_tokens: int, bounds: np.ndarray | None, least: float) -> float:
    """Return the CPU seconds of the worker per chunk of a corpus."""
    corpus = tokens.Corpus(path)
    sampler = tokens.ChunkSampler(corpus.num_tokens, chunk_tokens, BATCH, remainder="drop", drop_last=True, seed=0)
    collate = tokens.Chunks(chunk_tokens, "torchtitan", bounds=bounds)
    with slipring.Loader(corpus, batch_sampler=sampler, collate_fn=collate, num_workers=1) as loader:
        batches = (batch for _ in count() for batch in loader)
        for _ in range(100):  # every slot has its pages then
            next(batches)
        before = _of_worker()
        for made in count(1):
            next(batches)
            if made % 16 == 0 and (used := _of_worker() - before) >= least:
                batches.close()
                return used / made / BATCH
    raise AssertionError


def _of_worker() -> float:
    return cpu.of_job(os.getpid()) - time.process_time()


def child(folder: str) -> None:
    """Print CPU seconds to the first batch, and to that of a resume, and bytes."""
    next(iter(tokens.ChunkSampler(100, 4, seed=0)))
    tokens.Corpus(np.arange(4), bounds=[0, 4])
    before = peak()
    found = []
    began = time.process_time()
    corpus = tokens.Corpus(f"{folder}/tokens.npy", bounds=f"{folder}/bounds.npy")
    collate = tokens.Chunks(2048, "torchtitan", bounds=corpus.bounds)
    sampler = tokens.ChunkSampler(corpus.num_tokens, 2048, BATCH, seed=0, rank=0, world_size=RANKS)
    batches = iter(sampler)
    collate.gather_spans(corpus.spans, next(batches))
    found.append(time.process_time() - began)
    state = batches.state_dict() | {"position": sampler.num_samples // 2}
    began = time.process_time()
    corpus = tokens.Corpus(f"{folder}/tokens.npy", bounds=f"{folder}/bounds.npy")
    collate = tokens.Chunks(2048, "torchtitan", bounds=corpus.bounds)
    sampler = tokens.ChunkSampler(corpus.num_tokens, 2048, BATCH, seed=0, rank=3, world_size=6)
    sampler.load_state_dict(state)
    collate.gather_spans(corpus.spans, next(iter(sampler)))
    found.append(time.process_time() - began)
    print(json.dumps([*found, peak() - before]))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--tokens", type=int, default=1 << 26, metavar="N", help="of the file to read chunks from")


def tables(options: argparse.Namespace) -> dict[str, Table]:
    """Measure, and return the tables."""
    chunks = Table("tokens of a chunk", "candidate", "CPU µs per chunk", "of nanoGPT's", labels=2)
    starts = Table("documents", "first batch, CPU ms", "resume with 6 ranks, CPU ms", "memory with mapped pages, MB")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tokens.npy"
        _write(path, options.tokens)
        _measure(chunks, path, options)
        for n in options.mapped:
            _write(path, n * DOCUMENT)
            _bounds(f"{folder}/bounds.npy", n)
            results: list[Any] = []
            for _ in range(options.rounds):
                command = [sys.executable, "-m", "bench.tokens.corpus", folder]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
            first, resumed, used = zip(*results, strict=True)
            starts.add(n, spread(first, 1e3), spread(resumed, 1e3), spread(used, 1e-6))
    return {"chunks": chunks, "chunk starts": starts}


def _measure(table: Table, path: str, options: argparse.Namespace) -> None:
    """Add the rows of candidates."""
    has_torch = importlib.util.find_spec("torch") is not None
    bounds = np.unique(np.random.default_rng(0).integers(0, options.tokens, options.tokens // 500))
    bounds[0], bounds[-1] = 0, options.tokens
    for width in (1024, 4096, 16384):
        spent: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            if has_torch:
                spent.setdefault("nanoGPT's torch.stack", []).append(of_baseline(path, width, options.seconds))
            for name, known in (("Chunks", None), ("Chunks with bounds of documents", bounds)):
                spent.setdefault(name, []).append(of_chunks(path, width, known, options.seconds))
        for name, figures in spent.items():
            base = spent.get("nanoGPT's torch.stack")
            ratios = None if base is None else spread([a / b for a, b in zip(figures, base, strict=True)])
            table.add(width, name, spread(figures, 1e6), ratios)


def _write(path: str, n: int) -> None:
    """Write n tokens, part by part."""
    out = np.lib.format.open_memmap(path, "w+", np.uint16, (n,))
    draw = np.random.default_rng(0)
    for at in range(0, n, 1 << 24):
        part = out[at : at + (1 << 24)]
        part[:] = draw.integers(0, 50_000, len(part), np.uint16)
    out.flush()


def _bounds(path: str, n: int) -> None:
    out = np.lib.format.open_memmap(path, "w+", np.int64, (n + 1,))
    out[:] = np.arange(n + 1) * DOCUMENT
    out.flush()


if __name__ == "__main__":
    child(sys.argv[1])
