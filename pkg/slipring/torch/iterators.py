"""The iterators of torch's loader, with the attributes of torch's own."""

import warnings

from slipring._core.passes._device import DeviceIteration
from slipring._core.passes._iteration import Iteration
from slipring._core.passes._local import LocalIteration
from slipring._core.passes._sharing import SharedIteration
from slipring._core.workers.fetch import dataset_shrank
from slipring.torch import private
from slipring.torch.generators import text_of


def fields(newest, position):
    """Return the fields of a state that only torch's loader has."""
    own, more = newest.own, {}
    if position.finished:
        more = dict(rng_next=text_of(own.order), seeded=own.keeps_seed)
    rng_seeds = text_of(own.seeds) if position.finished else own.rng_seeds
    return dict(seed=newest.seed, rng_seeds=rng_seeds, **more)


def read_again(iterator, count):
    """Drop the batches delivered before, if the state has only their total and not each worker's number."""
    core = iterator._iteration
    begin_next, core.next_pass = core.next_pass, None
    for done in range(count):
        try:
            next(iterator)
        except StopIteration:
            raise dataset_shrank(count, done) from None
    core.next_pass = begin_next  # a pass that has no further batch is still an empty rest


class TorchPass:
    """The attributes of torch's iterator that MosaicML, PyG and Lightning use; `newest` is its `NewestPass`."""

    @property
    def _iteration(self):
        """Pass: the one that takes the batches."""
        return self

    def state_dict(self):
        """Return the position after the latest delivered batch; see `DataLoader.state_dict`."""
        return self.newest.state(fields).dict()

    def _reset(self, loader, first_iter=False):
        self.restart(lambda: loader.begin_pass(self))

    def _shutdown_workers(self):
        self.close()

    @property
    def _workers(self):
        """list: the workers' processes; empty if the iteration is closed."""
        pool = getattr(self._iteration.engine, "pool", None)
        return list(getattr(pool, "processes", {}).values())

    @property
    def _prefetch_factor(self):
        return self._factor

    @property
    def _num_yielded(self):
        """int: number of delivered batches, including those in a loaded state."""
        position = self.position
        if position is None:  # torch reads it before there is a position
            return 0
        if self._dataset_kind == private.DatasetKind.Iterable:
            return sum(worker.batches for worker in position.workers)
        return position.delivered + len(position.beyond)

    @_num_yielded.setter
    def _num_yielded(self, value):
        """Ignore the 0 that torch sets at the beginning: the position counts."""


class TorchIteration(TorchPass, Iteration, private.BaseIterator):
    """Batches in their slots."""

    def drain_requested(self, delivered):
        """Let workers make all batches that count as requested, as in torch when an epoch is left early."""
        self.drain()


class TorchSharedIteration(TorchPass, SharedIteration, private.BaseIterator):
    """Batches in the slots of another process."""

    def drain_requested(self, delivered):
        """Do nothing: the lead lets its workers make the requested batches."""


class TorchLocalIteration(TorchPass, LocalIteration, private.BaseIterator):
    """Batches that this process makes."""


class TorchDeviceIteration(TorchPass, DeviceIteration, private.BaseIterator):
    """Batches on devices, or pinned."""

    requested_early = 0  # batches that count as requested beyond the delivered ones

    @property
    def _iteration(self):
        return self.core

    def drain_requested(self, delivered):
        """See `TorchIteration.drain_requested`."""
        self.core.drain(delivered + self.requested_early if self.preloader.depth else 0)


def check_length(iterator):
    """Warn as torch does if an iterable dataset yields more samples than its length; `iterator` is a weak reference."""
    it = iterator()
    if it is None or it._num_yielded < it._IterableDataset_len_called:
        return
    text = (
        f"Length of IterableDataset {it._dataset} was reported to be {it._IterableDataset_len_called}"
        f"(when accessing len(dataloader)), but {it._num_yielded + 1} samples have been fetched. "
    )
    if it._num_workers > 0:
        text += (
            "For multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
        )
    warnings.warn(text, stacklevel=2)
