"""webdataset's MultiLoader: ``from slipring.adapters.webdataset import MultiLoader``."""

from __future__ import annotations

import copy
import logging
import multiprocessing
from typing import TYPE_CHECKING, Any

from slipring import Loader, Workers
from slipring._core._ring import MAX_WORKERS
from slipring._core.arguments import flag, integer, iterable
from slipring._core.fetch import is_iterator, is_stream
from slipring._core.weak_registry import WeakRegistry
from slipring._core.worker import Worker
from slipring.options import MOVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slipring.stats import Stats

__all__ = ["MultiLoader"]

_log = logging.getLogger("slipring")


class MultiLoader:
    """The samples of an iterable dataset, read by several processes, in the order in which they arrive.

    As `webdataset.multi.MultiLoader`, over slipring's ring. Neither torch nor webdataset is needed. Each
    worker iterates its own copy of the dataset, with ``WORKER`` and ``NUM_WORKERS`` in its environment, so
    that webdataset's splitters give each its share. The end comes when every worker's copy is at its end. A
    dataset may start processes itself; a worker's end waits for those that are no daemons, as every process's
    does, and after some seconds goes without them.

    Arrays in samples are views on shared memory: writable, and valid as long as they are referred to.

    Parameters
    ----------
    dataset : iterable
        Of samples of any kind. What it raises is raised here, and the iteration can go on.
    workers : int
        Processes. 0 reads in this one, when a sample is asked for.
    verbose : bool
        Tell the logger ``"slipring"`` (at level INFO) of each beginning and end.
    nokill : bool
        An earlier iteration may go on when another begins; else it is ended then.
    prefix : str
        Has no meaning here: there is no socket.
    worker_options : slipring.Workers, optional
        How workers start, read and are replaced.
    **slipring
        `slipring.Loader`'s further arguments, by name: ``prefetch_factor`` (samples in flight per worker),
        ``timeout``, ``seed``, ``memory``, ... Its ``workers`` is called `worker_options` here.

    Raises
    ------
    TypeError, ValueError
        At construction.

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
            if (place := MOVED.get(name, "")).startswith("Give workers="):
                place = place.replace("workers=", "worker_options=", 1)
                raise TypeError(f"MultiLoader() got an unexpected keyword argument {name!r}. {place}")
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
        return {**self.__dict__, "_live": ()}  # a copy, here or in another process, has iterations of its own

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
        if samples in self._live:  # else it was killed
            self._live.discard(samples)
            _log.info("all workers have come to the end")

    def kill(self) -> None:
        """End all iterations and their workers. Samples that are held stay valid; it can be used again."""
        for samples in self._live:
            samples.close()
            if self.verbose:
                _log.info("the workers were ended")
        self._live = WeakRegistry()

    def stats(self) -> Stats:
        """Return the `slipring.Stats` since the loader was made; its batches are samples."""
        return self._loader.stats()


class _Worker(Worker):
    """A worker that is no daemon in its own eyes: its dataset may start processes."""

    def begin(self, base_seed):
        if self.kind == "process":
            multiprocessing.current_process().daemon = False
        super().begin(base_seed)


class _Core(Loader):
    """What `MultiLoader` runs on."""

    _worker_class = _Worker
    _keeps_states = False


class _Iterated:
    """A dataset that could be indexed too, and is not."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)
