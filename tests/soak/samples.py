"""The samples of the soak's loaders: a function of their numbers, so that every byte can be checked."""

import zlib

import numpy as np

import slipring
from tests.support.datasets import Opaque, as_list

LISTED = ("ragged", "pickled", "keys")  # these cannot be stacked: their batches are lists of samples
KINDS = ("rows", "dicts", "texts", *LISTED)
FAR = 1_000_000  # worker n of a stream starts at n times this


def sample(kind, i):
    """Return sample `i`, which contains its number."""
    if kind == "dicts":
        image = np.full((3, 16, 16), i % 251, np.uint8)
        return {"image": image, "meta": {"name": f"sample {i}", "at": (i / 7, i)}, "i": i}
    if kind == "texts":
        return f"{i} " + "x" * (i % 200), i
    if kind == "ragged":
        return np.arange(i, i + 1 + 7 * (i % 50)), i
    if kind == "pickled":
        return Opaque((i, "pickle knows it")), i
    if kind == "keys":  # another treedef for every batch
        return {f"key {i % 64}": np.float32(i)}, i
    return np.arange(i, i + 512, dtype=np.float32), i


def numbers(kind, batch):
    """Return the numbers of a batch's samples."""
    if kind in LISTED:
        return tuple(int(one[1]) for one in batch)
    return tuple(np.asarray(batch["i"] if kind == "dicts" else batch[1]).tolist())


def digest(value, crc=0):
    """Return a checksum of types, shapes and bytes at every level."""
    if isinstance(value, Opaque):
        return digest(value.value, crc)
    if isinstance(value, dict):
        value = [*value.items()]
    elif isinstance(value, (list, tuple)):
        crc = zlib.crc32(f"{type(value).__name__} {len(value)}".encode(), crc)
    else:
        crc = zlib.crc32(type(value).__name__.encode(), crc)
        if not hasattr(value, "dtype"):
            return zlib.crc32(repr(value).encode(), crc)
        array = np.asarray(value)
        return zlib.crc32(array.tobytes(), zlib.crc32(f"{array.dtype.str} {array.shape}".encode(), crc))
    for part in value:
        crc = digest(part, crc)
    return crc


class Map:
    """Samples of a kind; those in `bad` raise."""

    def __init__(self, kind, n, bad=()):
        self.kind, self.n, self.bad = kind, n, frozenset(bad)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.bad:
            raise ValueError(f"no sample {i}")
        return sample(self.kind, i)


class Stream:
    """Each worker's `n` samples of a kind. Its iterator has the state, because threads share the dataset."""

    def __init__(self, kind, n):
        self.kind, self.n = kind, n

    def worker(self):
        info = slipring.get_worker_info()
        return 0 if info is None else info.id

    def __iter__(self):
        return Pass(self.kind, self.worker() * FAR, self.n)


class Pass:
    """One pass through a stream, from `first` on."""

    def __init__(self, kind, first, n):
        self.kind, self.first, self.n, self.at = kind, first, n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return sample(self.kind, self.first + self.at - 1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Sizes:
    """A batch sampler: each epoch has all `n` numbers in a new order, in batches of 1 to 50.

    Attributes
    ----------
    lists : list of list of int
        Of the epoch begun last.
    """

    def __init__(self, rng, n):
        self.rng, self.n, self.lists = rng, n, []

    def __iter__(self):
        order, sizes = self.rng.sample(range(self.n), self.n), [1, 50]
        while (left := self.n - sum(sizes)) > 0:
            sizes.append(min(left, round(50 ** self.rng.random())))
        self.rng.shuffle(sizes)
        ends = np.cumsum(sizes)
        self.lists = [order[end - size : end] for end, size in zip(ends, sizes)]
        return iter(self.lists)


def of_streams(workers, n, size):
    """The numbers of each batch of a `Stream`, in the order in which they are due."""
    own = [
        [list(range(first, first + n))[at : at + size] for at in range(0, n, size)]
        for first in range(0, workers * FAR, FAR)
    ]
    return [batch for turn in zip(*own) for batch in turn]


def collate_of(kind):
    """The collate_fn that a kind needs; None: the loader's own."""
    return as_list if kind in LISTED else None


def made(kind, numbers_of_batch, default_collate):
    """Return the batch of these samples, made in this process."""
    return (collate_of(kind) or default_collate)([sample(kind, i) for i in numbers_of_batch])
