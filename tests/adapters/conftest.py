"""Adapters are tested with and without the original, and next to it where it is installed."""

import gc
import threading

import numpy as np
import pytest

from slipring.adapters import paddle_own
from tests.support.adapters import import_paddle
from tests.support.parts import slow
from tests.support.processes import LONG_S


@pytest.fixture(params=["arrays", "paddle"])
def kind(request, monkeypatch):
    """The type of leaves, in a program without paddle and with it."""
    if request.param == "paddle":
        return import_paddle().Tensor
    monkeypatch.setattr(paddle_own, "installed", lambda: None)
    return np.ndarray


@pytest.fixture(params=[slow("torchdata"), "slipring"])
def stateful(request):
    if request.param == "slipring":
        from slipring.adapters.torchdata import StatefulDataLoader

        return StatefulDataLoader
    reason = "torchdata is compared with: pip install -r requirements-clients.txt"
    return pytest.importorskip("torchdata.stateful_dataloader", reason=reason).StatefulDataLoader


@pytest.fixture
def hang(forked):
    """What waits until the test is over; a worker that does is killed before, and has begun by a fork."""
    over = threading.Event()
    yield over.wait
    over.set()


@pytest.fixture
def no_thread_is_left():
    """None that reads or moves ahead."""
    yield
    gc.collect()
    names = ("slipring-prefetch", "slipring-preload")
    for thread in [t for t in threading.enumerate() if t.name in names]:
        thread.join(LONG_S)
        assert not thread.is_alive()
