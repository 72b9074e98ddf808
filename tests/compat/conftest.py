"""Paddle's face is tested without paddle, and with it where it is installed."""

import numpy as np
import pytest

from slipring.compat import paddle_own
from tests.compat.images import import_paddle


@pytest.fixture(params=["arrays", "paddle"])
def kind(request, monkeypatch):
    """The type of leaves, in a program without paddle and with it."""
    if request.param == "paddle":
        return import_paddle().Tensor
    monkeypatch.setattr(paddle_own, "installed", lambda: None)
    return np.ndarray
