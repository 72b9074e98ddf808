"""MegEngine's DataLoader: ``from slipring.compat.megengine import DataLoader``. Needs no megengine."""

import dataclasses
import importlib.util
import logging
import os
import sys

import numpy as np

from slipring import Loader, default_collate, fetch, growth
from slipring._ring import current, now
from slipring.ahead import Ahead, ReadHere
from slipring.compat.megengine_data import (
    Collator,
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
    StreamDataset,
    StreamSampler,
    Transform,
)
from slipring.errors import LoaderTimeout, WorkerDied
from slipring.info import process_worker_info
from slipring.options import flag, integer
from slipring.tree import map_leaves

__all__ = [
    "Collator", "DataLoader", "Infinite", "MapSampler", "RandomSampler", "ReplacementSampler",
    "SequentialSampler", "StreamDataset", "StreamSampler", "Transform", "WorkerInfo", "get_worker_info",
]  # fmt: skip

log = logging.getLogger("slipring")


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info` returns: number of this worker, how many there are, this one's seed."""

    idx: int
    worker: int
    seed: int


def get_worker_info():
    """Return the `WorkerInfo` of this worker process; None elsewhere."""
    info = process_worker_info()
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
    TypeError, ValueError, AssertionError
        At construction; AssertionError where dataset and sampler do not match, as MegEngine raises it.
    ImportError
        ``preload=True`` and neither megengine nor torch.
    """

    def __init__(self, dataset, sampler=None, transform=None, collator=None, num_workers=0, timeout=0,
                 preload=False, parallel_stream=False):  # fmt: skip
        integer("num_workers", num_workers, 0)
        flag("preload", preload)
        flag("parallel_stream", parallel_stream)
        if preload and not _there("megengine") and not _there("torch"):
            raise ImportError("preload=True makes tensors: it needs megengine or torch")
        try:
            self.datakind = "stream" if fetch.is_stream(dataset) else "map"
        except TypeError as error:
            raise AssertionError(f"this kind of dataset is not known: {error}") from error
        stream = self.datakind == "stream"
        if sampler is None:
            sampler = StreamSampler(1) if stream else SequentialSampler(dataset)
        for_stream = any(kind.__name__ == "StreamSampler" for kind in type(sampler).__mro__)
        if stream != for_stream or not (stream or hasattr(sampler, "__iter__")):
            raise AssertionError(
                f"dataset and sampler do not match: {type(dataset).__name__} is a {self.datakind}, which "
                f"needs a {'StreamSampler' if stream else 'sampler of indices'}, not {type(sampler).__name__}"
            )
        self.dataset, self.sampler, self.transform, self.collator = dataset, sampler, transform, collator
        self.num_workers, self.timeout = num_workers, timeout
        self.preload, self.parallel_stream = preload, parallel_stream
        self.every = 0  # so many batches times are printed; 0: never
        if int(os.environ.get("MGE_DATA_MONITOR", "0")):
            self.every = max(1, int(os.environ.get("MGE_DATA_MONITOR_FREQUENCY", "10")))
        self._loader = self._core()
        if stream and num_workers > 1 and not parallel_stream:
            log.warning(
                "this process alone reads the stream for %d workers, which transform: with "
                "parallel_stream=True each worker reads its share", num_workers,
            )  # fmt: skip
        growth.check_copies(num_workers)

    def _core(self):
        workers, kind = self.num_workers, {}
        if workers == 0 and (self.timeout or self.preload):  # somebody else has to be able to wait for it
            workers, kind = 1, {"start_method": "thread"}
        dataset, stream = self.dataset, self.datakind == "stream"
        if not stream:
            kind["batch_sampler"] = self.sampler
        elif self.num_workers == 0 or self.parallel_stream:
            kind["batch_size"] = self.sampler.batch_size
        else:
            kind["batch_sampler"] = ReadHere(dataset, self.sampler.batch_size, 2 * workers, self.timeout)
            dataset = fetch.Given()
        if self.transform is not None or self.collator is not None or self.every:
            transform = _method("transform", self.transform, "apply" if stream else "apply_batch")
            collate = _method("collator", self.collator, "apply") or default_collate
            kind["collate_fn"] = _Pipe(transform, stream, collate, self.every)
        if self.preload and _there("megengine"):
            kind["copy"] = "always"  # what it copies from, it keeps
        return Loader(
            dataset, num_workers=workers, timeout=self.timeout, seed=0, persistent_workers=False, **kind
        )

    def __iter__(self):
        self._loader.seed = _seed()
        return _Iterator(self, iter(self._loader))

    def __len__(self):
        return len(self.sampler)

    def stats(self):
        """Return the `slipring.Stats` since the loader was made."""
        return self._loader.stats()


class _Iterator:
    """One pass over a `DataLoader`."""

    def __init__(self, loader, core):
        self._loader, self._core, self._count = loader, core, 0
        self._batches = _preloaded(core) if loader.preload else core

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader.sampler)

    def __next__(self):
        try:
            batch = next(self._batches)
        except LoaderTimeout as error:
            error.args = (f"dataloader timeout: {error}",)
            raise
        except WorkerDied as error:
            error.args = (
                f"DataLoader worker (worker(s): {error.worker}, pid(s): {error.pid}) exited unexpectedly, "
                f"exitcode(s): {error.exitcode}. {error}",
            )
            raise
        loader = self._loader
        if loader.every and loader.num_workers and self._count % loader.every == 0:
            lay_ready = self._core.ring.meter.last_ready_ns / 1e9
            _say(f"pid: {os.getpid()}, idx: {self._count}, IPC_time: {lay_ready:.6f}")
        self._count += 1
        return batch

    def close(self):
        """End the iteration. Safe to call twice."""
        self._batches.close()
        self._core.close()

    def __del__(self):
        if hasattr(self, "_batches"):
            self.close()


def _method(argument, thing, name):
    """A method that an argument must have; None if the argument is not given."""
    method = getattr(thing, name, None)
    if thing is not None and not callable(method):
        raise TypeError(f"{argument} must have a method {name}, which {thing!r} has not")
    return method


def _say(text):
    """Print a line that no other process's falls into: text and end in one write."""
    print(f"{text}\n", end="", flush=True)


# ---- in workers


class _Pipe:
    """Transform (of each sample, or of all) and collator of a batch, and their times."""

    def __init__(self, transform, each, collate, every):
        self.transform, self.each, self.collate, self.every = transform, each, collate, every

    def __call__(self, samples):
        read = now()
        if self.transform is not None:
            samples = [self.transform(one) for one in samples] if self.each else self.transform(samples)
        transformed = now()
        batch = self.collate(samples)
        if self.every and (fill := current()).ticket % self.every == 0:
            times = read - fill.claimed_at, transformed - read, now() - transformed
            _say(
                f"pid: {os.getpid()}, idx: {fill.ticket}, dataset_time: {times[0] / 1e9:.6f}, "
                f"transform_time: {times[1] / 1e9:.6f}, collate_time: {times[2] / 1e9:.6f}"
            )
        return batch


# ---- in the consumer


def _preloaded(core):
    """A core iterator's batches with megengine's tensors, or torch's on its device, ready one ahead."""
    if _there("megengine"):
        ahead = Ahead(map(_as_tensors, core), 1, core.hand_over_timeout(), core.interrupt)
        ahead.begin()
        return ahead
    from slipring.torch.device import accelerator
    from slipring.torch.onto import OnDevice, TensorFeed

    return OnDevice(accelerator() or "cpu", TensorFeed(core, tracked=False))


def _as_tensors(batch):
    make = importlib.import_module("megengine").Tensor
    return map_leaves(batch, lambda leaf: make(leaf) if isinstance(leaf, np.ndarray) else leaf)


def _there(name):
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _seed():
    """A pass's seed: from MegEngine's generator if the program uses it, else from numpy's."""
    theirs = sys.modules.get("megengine.random.rng")
    if theirs is not None:
        return int(next(theirs._random_seed_generator()))
    return int(np.random.randint(0, sys.maxsize))
