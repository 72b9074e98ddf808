"""Each of Python's allocations fails once: in the consumer, and in a worker.

`_testcapi.set_nomemory` makes the n-th allocation from now fail: allocations of Python, Cython and numpy's
objects, not the mappings of csrc. For those see test_limits.py and test_memory.py.
"""

from functools import partial

import pytest

from slipring import Loader
from slipring.errors import SlipringError
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.processes import in_child
from tests.support.scenes import Once, Rows

_testcapi = pytest.importorskip("_testcapi", reason="this interpreter is without its test modules")

pytestmark = pytest.mark.fault

N, BATCH = 32, 4
WHOLE = [list(range(first, first + BATCH)) for first in range(0, N, BATCH)]
QUIET = 10  # after so many without an effect, `at` is beyond the last allocation


def labels(batches):
    return [batch[1].tolist() for batch in batches]


def outcomes(iterator):
    """Yield the labels of each batch, or the exception's class; keep neither batches nor tracebacks."""
    while True:
        try:
            yield next(iterator)[1].tolist()
        except StopIteration:
            return
        except MemoryError as error:
            yield type(error)


def next_starved(iterator, at):
    """Call next(); its allocation with the number `at` fails."""
    _testcapi.set_nomemory(at, at + 1)
    try:
        return next(iterator)
    finally:
        _testcapi.remove_mem_hooks()


def starve_the_consumer():
    """Let each allocation of next() fail once; return how many there are."""
    quiet = at = 0
    with Loader(Rows(N), BATCH, num_workers=2) as loader:
        assert labels(loader) == WHOLE  # the workers have started
        while quiet < QUIET:
            iterator = iter(loader)
            came = [next(iterator)]
            try:
                came.append(next_starved(iterator, at))
                came.extend(iterator)  # a sampler's error comes in its turn
                quiet += 1
            except (MemoryError, SlipringError):
                quiet = 0
            got = labels(came)
            assert got == WHOLE[: len(got)] and (len(got) == len(WHOLE) or not quiet), at
            del came, iterator
            assert labels(loader) == WHOLE, at
            ring = engine_of(loader).ring
            assert ring.circulating == ring.n_slots, at
            at += 1
    return at - QUIET


def test_a_consumer_without_memory_says_so_and_the_next_epoch_is_whole():
    # Python 3.11 loses the arguments of a call where there is no memory for a cell of the function. Here these are
    # loaders, and other tests would find them in this process.
    assert in_child(starve_the_consumer) > 0, "an allocation of next() is reached"


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_worker_without_memory_costs_no_batch_but_its_own(tmp_path, chunk_size, caplog):
    # rng="worker": seeding for each batch takes thousands of allocations. With respawn because
    # a worker that cannot even claim a task ends.
    options = {"num_workers": 2, "chunk_size": chunk_size, "on_death": "respawn", "rng": "worker"}
    quiet = at = 0
    while quiet < QUIET:
        starve = partial(_testcapi.set_nomemory, at, at + 1)
        data = Rows(N, on={3 * BATCH - 1: Once(tmp_path / str(at), starve)})
        with Loader(data, BATCH, **grouped(**options)) as loader:
            got = list(outcomes(iter(loader)))
            quiet = quiet + 1 if got == WHOLE and not loader.stats().respawns else 0
            ring = engine_of(loader).ring
            assert ring.circulating == ring.n_slots, at
        wrong = [batch for batch, right in zip(got, WHOLE, strict=True) if batch != right]
        assert wrong in ([], [MemoryError]), (at, got)
        # An exit code means that an exception ended the worker; a signal means a use of freed memory.
        assert "was killed by" not in caplog.text, at
        at += 1
    assert at > QUIET + 5, "the allocations of a worker are reached"
