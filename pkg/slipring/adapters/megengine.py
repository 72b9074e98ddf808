"""MegEngine's DataLoader: ``from slipring.adapters.megengine import DataLoader``. megengine need not be installed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Literal

from slipring import Loader, Memory, Workers
from slipring._core.options.checks import flag, integer, iterable, seconds
from slipring._core.passes.prefetch import MainProcessReader, Prefetcher
from slipring._core.ring import process
from slipring._core.ring._segment import now
from slipring._core.ring._slot import current
from slipring._core.workers import fetch
from slipring._core.workers import memory as growth
from slipring._public import publish
from slipring.adapters import megengine_own as own
from slipring.adapters.megengine_data import (
    ArrayDataset,
    Collator,
    Compose,
    ConcatDataset,
    Dataset,
    PseudoTransform,
    StreamDataset,
    Transform,
)
from slipring.adapters.megengine_own import WorkerInfo, get_worker_info
from slipring.adapters.megengine_sampler import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
)
from slipring.errors import LoaderTimeout, WorkerDied, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipring.stats import Stats
    from slipring.typing import MapDataset

__all__ = [
    "ArrayDataset", "Collator", "Compose", "ConcatDataset", "DataLoader", "Dataset", "Infinite", "MapSampler",
    "PseudoTransform", "RandomSampler", "ReplacementSampler", "Sampler", "SequentialSampler", "StreamDataset",
    "StreamSampler", "Transform", "WorkerInfo", "get_worker_info",
]  # fmt: skip

log = logging.getLogger("slipring")


class DataLoader:
    """`megengine.data.DataLoader` over slipring's ring.

    Parameters
    ----------
    dataset
        Either a map with ``__getitem__``, read by a map sampler, or a stream: it has ``__iter__`` alone, or is
        derived from megengine's StreamDataset.
    sampler : optional
        For a map: it gives lists of indices (MegEngine's sampler, or one of this module). For a stream: a
        StreamSampler, which sets the batch size. Default: one sample per batch, in order.
    transform : optional
        ``apply_batch(samples)`` transforms each batch of a map, ``apply(sample)`` each sample of a stream.
    collator : optional
        ``apply(samples)`` makes a batch of them; default `slipring.default_collate`.
    num_workers : int
    timeout : float
        Seconds to wait for a batch; 0 waits forever.
    preload : bool
        Copy the next batch to the device ahead of time. Arrays become megengine's tensors, or torch's if megengine
        is not installed.
    parallel_stream : bool
        True: each worker iterates the dataset and takes its share by `get_worker_info`. False: a thread of this
        process iterates the dataset, and the workers transform.

    Attributes of the loader can be set between two passes: they count from the next pass on. If a worker process
    raises an exception, it comes as the cause of a RuntimeError (a `slipring.WorkerError`).

    Raises
    ------
    TypeError, ValueError, AssertionError
        Raised at construction. If dataset and sampler do not match, it is an AssertionError, as in MegEngine.
    ImportError
        ``preload=True``, and neither megengine nor torch is installed.

    Examples
    --------
    >>> from slipring.adapters.megengine import ArrayDataset, DataLoader, SequentialSampler
    >>> data = ArrayDataset(list(range(6)), list("abcdef"))
    >>> for numbers, letters in DataLoader(data, SequentialSampler(data, batch_size=3)):
    ...     print(numbers, letters)
    [0 1 2] ['a', 'b', 'c']
    [3 4 5] ['d', 'e', 'f']
    """

    datakind: Literal["map", "stream"]
    dataset: Any
    sampler: Any
    transform: Any
    collator: Any
    num_workers: int
    timeout: float
    preload: bool
    parallel_stream: bool
    every: int

    def __init__(
        self,
        dataset: MapDataset[Any] | Iterable[Any],
        sampler: Any = None,
        transform: Any = None,
        collator: Any = None,
        num_workers: int = 0,
        timeout: float = 0,
        preload: bool = False,
        parallel_stream: bool = False,
    ) -> None:
        num_workers = integer("num_workers", num_workers, 0)
        seconds("timeout", timeout)
        flag("preload", preload)
        flag("parallel_stream", parallel_stream)
        if preload and not own.there("megengine") and not own.there("torch"):
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
        if stream:
            _warn_of_order(sampler)
        else:
            iterable("sampler", sampler, "an iterable of lists of indices")
        self.dataset, self.sampler = dataset, sampler
        self.transform = PseudoTransform() if transform is None else transform
        self.collator = Collator() if collator is None else collator
        self.num_workers, self.timeout = num_workers, timeout
        self.preload, self.parallel_stream = preload, parallel_stream
        self.every = 0  # print times once per so many batches; 0: never
        if int(os.environ.get("MGE_DATA_MONITOR", "0")):
            self.every = max(1, int(os.environ.get("MGE_DATA_MONITOR_FREQUENCY", "10")))
        if stream and num_workers > 1 and not parallel_stream:
            log.warning(
                "this process alone reads the stream for %d workers, which transform: with "
                "parallel_stream=True each worker reads its share", num_workers,
            )  # fmt: skip
        self._made_for, self._loader = self._given(), self._core()
        growth.check_copies(num_workers)

    def _given(self):
        """Return the attributes that a pass is made from: the user may set them between two passes."""
        return (
            *(self.dataset, self.sampler, self.transform, self.collator),
            *(self.num_workers, self.timeout, self.preload, self.parallel_stream),
        )

    def _core(self):
        workers, kind = self.num_workers, {}
        if workers == 0 and (self.timeout or self.preload):  # a wait has a limit if a thread makes the batches
            workers, kind = 1, {"workers": Workers(start_method="thread")}
        dataset, stream = self.dataset, self.datakind == "stream"
        if stream and self.num_workers:
            own.prepare_workers()
        if not stream:
            kind["batch_sampler"] = self.sampler
        elif self.num_workers == 0 or self.parallel_stream:
            kind["batch_size"] = self.sampler.batch_size
        else:
            kind["batch_sampler"] = MainProcessReader(dataset, self.sampler.batch_size, 2 * workers, self.timeout)
            dataset = fetch.IdentityDataset()
        transform = _method("transform", self.transform, "apply" if stream else "apply_batch")
        collate = _method("collator", self.collator, "apply")
        if type(self.transform) is not PseudoTransform or type(self.collator) is not Collator or self.every:
            kind["collate_fn"] = _Pipe(transform, stream, collate, self.every)
        if self.preload and own.there("megengine"):
            kind["memory"] = Memory(copy="always")  # the copy to a tensor may happen after the slot is free
        core = Loader if self.num_workers == 0 else own.StreamCore if stream else own.MapCore
        return core(dataset, num_workers=workers, timeout=self.timeout, seed=0, persistent_workers=False, **kind)

    def __iter__(self) -> _Iterator:
        given = self._given()
        if any(new is not old for new, old in zip(given, self._made_for, strict=True)):
            self._made_for, self._loader = given, self._core()
        self._loader.seed = own.seed()
        return _Iterator(self, iter(self._loader))

    def __len__(self) -> int:
        return len(self.sampler)

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made."""
        return self._loader.stats()


class _Iterator:
    """One pass over a `DataLoader`."""

    def __init__(self, loader: DataLoader, core: Any) -> None:
        self._loader, self._core, self._count = loader, core, 0
        self._batches = _preloaded(core) if loader.preload else core

    def __iter__(self) -> _Iterator:
        return self

    def __len__(self) -> int:
        return len(self._loader.sampler)

    def __next__(self) -> Any:
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
            _say(f"pid: {process.pid()}, idx: {self._count}, IPC_time: {lay_ready:.6f}")
        self._count += 1
        return batch

    def close(self) -> None:
        """End the iteration. Safe to call twice."""
        self._batches.close()
        self._core.close()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self.close()


def _warn_of_order(sampler):
    """Warn of overridden methods of a StreamSampler that are never called."""
    kind = type(sampler)
    base = next(k for k in kind.__mro__ if k.__name__ == "StreamSampler")
    for name in ("sample", "batch", "__iter__"):
        if getattr(kind, name, None) is not getattr(base, name, None):
            log.warning("of a StreamSampler batch_size alone counts: %s.%s is not called", kind.__name__, name)


def _method(argument, thing, name):
    """Return a method that an argument must have."""
    method = getattr(thing, name, None)
    if not callable(method):
        raise TypeError(f"{argument} must have a method {name}, which {shown(thing)} has not")
    return method


def _say(text):
    """Print a whole line in one write, so that another process's line cannot split it."""
    print(f"{text}\n", end="", flush=True)


# ---- in workers


class _Pipe:
    """Transform the samples of a batch, one by one or all at once, collate them, and time both."""

    def __init__(self, transform, each, collate, every):
        self.transform, self.each, self.collate, self.every = transform, each, collate, every
        self.made, self.begun = 0, now()  # without workers

    def __call__(self, samples):
        read = now()
        samples = [self.transform(one) for one in samples] if self.each else self.transform(samples)
        transformed = now()
        batch = self.collate(samples)
        fill = current()
        seq, begun = (self.made, self.begun) if fill is None else (fill.seq, fill.claimed_at)
        if self.every and seq % self.every == 0:
            times = read - begun, transformed - read, now() - transformed
            _say(
                f"pid: {process.pid()}, idx: {seq}, dataset_time: {times[0] / 1e9:.6f}, "
                f"transform_time: {times[1] / 1e9:.6f}, collate_time: {times[2] / 1e9:.6f}"
            )
        self.made, self.begun = self.made + 1, now()
        return batch


# ---- in the consumer


def _preloaded(core):
    """Iterate over a core iterator's batches as megengine's tensors, or torch's, one batch ahead."""
    if own.there("megengine"):
        ahead = Prefetcher(map(own.as_tensors, core), 1, core.hand_over_timeout(), core.interrupt, core.timed_out)
        ahead.begin()
        return ahead
    from slipring.torch.device.cuda import accelerator, checked_device
    from slipring.torch.device.to_device import on_device

    return on_device(core, checked_device(accelerator() or "cpu"))


publish(__name__)
