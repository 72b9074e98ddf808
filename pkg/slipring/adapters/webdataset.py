"""webdataset's MultiLoader: ``from slipring.adapters.webdataset import MultiLoader``."""

from __future__ import annotations

import copy
import logging
import multiprocessing
from typing import TYPE_CHECKING, Any

from slipring import Loader, Workers
from slipring._core.options.checks import flag, integer, iterable
from slipring._core.ring._ring import MAX_WORKERS
from slipring._core.ring.weak_registry import WeakRegistry
from slipring._core.workers.fetch import is_iterator, is_stream
from slipring._core.workers.worker import Worker
from slipring.options import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slipring.stats import Stats

__all__ = ["MultiLoader"]

_log = logging.getLogger("slipring")


class MultiLoader:
    """The samples of an iterable dataset, read by several processes, in the order of arrival.

    It replaces `webdataset.multi.MultiLoader`, over slipring's ring, and needs neither torch nor webdataset. Each
    worker iterates its own copy of the dataset, with ``WORKER`` and ``NUM_WORKERS`` in its environment, so that
    webdataset's splitters give each worker its share. The iteration ends when every worker has iterated its copy. A
    dataset may start processes. A worker that ends waits for those that are not daemons, as every process does;
    after some seconds the loader no longer waits for the worker.

    Arrays in samples are views on shared memory: writable, and valid while anything refers to them.

    Parameters
    ----------
    dataset : iterable
        An iterable of samples of any kind. An exception of the dataset is raised here, and the iteration can continue.
    workers : int
        Number of processes. 0 reads in this process, one sample at a time.
    verbose : bool
        Log each beginning and end to the logger ``"slipring"``, at level INFO.
    nokill : bool
        Let an earlier iteration continue when another begins. False: the earlier one is ended.
    prefix : str
        Ignored: no socket is used.
    worker_options : slipring.Workers, optional
        How workers start, read and are replaced.
    **slipring
        `slipring.Loader`'s further arguments, by name: ``prefetch_factor`` (samples in flight per worker),
        ``timeout``, ``seed``, ``memory``, ... The loader's ``workers`` is called `worker_options` here.

    Raises
    ------
    TypeError, ValueError
        Raised at construction.

    Examples
    --------
    >>> from slipring.adapters.webdataset import MultiLoader
    >>> sorted(MultiLoader(["a", "b", "c"], workers=1))
    ['a', 'b', 'c']
    """

    dataset: Iterable[Any]
    workers: int
    verbose: bool
    nokill: bool
    prefix: str

    def __init__(
        self,
        dataset: Iterable[Any],
        workers: int = 4,
        verbose: bool = False,
        nokill: bool = False,
        prefix: str = "/tmp/_multi-",
        *,
        worker_options: Workers | None = None,
        **slipring: Any,
    ) -> None:
        flag("verbose", verbose)
        flag("nokill", nokill)
        iterable("dataset", dataset, "an iterable of samples")
        if isinstance(workers, Workers):
            raise TypeError(f"workers must be an int, not {workers}; give slipring.Workers as worker_options=")
        workers = integer("workers", workers, 0, MAX_WORKERS, hint="; 0 reads in this process")
        for name in slipring:
            if (replacement := MOVED.get(name, "")).startswith("Give workers="):
                replacement = replacement.replace("workers=", "worker_options=", 1)
                raise TypeError(f"MultiLoader() got an unexpected keyword argument {name!r}. {replacement}")
        self.dataset = dataset
        self.workers = workers
        self.verbose = verbose
        self.nokill = nokill
        self.prefix = prefix
        self._live = WeakRegistry()
        self._loader = _Core(
            _Iterated(dataset) if is_iterator(dataset) or not is_stream(dataset) else dataset,
            None,
            num_workers=workers,
            workers=Workers() if worker_options is None else worker_options,
            **{"in_order": False, "persistent_workers": False, **slipring},
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": ()}  # a copy has iterations of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._live = WeakRegistry()
        self._loader = copy.copy(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if not self.nokill:
            self.kill()
        samples = iter(self._loader)
        self._live.add(samples)
        if self.verbose:
            _log.info("%d workers read %s", self.workers, type(self.dataset).__name__)
            return self._with_an_end(samples)
        return samples

    def _with_an_end(self, samples):
        yield from samples
        if samples in self._live:  # else `kill` ended it
            self._live.discard(samples)
            _log.info("all workers have come to the end")

    def kill(self) -> None:
        """End all iterations and their workers. Held samples stay valid, and the loader can be used again."""
        for samples in self._live:
            samples.close()
            if self.verbose:
                _log.info("the workers were ended")
        self._live = WeakRegistry()

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made; a batch of its figures is a sample."""
        return self._loader.stats()


class _Worker(Worker):
    """A worker whose process is not a daemon, so that its dataset may start processes."""

    def begin(self, base_seed):
        if self.owns_process:
            multiprocessing.current_process().daemon = False
        super().begin(base_seed)


class _Core(Loader):
    """The core loader of a `MultiLoader`."""

    _worker_class = _Worker
    _keeps_states = False


class _Iterated:
    """A dataset that has indices too, but is iterated."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)
