"""Datasets and functions that workers can import, however they are started."""

import collections
import contextlib
import itertools
import os
import random
import threading
import time

import numpy as np

import slipring


def patiently(batches):
    """Return the next batch of an iterator with a timeout; the machine may be slow, or the workers still start."""
    while True:
        with contextlib.suppress(slipring.LoaderTimeout):
            return next(batches)


class Squares:
    """Sample i is (row of four float32, i)."""

    def __init__(self, n=100):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(f"{i} of {self.n}")
        return np.full(4, i * i, np.float32), int(i)


def numbers(batches):
    """Return the sample numbers of batches of `Squares`, after a check of their arrays."""
    out = []
    for rows, which in batches:
        assert rows.dtype == np.float32 and rows.shape == (len(which), 4)
        assert (rows == (which.astype(np.float32) ** 2)[:, None]).all()
        out.append(which.tolist())
    return out


def batches_of(n, size):
    """Return the numbers below `n` in batches of `size`."""
    return [list(range(k, min(k + size, n))) for k in range(0, n, size)]


def flat(lists):
    """Return the elements of several lists in one."""
    return list(itertools.chain.from_iterable(lists))


def outcomes(iterator, limit=50):
    """Return the items and exceptions of an iterator; fail if it has more than `limit`."""
    out = []
    for _ in range(limit):
        try:
            out.append(next(iterator))
        except StopIteration:
            return out
        except Exception as error:
            out.append(error)
    raise AssertionError(f"no end within {limit}: {out}")


def after(loader, n):
    """Return (the state after `n` batches, the batches that follow)."""
    iterator = iter(loader)
    for _ in range(n):
        next(iterator)
    state = loader.state_dict()
    return state, list(iterator)


class Numbers:
    """Sample i is i; reading it calls `on[i]()` before."""

    def __init__(self, n, on=()):
        self.n, self.on = n, dict(on)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.on:
            self.on[i]()
        return i


class Made:
    """Sample i is `function(i)`."""

    def __init__(self, function, n):
        self.function, self.n = function, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.function(i)


def throw(kind, *args):
    """Raise a new exception: one that is raised twice keeps the frames of both calls."""
    raise kind(*args)


class Fetched(Squares):
    """Reads all samples of a batch in one call."""

    def __getitems__(self, indices):
        assert type(indices) is list
        return [(np.full(4, i * i, np.float32), int(i)) for i in indices]

    def __getitem__(self, i):
        raise AssertionError("__getitems__ comes first")


class Into:
    """Makes whole batches in the slot."""

    def __init__(self, n=100):
        self.n = n

    def __len__(self):
        return self.n

    def fetch_into(self, indices, empty):
        rows = empty((len(indices), 4), np.float32)
        which = empty(len(indices), np.int64)
        which[:] = indices
        rows[:] = (which.astype(np.float32) ** 2)[:, None]
        return rows, which


class Echo:
    """Sample i is the type and the repr of its index."""

    def __init__(self, n=100):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return f"{type(i).__module__}.{type(i).__name__}", repr(i)


class Where(Squares):
    """Sample i is (i, its worker, its process)."""

    def __getitem__(self, i):
        info = slipring.get_worker_info()
        return int(i), -1 if info is None else info.id, os.getpid()


class Informed(Squares):
    """Each sample is the result of get_worker_info(): (id, num_workers, seed, length of its dataset)."""

    def __getitem__(self, i):
        info = slipring.get_worker_info()
        return np.array([info.id, info.num_workers, info.seed, len(info.dataset)])


class Random(Squares):
    """Sample i is i and numbers from the generators: slipring.rng(), and random, numpy, torch."""

    def __init__(self, n=40, use_globals=True, torch=False):
        super().__init__(n)
        self.use_globals, self.torch = use_globals, torch

    def __getitem__(self, i):
        own = slipring.rng().random(2)
        if not self.use_globals:
            return int(i), own
        drawn = [random.random(), np.random.random()]
        if self.torch:
            import torch

            drawn.append(torch.rand(1).item())
        return int(i), own, np.array(drawn)


class Failing(Squares):
    """Raises `error()` at the indices `bad`; a ValueError if `error` is None."""

    def __init__(self, bad, error=None, n=20):
        super().__init__(n)
        self.bad, self.error = frozenset(bad), error

    def __getitem__(self, i):
        if i in self.bad:
            raise ValueError(f"no sample {i}") if self.error is None else self.error()
        return super().__getitem__(i)


class Values:
    """Any list as a map dataset."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return self.values[i]


class Waiting(Squares):
    """Waits for the file `gate` before sample `at`."""

    def __init__(self, gate, at=0, n=20):
        super().__init__(n)
        self.gate, self.at = os.fspath(gate), at

    def __getitem__(self, i):
        if i == self.at:
            wait_for_file(self.gate)
        return super().__getitem__(i)


_never = threading.Event()


def wait_for_ever():
    _never.wait()


def wait_for_file(path):
    """Return once `path` exists."""
    while not os.path.exists(path):
        _never.wait(0.01)


def share(n):
    """Return this worker's part of ``range(n)``; all of it without workers."""
    info = slipring.get_worker_info()
    first, step = (0, 1) if info is None else (info.id, info.num_workers)
    return range(first, n, step)


class Stream:
    """Yields `lengths[worker]` pairs (worker, number); without workers `lengths[0]`."""

    def __init__(self, *lengths):
        self.lengths = lengths

    def __iter__(self):
        info = slipring.get_worker_info()
        worker = 0 if info is None else info.id
        for i in range(self.lengths[worker]):
            yield worker, i


class Shard:
    """Yields range(n), split among the workers."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from share(self.n)


class Numbered:
    """A stream of (number, number of workers); each worker yields its share of range(n)."""

    def __init__(self, n=60):
        self.n = n

    def __iter__(self):
        workers = slipring.get_worker_info().num_workers
        for i in share(self.n):
            yield i, workers


class Yields:
    """Yields the given values, and raises those that are exceptions; iteration can continue after them."""

    def __init__(self, *values, at_start=None):
        self.values, self.at_start = values, at_start

    def __iter__(self):
        if self.at_start is not None:
            raise self.at_start
        return YieldsIterator(self.values)


class YieldsIterator:
    def __init__(self, values):
        self.values = iter(values)

    def __iter__(self):
        return self

    def __next__(self):
        value = next(self.values)
        if isinstance(value, Exception):
            raise value
        return value


class RandomStream:
    """Yields random numbers of each generator."""

    def __init__(self, n=20):
        self.n = n

    def __iter__(self):
        for _ in range(self.n):
            yield slipring.rng().random(), random.random(), np.random.random()


# ---- values ----


Point = collections.namedtuple("Point", "x y")


class Opaque:
    """Travels as a pickle."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Opaque and other.value == self.value

    def __hash__(self):
        return hash(self.value)


class NoPickle:
    """Cannot be pickled."""

    def __reduce__(self):
        raise TypeError("this object stays at home")


class NoUnpickle:
    """Can be pickled, but not loaded."""

    def __reduce__(self):
        return _refuse_to_load, ()


def _refuse_to_load():
    raise RuntimeError("it does not come back")


class Unshowable:
    """Its repr raises."""

    def __repr__(self):
        raise ZeroDivisionError("no repr")


class Awkward(Exception):
    """Its constructor does not accept its `args`."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


class Unreadable(OSError):
    """Its constructor makes the message from its argument."""

    def __init__(self, path):
        super().__init__(5, f"cannot read {path}", path)
        self.path = path


class Unsendable(Exception):
    """Refuses to be pickled."""

    def __reduce__(self):
        raise TypeError("not me")


# ---- functions for the loader ----


def as_is(samples):
    """A collate_fn that returns its argument."""
    return samples


def as_list(samples):
    """A collate_fn that returns the samples as a list."""
    return list(samples)


def ids(samples):
    """A collate_fn that returns the sample numbers only."""
    return [sample[1] for sample in samples]


def fail_on_five(samples):
    """A collate_fn that refuses the batch with sample 5."""
    if any(sample[1] == 5 for sample in samples):
        raise ArithmeticError("no fives")
    return slipring.default_collate(samples)


def raise_stop(samples):
    raise StopIteration("from collate_fn")


def seed_random(worker):
    random.seed(1000 + worker)


def fail_to_begin(worker):
    raise LookupError(f"worker {worker} cannot begin")


class Slow:
    """Samples that take `seconds` each, asleep."""

    def __init__(self, n, seconds):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return i
