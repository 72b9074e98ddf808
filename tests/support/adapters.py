"""Datasets of the tests of Paddle's and MegEngine's adapters, and functions that read their batches."""

import collections
import os
import signal
import warnings

import numpy as np
import pytest

Pair = collections.namedtuple("Pair", "image label")


def import_paddle():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("paddle", reason="paddle is compared with", exc_type=ImportError)


def plain(value):
    """A batch in plain Python: its containers, and lists of numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Pair):
        return Pair(*map(plain, value))
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value.tolist() if hasattr(value, "tolist") else value


class Images:
    def __init__(self, n=10, at=None, act=None):
        self.n, self.at, self.act = n, at, act

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.at:
            self.act()
        return np.full(2, i, np.float32), i


class Made:
    def __init__(self, make, n=4):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


def labels(loader):
    return [batch[1].tolist() for batch in loader]


def fail():
    raise LookupError("no such image")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)
