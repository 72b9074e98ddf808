"""A worker that behaves like torch's: the same seeds, get_worker_info() and sharding of data pipes."""

import contextlib
import copy
import dataclasses
import pickle
import random
import threading
import warnings

import numpy as np
import torch
from torch.utils.data import IterDataPipe, default_convert
from torch.utils.data.graph_settings import apply_random_seed

from slipring._core import seeding
from slipring._core._codec import empty
from slipring._core._collate import LIST, TORCH, RowWriter
from slipring._core._ring import mix
from slipring._core.fetch import (
    Every,
    StreamFetcher,
    listed,
    load_dataset,
    pickled_states,
    whole_batches,
)
from slipring._core.worker import Job, Worker
from slipring._core.worker_info import get_worker_info
from slipring.torch import private
from slipring.torch.collate import collate_in_slot, default_collate, has_stock_rules


@dataclasses.dataclass(frozen=True)
class TorchJob(Job):
    """What every worker needs to know, with the additions of torch's loader."""

    method_argument = "multiprocessing_context={!r}"

    tracked: bool = False  # workers send the dataset's state along with each batch
    # Worker number -> the place from which it resumes. It holds in session `resume_run` only: a later session may
    # have the same seed.
    resume: dict | None = None
    resume_run: int = 1

    @property
    def by_worker(self):
        """bool: see `Job`."""
        return self.is_stream or self.tracked

    def not_sent(self, error):
        """Warn as torch does, in its words."""
        if isinstance(error, (TypeError, AttributeError, pickle.PicklingError)):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. "
                "This might be because the worker Process arguments are not picklable. "
                "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
                "to 'forkserver', which requires the worker Process arguments to be picklable. "
                "You can also try multiprocessing.set_start_method('fork').",
                stacklevel=2,
            )

    def resumed(self, places):
        """Return the same job, resuming from the workers' places."""
        return dataclasses.replace(self, resume=places)

    def begun_in(self, run):
        """Return the same job for workers that begin in session `run`."""
        return dataclasses.replace(self, resume_run=run)

    def place(self, fill, number):
        """Return where a worker's stream goes on in the run of `fill`; None: at its beginning."""
        return None if self.resume is None or fill.run != self.resume_run else self.resume.get(number)


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
    """A `slipring._core.worker.Worker` that seeds, collates and sends states as torch's loader expects."""

    loaded = False  # its map dataset has loaded the state that it goes on from

    seq = 0  # of the batch that is being made

    def begin(self, base_seed):
        if self.kind == "process":
            collate_in_slot()
        into = whole_batches(self.job.dataset, self.job.share is not None)
        if self.options.collate_fn is default_collate and into is not None:
            self.fetcher.into = into
        self.plain = copy.copy(self.fetcher)
        if self.options.collate_fn is default_collate and into is not None:
            self.fetcher.whole = self._whole  # as torch's default collation: tensors, over the same bytes
        if self.job.tracked and not self.job.is_stream:
            for makes_a_batch in ("collate", "one", "whole"):
                setattr(self.fetcher, makes_a_batch, self._with_states(getattr(self.fetcher, makes_a_batch)))
        super().begin(base_seed)

    def work(self, fill):
        self.seq = fill.seq
        super().work(fill)

    def forget_run(self):
        super().forget_run()
        self.every = Every(self.options.snapshot_interval)

    def _seed_process(self, base_seed):
        seed = base_seed + self.number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(private.generate_state(base_seed, self.number))

    def _introduce(self, base_seed):
        super()._introduce(base_seed)
        if self.kind == "process":
            private.worker._worker_info = private.worker.WorkerInfo(
                id=self.number,
                num_workers=self.job.num_workers,
                seed=base_seed + self.number,
                dataset=self.job.dataset,
            )

    def _enter_run(self, fill):
        if fill.run == self.run:
            return
        if self.options.rng != "worker":
            super()._enter_run(fill)
        else:
            # The generators were seeded when the worker began: they go on from epoch to epoch.
            self.forget_run()
            self.run, self.epoch = fill.run, self._epoch_of(fill)
            seeding.set_batch_seed(mix(fill.seed, self.epoch, self.number), stream=mix(fill.seed, self.epoch))
        if isinstance(self.job.dataset, IterDataPipe):
            shared = torch.Generator()
            shared.manual_seed(fill.epoch)  # the same in all workers
            apply_random_seed(self.job.dataset, shared)
        if not (self.loaded or self.job.is_stream or self.job.resume is None):
            # In the first run that has a task for this worker: few may be left in the resumed one.
            self.loaded = True
            place = self.job.resume.get(self.number) or {}
            load_dataset(self.job.dataset, place)
            if delivered(place):
                self.every.go_on(fill.seq - self.job.num_workers)
            self._make_again(fill, place.get("again", ()))

    def _make_again(self, fill, batches):
        """Make again, and drop, the batches that a Stateful map dataset made after the states that it has loaded."""
        if not batches:
            return
        fill.__exit__()  # the slot is for the batch that is due
        try:
            for seq, indices in batches:
                with contextlib.suppress(Exception):  # it was raised then
                    self._make_one_again(fill, seq, indices)
        finally:
            fill.__enter__()

    def _make_one_again(self, fill, seq, indices):
        if self.options.rng != "worker":
            self._seed_rows(fill, seq, 0)
        if fill.single:
            self.plain.one(indices[0])
        elif self.plain.into is not None:
            self.plain.whole(indices)
        else:
            rows = RowWriter(0, len(indices), self.rules())
            self.plain.read(indices, rows)
            self.plain.collate(rows)

    def rules(self):
        return TORCH if self.options.collate_fn is default_collate and has_stock_rules() else LIST

    def _whole(self, indices):
        with self.concurrency.offered():
            return default_convert(self.fetcher.into(listed(indices), empty))

    # ---- the dataset's state, with the batches that it is due with

    def _with_states(self, make):
        def with_states(what):
            batch = make(what)
            due = self.every.due(self.seq)
            return [self.number, batch, pickled_states(self.job.dataset, None)[0] if due else None]

        return with_states

    def _open_stream(self, fill, place):
        resumed = self.job.place(fill, self.number)
        return _TrackedStream(self.number, self.job, place or resumed, delivered(resumed))


def delivered(place):
    """Return how many batches of the pass a worker had delivered when the state was taken."""
    return 0 if not place or place.get("ended") else place["batches"]


class _TrackedStream(StreamFetcher):
    """A stream that resumes where a state says, and sends its own state along with its batches.

    The worker's own count of batches since the beginning of the pass decides which batches carry a state. A resumed
    iteration therefore has the same states as an uninterrupted one.
    """

    def __init__(self, number, job, place, before):
        o = job.options
        dropped = bool(o.drop_last)
        super().__init__(job.dataset, o.collate_fn, o.batch_size, dropped, place, every=o.snapshot_interval)
        self.number, self.num_workers = number, job.num_workers
        self.before = before  # batches that earlier runs delivered of this pass
        if before:
            self.every.go_on(self._seq(0))

    def _seq(self, position):
        """Return the sequence number of the batch before `position`, if all workers have delivered as many."""
        return (self.before + position - 1) * self.num_workers + self.number

    def is_due(self):
        return self.every.due(self._seq(self.position))

    def collate(self):
        return [self.number, super().collate(), self.states()]

    def last(self):
        return [self.number, None, self.states(last=True)]
