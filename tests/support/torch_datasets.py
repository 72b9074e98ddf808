"""torch's datasets that any start method can send to workers, and an exact comparison of batches."""

import collections
import contextlib
import dataclasses
import os
import random
import signal
import traceback
import types

import numpy as np
import pytest
import torch
from torch.utils import data

from tests.support import stateful
from tests.support.datasets import Values

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    a: object


class Custom:
    """A type of batch that a user's collate_fn returns."""

    def __init__(self, value):
        self.value = value


class Special(torch.Tensor):
    """A tensor subclass."""


class Made(data.Dataset):
    """Sample i is `function(i)`."""

    def __init__(self, function, n=10):
        self.function, self.n = function, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.function(i)


class Fetched(Values):
    """Reads a whole batch in one call."""

    def __getitems__(self, indices):
        return [self.values[i] * 10 for i in indices]


class Stream(data.IterableDataset):
    """Yields each worker's share of range(n), all of it if not `sharded`, or `lengths[worker]` numbers."""

    def __init__(self, n=10, sharded=True, lengths=None, length=None):
        self.n, self.sharded, self.lengths, self.length = n, sharded, lengths, length

    def __iter__(self):
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.lengths is not None:
            return iter(range(100 * worker, 100 * worker + self.lengths[worker]))
        return iter(range(worker, self.n, workers) if self.sharded else range(self.n))


class Counting(stateful.Counting, data.IterableDataset):
    """The iterable dataset with a state, of torch's class."""


class PlainRange(stateful.PlainRange, data.IterableDataset):
    """The iterable dataset without a state, of torch's class."""


class Sized(Stream):
    """Has a length, right or wrong."""

    def __len__(self):
        return self.length


class Augmented(data.Dataset):
    """Sample i is i, and numbers from every generator."""

    def __init__(self, n=24):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        moved = torch.tensor([random.random(), np.random.rand(), torch.rand(1).item(), float(i)])
        return i, moved


class AugmentedStream(data.IterableDataset):
    """The same as a stream."""

    def __iter__(self):
        for _ in range(6):
            yield random.random(), np.random.rand(), torch.rand(2)


def drawing_collate(samples):
    """Draws from every generator for the batch."""
    return data.default_collate(samples), random.random(), np.random.rand(3), torch.rand(2), torch.randn(())


class Informed(data.Dataset):
    """Each sample is the worker's info and torch's initial seed."""

    def __init__(self, n=8):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        info = data.get_worker_info()
        if info is None:
            return i, -1, 0, 0, torch.initial_seed(), "none"
        return i, info.id, info.num_workers, info.seed, torch.initial_seed(), type(info.dataset).__name__


def seed_by_worker(worker):
    random.seed(worker)
    np.random.seed(worker + 10)
    torch.manual_seed(worker + 20)


def as_custom(samples):
    return Custom(data.default_collate(samples))


def torchs_and_more(samples):
    return {"batch": data.default_collate(samples), "n": len(samples), "text": ["x"] * len(samples)}


# ---- failures


class Odd(Exception):
    """Its constructor does not accept one text."""

    def __init__(self, code, *, reason):
        super().__init__(f"{code} because {reason}")


class Fragile(Exception):
    """Refuses to be pickled."""

    def __reduce__(self):
        raise TypeError("not me")


class Failing(data.Dataset):
    """Raises `error()` at index `bad`."""

    def __init__(self, error, bad=3, n=8):
        self.error, self.bad, self.n = error, bad, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.bad:
            raise self.error()
        return i


class FailingStream(data.IterableDataset):
    """Raises after two samples."""

    def __iter__(self):
        yield 0
        yield 1
        raise OverflowError("the stream is over")


class FailingSampler(data.Sampler):
    """Raises after three indices."""

    def __len__(self):
        return 6

    def __iter__(self):
        yield from range(3)
        raise LookupError("no more indices")


def key_error():
    raise KeyError("left\nright")


def tuple_key_error():
    raise KeyError(("a", 1))


def value_error():
    raise ValueError("no such value")


def odd_error():
    raise Odd(7, reason="of rain")


def fragile_error():
    raise Fragile("thin glass")


def bad_begin(worker):
    raise LookupError("cannot begin")


def bad_collate(samples):
    raise ArithmeticError("cannot be put together")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def ended():
    os._exit(9)


class Dying(data.Dataset):
    """Calls `how` at index `bad`, which ends the process."""

    def __init__(self, how, bad=3, n=8):
        self.how, self.bad, self.n = how, bad, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.bad:
            self.how()
        return i


def as_lists(batches):
    """Return batches as lists of numbers."""
    return [torch.as_tensor(batch).tolist() for batch in batches]


# ---- comparison


@contextlib.contextmanager
def raises(kind, match=None):
    """Like pytest.raises, but clear the traceback: torch's iterator cannot end its workers from a cycle."""
    told = types.SimpleNamespace(value=None)
    with pytest.raises(kind, match=match) as info:
        yield told
    told.value = info.value
    del info
    error = told.value
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def assert_same(ours, theirs, at="batch"):
    """Fail unless type, dtype, shape, layout, value and order of two batches are the same, at every level."""
    assert type(ours) is type(theirs), f"{at}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert_same_tensor(ours, theirs, at)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, at
        assert ours.tobytes() == theirs.tobytes(), at
    elif isinstance(theirs, collections.abc.Mapping):
        assert list(ours) == list(theirs), at
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{at}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), f"{at}: {len(ours)} is not {len(theirs)}"
        for i, (one, other) in enumerate(zip(ours, theirs)):
            assert_same(one, other, f"{at}[{i}]")
    elif isinstance(theirs, (Custom, Record)):
        assert_same(vars(ours), vars(theirs), at)
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{at}: {ours!r} is not {theirs!r}"


def assert_same_tensor(ours, theirs, at):
    for what in ("dtype", "layout", "device", "requires_grad", "is_nested"):
        assert getattr(ours, what) == getattr(theirs, what), f"{at}.{what}"
    if theirs.is_nested:
        assert_same(list(ours.unbind()), list(theirs.unbind()), at)
        return
    assert ours.shape == theirs.shape, f"{at}.shape: {ours.shape} is not {theirs.shape}"
    if theirs.layout is torch.strided and theirs.numel():
        assert_same_strides(ours, theirs, at)
    if theirs.layout is torch.sparse_coo:
        ours, theirs = ours.coalesce(), theirs.coalesce()
        assert_same(ours.indices(), theirs.indices(), at)
        ours, theirs = ours.values(), theirs.values()
    elif theirs.layout is not torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    assert raw(ours) == raw(theirs), f"{at}: {ours} is not {theirs}"


def assert_same_strides(ours, theirs, at):
    """Compare the strides of clones, which have no gaps: a batch may be without the gaps of the original."""
    ours, theirs = (tensor.detach().as_subclass(torch.Tensor).clone() for tensor in (ours, theirs))
    assert ours.stride() == theirs.stride(), f"{at}.stride: {ours.stride()} is not {theirs.stride()}"
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if ours.dim() == dims:
            contiguous = [tensor.is_contiguous(memory_format=memory_format) for tensor in (ours, theirs)]
            assert contiguous[0] == contiguous[1], f"{at} is {memory_format}: {contiguous}"


def raw(tensor):
    """Return the bytes of a tensor's elements."""
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def batches(make, dataset, seed=1, epochs=1, **options):
    """Return all batches of a loader without a copy: all must stay valid at the same time."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    loader = make(dataset, **options)
    seen = [batch for _ in range(epochs) for batch in loader]
    del loader
    return seen


def assert_as_torch(make, dataset, **options):
    """Fail unless the class under test makes the same batches as torch's; return them."""
    theirs = batches(data.DataLoader, dataset() if callable(dataset) else dataset, **fresh(options))
    ours = batches(make, dataset() if callable(dataset) else dataset, **fresh(options))
    assert_same(ours, theirs)
    return ours


def fresh(options):
    """Return options for one loader: call functions named ``make_...`` for new samplers and generators."""
    return {
        name.removeprefix("make_"): value() if name.startswith("make_") else value for name, value in options.items()
    }
