"""The loop that consumes a baseline's batches: checks the first, warms up, and times the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.collate import as_array, digest, leaves, nbytes
from bench.exact import check_form

CHECKED = 3
"""Batches compared with the expected bytes, before the clock starts."""

WARM_BATCHES = 24
"""Enough batches to use every slot, segment or buffer of every baseline once."""


@dataclass
class Progress:
    """The roofline yields this instead of a batch: the number of batches made since the last one."""

    batches: float


@dataclass(frozen=True)
class Timing:
    """How long to warm up (at most) and to measure, in seconds; the count of batches is a `multiple`.

    Workers that start together finish together: a window that ends between them counts too much or too little.
    `first` batches pass before the warm-up.
    """

    warm_s: float
    window_s: float
    multiple: int = 1
    first: int = 0


class WrongBatch(Exception):
    """A baseline delivered bytes that differ from the dataset's."""


def measure(
    batches: Iterator[Any],
    expected: set[int] | None,
    timing: Timing,
    batch_size: int,
    counts: Callable[[], tuple[int, int] | None] | None = None,
) -> dict[str, Any]:
    """Measure one baseline on one workload.

    Parameters
    ----------
    batches
        The baseline's batches, without end.
    expected
        The digests that its first batches may have, in any order; None: they
        are random crops, of which only the form is checked.
    timing
        The durations.
    batch_size
        Samples in a batch.
    counts
        Returns the numbers of cache hits and misses; None: there is no cache.

    Returns
    -------
    dict
        ``rate`` (batches/s), ``batches``, ``seconds``, ``nbytes`` of a batch; ``cpu_us``, the CPU time of
        this process per batch; ``touch_us``, the part of it for reading one element of each leaf; if
        there is a cache, ``hits``, the share of hits in the timed window.
    """
    size = _check(batches, expected, batch_size)
    for _ in range(timing.first):
        next(batches)
    _run(batches, timing.warm_s, WARM_BATCHES)
    before = counts and counts()
    cpu = time.process_time()
    count, seconds, last = _run(batches, timing.window_s, multiple=timing.multiple)
    cpu = time.process_time() - cpu
    result: dict[str, Any] = {
        "batch_size": batch_size,
        "rate": count / seconds,
        "batches": count,
        "seconds": seconds,
        "nbytes": size,
    }
    if not isinstance(last, Progress):
        if counts and before and (after := counts()):
            found, missed = (new - old for new, old in zip(after, before))
            result["hits"] = found / max(1, found + missed)
        result["cpu_us"] = cpu / count * 1e6
        result["touch_us"] = _touch_cost(last)
    return result


def _check(batches: Iterator[Any], expected: set[int] | None, batch_size: int) -> int:
    """Compare the first batches with the expected ones; return the bytes of one."""
    for number in range(CHECKED):
        batch = next(batches)
        size = nbytes(batch)
        if expected is None:
            if wrong := check_form([as_array(leaf) for leaf in leaves(batch)], batch_size):
                raise WrongBatch(f"batch {number}: {wrong}")
        elif digest(batch) not in expected:
            what = ", ".join(f"{as_array(leaf).dtype}{as_array(leaf).shape}" for leaf in leaves(batch)[:3])
            raise WrongBatch(f"batch {number} is not one of the dataset's: {what}")
        del batch
    return size


def _run(
    batches: Iterator[Any], seconds: float, enough: float = float("inf"), multiple: int = 1
) -> tuple[float, float, Any]:
    """Take batches for some time, or until there are enough; start and end with the arrival of a batch.

    Their number is a `multiple` if they are counted one by one.

    Returns
    -------
    count, seconds, last
        The number of batches, the time, and the last batch.
    """
    clock = time.perf_counter
    next(batches)
    count: float = 0
    begin = clock()
    end = begin + seconds
    for batch in batches:
        if type(batch) is Progress:
            count += batch.batches
        else:
            _touch(batch)
            count += 1
        now = clock()
        if (now >= end and (type(batch) is Progress or count % multiple == 0)) or count >= enough:
            break
        # Not held while waiting for the next one, as in a training loop that has moved it to the device.
        batch = None
    return count, now - begin, batch


def _touch(batch: Any) -> None:
    """Read one element of each leaf."""
    for leaf in leaves(batch):
        as_array(leaf).item(0)


def _touch_cost(batch: Any) -> float:
    """Measure the cost of `_touch` for a batch in the cache, in microseconds."""
    rounds = 200
    begin = time.perf_counter()
    for _ in range(rounds):
        _touch(batch)
    return (time.perf_counter() - begin) / rounds * 1e6
