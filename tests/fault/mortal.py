"""The datasets of the fault run, and deaths of workers that no signal causes."""

import collections
import faulthandler
import os
import resource
import signal

import numpy as np

import slipring

WIDTH = 4000  # float64 per sample: a kill often comes while a batch is written


def worker_id():
    """Return the number of the calling worker."""
    return slipring.get_worker_info().id


class Mortal:
    """A worker_init_fn: SIGUSR1 ends the worker by os._exit, SIGUSR2 by running out of memory."""

    def __call__(self, number):
        faulthandler.disable()
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
        signal.signal(signal.SIGUSR2, lambda *_: run_out_of_memory())


class Init:
    """A worker_init_fn that calls an action."""

    def __init__(self, action):
        self.action = action

    def __call__(self, number):
        self.action()


def run_out_of_memory():
    """Allocate up to a limit on address space, then abort() as C++ does when `new` fails."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
    kept = []
    try:
        while True:
            kept.append(np.ones(1 << 20))
    except MemoryError:
        os.abort()


class Rows:
    """Sample i is i, and random numbers."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i, np.random.random(WIDTH)


class Mixed(Rows):
    """The same, but one sample of each batch has another dtype: a batch in chunks is collated as a list."""

    def __getitem__(self, i):
        number, values = super().__getitem__(i)
        return number, values.astype(np.float32) if i % 8 == 3 else values


class Kept(Rows):
    """Rows for a KeepingCollate."""


class KeepingCollate:
    """A collate_fn that writes into the slot, and keeps its array for two more batches."""

    def __init__(self):
        self.kept = collections.deque(maxlen=2)

    def __call__(self, samples):
        values = slipring.empty((len(samples), WIDTH), np.float64)
        np.stack([value for _, value in samples], out=values)
        self.kept.append(values)
        return np.array([i for i, _ in samples]), values


class Stream:
    """Each worker yields `n` samples: one number made of worker and position, and random numbers."""

    at = 0

    def __init__(self, n):
        self.n = n

    def worker(self):
        return worker_id()

    def __iter__(self):
        worker = self.worker()
        while self.at < self.n:
            self.at += 1
            yield worker * 1_000_000 + self.at - 1, np.random.random(WIDTH)
        self.at = 0


class Stateful(Stream):
    """A Stream with a state."""

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
