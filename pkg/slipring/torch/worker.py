"""A worker that behaves like torch's: the same seeds, get_worker_info() and sharding of data pipes."""

import pickle
import random
import threading
import warnings

import numpy as np
import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_random_seed

from slipring._core.codec._rows import LIST, TORCH
from slipring._core.ring._ring import mix
from slipring._core.ring.worker_info import get_worker_info
from slipring._core.workers import seeding
from slipring._core.workers.worker import Worker
from slipring.torch import private
from slipring.torch.collate import collate_in_slot, convert, default_collate, has_default_rules, is_default

_thread_begins = threading.Lock()


def init_thread(worker_init_fn, number):
    """Call `worker_init_fn` in a worker thread, while torch's get_worker_info() describes this thread.

    torch has one worker info for the whole process, so a lock admits one thread at a time.
    """
    info = get_worker_info()
    with _thread_begins:
        before = private.worker._worker_info
        private.worker._worker_info = private.worker.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
        )
        try:
            worker_init_fn(number)
        finally:
            private.worker._worker_info = before


class TorchWorker(Worker):
    """A `slipring._core.workers.worker.Worker` that seeds and collates as torch's loader expects."""

    method_argument = "multiprocessing_context={!r}"
    threads = (
        "multiprocessing_context=Threads() with ``class Threads(type(multiprocessing.get_context('fork'))): Process = "
        "threading.Thread``"
    )
    local_as_torch = True

    @classmethod
    def not_sent(cls, error):
        """Warn in torch's words."""
        if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. "
                "This might be because the worker Process arguments are not picklable. "
                "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
                "to 'forkserver', which requires the worker Process arguments to be picklable. "
                "You can also try multiprocessing.set_start_method('fork').",
                stacklevel=2,
            )

    @classmethod
    def adapt(cls, fetcher):
        """Convert the arrays of batches that the dataset makes or collates to tensors, without a copy if possible."""
        if not is_default(fetcher.collate_fn):
            return
        if (into := fetcher.whole_batches) is not None:
            fetcher.into = lambda indices, empty: convert(into(indices, empty))
        if (own := fetcher.own_collate) is not None:
            fetcher.collate_fn = lambda samples: convert(own(samples))

    def begin(self, base_seed):
        if self.owns_process:
            collate_in_slot()
        super().begin(base_seed)

    def _seed_process(self, base_seed):
        seed = base_seed + self.number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(private.generate_state(base_seed, self.number))

    def _enter_iteration(self, writer):
        if writer.iteration == self.iteration:
            return
        if self.options.rng != "worker":
            super()._enter_iteration(writer)
        else:
            # The generators were seeded when the worker began, and continue from epoch to epoch.
            self.forget_iteration()
            self.iteration, self.epoch = writer.iteration, self.job.epoch_of(writer.epoch)
            seeding.set_batch_seed(mix(writer.seed, self.epoch, self.number), stream=mix(writer.seed, self.epoch))
            self._resume_dataset(writer)
        if isinstance(self.job.dataset, IterDataPipe):
            shared = torch.Generator()
            shared.manual_seed(writer.epoch)  # the same in all workers
            apply_random_seed(self.job.dataset, shared)

    def rules(self, fetcher):
        takes_rows = fetcher.collate_fn is default_collate and not fetcher.single
        return TORCH if takes_rows and has_default_rules() else LIST
