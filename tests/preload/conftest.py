"""Every test here has a stand-in device, of torch's type for private devices."""

import functools
import threading

import pytest


@pytest.fixture
def lab(monkeypatch):
    """The stand-in for ``device="privateuseone"``; the loader must leave nothing behind."""
    pytest.importorskip("torch")
    from slipring.torch.device import cuda as device
    from tests.preload.double import Double, Lab

    made = Lab()
    monkeypatch.setitem(device.KINDS, "privateuseone", functools.partial(Double, made))
    yield made
    assert not [t for t in threading.enumerate() if t.name == "slipring-preload"]
    assert not made.registered
