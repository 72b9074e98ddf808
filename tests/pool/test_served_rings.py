"""A worker of several segments takes the task of the consumer that would run dry first."""

import contextlib
import os

import pytest

from tests.support.inside import BATCH, ServedRings
from tests.support.trip import Trip

WORKER = 1


@contextlib.contextmanager
def wake_file():
    fd = os.memfd_create("wake")
    try:
        os.ftruncate(fd, 4096)
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def trips():
    """Three segments that one worker serves."""
    with wake_file() as fd:
        made = [Trip(), Trip(), Trip()]
        for trip in made:
            trip.ring.use_wake_file(fd)
    yield made
    for trip in made:
        trip.end()


def served(trips):
    rings = ServedRings(WORKER)
    for trip in trips:
        rings.add(trip.ring)
    return rings


def claimed(rings, trips):
    """Claim a task; return (the index of its segment, the slot writer)."""
    ring, writer = rings.claim(rings.wake_count())
    return [trip.ring for trip in trips].index(ring), writer


def test_the_segment_with_the_lowest_share_of_made_batches_comes_first(trips):
    rings = served(trips)
    for number, trip in enumerate(trips):
        for batch in range(2 - number):  # two, one and no batch are READY
            trip.put(batch)
        trip.dispatch([0], seq=10)
        trip.dispatch([0], seq=11)
    indices, writers = zip(*(claimed(rings, trips) for _ in range(6)), strict=True)
    assert indices[:2] == (2, 1)  # shares 0 and 1/3, and then a claim counts as a batch
    assert sorted(indices) == [0, 0, 1, 1, 2, 2]
    for writer in writers:
        writer.abort()


def test_equal_segments_take_turns(trips):
    rings = served(trips)
    for trip in trips:
        trip.dispatch([0], seq=0)
        trip.dispatch([0], seq=1)
    found = [claimed(rings, trips) for _ in range(6)]
    assert [index for index, _ in found] == [1, 2, 0, 1, 2, 0]
    for _, writer in found:
        writer.abort()


def test_a_closed_segment_is_passed_over_and_one_that_was_removed_is_not_served(trips):
    rings = served(trips)
    slots = [trip.dispatch([0]) for trip in trips]
    trips[0].ring.close()
    rings.remove(trips[1].ring)
    index, writer = claimed(rings, trips)
    with writer:
        trips[2].encoder.publish(writer, [7], BATCH)
    assert index == 2 and trips[2].take(slots[2]) == 7
    seen = rings.wake_count()
    trips[2].ring.wake_worker(WORKER)
    assert rings.claim(seen) is None


def test_a_worker_that_was_woken_before_its_wait_returns_at_once(trips):
    rings = served(trips)
    seen = rings.wake_count()
    trips[1].ring.wake_worker(WORKER)
    assert rings.wake_count() == seen + 1 == trips[0].ring.wake_count(WORKER)
    assert rings.claim(seen) is None


def test_a_worker_without_segments_cannot_wait():
    with pytest.raises(RuntimeError, match="serves no segment"):
        ServedRings(WORKER).claim(0)


def test_a_wake_file_that_is_too_short_is_refused():
    trip = Trip()
    fd = os.memfd_create("wake")
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            trip.ring.use_wake_file(fd)
    finally:
        os.close(fd)
        trip.end()
