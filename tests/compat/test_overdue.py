"""Who gives up after a timeout does not wait once more: in every adapter."""

import gc
import threading

import numpy as np
import pytest

from slipring import Loader, LoaderTimeout
from slipring.compat import megengine, paddle, paddle_own, webdataset

LONG = 3.0  # s; less than what a worker otherwise gets to end its batch


class Slow:
    """Its third sample takes long; `done` is told when it is there."""

    def __init__(self, done):
        self.done = done

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i >= 2:
            threading.Event().wait(LONG)
            self.done()
        return np.full(2, i, np.float32)


class SlowStream(megengine.StreamDataset):
    def __init__(self, done):
        self.done = done

    def __iter__(self):
        yield np.zeros(2)
        yield np.zeros(2)
        yield Slow(self.done)[2]


def of_torch(dataset, **arguments):
    torch_adapter = pytest.importorskip("slipring.torch", reason="needs torch", exc_type=ImportError)
    return torch_adapter.DataLoader(dataset, 2, num_workers=2, timeout=0.2, **arguments)


def of_megengine(dataset, num_workers, preload=False, **arguments):
    if preload:
        pytest.importorskip("torch")
    kind = megengine.StreamSampler(2) if isinstance(dataset, SlowStream) else None
    sampler = kind or megengine.SequentialSampler(dataset, 2)
    return megengine.DataLoader(
        dataset, sampler, num_workers=num_workers, timeout=0.2, preload=preload, **arguments
    )


def of_paddle(dataset, num_workers, monkeypatch):
    monkeypatch.setattr(paddle_own, "installed", lambda: None)
    return paddle.DataLoader(dataset, batch_size=2, num_workers=num_workers, timeout=0.2)


def give_up(loader):
    batches = iter(loader)
    with pytest.raises(LoaderTimeout):
        for _ in range(9):
            next(batches)
    del batches, loader
    gc.collect()


PROCESSES = {
    "Loader": lambda done: Loader(Slow(done), 2, num_workers=2, timeout=0.2, start_method="fork"),
    "Loader, for one epoch": lambda done: Loader(
        Slow(done), 2, num_workers=2, timeout=0.2, start_method="fork", persistent_workers=False
    ),
    "torch": lambda done: of_torch(Slow(done)),
    "torch, preload": lambda done: of_torch(Slow(done), preload=1),
    "torch, persistent": lambda done: of_torch(Slow(done), persistent_workers=True),
    "MegEngine": lambda done: of_megengine(Slow(done), 2),
    "MegEngine, preload": lambda done: of_megengine(Slow(done), 2, preload=True),
    "MegEngine, stream": lambda done: of_megengine(SlowStream(done), 2, parallel_stream=True),
    "webdataset": lambda done: webdataset.MultiLoader(SlowStream(done), 2, timeout=0.2),
}


@pytest.mark.parametrize("adapter", [*PROCESSES, "Paddle"])
def test_a_worker_whose_batch_has_not_come_in_time_gets_no_more_time(adapter, tmp_path, monkeypatch):
    done = tmp_path / "done"
    make = PROCESSES.get(adapter) or (lambda done: of_paddle(Slow(done), 2, monkeypatch))
    give_up(make(done.touch))
    assert not done.exists(), "it was waited for"


THREADS = {
    "Loader": lambda done: Loader(Slow(done), 2, num_workers=2, timeout=0.2, start_method="thread"),
    "MegEngine": lambda done: of_megengine(Slow(done), 0),
    "MegEngine, preload": lambda done: of_megengine(Slow(done), 0, preload=True),
    "MegEngine, stream": lambda done: of_megengine(SlowStream(done), 0),
}


@pytest.mark.parametrize("adapter", [*THREADS, "Paddle"])
def test_a_thread_whose_batch_has_not_come_in_time_is_left_behind(adapter, monkeypatch):
    done = threading.Event()
    make = THREADS.get(adapter) or (lambda done: of_paddle(Slow(done), 0, monkeypatch))
    give_up(make(done.set))
    assert not done.is_set(), "it was waited for"
    done.wait()


def test_a_batch_that_came_after_a_timeout_gives_the_workers_their_time_again(tmp_path):
    """A worker at a batch that is late for nobody ends it, as ever."""
    done = tmp_path / "done"

    class Late:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 2:
                threading.Event().wait(0.5)
            if i == 4:
                (tmp_path / "begun").touch()
                threading.Event().wait(1)
                done.touch()
            return i

    batches = iter(Loader(Late(), 2, num_workers=1, timeout=0.1, start_method="fork"))
    next(batches)
    while True:
        try:
            next(batches)
            break
        except LoaderTimeout:
            pass
    while not (tmp_path / "begun").exists():
        threading.Event().wait(0.01)
    del batches
    gc.collect()
    assert done.exists()
