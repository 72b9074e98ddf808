"""A worker as torch's: the same seeds, the same get_worker_info(), the same sharding of data pipes."""

import dataclasses
import random

import numpy as np
import torch
from torch.utils.data import IterDataPipe
from torch.utils.data._utils import worker as _theirs
from torch.utils.data.graph_settings import apply_random_seed

from slipring import seeding
from slipring._ring import mix
from slipring.fetch import StreamFetcher, load_dataset
from slipring.torch.collate import collate_in_slot
from slipring.torch.state import Tracked
from slipring.worker import Job, Worker


@dataclasses.dataclass(frozen=True)
class TorchJob(Job):
    """What every worker is told.

    Attributes
    ----------
    tracked : bool
        Send the dataset's state along with each batch.
    resume : dict or None
        Worker number -> the place to go on from, in the run of that number: a later one may have its seed.
    """

    tracked: bool = False
    resume: dict | None = None
    resume_run: int = 1

    def resumed(self, places):
        """Return the same job that goes on from the workers' places."""
        return dataclasses.replace(self, resume=places)

    def begun_in(self, run):
        """Return the same job for workers that begin in that run."""
        return dataclasses.replace(self, resume_run=run)

    def place(self, fill, number):
        """Return where a worker's stream goes on in the run of `fill`; None: at its beginning."""
        return None if self.resume is None or fill.run != self.resume_run else self.resume.get(number)


class TorchWorker(Worker):
    """See `slipring.worker.Worker`."""

    told = False  # its map dataset was told where to go on

    def begin(self, base_seed):
        if self.kind == "process":
            collate_in_slot()
        if self.job.tracked and not self.job.is_stream:
            for makes_a_batch in ("collate", "one", "whole"):
                setattr(self.fetcher, makes_a_batch, self._telling(getattr(self.fetcher, makes_a_batch)))
        super().begin(base_seed)

    def _seed_process(self, base_seed):
        seed = base_seed + self.number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(_theirs._generate_state(base_seed, self.number))

    def _introduce(self, base_seed):
        super()._introduce(base_seed)
        if self.kind == "process":
            _theirs._worker_info = _theirs.WorkerInfo(
                id=self.number,
                num_workers=self.job.num_workers,
                seed=base_seed + self.number,
                dataset=self.job.dataset,
            )

    def _enter_run(self, fill):
        if fill.run == self.run:
            return
        if self.job.rng == "batch":
            super()._enter_run(fill)
        else:
            # The generators were seeded when the worker began: they go on from epoch to epoch.
            self.forget_run()
            self.run = fill.run
            seeding.set_batch_seed(mix(fill.seed, fill.epoch, self.number))
        if isinstance(self.job.dataset, IterDataPipe):
            shared = torch.Generator()
            shared.manual_seed(fill.epoch)  # the same in all workers
            apply_random_seed(self.job.dataset, shared)
        if not (self.told or self.job.is_stream or self.job.resume is None):
            self.told = (
                True  # in the first run that has a task for this worker: few may be left in the resumed one
            )
            load_dataset(self.job.dataset, self.job.resume.get(self.number))

    # ---- the dataset's state, with each batch

    def _telling(self, make):
        return lambda what: Tracked.pack(self.number, make(what), self.job.dataset, None)

    def _open_stream(self, fill, place):
        return _TrackedStream(self.number, self.job, place or self.job.place(fill, self.number))


class _TrackedStream(StreamFetcher):
    """A stream that begins where a state says, and sends its own state along with each batch."""

    def __init__(self, number, job, place):
        super().__init__(job.dataset, job.collate_fn, job.batch_size, job.drop_last, place)
        self.number = number

    def collate(self, samples):
        return [self.number, super().collate(samples), self.states()]

    def last(self):
        return [self.number, None, self.states()]
