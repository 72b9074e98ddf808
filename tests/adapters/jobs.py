"""What the tests of AsyncDataLoader have their sources return; workers get these by pickle."""

import collections
import functools
import os
import signal
import threading

import numpy as np
import torch

Pair = collections.namedtuple("Pair", "a b")


def sample(i):
    """One sample of every kind that DI-engine's collation knows."""
    return {
        "obs": torch.full((3, 2), float(i)),
        "reward": torch.tensor([float(i)]),
        "done": i % 2 == 0,
        "value": i / 2,
        "action": i,
        "array": np.full(4, i, np.int16),
        "name": f"s{i}",
        "pair": Pair(torch.tensor([i, i]), i),
        "list": [float(i), i],
        "collate_ignore_raw": {"i": i},
    }


def number(i):
    return {"i": i, "pid": os.getpid()}


def failing(i):
    raise LookupError(f"no sample {i}")


def killed(i):
    os.kill(os.getpid(), signal.SIGKILL)


def waiting(i, path):
    """The first sample waits until another process makes the last of its batch."""
    if i == 0:
        while not path.exists():
            threading.Event().wait(0.01)
    elif i % 4 == 3:
        path.touch()
    return number(i)


class Source:
    """Counts on: each call returns the next `batch_size` callables, or samples."""

    def __init__(self, make=number, ready=False, **kwargs):
        self.make, self.ready, self.kwargs = make, ready, kwargs
        self.calls = 0

    def __call__(self, batch_size):
        first = self.calls * batch_size
        self.calls += 1
        made = [functools.partial(self.make, first + k, **self.kwargs) for k in range(batch_size)]
        return [one() for one in made] if self.ready else made


def take(loader, n):
    return [next(loader)["i"].tolist() for _ in range(n)]


def rows(n, size):
    return [list(range(k * size, (k + 1) * size)) for k in range(n)]
