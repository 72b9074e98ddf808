"""Paddle's DataLoader. If paddle is not installed, leaves stay arrays."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring import Loader, WorkerInfo, Workers
from slipring._core.codec.pytree import leaves_of, map_leaves
from slipring._core.options.checks import flag, function, integer, iterable
from slipring._core.ring.rates import LoopTimer
from slipring._core.ring.worker_info import process_worker_info
from slipring._core.workers import fetch
from slipring._public import publish
from slipring.adapters import paddle_own as own
from slipring.adapters.paddle_sampler import BatchSampler, EndlessSampler, NoLength
from slipring.adapters.raising import raising_as
from slipring.errors import WorkerDied, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from slipring.stats import Stats
    from slipring.typing import MapDataset

__all__ = ["BatchSampler", "DataLoader", "get_worker_info", "set_autotune_config"]

_tuning = {"use": False}


def set_autotune_config(use_autotune: bool, tuning_steps: int = 500) -> None:
    """Have loaders made from now on find the best number of workers while they are iterated.

    `num_workers` is the present number. ``paddle.incubate.autotune.set_config`` has the same effect. `tuning_steps` is
    checked and otherwise ignored: measuring takes at most 200 batches, and every batch is delivered.
    """
    flag("use_autotune", use_autotune)
    integer("tuning_steps", tuning_steps, 1)
    _tuning.update(use=use_autotune)


def get_worker_info() -> WorkerInfo | None:
    """Return the `slipring.WorkerInfo` of this worker process; None in other processes, even in worker threads."""
    return process_worker_info()


class DataLoader:
    """`paddle.io.DataLoader` over slipring's ring.

    Parameters
    ----------
    dataset
        It has ``__getitem__`` and ``__len__``, or ``__iter__`` (paddle's IterableDataset, or any iterable).
    feed_list : list, optional
        Names, or objects with a `name`: the keys of batches if ``return_list=False``.
    places : optional
        One of these or a list of them: paddle places, 'cpu', 'gpu:x', 'gpu_pinned'. With several, a step is a list of
        batches, one for each place; if the last ones are too few, they are dropped.
    return_list : bool
        False, with a `feed_list`: a step is a list of dicts, one for each place, which ``Executor.run(feed=)``
        takes.
    batch_sampler, batch_size, shuffle, drop_last, collate_fn, num_workers, timeout, worker_init_fn
    persistent_workers
        As paddle's. Orders are drawn from numpy's global generator, as in paddle.
    use_buffer_reader : bool
        With ``num_workers=0``: have a thread prepare batches. (With workers, they are always prepared.)
    prefetch_factor : int
        Batches in flight: at most this many per worker, or per place if there are more places than workers.
    use_shared_memory : bool
        Accepted, and ignored: workers always use shared memory.

    Raises
    ------
    ValueError, TypeError
        Raised at construction; each is also an AssertionError, as in paddle.

    Examples
    --------
    >>> from slipring.adapters.paddle import DataLoader
    >>> for batch in DataLoader(list(range(5)), batch_size=2):
    ...     print(batch)
    [0 1]
    [2 3]
    [4]
    """

    dataset: Any
    batch_sampler: Any
    batch_size: int | None
    is_stream: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], object] | None
    feed_list: Sequence[Any] | None
    return_list: bool
    places: list[Any]
    use_buffer_reader: bool
    prefetch_factor: int
    use_shared_memory: bool
    timeout: float
    persistent_workers: bool

    @raising_as(AssertionError)
    def __init__(
        self,
        dataset: MapDataset[Any] | Iterable[Any],
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self._paddle = own.installed()
        flag("return_list", return_list)
        flag("use_buffer_reader", use_buffer_reader)
        flag("use_shared_memory", use_shared_memory)
        function("collate_fn", collate_fn)
        function("worker_init_fn", worker_init_fn)
        num_workers = integer("num_workers", num_workers, 0)
        prefetch_factor = integer("prefetch_factor", prefetch_factor, 1)
        batch_size = integer("batch_size", batch_size, 1, optional=True)
        if batch_sampler is not None:
            iterable("batch_sampler", batch_sampler, "an iterable of lists of indices")
        dynamic = self._paddle is not None and self._paddle.in_dynamic_mode()
        if feed_list is None and not return_list and not dynamic:
            raise ValueError("return_list=False makes dicts: feed_list must name their keys")
        if feed_list is not None and not isinstance(feed_list, (list, tuple)):
            raise TypeError(f"feed_list must be a list of names, not {shown(feed_list)}")
        self.is_stream = fetch.is_stream(dataset)
        if self.is_stream and (shuffle or batch_sampler is not None):
            given = "batch_sampler" if batch_sampler is not None else f"shuffle={shuffle}"
            raise ValueError(f"an IterableDataset sets its own order: {given} cannot be used with it")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle and drop_last")
            batch_size = None
        elif batch_size is not None and self.is_stream:
            batch_sampler = EndlessSampler(dataset, batch_size)
        elif batch_size is not None:
            batch_sampler = BatchSampler(dataset, None, shuffle, batch_size, drop_last)
        self.dataset, self.batch_sampler, self.batch_size = dataset, batch_sampler, batch_size
        self.drop_last, self.collate_fn, self.worker_init_fn = drop_last, collate_fn, worker_init_fn
        self.feed_list, self.return_list = feed_list, return_list
        self.places = own.places(self._paddle, places)
        self._num_workers, self.use_buffer_reader = num_workers, use_buffer_reader
        self.prefetch_factor, self.use_shared_memory = prefetch_factor, use_shared_memory and num_workers > 0
        self.timeout, self.persistent_workers = timeout, persistent_workers
        self._tuned = (own.is_tuned() or _tuning["use"]) and type(batch_sampler) is BatchSampler
        self._timer, self._loader = LoopTimer(), self._core()

    @property
    def num_workers(self) -> int:
        """int: worker processes; if they are tuned, their present number."""
        return self._loader.tuning.workers if self._tuned else self._num_workers

    def _core(self):
        workers, kind = self._num_workers, {}
        ahead = self.prefetch_factor * max(workers, len(self.places))
        if self._tuned:
            workers, kind["prefetch_factor"] = "auto", self.prefetch_factor * len(self.places)
        else:
            kind["prefetch_factor"] = max(1, ahead // max(1, workers))
            if self.worker_init_fn is not None:
                kind["rng"] = "worker"  # it may seed generators, and Paddle does not seed them again afterwards
        if workers:
            kind["worker_init_fn"] = functools.partial(own.begin, self.worker_init_fn)
        elif self.use_buffer_reader:
            workers, kind = 1, {"workers": Workers(start_method="thread"), "prefetch_factor": ahead}
        if self.batch_sampler is not None and not self.is_stream:
            kind["batch_sampler"] = self.batch_sampler
            kind["rank"] = getattr(self.batch_sampler, "local_rank", None)  # set on a DistributedBatchSampler
        else:
            kind["batch_size"] = self.batch_size
            kind["drop_last"] = self.drop_last and self.batch_size is not None
        return Loader(
            self.dataset,
            **kind,
            collate_fn=self._collate(),
            num_workers=workers,
            timeout=self.timeout,
            seed=0,
            persistent_workers=self.persistent_workers,
        )

    def _collate(self):
        if self._paddle is None or getattr(self.dataset, "fetch_into", None) is not None:
            return self.collate_fn
        whole = self.batch_sampler is not None or self.batch_size is not None
        return functools.partial(own.collate, self.collate_fn, whole)

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers and (not self.persistent_workers or self._loader.epoch == 0):
            self._loader.seed = int(np.random.randint(0, sys.maxsize))  # paddle makes this draw here
        elif not self.num_workers:  # paddle draws nothing; random numbers still follow numpy's generator
            ahead = np.random.RandomState()
            ahead.set_state(np.random.get_state())
            self._loader.seed = int(ahead.randint(0, sys.maxsize))
        return _Iterator(self, iter(self._loader))

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    @property
    def makes_dicts(self) -> bool:
        """bool: whether a step is a list of dicts by the names of `feed_list`, one for each place."""
        return not self.return_list and self.feed_list is not None

    def __len__(self) -> int:
        if self.is_stream:
            raise NoLength("an IterableDataset has no length")
        return len(self._loader)

    @property
    def reader_cost(self) -> float:
        """float: seconds that a step waits for its batch, on average."""
        return self._timer.wait_s

    @property
    def batch_cost(self) -> float:
        """float: seconds from one step to the next, on average."""
        return self._timer.step_s

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made, or closed."""
        return self._loader.stats()

    def close(self) -> None:
        """End workers and iterations. Batches still held stay valid. The loader can be used again."""
        self._loader.close()
        self._loader = self._core()


class _Iterator:
    """One epoch: give batches the caller's form, and note times."""

    def __init__(self, loader, core):
        self._loader, self._core = loader, core
        self._dataset = loader.dataset  # paddle's timer looks for it here
        self._parts = []
        loader._timer.begin()

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader)

    def __next__(self):
        loader = self._loader
        with own.noted(loader._paddle, self), loader._timer.step():
            try:
                while len(self._parts) < len(loader.places):
                    self._parts.append(self._fed(next(self._core), loader.places[len(self._parts)]))
            except WorkerDied as error:
                error.args = (f"DataLoader 1 workers exit unexpectedly, pids: {error.pid}\n{error}",)
                raise
        parts, self._parts = self._parts, []
        # An executor's feed= takes a list of dicts, even for a single place.
        return parts if len(parts) > 1 or loader.makes_dicts else parts[0]

    def _fed(self, batch, place):
        loader = self._loader
        if loader._paddle is not None:
            batch = map_leaves(batch, lambda leaf: own.tensor(loader._paddle, leaf, place))
        if not loader.makes_dicts:
            return batch
        names, leaves = [getattr(f, "name", f) for f in loader.feed_list], leaves_of(batch)
        if len(names) != len(leaves):
            raise ValueError(f"feed_list has {len(names)} names, a batch has {len(leaves)} leaves")
        return dict(zip(names, leaves, strict=True))


publish(__name__)
