"""Paddle's DataLoader. Where paddle is not installed, leaves stay arrays."""

import contextlib
import os
import sys
import time

import numpy as np

from slipring import Loader, default_collate, fetch
from slipring import get_worker_info as _core_worker_info
from slipring.errors import WorkerDied
from slipring.tree import leaves_of, map_leaves

_tuning = {"use": False, "steps": 500}
_worker = None  # in a worker process: its WorkerInfo


def get_worker_info():
    """Return id, num_workers, dataset and seed of this worker process; None elsewhere."""
    return _worker


def set_autotune_config(use_autotune, tuning_steps=500):
    """Have loaders that are made from now on choose num_workers, by timing `tuning_steps` batches of each."""
    _tuning.update(use=bool(use_autotune), steps=int(tuning_steps))


class DataLoader:
    """`paddle.io.DataLoader` over slipring's ring.

    Parameters
    ----------
    dataset
        With ``__getitem__`` and ``__len__``, or ``__iter__`` (paddle's IterableDataset, or any).
    feed_list : list, optional
        Names, or what has a `name`: the keys of batches where ``return_list=False``.
    places : optional
        One or a list of: paddle places, 'cpu', 'gpu:x', 'gpu_pinned'. With several, a step is a list of
        batches, one for each; too few at the end are dropped.
    return_list : bool
    batch_sampler, batch_size, shuffle, drop_last, collate_fn, num_workers, timeout, worker_init_fn
    persistent_workers
        As paddle's. Orders are drawn from numpy's global generator, as there.
    use_buffer_reader : bool
        With ``num_workers=0``: a thread prepares batches. (Workers always do.)
    prefetch_factor : int
        Batches under way: at most this many for each worker, or for each place if there are more of them.
    use_shared_memory : bool
        Accepted; it is always used.

    Raises
    ------
    ValueError, AssertionError
        At construction, as paddle raises them.
    """

    def __init__(self, dataset, feed_list=None, places=None, return_list=True, batch_sampler=None,
                 batch_size=1, shuffle=False, drop_last=False, collate_fn=None, num_workers=0,
                 use_buffer_reader=True, prefetch_factor=2, use_shared_memory=True, timeout=0,
                 worker_init_fn=None, persistent_workers=False):  # fmt: skip
        self._paddle = _paddle()
        _must(num_workers >= 0, f"num_workers must not be negative, not {num_workers}")
        _must(prefetch_factor > 0, f"prefetch_factor must be positive, not {prefetch_factor}")
        _must(timeout >= 0, f"timeout must not be negative, not {timeout}")
        dynamic = self._paddle is not None and self._paddle.in_dynamic_mode()
        _must(return_list or dynamic or feed_list is not None, "return_list=False needs feed_list")
        self.is_stream = fetch.is_stream(dataset)
        if self.is_stream and (shuffle or batch_sampler is not None):
            given = "batch_sampler" if batch_sampler is not None else f"shuffle={shuffle}"
            raise ValueError(f"an IterableDataset sets its own order: {given} cannot be used with it")
        if batch_sampler is not None:
            plain = batch_size == 1 and not shuffle and not drop_last
            _must(plain, "batch_sampler excludes batch_size, shuffle and drop_last")
            batch_size = None
        elif batch_size is not None:
            _must(batch_size > 0, f"batch_size must be None or positive, not {batch_size}")
            if not self.is_stream:
                batch_sampler = BatchSampler(dataset, None, shuffle, batch_size, drop_last)
        self.dataset, self.batch_sampler, self.batch_size = dataset, batch_sampler, batch_size
        self.drop_last, self.collate_fn, self.worker_init_fn = drop_last, collate_fn, worker_init_fn
        self.feed_list, self.return_list, self.places = feed_list, return_list, _places(self._paddle, places)
        self.num_workers, self.use_buffer_reader = num_workers, use_buffer_reader
        self.prefetch_factor, self.use_shared_memory = prefetch_factor, use_shared_memory and num_workers > 0
        self.timeout, self.persistent_workers = timeout, persistent_workers
        self.steps, self.reader_s, self.batch_s = 0, 0.0, 0.0
        self._loader = None
        if _tuning["use"] and type(batch_sampler) is BatchSampler:
            self.num_workers = _tuned(self)

    def _core(self):
        workers, places = self.num_workers, len(self.places)
        ahead = self.prefetch_factor * max(workers, places)
        if workers == 0 and self.use_buffer_reader:
            kind, workers = {"start_method": "thread"}, 1
        else:
            kind = {"worker_init_fn": _Init(self.worker_init_fn)} if workers else {}
        batches = {"batch_size": self.batch_size, "drop_last": self.drop_last and self.batch_size is not None}
        if self.batch_sampler is not None:
            batches = {"batch_sampler": self.batch_sampler}
        return Loader(
            self.dataset,
            **batches,
            **kind,
            collate_fn=self._collate(),
            num_workers=workers,
            timeout=self.timeout,
            seed=0,
            prefetch_factor=max(1, ahead // max(1, workers)),
            persistent_workers=self.persistent_workers,
        )

    def _collate(self):
        if self._paddle is None or hasattr(self.dataset, "fetch_into"):
            return self.collate_fn
        whole = self.batch_sampler is not None or self.batch_size is not None
        return _Collate(self.collate_fn or (default_collate if whole else None))

    def __iter__(self):
        if self._loader is None:
            self._loader = self._core()
        if self.num_workers and (not self.persistent_workers or self._loader.epoch == 0):
            self._loader.seed = int(np.random.randint(0, sys.maxsize))  # the draw that paddle makes here
        elif not self.num_workers:  # it makes none; random numbers still follow numpy's generator
            ahead = np.random.RandomState()
            ahead.set_state(np.random.get_state())
            self._loader.seed = int(ahead.randint(0, sys.maxsize))
        return _Iterator(self, iter(self._loader))

    def __call__(self):
        return iter(self)

    def __len__(self):
        if self.is_stream:
            raise _NoLength("an IterableDataset has no length")
        return len(self.dataset if self.batch_sampler is None else self.batch_sampler)

    @property
    def reader_cost(self):
        """float: seconds that a step waits for its batch, on average."""
        return self.reader_s / max(1, self.steps)

    @property
    def batch_cost(self):
        """float: seconds from one step to the next, on average."""
        return self.batch_s / max(1, self.steps)

    def stats(self):
        """Return the `slipring.Stats` since the first iteration; None before."""
        return None if self._loader is None else self._loader.stats()

    def close(self):
        """End workers and iterations. Batches still held stay valid. The loader can be used again."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class _Iterator:
    """One epoch: batches as the caller wants them, times noted."""

    def __init__(self, loader, core):
        self._loader, self._core = loader, core
        self._dataset = loader.dataset  # paddle's timer looks for it here
        self._parts, self._last = [], time.perf_counter()

    def __iter__(self):
        return self

    def __next__(self):
        with _noted(self):
            begun = time.perf_counter()
            try:
                while len(self._parts) < len(self._loader.places):
                    self._parts.append(self._fed(next(self._core), self._loader.places[len(self._parts)]))
            except WorkerDied as error:
                error.args = (f"DataLoader 1 workers exit unexpectedly, pids: {error.pid}\n{error}",)
                raise
            parts, self._parts = self._parts, []
            loader, now = self._loader, time.perf_counter()
            loader.steps, loader.reader_s = loader.steps + 1, loader.reader_s + now - begun
            loader.batch_s, self._last = loader.batch_s + now - self._last, now
        return parts if len(parts) > 1 else parts[0]

    def _fed(self, batch, place):
        loader = self._loader
        if loader._paddle is not None:
            batch = map_leaves(batch, lambda leaf: _tensor(loader._paddle, leaf, place))
        if loader.return_list or loader.feed_list is None:
            return batch
        names, leaves = [getattr(f, "name", f) for f in loader.feed_list], leaves_of(batch)
        if len(names) != len(leaves):
            raise ValueError(f"feed_list has {len(names)} names, a batch has {len(leaves)} leaves")
        return dict(zip(names, leaves, strict=True))


class BatchSampler:
    """Lists of indices, drawn as `paddle.io.BatchSampler` draws them.

    Parameters
    ----------
    dataset, sampler
        One of the two; a sampler gives indices.
    shuffle : bool
    batch_size : int
    drop_last : bool
    """

    def __init__(self, dataset=None, sampler=None, shuffle=False, batch_size=1, drop_last=False):
        _must((dataset is None) != (sampler is None), "either dataset or sampler must be given")
        _must(sampler is None or not shuffle, "a sampler sets the order: shuffle must be False")
        _must(batch_size > 0, f"batch_size must be positive, not {batch_size}")
        self.dataset, self.sampler, self.shuffle = dataset, sampler, shuffle
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self):
        indices = self.sampler
        if indices is None:
            n = len(self.dataset)
            indices = np.random.choice(np.arange(n), n, replace=False).tolist() if self.shuffle else range(n)
        batch = []
        for index in indices:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self):
        n = len(self.dataset if self.sampler is None else self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class _NoLength(ValueError, TypeError):
    """Paddle's ValueError; a TypeError too, so that ``list(loader)`` does without a length."""


def _must(true, text):
    if not true:
        raise AssertionError(text)


# ---- in workers


class _Init:
    """Introduces a worker process to itself, and to paddle, before the user's own function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, number):
        global _worker
        _worker = _core_worker_info()
        theirs = sys.modules.get("paddle.io.dataloader.worker")
        if theirs is not None:
            theirs._worker_info = _worker
            sys.modules["paddle"].seed(_worker.seed & 0x7FFFFFFF)
        if self.function is not None:
            self.function(number)


class _Collate:
    """Puts samples together, paddle's tensors as arrays."""

    def __init__(self, function):
        self.function = function

    def __call__(self, samples):
        kind = sys.modules["paddle"].Tensor if "paddle" in sys.modules else ()
        if self.function is default_collate:
            first = samples[0]
            if any(isinstance(leaf, kind) for leaf in leaves_of(first)):
                samples = [_as_arrays(sample, kind) for sample in samples]
            return default_collate(samples)
        made = samples if self.function is None else self.function(samples)
        return _as_arrays(made, kind)


def _as_arrays(value, kind):
    return map_leaves(value, lambda leaf: leaf.numpy() if isinstance(leaf, kind) else leaf)


# ---- paddle, if it is there


def _paddle():
    try:
        import paddle
    except ImportError:
        return None
    return paddle


def _places(paddle, places):
    if paddle is not None:
        from paddle.base.framework import _current_expected_place, _get_paddle_place

        listed = places if isinstance(places, (list, tuple)) else [places]
        return [_current_expected_place() if p is None else _get_paddle_place(p) for p in listed]
    listed = places if isinstance(places, (list, tuple)) else [places or "cpu"]
    _must(
        bool(listed) and all(place == "cpu" for place in listed),
        f"without paddle places are 'cpu', not {places}",
    )
    return list(listed)


def _tensor(paddle, leaf, place):
    """The leaf as paddle's tensor, over the same memory where it stays on the CPU."""
    if type(leaf).__module__ == "torch":
        leaf = leaf.detach().numpy()
    if not isinstance(leaf, np.ndarray):
        return leaf
    if not isinstance(place, paddle.CPUPlace) or leaf.dtype.kind not in "biufc":
        return paddle.to_tensor(leaf, place=place)
    try:
        # paddle 2's from_dlpack copies, and knows no bool; this keeps the array, and with it the slot.
        make = paddle.base.core.eager.Tensor
        return make(value=leaf, place=place, persistable=False, zero_copy=True, name="", stop_gradient=True)
    except (AttributeError, TypeError):
        return paddle.utils.dlpack.from_dlpack(leaf)


@contextlib.contextmanager
def _noted(iterator):
    """Paddle's profiler has a range around each step, and its timer knows what the reader costs."""
    timer, ranges = sys.modules.get("paddle.profiler.timer"), sys.modules.get("paddle.profiler.utils")
    record = contextlib.nullcontext()
    if ranges is not None and ranges.in_profiler_mode():
        from paddle.profiler import TracerEventType

        record = ranges.RecordEvent("slipring.DataLoader", TracerEventType.Dataloader)
    with record:
        if timer is not None:
            timer.benchmark().check_if_need_record(iterator)
            timer.benchmark().before_reader()
        yield
        if timer is not None:
            timer.benchmark().after_reader()


def _tuned(loader):
    """Return the number of workers whose batches come fastest; more of them must be worth a quarter."""
    sampler, best, least = loader.batch_sampler, 0, float("inf")
    n = min(len(sampler.dataset), sampler.batch_size * _tuning["steps"])
    lists = [list(range(k, min(k + sampler.batch_size, n))) for k in range(0, n, sampler.batch_size)]
    workers, most = 0, len(os.sched_getaffinity(0))
    while workers <= most:
        loader.num_workers = workers
        cost = _cost(loader, lists)
        if cost >= 0.75 * least:
            break
        best, least = workers, cost
        workers = workers * 2 or 2  # one does no more than none
    return best


def _cost(loader, lists):
    """Seconds per batch, the workers' start not counted."""
    collate, workers = loader._collate(), loader.num_workers
    with Loader(loader.dataset, batch_sampler=lists, collate_fn=collate, num_workers=workers) as trial:
        batches = iter(trial)
        next(batches, None)
        begun = time.perf_counter()
        count = sum(1 for _ in batches)
    return (time.perf_counter() - begun) / max(1, count)
