"""After a timeout, dropping the loader does not wait again: in every adapter."""

import contextlib
import gc
import threading

import numpy as np
import pytest

from slipring import Loader, LoaderTimeout, Workers
from slipring.adapters import megengine, paddle, paddle_own, webdataset
from tests.support.datasets import patiently, wait_for_file
from tests.support.inside import prefetch, process_pool, thread_pool
from tests.support.options import grouped

pytestmark = pytest.mark.usefixtures("forked")  # workers share an event with the test

LONG = 60.0  # s; less than the usual grace for a worker to end its batch
GRACE_S = 600.0  # that grace, here


@pytest.fixture(autouse=True)
def long_grace(monkeypatch):
    for module in (process_pool, thread_pool, prefetch):
        monkeypatch.setattr(module, "GRACE_S", GRACE_S)
    monkeypatch.setattr(paddle_own, "installed", lambda: None)


@pytest.fixture
def slow(tmp_path):
    """A folder where the dataset reports its progress, and an event that lets its threads continue."""
    yield tmp_path, (over := threading.Event())
    over.set()


class Slow:
    """Its third sample takes long; files mark its start and its end."""

    def __init__(self, directory, over):
        self.directory, self.over = directory, over

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i >= 2:
            (self.directory / "begun").touch()
            self.over.wait(LONG)
            (self.directory / "done").touch()
        return np.full(2, i, np.float32)


class SlowStream(megengine.StreamDataset):
    def __init__(self, *slow):
        self.slow = slow

    def __iter__(self):
        yield np.zeros(2)
        yield np.zeros(2)
        yield Slow(*self.slow)[2]


def of_torch(dataset, **arguments):
    torch_adapter = pytest.importorskip("slipring.torch", reason="needs torch", exc_type=ImportError)
    return torch_adapter.DataLoader(dataset, 2, num_workers=2, timeout=0.2, **arguments)


def of_megengine(dataset, num_workers, preload=False):
    if preload:
        pytest.importorskip("torch")
    stream = isinstance(dataset, SlowStream)
    sampler = megengine.StreamSampler(2) if stream else megengine.SequentialSampler(dataset, 2)
    return megengine.DataLoader(dataset, sampler, None, None, num_workers, 0.2, preload, stream and num_workers > 0)


def of_paddle(dataset, num_workers):
    return paddle.DataLoader(dataset, batch_size=2, num_workers=num_workers, timeout=0.2)


PROCESSES = {
    "torch, preload": lambda *slow: of_torch(Slow(*slow), **grouped(preload=1)),
    "torch, persistent": lambda *slow: of_torch(Slow(*slow), persistent_workers=True),
    "MegEngine, preload": lambda *slow: of_megengine(Slow(*slow), 2, preload=True),
    "MegEngine, stream": lambda *slow: of_megengine(SlowStream(*slow), 2),
    "webdataset": lambda *slow: webdataset.MultiLoader(SlowStream(*slow), 2, timeout=0.2),
    "Paddle": lambda *slow: of_paddle(Slow(*slow), 2),
}
THREADS = {
    "Loader": lambda *slow: Loader(Slow(*slow), 2, num_workers=2, timeout=0.2, workers=Workers(start_method="thread")),
    "MegEngine, preload": lambda *slow: of_megengine(Slow(*slow), 0, preload=True),
    "MegEngine, stream": lambda *slow: of_megengine(SlowStream(*slow), 0),
    "Paddle": lambda *slow: of_paddle(Slow(*slow), 0),
}


@pytest.mark.parametrize(
    ("threads", "adapter"), [*((False, adapter) for adapter in PROCESSES), *((True, adapter) for adapter in THREADS)]
)
def test_a_worker_whose_batch_has_not_come_in_time_gets_no_more_time(threads, adapter, slow):
    directory, over = slow
    make = (THREADS if threads else PROCESSES)[adapter]
    loader = make(*slow)
    batches = iter(loader)
    while not (directory / "begun").exists():
        with contextlib.suppress(LoaderTimeout):
            next(batches)
    with pytest.raises(LoaderTimeout):
        for _ in range(9):
            next(batches)
    del batches, loader
    gc.collect()
    assert not (directory / "done").exists(), "it was waited for"
    if threads:  # they are abandoned
        over.set()
        wait_for_file(directory / "done")


def test_a_batch_that_came_after_a_timeout_gives_the_workers_their_time_again(tmp_path):
    """Without a timeout, a worker finishes its late batch as usual."""
    late, begun, done = (tmp_path / name for name in ("late", "begun", "done"))

    class Late:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 2:
                wait_for_file(late)
            if i == 4:
                begun.touch()
                threading.Event().wait(1)
                done.touch()
            return i

    batches = iter(Loader(Late(), 2, num_workers=1, timeout=0.1, workers=Workers(start_method="fork")))
    patiently(batches)
    with pytest.raises(LoaderTimeout):
        next(batches)
    late.touch()
    patiently(batches)
    wait_for_file(begun)
    del batches
    gc.collect()
    assert done.exists()
