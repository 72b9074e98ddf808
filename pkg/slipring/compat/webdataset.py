"""webdataset's MultiLoader: ``from slipring.compat.webdataset import MultiLoader``."""

import copy
import logging
import weakref

from slipring import Loader
from slipring.fetch import is_stream

__all__ = ["MultiLoader"]

_log = logging.getLogger("slipring")


class MultiLoader:
    """The samples of an iterable dataset, read by several processes, in the order in which they arrive.

    As `webdataset.multi.MultiLoader`, over slipring's ring. Neither torch nor webdataset is needed. Each
    worker iterates its own copy of the dataset, with ``WORKER`` and ``NUM_WORKERS`` in its environment, so
    that webdataset's splitters give each its share. The end comes when every worker's copy is at its end.

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
    **slipring
        `slipring.Loader`'s further arguments, by name: ``prefetch_factor`` (samples under way per worker),
        ``on_worker_death``, ``timeout``, ``start_method``, ``seed``, ``slots``, ``copy``, ...

    Raises
    ------
    TypeError, ValueError
        At construction.
    """

    def __init__(self, dataset, workers=4, verbose=False, nokill=False, prefix="/tmp/_multi-", **slipring):
        self.dataset = dataset
        self.workers = workers
        self.verbose = verbose
        self.nokill = nokill
        self.prefix = prefix
        self._live = weakref.WeakSet()
        self._loader = Loader(
            dataset if is_stream(dataset) else _Iterated(dataset),
            None,
            num_workers=workers,
            **{"in_order": False, "persistent_workers": False, **slipring},
        )

    def __getstate__(self):
        return {**self.__dict__, "_live": ()}  # a copy, here or in another process, has iterations of its own

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._live = weakref.WeakSet()
        self._loader = copy.copy(self._loader)

    def __iter__(self):
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

    def kill(self):
        """End all iterations and their workers. Samples that are held stay valid; it can be used again."""
        for samples in list(self._live):
            samples.close()
            if self.verbose:
                _log.info("the workers were ended")
        self._live.clear()

    def stats(self):
        """Return the `slipring.Stats` since the loader was made; its batches are samples."""
        return self._loader.stats()


class _Iterated:
    """A dataset that could be indexed too, and is not."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)
