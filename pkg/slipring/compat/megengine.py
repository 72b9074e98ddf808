"""MegEngine's DataLoader: ``from slipring.compat.megengine import DataLoader``. Needs no megengine."""

import dataclasses
import importlib.util
import logging
import os
import sys
import time

import numpy as np

from slipring import Loader, default_collate, fetch
from slipring import get_worker_info as _core_worker_info
from slipring._ring import current
from slipring._segment import room_left
from slipring.ahead import Ahead
from slipring.compat.megengine_sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
    StreamSampler,
)
from slipring.errors import LoaderTimeout, WorkerDied, megabytes
from slipring.tree import map_leaves

__all__ = [
    "Collator", "DataLoader", "Infinite", "MapSampler", "RandomSampler", "ReplacementSampler",
    "SequentialSampler", "StreamDataset", "StreamSampler", "Transform", "WorkerInfo", "get_worker_info",
]  # fmt: skip

log = logging.getLogger("slipring")
ROOT = ""  # before /proc and /sys; tests put a tree of their own there


class StreamDataset:
    """Base of datasets that are iterated. (MegEngine's own, and anything with only ``__iter__``, will do.)"""

    def __iter__(self):
        raise NotImplementedError


class Transform:
    """Base of transforms. (MegEngine's own, and anything with these two methods, will do.)"""

    def apply(self, sample):
        """Return the transformed sample."""
        return sample

    def apply_batch(self, samples):
        """Return the samples of a batch transformed."""
        return [self.apply(sample) for sample in samples]


class Collator:
    """Base of collators. (MegEngine's own, and anything with `apply`, will do.)"""

    def apply(self, samples):
        """Return the batch: `slipring.default_collate`, in the slot."""
        return default_collate(samples)


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info` returns: number of this worker, how many there are, this one's seed."""

    idx: int
    worker: int
    seed: int


def get_worker_info():
    """Return the `WorkerInfo` of the calling worker; None outside of workers."""
    info = _core_worker_info()
    return None if info is None else WorkerInfo(info.id, info.num_workers, info.seed)


class DataLoader:
    """`megengine.data.DataLoader` over slipring's ring.

    Parameters
    ----------
    dataset
        With ``__getitem__`` (read by a map sampler), or a stream: with ``__iter__`` alone, or derived from
        megengine's StreamDataset.
    sampler : optional
        For a map: gives lists of indices (MegEngine's, or of this module). For a stream: a StreamSampler,
        which says the batch size. Default: one sample per batch, in order.
    transform : optional
        ``apply_batch(samples)`` for each batch of a map, ``apply(sample)`` for each sample of a stream.
    collator : optional
        ``apply(samples)`` makes a batch of them; default `slipring.default_collate`.
    num_workers : int
    timeout : float
        Seconds to wait for a batch; 0 waits for ever.
    preload : bool
        The next batch is on the device before it is asked for, its arrays as megengine's tensors, or as
        torch's where there is no megengine.
    parallel_stream : bool
        Each worker iterates the dataset, and takes its share by `get_worker_info`. False: this process
        iterates it, in a thread, and workers transform.

    Raises
    ------
    ValueError, AssertionError
        At construction; AssertionError where dataset and sampler do not match, as MegEngine raises it.
    ImportError
        ``preload=True`` and neither megengine nor torch.
    """

    def __init__(self, dataset, sampler=None, transform=None, collator=None, num_workers=0, timeout=0,
                 preload=False, parallel_stream=False):  # fmt: skip
        for name, value in (("num_workers", num_workers), ("timeout", timeout)):
            if value < 0:
                raise ValueError(f"{name} must not be negative, not {value}")
        if preload and not _there("megengine") and not _there("torch"):
            raise ImportError("preload=True makes tensors: it needs megengine or torch")
        try:
            self.datakind = "stream" if fetch.is_stream(dataset) else "map"
        except TypeError as error:
            raise AssertionError(f"this kind of dataset is not known: {error}") from error
        stream = self.datakind == "stream"
        if sampler is None:
            sampler = StreamSampler(1) if stream else SequentialSampler(dataset)
        if stream != any(kind.__name__ == "StreamSampler" for kind in type(sampler).__mro__):
            raise AssertionError(
                f"dataset and sampler do not match: {type(dataset).__name__} is a {self.datakind}, which "
                f"needs a {'StreamSampler' if stream else 'sampler of indices'}, not {type(sampler).__name__}"
            )
        self.dataset, self.sampler, self.transform, self.collator = dataset, sampler, transform, collator
        self.num_workers, self.timeout = num_workers, timeout
        self.preload, self.parallel_stream = preload, parallel_stream
        self.monitor = int(os.environ.get("MGE_DATA_MONITOR", "0"))
        self.every = max(1, int(os.environ.get("MGE_DATA_MONITOR_FREQUENCY", "10")))
        if stream and num_workers > 1 and not parallel_stream:
            log.warning(
                "this process alone reads the stream for %d workers, which transform: with "
                "parallel_stream=True each worker reads its share",
                num_workers,
            )
        if num_workers > 0:
            self._look_at_memory()
        self._loader = None

    def _look_at_memory(self):
        with open(f"{ROOT}/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        room = room_left(ROOT)
        if room is not None and (self.num_workers + 1) * resident > room[1]:
            log.warning(
                "each of %d workers may come to have all of this process's %s, %s in all, which is more than "
                "the %s of %s (%s): use fewer workers, or keep what the dataset reads in numpy arrays",
                self.num_workers, megabytes(resident), megabytes((self.num_workers + 1) * resident),
                megabytes(room[1]), room[2], room[3],
            )  # fmt: skip

    def _core(self):
        pipe = self.transform, self.collator, self.every if self.monitor else 0
        workers, kind = self.num_workers, {}
        if workers == 0 and (self.timeout or self.preload):  # somebody else has to be able to wait for it
            workers, kind = 1, {"start_method": "thread"}
        if self.datakind == "map":
            plain = self.transform is None and self.collator is None and not self.monitor
            kind |= {"batch_sampler": self.sampler, "collate_fn": None if plain else _Pipe(*pipe)}
            dataset = _Timed(self.dataset) if self.monitor else self.dataset
        elif self.num_workers == 0 or self.parallel_stream:
            kind |= {"batch_size": self.sampler.batch_size, "collate_fn": _Pipe(None, *pipe[1:])}
            dataset = _Transformed(self.dataset, self.transform)
        else:
            pulled = _Pulled(self.dataset, self.sampler.batch_size, 2 * workers, self.timeout)
            kind |= {"batch_sampler": pulled, "collate_fn": _Pipe(None, *pipe[1:])}
            dataset = _Apply(self.transform)
        timeout = 0 if self.preload else self.timeout  # then it is next() that waits, not who takes batches
        copy = "always" if self.preload and _there("megengine") else "auto"  # what it copies from, it keeps
        return Loader(
            dataset, **kind, num_workers=workers, timeout=timeout, seed=0, persistent_workers=False, copy=copy
        )

    def __iter__(self):
        if self._loader is None:
            self._loader = self._core()
        self._loader.seed = _seed()
        return _Iterator(self, iter(self._loader))

    def __len__(self):
        return len(self.sampler)

    def stats(self):
        """Return the `slipring.Stats` since the first iteration; None before."""
        return None if self._loader is None else self._loader.stats()


class _Iterator:
    """One pass over a `DataLoader`."""

    def __init__(self, loader, core):
        self._loader, self._core, self._count = loader, core, 0
        self._next, self._ahead = core.__next__, None
        if loader.preload and _there("megengine"):
            self._ahead = Ahead(_Tensors(core), 1, loader.timeout)
            self._ahead.would_wait()  # it begins
            self._next = self._ahead.__next__
        elif loader.preload:
            self._ahead, self._next = _torch_preload(core, loader.timeout)

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader.sampler)

    def __next__(self):
        try:
            batch = self._next()
        except LoaderTimeout as error:
            error.args = (f"dataloader timeout: {error}",)
            raise
        except WorkerDied as error:
            error.args = (
                f"DataLoader worker (worker(s): {error.worker}, pid(s): {error.pid}) exited unexpectedly, "
                f"exitcode(s): {error.exitcode}. {error}",
            )
            raise
        if self._loader.monitor and self._loader.num_workers and self._count % self._loader.every == 0:
            waited = self._core._engine.ring.meter.last_ready_ns / 1e9
            _say(f"pid: {os.getpid()}, idx: {self._count}, IPC_time: {waited:.6f}")
        self._count += 1
        return batch

    def close(self):
        """End the iteration. Safe to call twice."""
        if self._ahead is not None:
            self._core.interrupt()
            getattr(self._ahead, "close", getattr(self._ahead, "stop", None))()
        self._core.close()

    def __del__(self):
        if getattr(self, "_next", None) is not None:
            self.close()


def _say(text):
    """Print a line that no other process's falls into: text and end in one write."""
    print(f"{text}\n", end="", flush=True)


# ---- in workers


class _Pipe:
    """Transform and collator of a batch; `every` so many batches their times are printed (0: never)."""

    def __init__(self, transform, collator, every):
        self.transform = None if transform is None else transform.apply_batch
        self.collate = default_collate if collator is None else collator.apply
        self.every = every

    def __call__(self, samples):
        begun = time.perf_counter()
        samples = samples if self.transform is None else self.transform(samples)
        transformed = time.perf_counter()
        batch = self.collate(samples)
        if self.every:
            self._tell(begun, transformed, time.perf_counter())
        return batch

    def _tell(self, begun, transformed, collated):
        read, applied = _spent.pop("dataset", 0.0), _spent.pop("transform", 0.0)
        fill = current()
        number = 0 if fill is None else fill.ticket
        if number % self.every == 0:
            _say(
                f"pid: {os.getpid()}, idx: {number}, dataset_time: {read:.6f}, "
                f"transform_time: {applied + transformed - begun:.6f}, "
                f"collate_time: {collated - transformed:.6f}"
            )


_spent = {}  # seconds in the batch that is being made


def _spend(on, function, *arguments):
    begun = time.perf_counter()
    try:
        return function(*arguments)
    finally:
        _spent[on] = _spent.get(on, 0.0) + time.perf_counter() - begun


class _Timed:
    """A map dataset whose reading is timed."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, index):
        return _spend("dataset", self.dataset.__getitem__, index)


class _Transformed:
    """A stream with a transform."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform

    def __iter__(self):
        return _Transforming(iter(self.dataset), None if self.transform is None else self.transform.apply)


class _Transforming:
    """Its iterator. No generator: after an exception it goes on."""

    def __init__(self, samples, apply):
        self.samples, self.apply = samples, apply

    def __iter__(self):
        return self

    def __next__(self):
        sample = _spend("dataset", next, self.samples)
        if self.apply is None:
            return sample
        try:
            return _spend("transform", self.apply, sample)
        except StopIteration as error:
            raise RuntimeError("the transform raised StopIteration, which is not the stream's end") from error


class _Apply:
    """The dataset of workers that are sent raw samples: what the transform makes of one."""

    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, sample):
        return sample if self.transform is None else _spend("transform", self.transform.apply, sample)


# ---- in the consumer


class _Pulled:
    """The batch sampler of a stream that this process reads: lists of raw samples."""

    def __init__(self, dataset, batch_size, ahead, timeout):
        self.dataset, self.batch_size, self.ahead, self.timeout = dataset, batch_size, ahead, timeout

    def __iter__(self):
        return Ahead(self._batches(), self.ahead, self.timeout)

    def _batches(self):
        batch = []
        for sample in self.dataset:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch:
            yield batch


class _Tensors:
    """A core iterator's batches with megengine's tensors."""

    def __init__(self, core):
        self.core = core

    def __next__(self):
        make = importlib.import_module("megengine").Tensor
        return map_leaves(next(self.core), lambda leaf: make(leaf) if isinstance(leaf, np.ndarray) else leaf)


def _torch_preload(core, timeout):
    import torch

    from slipring.torch.onto import TensorFeed, preload_onto, unnoted

    device = torch.accelerator.current_accelerator() or "cpu"
    preload = preload_onto(device, TensorFeed(core, False), timeout=timeout or None)
    return preload, lambda: preload.next(unnoted)[0]


def _there(name):
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _seed():
    """A pass's seed: from MegEngine's generator if the program uses it, else from numpy's."""
    theirs = sys.modules.get("megengine.random.rng")
    if theirs is not None:
        return int(next(theirs._random_seed_generator()))
    return int(np.random.randint(0, sys.maxsize))
