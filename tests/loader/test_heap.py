"""Worker processes keep the heap that their batches need; no other process's heap changes."""

import ctypes
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from slipring.loader import Loader
from tests.support.inside import engine_of, heap, worker
from tests.support.kinds import loading
from tests.support.options import grouped

MB = 1 << 20
BATCH = 8


class New:
    """Returns a new array for each sample: large ones first, then small ones."""

    def __init__(self, n, large=MB, small=MB, large_until=0):
        self.n, self.large, self.small, self.large_until = n, large, small, large_until

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full(self.large if i < self.large_until else self.small, i % 100, np.uint8)


def stack(samples):
    return np.stack(samples)


def stack_some(samples):
    return np.concatenate([sample[:1000] for sample in samples])


def give_all_back(number):
    """Let glibc return all free memory. A worker inherits the thresholds that its parent happens to have."""
    library = ctypes.CDLL(None)
    library.mallopt(heap.M_TRIM_THRESHOLD, 128 << 10)
    library.mallopt(heap.M_MMAP_THRESHOLD, 128 << 10)


def faults_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def anonymous_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise LookupError("RssAnon")


def worker_of(loader):
    ((_, pid, _),) = engine_of(loader).pool.pids()
    return pid


@pytest.mark.parametrize("options", [{}, {"collate_fn": stack_some}])
def test_in_the_steady_state_a_batch_takes_no_page_faults(options):
    with Loader(New(120 * BATCH), BATCH, num_workers=1, worker_init_fn=give_all_back, **grouped(**options)) as loader:
        it = iter(loader)
        for _ in range(60):  # every slot was used, and the worker knows the sizes of batches
            next(it)
        pid, n = worker_of(loader), 0
        before = faults_of(pid)
        for _ in it:
            n += 1
        assert n == 60
        assert (faults_of(pid) - before) / n < 50


def test_kept_memory_is_released_when_batches_become_small():
    data = New(100 * 32, MB, 1000, 50 * 32)
    # A forked worker may inherit much free memory in the heap, which it cannot return to the kernel.
    with loading(
        data, 32, num_workers=1, start_method="spawn", prefetch_factor=1, collate_fn=stack, worker_init_fn=give_all_back
    ) as loader:
        it = iter(loader)
        for _ in range(40):
            next(it)
        large = anonymous_of(worker_of(loader))
        for _ in range(56):
            next(it)
        assert anonymous_of(worker_of(loader)) < large - 20 * MB


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "start_method": "thread"}])
def test_the_programs_own_heap_is_left_alone(options, monkeypatch):
    def refuse():
        raise AssertionError("a heap is kept in the program's own process")

    monkeypatch.setattr(worker, "Heap", refuse)
    with Loader(New(32), BATCH, collate_fn=stack, **grouped(**options)) as loader:
        assert len(list(loader)) == 4


@pytest.mark.skipif(not heap.glibc(), reason="not glibc's allocator")
@pytest.mark.parametrize(
    "told",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0"}],
    ids=lambda told: next(iter(told)),
)
def test_a_users_settings_of_the_heap_are_obeyed(told):
    program = [sys.executable, "-c", "from tests.support.inside import heap; print(heap.glibc())"]
    done = subprocess.run(program, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "None\n"
