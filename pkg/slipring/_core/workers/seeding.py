"""Random numbers that do not depend on which worker makes a batch.

With ``rng="batch"``, the generators are seeded before each range of rows from (seed, epoch, seq, first row, rank). The
number of workers, their speed and a resume then do not change the results. With ``rng="sample"``, they are also seeded
before each sample, from (seed, the sample's position in the order of all ranks). The results then depend on neither the
number of ranks nor the batch size.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
import sys
import threading
from typing import NamedTuple

import numpy as np

from slipring._core.ring._ring import EPOCH_BITS, mix
from slipring._core.ring.worker_info import runs_in_thread

MASK_63 = (1 << 63) - 1


_SAMPLE = 0x53414D504C45  # keeps the samples' seeds apart from the batches'


class RngContext(NamedTuple):
    """The random numbers of a worker's thread; the default is outside of batches."""

    seed: int | None = None
    generator: np.random.Generator | None = None
    batch: int | None = None  # the seed of the whole batch, of which this range is a part
    row: int = 0  # of the batch: the row for which `sample_seed` returns the next seed
    stream: int | None = None  # the seed of a pass over a stream, the same in all its workers
    # With rng="sample": the iteration's seed, and the distance between two samples of the batch.
    samples: tuple[int, int] | None = None


NO_CONTEXT = RngContext()


class _Thread(threading.local):  # the fields of the thread's `RngContext`
    seed = generator = batch = stream = samples = None
    row = 0


_thread = _Thread()


def rng() -> np.random.Generator:
    """Return the numpy Generator of the batch (or rows, or stream) that the calling worker makes.

    The loader's option ``rng=`` is something else: it says when generators, including this one, are seeded: with each
    batch, or once in each worker. By default, this generator gives the same numbers with any number and kind of
    workers. This includes thread workers: they share Python's and numpy's global generators, and therefore never seed
    them.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    RuntimeError
        Outside of a worker, where no batch is being made.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> def noisy(samples):
    ...     return np.array(samples) + slipring.rng().normal(size=len(samples))
    >>> def first_batch(num_workers):
    ...     with slipring.Loader(range(8), 4, collate_fn=noisy, num_workers=num_workers, seed=0) as loader:
    ...         return next(iter(loader)).tolist()
    >>> first_batch(num_workers=0) == first_batch(num_workers=2)
    True
    """
    if _thread.generator is None:
        if _thread.seed is None:
            raise RuntimeError(
                "slipring.rng() is the generator of the batch being made, and no loader makes a batch here. "
                "Read the sample with a loader, or draw from numpy.random.default_rng()"
            )
        _thread.generator = generator_of(_thread.seed)
    return _thread.generator


def sample_seed():
    """Return 64 random bits for the next sample of the batch being made; None outside of a worker.

    They depend on the sample's row in the batch, and so not on the workers that make the batch. If there is no
    batch seed (streams, ``rng="worker"``), `rng` draws them.
    """
    thread = _thread
    if thread.samples is not None:
        return mix(_next_sample(thread), 1)
    if thread.batch is not None:
        thread.row += 1
        return mix(thread.batch, thread.row)
    return None if thread.seed is None else int(rng().integers(1 << 64, dtype=np.uint64))


def _next_sample(thread):
    """Return the seed of the sample at the next position, and advance the position."""
    seed, distance = thread.samples
    position, thread.row = thread.row, thread.row + distance
    return mix(seed, position, _SAMPLE)


class BySample:
    """A map dataset that seeds the generators for each sample, as for a batch of its own.

    `seeds_globals`: seed the process's global generators too. Threads share them, and therefore must not seed them.
    """

    def __init__(self, dataset, seeds_globals=True):
        self.dataset, self.seeds_globals = dataset, seeds_globals

    def __getitem__(self, index):
        seed = _next_sample(_thread)
        batch = swap_context(RngContext(seed, batch=seed))
        try:
            if self.seeds_globals:
                seed_globals(seed)
            return self.dataset[index]
        finally:
            swap_context(batch)


@dataclasses.dataclass(frozen=True)
class RankStride:
    """A rank's share of the samples of a step: every `world_size`-th, from the `rank`-th on."""

    batch_size: int
    rank: int
    world_size: int

    @staticmethod
    def epoch(number, origin):
        """Return the epoch word of the workers' tasks: its number, and the offset of sequence number 0 in a step."""
        return number | origin << EPOCH_BITS

    def begin(self, seed, epoch, seq, row):
        """Seed samples by their positions, from `row` of the batch on; call it after `set_batch_seed`.

        `seed` is the iteration's. `epoch` is the epoch word of `RankStride.epoch`.
        """
        first = (epoch >> EPOCH_BITS) + seq * self.batch_size * self.world_size + self.rank
        _thread.row, _thread.samples = first + row * self.world_size, (seed, self.world_size)


def stream_seed():
    """Return the seed of the pass over a stream that the calling worker reads, the same in all; None elsewhere."""
    return _thread.stream


def set_batch_seed(seed, batch=None, row=0, stream=None):
    """Begin a new range of rows (or batch, or stream) for `rng`; None as `seed` ends it.

    `batch` is the seed of the whole batch, `row` the first row of the range. See `stream_seed` for `stream`.
    """
    swap_context(RngContext(seed, None, batch, row, stream))


def swap_context(context):
    """Make an `RngContext` that of the calling thread, and return the previous one.

    A loader that makes batches in the caller's own thread thus leaves no trace in it, neither for the caller nor for
    another such loader.
    """
    thread = _thread
    # Nothing is called after the first assignment, so that no signal handler can raise between two of them.
    before = RngContext(thread.seed, thread.generator, thread.batch, thread.row, thread.stream, thread.samples)
    thread.seed, thread.generator, thread.batch, thread.row, thread.stream, thread.samples = context
    return before


def sample_contexts(n):
    """Return a context (see `swap_context`) for each of the next `n` samples, and skip these samples here.

    The contexts are for concurrent reads. `sample_seed` returns there what it would have returned here, or a number if
    only `rng` has some here; `rng` restarts with each sample.
    """
    thread = _thread
    if thread.samples is not None:  # as `BySample`, except for the global generators
        return [RngContext(seed, batch=seed) for seed in [_next_sample(thread) for _ in range(n)]]
    if not has_rng():
        return [RngContext(stream=thread.stream)] * n
    batch, first = thread.batch, thread.row
    if batch is None:
        batch, first = int(rng().integers(1 << 64, dtype=np.uint64)), 0
    else:
        thread.row += n
    return [RngContext(mix(batch, row, 0), None, batch, row, thread.stream) for row in range(first, first + n)]


def has_rng():
    """Return whether `rng` has numbers in the calling thread."""
    return _thread.generator is not None or _thread.seed is not None


def set_rng(generator):
    """Set what `rng` returns in the calling thread, and nothing else: other draws are from the caller's generators."""
    _thread.generator = generator


def generator_of(seed):
    """Return the generator that `rng` returns for a seed."""
    return np.random.Generator(np.random.Philox(key=seed))


def row():
    """Return the row for which `sample_seed` returns the next seed, for `go_back`."""
    return _thread.row


def go_back(row):
    """Let `sample_seed` continue with that row."""
    _thread.row = row


def batch_seed(seed, epoch, seq, first_row, rank):
    """Return the 64-bit seed of a range of rows."""
    return mix(seed, epoch, seq, first_row, rank)


def begin_rows(job, seed, word, seq, first_row, with_globals):
    """Seed the generators for the rows of a batch from `first_row` on, unless a job's generators are seeded once.

    `seed` is the iteration's base seed, `word` the epoch word of its tasks.
    """
    if job.seeds_once:
        return
    batch = rows = batch_seed(seed, job.epoch_of(word), seq, 0, job.rank)
    if first_row:
        rows = batch_seed(seed, job.epoch_of(word), seq, first_row, job.rank)
    set_batch_seed(rows, batch, first_row)
    if with_globals:
        seed_globals(rows)
    if job.rank_stride is not None:
        job.rank_stride.begin(seed, word, seq, first_row)


# ---- the process's global generators ----


def _torch():
    """Return the torch module if the program has imported it; its default generator then exists."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def seed_globals(seed):
    """Seed `random`, numpy and, if it is imported, torch from 64 bits.

    ``torch.initial_seed()`` is then this seed. A library that seeds its own generators again when this seed changes
    then draws the numbers of the batch, whichever worker makes it.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = _torch()
    if torch is not None:
        torch.default_generator.manual_seed(seed & MASK_63)


def seed_for_sample(seed):
    """Seed the global generators for a part of one sample, if the calling worker seeds them for batches or samples.

    The part then draws the same numbers, whichever rows the worker makes. Thread workers share the generators.
    """
    thread = _thread
    if (thread.batch is not None or thread.samples is not None) and not runs_in_thread():
        seed_globals(seed)


def save_globals():
    """Return the states of the global generators, for `restore_globals`."""
    torch = _torch()
    return (random.getstate(), np.random.get_state(legacy=True), None if torch is None else torch.get_rng_state())


def restore_globals(states):
    """Restore the states that `save_globals` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def position(whole_process):
    """Return the state of the calling worker's generators as bytes, for `go_on`.

    `whole_process`: include the global generators.
    """
    globals_ = None
    if whole_process:
        python, legacy, torch = save_globals()
        globals_ = python, legacy, None if torch is None else torch.numpy().tobytes()
    return pickle.dumps((_thread.seed, _thread.generator, globals_))


def go_on(saved_state):
    """Restore the calling worker's generators from the result of `position`, which may come from another worker."""
    _thread.seed, _thread.generator, globals_ = pickle.loads(saved_state)
    if globals_ is not None:
        python, legacy, state = globals_
        torch = _torch()
        if state is not None and torch is not None:
            state = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        restore_globals((python, legacy, None if torch is None else state))
