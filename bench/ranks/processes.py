"""The processes of one measurement: a rank each."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from bench import cpu, memory
from bench.apart import LIMIT_S
from bench.ranks.candidates import BATCH, CANDIDATES, Task, bytes_read, write

N_FILES = 256
FIRST = 8  # batches before the clock starts


def rank(number: int, n: int, name: str, folder: str, batches: int, names: int, steps: Any, ways: Any) -> None:
    """Read the batches of one rank; print nothing."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=number, world_size=n)
    steps.wait()  # measured: the interpreters alone
    steps.wait()
    task = Task(folder, N_FILES, FIRST + batches, names)
    checked = 0
    for done, (pixels, labels) in enumerate(CANDIDATES[name](task, number, ways), 1):
        checked += int(pixels.view(-1)[::4096].sum()) + int(labels.sum())
        del pixels, labels
        if done == FIRST:
            steps.wait()  # measured: the loaders' memory
            steps.wait()
    steps.wait()
    results = [0] * n
    dist.all_gather_object(results, checked)
    if len({*results}) != 1:
        raise AssertionError(f"the ranks have read different batches: {results}")
    steps.wait()
    dist.destroy_process_group()


def measured(name: str, n: int, batches: int, names: int) -> dict[str, float]:
    """Start n ranks and return their figures."""
    context = torch.multiprocessing.get_context("spawn")
    steps = context.Barrier(n + 1, timeout=LIMIT_S)
    ways = [context.Queue(2) for _ in range(n - 1)]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, N_FILES)
        arguments = name, folder, batches, names, steps, ways
        ranks = [context.Process(target=rank, args=(number, n, *arguments)) for number in range(n)]
        for process in ranks:
            process.start()
        root = os.getpid()
        steps.wait()
        interpreters = memory.of_job(root)
        steps.wait()
        steps.wait()
        used = memory.of_job(root) - interpreters
        spent, began = cpu.of_job(root), time.perf_counter()
        steps.wait()
        steps.wait()
        seconds = time.perf_counter() - began
        spent = cpu.of_job(root) - spent
        steps.wait()
        for process in ranks:
            process.join()
        needed = (FIRST + batches) * BATCH * sum(os.path.getsize(f"{folder}/{i}") for i in range(N_FILES)) / N_FILES
        return {
            "batches/s": batches / seconds,
            "CPU ms per batch": 1e3 * spent / batches,
            "memory, MB": used / 1e6,
            "bytes read": bytes_read(folder) / needed,
        }
