"""DI-engine's AsyncDataLoader: workers make the batches from the results of a data source."""

from __future__ import annotations

import collections
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slipring import Loader, Workers, empty
from slipring._core.codec.pytree import is_namedtuple
from slipring._core.codec.tensors import stack
from slipring._core.options.checks import MAX_COUNT, function, integer
from slipring._core.passes.prefetch import Prefetcher, PushBatchSampler
from slipring._core.ring._ring import MAX_RANGES
from slipring.errors import Closed, shown
from slipring.torch.device.cuda import checked, checked_device
from slipring.torch.device.to_device import as_tensors, on_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from slipring.stats import Stats

__all__ = ["AsyncDataLoader", "default_collate"]

READY, WORK, ERROR = range(3)


class AsyncDataLoader:
    """An endless iterator over the batches of a data source.

    Parameters
    ----------
    data_source : callable or dict
        ``data_source(batch_size)`` returns one of three: a list of samples (dicts, or trees of treetensor),
        which are put together at once; a list of callables without parameters, each of which makes a sample in
        a worker; or a dict, which is the batch itself. A thread calls it, at most ``2 * max(1, num_workers)``
        batches ahead. A dict given as `data_source` is every batch.
    batch_size : int
    device : str
        Where batches go; 'cpu' leaves them in shared memory. For another device they are copied ahead of time.
    chunk_size : int, optional
        With several workers, how many samples each of them makes at a time: they share each batch. Must divide
        `batch_size`. A batch has at most 56 such shares; default: one per worker.
    collate_fn : callable, optional
        Makes a batch of a list of samples; default `default_collate`.
    num_workers : int
        0 and 1 mean one process.

    Raises
    ------
    TypeError, ValueError, RuntimeError, AssertionError
        Raised at construction. If the sizes do not fit, it is an AssertionError, as in DI-engine.

    Examples
    --------
    >>> import torch
    >>> from slipring.adapters.di_engine import AsyncDataLoader
    >>> def source(batch_size):
    ...     return [{"obs": torch.ones(3), "action": k} for k in range(batch_size)]
    >>> loader = AsyncDataLoader(source, batch_size=4, device="cpu")
    >>> next(loader)["obs"].shape
    torch.Size([4, 3])
    >>> loader.close()
    """

    _closed = True  # until __init__ has finished

    data_source: Callable[[int], Any] | Mapping[str, Any]
    batch_size: int
    device: str
    chunk_size: int | None
    collate_fn: Callable[[list[Any]], Any]
    num_workers: int

    def __init__(
        self,
        data_source: Callable[[int], Any] | Mapping[str, Any],
        batch_size: int,
        device: str,
        chunk_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        if not callable(data_source) and not isinstance(data_source, Mapping):
            raise TypeError(f"data_source must be callable or a dict, not {shown(data_source)}")
        batch_size = integer("batch_size", batch_size, 1, MAX_COUNT)
        num_workers = integer("num_workers", num_workers, 0, hint="; 0 and 1 use one process for all")
        chunk_size = integer("chunk_size", chunk_size, optional=True)
        function("collate_fn", collate_fn)
        if chunk_size is not None and (chunk_size <= 0 or batch_size % chunk_size):
            raise AssertionError(
                f"batch_size/chunk_size = {batch_size}/{chunk_size}: chunk_size must divide batch_size"
            )
        self.data_source, self.batch_size, self.device = data_source, batch_size, device
        self.collate_fn = default_collate if collate_fn is None else collate_fn
        self.num_workers, self.chunk_size = num_workers, chunk_size
        target = checked_device(checked("device", device))
        workers, work = max(1, num_workers), PushBatchSampler()
        self._loader = Loader(
            _Calls(),
            batch_sampler=work,
            collate_fn=self.collate_fn,
            num_workers=workers,
            workers=Workers(start_method="fork", chunk_size=self._rows_per_range(workers)),
            seed=torch.initial_seed(),
        )
        core = iter(self._loader)  # the workers are forked here, before there are threads
        source = Prefetcher(_Source(self, self._loader.options.check_ranges), 2 * workers)
        self._batches = on_device(_Ordered(core, source, work, 2 * workers), target)
        self._closed = False

    def _rows_per_range(self, workers):
        wanted = self.chunk_size or -(-self.batch_size // workers)
        if workers == 1 or wanted >= self.batch_size:
            return None  # one worker makes a whole batch
        return max(wanted, -(-self.batch_size // MAX_RANGES))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next batch, for the caller's current stream. After `close`, raise StopIteration.

        Raises
        ------
        Exception
            The exception that the source, a worker, `collate_fn` or the device raised for this batch.
        """
        if self._closed:
            raise StopIteration
        try:
            return next(self._batches)
        except Closed:
            if self._closed:  # another thread has closed it
                raise StopIteration from None
            raise

    def stats(self) -> Stats:
        """Return the `slipring.Stats` of the workers' batches."""
        return self._loader.stats()

    def close(self) -> None:
        """End workers and threads. Batches that are still held stay valid. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._batches.close()
            self._loader.close()

    def __del__(self) -> None:
        self.close()


class _Source:
    """Iterate over (kind, value) pairs of the data source; lives in the thread that runs ahead."""

    def __init__(self, loader, check_length):
        # Keeps no reference to the loader, so that dropping the loader ends this thread.
        self.data_source, self.batch_size = loader.data_source, loader.batch_size
        self.collate_fn, self.check_length = loader.collate_fn, check_length

    def __next__(self):
        given = self.data_source
        data = given if isinstance(given, Mapping) else given(self.batch_size)
        if isinstance(data, Mapping):
            return READY, as_tensors(data)
        if isinstance(data, Sequence) and len(data) and not isinstance(data, (str, bytes)):
            if all(isinstance(item, (Mapping, *_trees())) for item in data):
                return READY, as_tensors(self.collate_fn(data))
            if all(callable(item) for item in data):
                self.check_length(len(data))
                return WORK, list(data)
        raise TypeError(
            f"data_source must return a list of dicts, or of callables, or one dict that is a batch; not {data!r:.80}"
        )


class _Calls:
    """The dataset of the core loader: calling an item of the work makes the sample."""

    def __getitem__(self, work):
        return work()


class _Ordered:
    """Batches in the order of the source, whichever process makes them: see `DeviceIteration`."""

    received = before_return = reason = next_pass = None
    record_loop = staticmethod(lambda *_: None)

    def __init__(self, core, source, work, prefetch_depth):
        self.core, self.source, self.work, self.prefetch_depth = core, source, work, prefetch_depth
        core.finish_batch = as_tensors
        self.order = collections.deque()  # requested of the source and not yet received
        self.next = None  # (kind, value) of the batch to receive next

    def take(self):
        """Return (task or None, batch, slot, whether it is an exception), or None at the end."""
        while self.next is None:
            while len(self.order) < self.prefetch_depth and not (self.order and self.source.would_wait()):
                try:
                    kind, value = next(self.source)
                except StopIteration:
                    if not self.order:
                        self.core.close()
                        return None
                    break
                except Exception as error:
                    kind, value = ERROR, error
                if kind == WORK:
                    self.work.push(value)
                    value = None
                self.order.append((kind, value))
            self.next = self.order.popleft()
        kind, value = self.next
        return self.core.take() if kind == WORK else (None, value, -1, kind == ERROR)

    def defer_commit(self, items, item):
        """Append `item`, made of the batch that `take` returned, to `items`."""
        if self.next[0] == WORK:
            self.core.defer_commit(items, item)
        else:
            items.append(item)
        self.next = None

    def commit_upto(self, last):
        """Count all that were set aside: no state of this iteration is ever saved."""
        self.core.commit_upto(True)

    def __getattr__(self, name):
        return getattr(self.core, name)

    def interrupt(self):
        """See `Iteration.interrupt`."""
        self.core.interrupt()
        self.source.close()

    def close(self, reason=None):
        """End the iteration."""
        self.source.close()
        self.core.close(reason)


def default_collate(samples: Sequence[Any]) -> Any:
    """Put samples together as DI-engine does, in the slot if there is one.

    Parameters
    ----------
    samples : list
        Tensors, arrays, numbers, text, and dicts, lists and namedtuples of them.

    Returns
    -------
    value
        A tensor for tensors: of shape (B,) if the samples have shape (1,), else (B, ...). Python's floats become
        float32 and ints int64. Text, and values under keys that begin with ``collate_ignore``, become lists. Trees
        of treetensor become a dict of all their tensors put together; a single tree is a batch, as a dict.

    Raises
    ------
    TypeError
        For any other value.
    """
    if isinstance(samples, _trees()):
        return samples.json()
    first = samples[0]
    numeric = isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind in "biufc"
    if isinstance(first, np.ndarray) and numeric:
        samples = [torch.as_tensor(sample) for sample in samples]
        first = samples[0]
    if isinstance(first, torch.Tensor):
        stacked = stack(list(samples), empty)
        return stacked.view(-1) if first.shape == (1,) else stacked
    if numeric:
        return torch.as_tensor(np.asarray(samples))
    if isinstance(first, float):
        return torch.tensor(samples, dtype=torch.float32)
    if isinstance(first, int):
        return torch.tensor(samples, dtype=torch.bool if isinstance(first, bool) else torch.int64)
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, _trees()):
        return _branches([sample.json() for sample in samples])
    if isinstance(first, Mapping):
        columns = {key: [sample[key] for sample in samples] for key in first}
        return {key: c if _ignored(key) else default_collate(c) for key, c in columns.items()}
    if isinstance(first, Sequence):
        parts = [default_collate(column) for column in zip(*samples, strict=True)]
        return type(first)(*parts) if is_namedtuple(type(first)) else parts
    raise TypeError(
        "samples must be tensors, arrays of numbers, numbers, text, dicts or lists, not "
        f"{type(first).__name__} {getattr(first, 'dtype', '')}"
    )


def _branches(samples):
    """Collate the tensors of trees; no key is ignored here."""
    if not isinstance(samples[0], Mapping):
        return default_collate(samples)
    return {key: _branches([sample[key] for sample in samples]) for key in samples[0]}


def _trees():
    """Return a tuple of treetensor's tree class, empty if the program does not use treetensor."""
    theirs = sys.modules.get("treetensor.torch")
    return () if theirs is None else (theirs.Tensor,)


def _ignored(key):
    return isinstance(key, str) and key.startswith("collate_ignore")
