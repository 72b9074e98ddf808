"""Random numbers that do not depend on which worker makes a batch.

With ``rng="batch"``, the generators are seeded before each range of rows from (seed, epoch, seq, first row, rank). The
number of workers, their speed and a resume then do not change the results. With ``rng="sample"``, they are also seeded
before each sample, from (seed, the sample's position in the order of all ranks). The results then depend on neither the
number of ranks nor the batch size.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pickle
import random
import sys
import threading

import numpy as np

from slipring._core._ring import EPOCH_BITS, mix

MASK_63 = (1 << 63) - 1


_SAMPLE = 0x53414D504C45  # keeps the samples' seeds apart from the batches'


class _Place(threading.local):
    seed = None
    generator = None
    batch = None  # the seed of the whole batch, of which this range is a part
    row = 0  # of the batch, that `sample_seed` tells of next
    stream = None  # the seed of a pass over a stream, the same in all its workers
    samples = None  # with rng="sample" the run's seed, and the distance between two samples of the batch


_thread = _Place()
NOWHERE = (None, None, None, 0, None, None)  # a place, for `swap_place`, where no batch is being made


def rng() -> np.random.Generator:
    """Return the numpy Generator of the batch (or rows, or stream) that the calling worker makes.

    Not to be confused with the loader's option ``rng=``, which says when generators are seeded, this one too:
    with each batch, or once in each worker. By default it gives the same numbers whatever the number and kind
    of workers, also in thread workers, which share Python's and numpy's global generators and therefore never
    seed them.

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
                "slipring.rng() is the generator of the batch being made: call it in a dataset, a transform "
                "or in collate_fn; elsewhere use numpy.random.default_rng()"
            )
        _thread.generator = np.random.Generator(np.random.Philox(key=_thread.seed))
    return _thread.generator


def sample_seed():
    """Return 64 random bits for the next sample of the batch being made; None outside of a worker.

    They depend on the sample's row in the batch, and so neither on the workers nor on `chunk_size`. Where there is no
    seed of a batch (streams, ``rng="worker"``), `rng` draws them.
    """
    place = _thread
    if place.samples is not None:
        return mix(_next_sample(place), 1)
    if place.batch is not None:
        place.row += 1
        return mix(place.batch, place.row)
    return None if place.seed is None else int(rng().integers(1 << 64, dtype=np.uint64))


def _next_sample(place):
    """The seed of the sample at the next position."""
    seed, distance = place.samples
    position, place.row = place.row, place.row + distance
    return mix(seed, position, _SAMPLE)


class BySample:
    """A map dataset whose every sample finds the generators seeded for it, as for a batch of its own.

    Parameters
    ----------
    dataset
        What has ``__getitem__``.
    seeds_globals : bool
        Whether the process's global generators are seeded too. Threads share them, so they leave them alone.
    """

    def __init__(self, dataset, seeds_globals=True):
        self.dataset, self.seeds_globals = dataset, seeds_globals

    def __getitem__(self, index):
        seed = _next_sample(_thread)
        batch = swap_place((seed, None, seed, 0, None, None))
        try:
            if self.seeds_globals:
                seed_globals(seed)
            return self.dataset[index]
        finally:
            swap_place(batch)


@dataclasses.dataclass(frozen=True)
class Share:
    """Which samples of a step are a rank's: every `world_size`-th, from the `rank`-th on.

    Parameters
    ----------
    batch_size, rank, world_size : int
    """

    batch_size: int
    rank: int
    world_size: int

    @staticmethod
    def epoch(number, origin):
        """Return the epoch word of the workers' tasks: its number, and the offset of sequence number 0 in a step."""
        return number | origin << EPOCH_BITS

    def begin(self, seed, epoch, seq, row):
        """Have samples be seeded by their positions, from that row of the batch on; behind `set_batch_seed`.

        Parameters
        ----------
        seed, epoch : int
            The run's; see `epoch`.
        seq, row : int
        """
        first = (epoch >> EPOCH_BITS) + seq * self.batch_size * self.world_size + self.rank
        _thread.row, _thread.samples = first + row * self.world_size, (seed, self.world_size)


def stream_seed():
    """Return the seed of the pass over a stream that the calling worker reads, the same in all; None elsewhere."""
    return _thread.stream


def set_batch_seed(seed, batch=None, row=0, stream=None):
    """Begin a new range of rows (or batch, or stream) for `rng`; None ends it.

    Parameters
    ----------
    seed : int or None
    batch : int, optional
        The seed of the batch as a whole.
    row : int
        The first row.
    stream : int, optional
        See `stream_seed`.
    """
    _thread.seed = seed
    _thread.generator = None
    _thread.batch = batch
    _thread.row = row
    _thread.stream = stream
    _thread.samples = None


def swap_place(place):
    """Make `place`, as an earlier call returned it, the calling thread's; return what was there.

    A loader that makes batches in the caller's own thread leaves no trace there: neither for the caller nor
    for another such loader.
    """
    thread = _thread
    before = thread.seed, thread.generator, thread.batch, thread.row, thread.stream, thread.samples
    thread.seed, thread.generator, thread.batch, thread.row, thread.stream, thread.samples = place
    return before


def sample_places(n):
    """Return a place (see `swap_place`) for each of the next `n` samples, which are passed over here.

    They are for whoever reads the samples beside one another. What `sample_seed` gives there is what it would
    have given here; `rng` begins anew with each sample.
    """
    place = _thread
    if place.samples is not None:  # as `BySample`, but for the global generators
        return [(seed, None, seed, 0, None, None) for seed in [_next_sample(place) for _ in range(n)]]
    if place.seed is None:
        return [(None, None, None, 0, place.stream, None)] * n
    batch, first = place.batch, place.row
    if batch is None:
        batch, first = sample_seed(), 0
    else:
        place.row += n
    return [(mix(batch, row, 0), None, batch, row, place.stream, None) for row in range(first, first + n)]


def row():
    """Return of which row `sample_seed` tells next, for `go_back`."""
    return _thread.row


def go_back(row):
    """Have `sample_seed` tell of that row next."""
    _thread.row = row


def batch_seed(seed, epoch, seq, first_row, rank):
    """Return the 64-bit seed of a range of rows."""
    return mix(seed, epoch, seq, first_row, rank)


# ---- the process's global generators ----


def _torch():
    """The torch module if the program has imported it (its default generator then exists)."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def seed_globals(seed):
    """Seed `random`, numpy and, if it is imported, torch from 64 bits."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = _torch()
    if torch is not None:
        _seed_torch(torch.default_generator, seed & MASK_63)


def _seed_torch(generator, seed):
    """Seed torch's generator, but keep what ``torch.initial_seed()`` says: the first word of its state."""
    initial = generator.initial_seed()
    generator.manual_seed(seed)
    state = generator.get_state()
    ctypes.c_uint64.from_address(state.data_ptr()).value = initial
    generator.set_state(state)


def save_globals():
    """Return the states of the global generators, for `restore_globals`."""
    torch = _torch()
    return (
        random.getstate(),
        np.random.get_state(legacy=True),
        None if torch is None else torch.get_rng_state(),
    )


def restore_globals(states):
    """Put back what `save_globals` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def position(whole_process):
    """Return as bytes where the calling worker's generators are, for `go_on`.

    Parameters
    ----------
    whole_process : bool
        The global generators too.
    """
    globals_ = None
    if whole_process:
        python, legacy, torch = save_globals()
        globals_ = python, legacy, None if torch is None else torch.numpy().tobytes()
    return pickle.dumps((_thread.seed, _thread.generator, globals_))


def go_on(saved_state):
    """Put the calling worker's generators where `position` found another's."""
    _thread.seed, _thread.generator, globals_ = pickle.loads(saved_state)
    if globals_ is not None:
        python, legacy, state = globals_
        torch = _torch()
        if state is not None and torch is not None:
            state = torch.frombuffer(bytearray(state), dtype=torch.uint8)
        restore_globals((python, legacy, None if torch is None else state))
