"""Less memory than slots times the largest batch: slots release unused memory, and workers wait."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest

from slipring import Loader, Memory, SegmentFull
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.processes import circulating, kill_worker, until
from tests.support.scenes import Sized

pytestmark = pytest.mark.fault

KB, MB = 1 << 10, 1 << 20


def seldom_large(n, usual, seed=0):
    """Return sizes of n batches; one in ten is twenty times larger."""
    large = np.random.default_rng(seed).random(n) < 0.1
    return np.where(large, 20 * usual, usual).tolist()


@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"in_order": False}], ids=str)
@pytest.mark.parametrize("method", ["fork", "thread"])
def test_batches_of_very_different_sizes_share_the_available_memory(small, method, options):
    sizes = [size for size in seldom_large(400, 128 * KB) for _ in range(4)]
    workers = {"num_workers": 6, "start_method": method}
    with Loader(Sized(sizes), 4, drop_last=False, **grouped(backing=small(100 * MB), **workers, **options)) as loader:
        came = [index for batch in loader for index in batch[1].tolist()]
        assert sorted(came) == list(range(1600))
        assert loader.stats().slot_bytes_committed <= 100 * MB


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_workers_killed_while_memory_is_short_lose_and_repeat_nothing(small, chunk_size):
    sizes = [size for size in seldom_large(200, 64 * KB) for _ in range(4)]
    # On a loaded machine some workers are killed before they serve.
    options = {"num_workers": 4, "on_death": "respawn", "max_restarts": 1000, "chunk_size": chunk_size}
    rng = np.random.default_rng(0)
    with Loader(Sized(sizes), 4, **grouped(backing=small(64 * MB), start_method="fork", **options)) as loader:
        came = []
        for number, batch in enumerate(loader):
            assert (batch[0][:, -1] == batch[1] % 251).all()
            came += batch[1].tolist()
            if number % 8 == 0:
                kill_worker(loader, int(rng.integers(4)))
            del batch
        assert came == list(range(800))
        assert loader.stats().respawns > 0


def test_a_large_batch_takes_the_memory_of_free_slots(small):
    sizes = [4 * MB] * 12 + [40 * MB, 1]
    with Loader(Sized(sizes), 1, num_workers=1, prefetch_factor=10, memory=Memory(backing=small(64 * MB))) as loader:
        it = iter(loader)
        for size in sizes:
            batch = next(it)[0]
            assert batch.nbytes == size and (batch == batch[0, 0]).all()
            del batch


def test_a_batch_waits_until_others_are_let_go(small):
    sizes = [10 * MB] * 5 + [20 * MB]
    options = {"num_workers": 1, "copy": "never", "prefetch_factor": 6}
    with Loader(Sized(sizes), 1, **grouped(backing=small(56 * MB), **options)) as loader:
        it = iter(loader)
        kept = [next(it) for _ in range(5)]
        until(lambda: engine_of(loader).ring.is_short(1), "the worker waits for memory")
        kept.clear()
        assert next(it)[0].nbytes == 20 * MB


@pytest.mark.parametrize(("num_workers", "batches", "most"), [(2, 30, 11), (0, 12, 2)])
def test_memory_for_a_batch_is_refused_while_others_are_kept_and_the_rest_continues(small, num_workers, batches, most):
    """Without workers, the loop waits for nobody."""
    memory = Memory(backing=small(32 * MB), copy="never")
    with Loader(Sized([5 * MB] * batches), 1, num_workers=num_workers, memory=memory) as loader:
        kept, refused = [], 0
        it = iter(loader)
        for _ in range(batches):
            try:
                kept.append(next(it))
            except SegmentFull:
                refused += 1
                kept.clear()
        assert 0 < refused <= most
        assert circulating(engine_of(loader).ring)[0] >= loader.stats().slots - len(kept)


def test_a_pinned_slot_keeps_its_memory(small):
    with Loader(Sized([4 * MB] * 4 + [24 * MB] * 4), 1, num_workers=0, memory=Memory(backing=small(40 * MB))) as loader:
        it = iter(loader)
        next(it)
        ring = engine_of(loader).ring
        for slot in range(ring.n_slots):
            ring.pin(slot)
        before = [ring.slot_memory(slot) for slot in range(ring.n_slots)]
        for _ in range(3):
            next(it)
        with contextlib.suppress(SegmentFull):
            list(it)
        after = [ring.slot_memory(slot) for slot in range(ring.n_slots)]
        assert all(old <= new for old, new in zip(before, after, strict=True))


SHRINKS = """
import sys, threading
from slipring import Loader, Memory, SegmentFull, Workers

made, over = [], threading.Event()

def collate(samples):
    batch = [1 << 20] * 500_000
    made.append(batch)
    return batch

def shrink():
    while not over.wait(0.002):
        while made:
            del made.pop()[5:]

thread = threading.Thread(target=shrink, daemon=True)
thread.start()
memory = Memory(slots=12, copy="never", backing=sys.argv[1])
workers = Workers(start_method="thread")
with Loader(range(50), 1, num_workers=3, collate_fn=collate, workers=workers, memory=memory) as loader:
    iterator = iter(loader)
    for _ in range(50):
        try:
            assert set(next(iterator)) == {1 << 20}
        except SegmentFull:
            pass
"""


def test_a_list_that_becomes_shorter_while_its_batch_waits_for_memory_is_read_as_it_was(small):
    command = [sys.executable, "-X", "faulthandler", "-c", SHRINKS, small(16 * MB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert (done.returncode, done.stderr) == (0, "")
