"""Tasks: a worker reads exactly the task that the consumer dispatched."""

import errno

import numpy as np
import pytest

from slipring.errors import BatchTooLarge
from tests.support.inside import FINISH, MAX_RANGES, IndexOrder, Slices, _ring


def indices_of(trip, indices, range_rows=0):
    """Return a task as a worker reads it."""
    trip.dispatch(indices, range_rows)
    writer = trip.ring.claim(1, 5)
    found = writer.indices()
    trip.ring.begin_iteration(0)
    if range_rows == 0:
        writer.abort()
    return found


class Number(int):
    pass


INDICES = [
    [0, 1, 2], [], [-1, 2**63 - 1, -(2**63)], [2**63], [10**30, 1], [True, False], [np.int64(3)],
    ["key", "ключ"], [(1, "a"), None], [1.5], [Number(4), 5], [[1, 2], [3]], list(range(5000)),
]  # fmt: skip


@pytest.mark.parametrize("indices", INDICES, ids=lambda i: repr(i)[:30])
def test_indices_arrive_as_the_very_types_they_were(trip, indices):
    found = indices_of(trip, indices)
    assert found == indices and [type(i) for i in found] == [type(i) for i in indices]
    binary = all(type(i) is int and -(2**63) <= i < 2**63 for i in indices)
    assert trip.ring.meter.pickled_tasks == (0 if binary else 1)


@pytest.mark.parametrize("indices", [(3, 1), range(4), {5}, np.arange(3), "text"], ids=repr)
def test_indices_arrive_as_the_object_that_held_them(trip, indices):
    found = indices_of(trip, indices)
    assert type(found) is type(indices) and list(found) == list(indices)


@pytest.mark.parametrize("kind", [tuple, list, np.array, set])
def test_a_chunk_of_indices_is_a_part_of_them(trip, kind):
    indices = kind(["a", "b", "c"])
    found = indices_of(trip, indices, range_rows=2)
    if kind is set:  # pickling may change its order
        assert type(found) is list and len(set(found)) == 2 and set(found) < indices
    else:
        assert type(found) is type(indices) and list(found) == list(indices)[:2]


def slices_of(trip, order, *arguments):
    """Return each slice as workers read it."""
    slices, found = Slices(order, *arguments), []
    while slices.advance():
        found.append(indices_of(trip, slices))
    assert not slices.advance()
    return found


def test_slices_of_ascending_indices_arrive_as_ints(trip):
    seven = IndexOrder(7)
    assert slices_of(trip, seven, 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert slices_of(trip, seven, 3, True) == slices_of(trip, IndexOrder(6), 3) == [[0, 1, 2], [3, 4, 5]]
    assert slices_of(trip, IndexOrder(0), 3) == slices_of(trip, IndexOrder(2), 3, True) == []
    (found,) = slices_of(trip, IndexOrder(2), 1 << 40)
    assert found == [0, 1] and {type(i) for i in found} == {int}
    assert trip.ring.meter.pickled_tasks == 0


def test_slices_of_a_permutation_arrive_as_ints(trip):
    order = IndexOrder.stored(np.array([4, 2, 0, 3, 1]))
    found = slices_of(trip, order, 2)
    assert found == [[4, 2], [0, 3], [1]] and {type(i) for indices in found for i in indices} == {int}
    assert slices_of(trip, order, 2, True) == [[4, 2], [0, 3]]


def test_a_slice_of_more_indices_than_a_task_can_count_is_refused(trip):
    slices = Slices(IndexOrder(1 << 61), 1 << 61)
    slices.advance()
    with pytest.raises(BatchTooLarge, match=r"use a smaller batch_size \(at most 4294967295 whole numbers\)"):
        trip.ring.dispatch(trip.ring.pick_free(), slices, 0, 0, 0, 0, 0, 0, 0, False)
    assert trip.free == 4


def test_a_task_carries_the_dispatchers_arguments(trip):
    big = 2**64 - 1
    slot = trip.ring.pick_free()
    trip.ring.begin_iteration(7)
    trip.ring.dispatch(slot, [5], 7, 3, big, 99, 12, 2, 0, True)  # addressed to participant 1
    assert trip.ring.claim(2, 0) is None
    writer = trip.ring.claim(1, 5)
    assert (writer.iteration, writer.epoch, writer.seq, writer.seed, writer.sequence) == (7, 3, big, 99, 12)
    assert writer.single and writer.n_rows == 1 and writer.n_ranges == 0 and writer.range is None
    assert writer.asked_for is None and writer.indices() == [5] == writer.asked_for
    assert (writer.slot, writer.participant, writer.ring) == (slot, 1, trip.ring)
    writer.abort()


def test_a_stream_has_no_indices(trip):
    trip.ring.dispatch(trip.ring.pick_free(), None, 0, 0, 0, 0, 0, 0, 0, False)
    writer = trip.ring.claim(1, 5)
    assert writer.kind == _ring.TASK_NEXT and writer.indices() == []
    writer.abort()


@pytest.mark.parametrize("indices", [list(range(10)), [str(i) for i in range(10)]], ids=["ints", "texts"])
def test_a_shared_task_gives_each_range_its_rows(trip, indices):
    trip.dispatch(indices, range_rows=4)
    fills = [trip.ring.claim(1, 5) for _ in range(3)]
    assert [f.range for f in fills] == [0, 1, 2] and fills[0].n_ranges == 3
    assert [f.rows_of(f.range) for f in fills] == [(0, 4), (4, 8), (8, 10)]
    assert [f.indices() for f in fills] == [indices[:4], indices[4:8], indices[8:]]
    assert FINISH not in (0, 1, 2)


def test_more_ranges_than_a_slot_has_are_refused(trip):
    with pytest.raises(OSError) as caught:
        trip.ring.dispatch(trip.ring.pick_free(), list(range(MAX_RANGES + 1)), 0, 0, 0, 0, 0, 0, 1, False)
    assert caught.value.errno == errno.EINVAL
    assert trip.free == 4


def test_the_lost_work_of_a_dead_worker_can_be_named(trip):
    trip.dispatch([1, 2], seq=8)
    trip.ring.claim(1, 5)
    trip.dispatch(["x"], seq=7, addressee=2)  # not claimed
    trip.dispatch(None, seq=9, addressee=2)
    assert trip.ring.in_flight(1) == [(7, ["x"]), (8, [1, 2]), (9, None)]
    assert trip.ring.in_flight(2) == []
    assert trip.ring.recover(1) == 1
    assert trip.ring.claim(2, 5).seq == 8  # the task for any worker
    assert trip.ring.claim(1, 5).seq == 7  # its successor claims it


# ---- refusals, with their numbers
