"""`Job`: everything that a worker of a loader needs."""

import dataclasses

from slipring._core.options.values import Options
from slipring._core.workers import seeding
from slipring._core.workers.concurrency import is_concatenation, is_subset


@dataclasses.dataclass(frozen=True)
class Job:
    """The data that all workers of a loader need; a worker gets it when it starts."""

    dataset: object
    is_stream: bool
    options: Options  # as `Options.for_worker` returns them
    worker_class: type  # `Worker` or a frontend's own
    rank: int = 0
    rank_stride: seeding.RankStride | None = None  # with rng="sample"; the iteration's epoch is then `RankStride.epoch`
    epoch_seeds: bool = True  # random numbers depend on a task's epoch, too, not only on its seed
    tracked: bool = False  # the states of dataset and iterator travel with the batches
    # Worker number -> the position from which it resumes; see `open_stream`. It holds in iteration `resume_iteration`
    # only: a later one may have the same seed.
    resume: dict | None = None
    resume_iteration: int = 1
    node: int | None = None  # the NUMA node of slots and workers; None: the system places them

    @property
    def num_workers(self):
        """int: the number of workers; this process counts as one."""
        return max(1, self.options.num_workers)

    @property
    def respawns(self):
        """bool: whether dead workers are replaced, by the option or, without it, by the dataset's ``on_death``."""
        if self.options.workers.on_death is not None:
            return self.options.respawns
        return self.options.num_workers > 0 and _wants_respawn(self.dataset)

    @property
    def seeds_once(self):
        """bool: generators are seeded once per worker and iteration, and not for each range of rows."""
        return self.options.rng == "worker" or self.is_stream

    def epoch_of(self, word):
        """Return the epoch for seeds; `word` is the epoch word of the tasks."""
        return word if self.epoch_seeds else 0

    def resized(self, num_workers):
        """Return the same job for another number of workers."""
        return dataclasses.replace(self, options=dataclasses.replace(self.options, num_workers=num_workers))

    def begun_in(self, iteration):
        """Return the same job for workers that begin in that iteration."""
        return self if self.resume is None else dataclasses.replace(self, resume_iteration=iteration)

    def resume_position(self, number, iteration):
        """Return the position from which a worker resumes in an iteration; None: the beginning."""
        return None if self.resume is None or iteration != self.resume_iteration else self.resume.get(number)


def _wants_respawn(dataset):
    if is_subset(dataset):
        return _wants_respawn(dataset.dataset)
    if is_concatenation(dataset):
        return all(map(_wants_respawn, dataset.datasets))
    return getattr(dataset, "on_death", None) == "respawn"
