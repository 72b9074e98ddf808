"""No memory: an error with numbers and a remedy; all else continues to work. Never SIGBUS."""

import contextlib
import os

import pytest

from slipring import Loader, Memory, SegmentFull, WorkerError, Workers
from slipring.errors import BatchTooLarge
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import circulating
from tests.support.scenes import Named, Sized

pytestmark = pytest.mark.fault

KB, MB = 1 << 10, 1 << 20
WORKERS = [
    {"num_workers": 0},
    *({"num_workers": 2, "start_method": method} for method in ("fork", "spawn", "thread")),
    slow({"num_workers": 2, "start_method": "forkserver"}),
]


def fill(place):
    """Fill a directory's file system; return the file."""
    path = os.path.join(place, "filler")
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * (64 * KB))
    return path


def goes_on(loader_options):
    """Return whether another loader works in the same process."""
    with Loader(Sized([KB] * 8), 2, **grouped(**loader_options)) as other:
        return [b[1].tolist() for b in other] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_a_batch_beyond_the_file_system_is_an_error_at_its_turn(small, workers):
    sizes = [100 * KB] * 4 + [50 * MB] * 2 + [100 * KB] * 4
    with Loader(Sized(sizes), 2, **grouped(backing=small(16 * MB), slots=8, **workers)) as loader:
        it = iter(loader)
        assert [next(it)[1].tolist(), next(it)[1].tolist()] == [[0, 1], [2, 3]]
        with pytest.raises(SegmentFull) as caught:
            next(it)
        error = caught.value
        assert error.needed > 99 * MB and 0 < error.free < 16 * MB
        assert str(error.needed) in str(error) and str(error.free) in str(error)
        assert "file system" in str(error) and "slots=8" in str(error)
        if workers["num_workers"]:
            assert error.__cause__.indices == [4, 5]
        assert [b[1].tolist() for b in it] == [[6, 7], [8, 9]]
        assert circulating(engine_of(loader).ring)[0] == 8
        assert goes_on(workers)


@pytest.mark.parametrize("changed", [{"chunk_size": 8}, {"chunk_size": 64}, {"chunk_size": 100}, {}], ids=str)
@pytest.mark.parametrize("size", [200 * KB, 16 * KB])
def test_a_large_batch_of_many_rows_says_so_too(small, changed, size):
    """The slot has little room for the error: its indices alone would need more."""
    with Loader(
        Sized([size] * 800),
        400,
        num_workers=2,
        **grouped(backing=small(5 * MB), slots=4, start_method="fork", **changed),
    ) as loader:
        it = iter(loader)
        for _ in range(2):
            with pytest.raises(SegmentFull) as caught:
                next(it)
            assert caught.value.needed > 0 and "file system" in caught.value.limit
        assert list(it) == []
        assert loader.stats().respawns == 0
        assert circulating(engine_of(loader).ring)[0] == 4


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_an_error_that_needs_more_room_than_there_is_arrives_shortened(small, chunk_size):
    names = [[f"{i} " + "é" * 4000 for i in range(32 * batch, 32 * batch + 32)] for batch in range(3)]
    place = small(4 * MB)
    options = {"num_workers": 1, "start_method": "fork", "chunk_size": chunk_size, "slots": 2}
    data = Named([64 * KB] * 32 + [1 * MB] * 64)
    with Loader(data, batch_sampler=names, **grouped(backing=place, **options)) as loader:
        it = iter(loader)
        next(it)
        fill(place)
        for _ in range(2):
            with pytest.raises((SegmentFull, WorkerError)) as caught:
                for _ in it:
                    pass
            assert "no memory" in str(caught.value)


class Wordy(Sized):
    """Raises an exception whose text does not fit."""

    def __getitem__(self, i):
        raise ArithmeticError(("¿" * 100_000) + " the end")


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_an_exception_with_a_long_text_arrives_where_there_is_no_room(small, chunk_size):
    place = small(2 * MB)
    options = {"num_workers": 2, "start_method": "fork", "chunk_size": chunk_size, "slots": 4}
    with Loader(Wordy([1] * 64), 32, **grouped(backing=place, **options)) as loader:
        it = iter(loader)
        fill(place)
        for _ in range(2):
            with pytest.raises((ArithmeticError, WorkerError)):
                next(it)
        assert list(it) == []


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
def test_a_full_file_system_refuses_the_segment_and_can_be_used_later(small, workers):
    place = small(2 * MB)
    filler = fill(place)
    with Loader(Sized([KB] * 4), 2, **grouped(backing=place, **workers)) as loader:
        for _ in range(2):
            with pytest.raises(SegmentFull) as caught:
                iter(loader)
            assert caught.value.needed > caught.value.free
            assert "file system" in str(caught.value)
        os.unlink(filler)
        assert [b[1].tolist() for b in loader] == [[0, 1], [2, 3]]


def test_committed_memory_stays_usable_when_the_file_system_fills_up(small):
    """Reads and writes of committed pages need no free memory: no SIGBUS, whatever other processes write."""
    place = small(32 * MB)
    with Loader(
        Sized([MB] * 12), 2, num_workers=2, workers=Workers(start_method="fork"), memory=Memory(backing=place, slots=4)
    ) as loader:
        for _ in range(3):
            assert len([b[1][0] for b in loader]) == 6
        filler = fill(place)
        for _ in range(3):
            assert [b[1].tolist() for b in loader] == [[i, i + 1] for i in range(0, 12, 2)]
        os.unlink(filler)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_a_batch_beyond_its_slot_says_which_argument_to_raise(workers):
    sizes = [10 * KB] * 2 + [MB] * 2 + [10 * KB] * 2
    with Loader(Sized(sizes), 2, **grouped(slot_bytes=128 * KB, **workers)) as loader:
        it = iter(loader)
        assert next(it)[1].tolist() == [0, 1]
        with pytest.raises(BatchTooLarge, match=r"raise slot_bytes to at least \d+") as caught:
            next(it)
        assert caught.value.needed >= 2 * MB
        assert caught.value.limit == 128 * KB == loader.stats().slot_bytes
        assert next(it)[1].tolist() == [4, 5]
        needed = caught.value.needed
        with pytest.raises(StopIteration):
            next(it)
    with Loader(Sized(sizes), 2, **grouped(slot_bytes=needed + 64 * KB, **workers)) as loader:
        assert len(list(loader)) == 3
