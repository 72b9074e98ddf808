"""Arrays that are in the slot already are not copied, and arrays that worker code keeps are not overwritten."""

import threading
from collections import OrderedDict

import numpy as np
import pytest

from tests.support.inside import (
    ERROR,
    NUMPY,
    RowWriter,
    empty,
    layout,
)
from tests.support.trip import Trip, address

RECORDS = 600  # bytes: the maximum for records and treedef of a few leaves


SHAPES = [(5, "f4"), ((2, 3), np.int8), ([4], "M8[s]"), ((), "U3"), ((0, 2), "i4"), ((np.int64(2),), "?")]


def test_empty_makes_the_same_arrays_as_numpy_and_inside_a_fill_in_the_slot(trip):
    assert empty((2, 3), "i2").base is None and empty(3).dtype == np.float64

    def work():
        for shape, dtype in SHAPES:
            array = empty(shape, dtype)
            like = np.empty(shape, dtype)
            assert array.shape == like.shape and array.dtype == like.dtype
            assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
            assert array.base is not None and address(array) % 64 == 0
        for without_bytes in (object, [("a", object)], "V0", "S0"):
            assert not in_slot(empty((2,), without_bytes))

    trip(work)


def in_slot(array):
    return type(array.base).__name__ == "SlotPin"


def test_shapes_that_cannot_be_are_refused(trip):
    writer = trip.claim()
    with writer:
        for shape in ((-1,), (1 << 40, 1 << 40), (1.5,), ("a",), (1,) * 65):
            with pytest.raises((ValueError, TypeError)):
                empty(shape, np.uint8)
    writer.abort()


VIEWS = {
    "a slice": lambda a: a[10:20],
    "a row": lambda a: a[3],
    "one element": lambda a: a[3, 2:3],
    "reshaped": lambda a: a.reshape(5, -1),
    "of another dtype": lambda a: a.view(np.uint16),
    "misaligned": lambda a: a.view(np.uint8).reshape(-1)[3:1003],
    "misaligned int": lambda a: a.view(np.uint8).reshape(-1)[3:1003].view(np.int16),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_of_arrays_in_the_slot_are_not_copied(trip, make):
    def work():
        array = empty((100, 50), np.int32)
        array[:] = np.arange(5000).reshape(100, 50)
        return {"whole": array, "view": make(array)}

    wanted = make(np.arange(5000, dtype=np.int32).reshape(100, 50))
    got = trip(work)
    assert got["view"].dtype == wanted.dtype and got["view"].tolist() == wanted.tolist()
    assert got["view"].flags.aligned == wanted.flags.aligned
    assert np.shares_memory(got["view"], got["whole"])
    assert trip.bytes_of(work) < 20_000 + RECORDS


def test_an_array_of_another_slot_is_copied_and_keeps_that_slot(trip):
    first = trip.claim()
    with first:
        array = empty((4,), np.int64)
        array[:] = 9
    got = trip(lambda: array)
    assert got.tolist() == [9] * 4 and address(got) != address(array)
    with first:
        trip.encoder.publish(first, [array])
    assert trip.take(first.slot).tolist() == [9] * 4


def test_an_array_that_worker_code_keeps_parks_the_slot_until_its_end(trip):
    cache = []

    def work():
        array = empty((3,), np.int64)
        array[:] = [1, 2, 3]
        cache.append(array[1:])
        return array

    got = trip(work)
    kept, cache[:] = cache[0], []
    del kept
    assert trip.free == 3  # the consumer has it, too
    del got
    assert trip.free == 4
    got = trip(work)
    del got
    assert trip.free == 3  # parked
    for i in range(8):
        trip(np.full(1000, i))
    assert cache[0].tolist() == [2, 3]
    cache.clear()
    assert trip.free == 4


KEPT = {
    "the array": lambda a: (a, a),
    "a part of it": lambda a: (a[1:], a),
    "the array, and a part is sent": lambda a: (a, a[1:]),
    "a tensor of it": lambda a: (pytest.importorskip("torch").from_numpy(a), a),
    "the array, and a tensor is sent": lambda a: (a, pytest.importorskip("torch").from_numpy(a)),
}


@pytest.mark.parametrize("split", KEPT.values(), ids=KEPT)
def test_kept_and_delivered_arrays_share_no_byte(trip, split):
    cache = []

    def work():
        array = empty((3,), np.int64)
        array[:] = [1, 2, 3]
        kept, sent = split(array)
        cache.append(kept)
        return {"sent": sent, "text": "t", "other": np.arange(5)}

    got = trip(work)
    sent, kept = got["sent"].tolist(), cache[0].tolist()
    cache[0][:] = 77
    assert got["sent"].tolist() == sent and got["text"] == "t" and got["other"].tolist() == [0, 1, 2, 3, 4]
    got["sent"][:] = 99
    assert cache[0].tolist() == [77] * len(kept)
    assert trip.ring.meter.kept_batches == 1


def test_leaves_that_share_bytes_go_on_doing_so_when_they_are_set_apart(trip):
    cache = []

    def work():
        cache.append(empty((10,), np.int16))
        cache[0][:] = range(10)
        return cache[0][3:], cache[0][1:7], empty((0, 3)), 5

    a, b, nothing, five = trip(work)
    assert a.tolist() == list(range(3, 10)) and b.tolist() == list(range(1, 7)) and five == 5
    a[0] = 55
    assert b[2] == 55 and cache[0][3] == 3 and nothing.shape == (0, 3)


def test_an_entry_that_does_not_fit_twice_is_refused_and_stays():
    trip, cache = Trip(2, capacity=1 << 16), []
    writer = trip.claim()
    with writer:
        cache.append(empty((40_000,), np.uint8))
        cache[0][:] = 7
        with pytest.raises(ValueError, match="does not fit a slot"):
            trip.encoder.publish(writer, [cache[0]])
        writer.rewind()
        trip.encoder.publish(writer, [["an error"]], ERROR)
    trip.ring.discard(writer.slot)
    assert (cache[0] == 7).all()


def test_an_array_that_worker_code_keeps_of_an_abandoned_batch_parks_the_slot(trip):
    cache = []
    slot = trip.put(lambda: cache.append(empty((3,), np.int64)))
    assert trip.ring.discard(slot)
    assert trip.free == 3
    cache.clear()
    assert trip.free == 4


def test_an_error_in_place_of_a_batch_leaves_arrays_that_worker_code_keeps(trip):
    cache = []
    writer = trip.claim()
    with writer:
        cache.append(empty((8,), np.int64))
        cache[0][:] = 7
        writer.rewind()
        trip.encoder.publish(writer, [{"error": "x" * 500}], ERROR)
    assert cache[0].tolist() == [7] * 8
    trip.ring.discard(writer.slot)
    assert trip.free == 3
    cache.clear()
    assert trip.free == 4


def test_after_a_hard_rewind_an_error_has_a_place_in_a_full_slot():
    trip = Trip(2, capacity=1 << 16)
    writer = trip.claim()
    with writer:
        cache = [empty(((1 << 16) - 64,), np.uint8)]
        writer.rewind()
        with pytest.raises(ValueError, match="does not fit a slot"):
            trip.encoder.publish(writer, [["an error"] * 9], ERROR)
        writer.rewind(hard=True)
        trip.encoder.publish(writer, [["an error"] * 9], ERROR)
    trip.ring.discard(writer.slot)
    del cache


def test_fills_may_nest(trip):
    outer = trip.claim()
    with outer:
        before = empty((2,), np.int64)
        before[:] = 1
        assert trip(lambda: empty((2,), np.int64)).shape == (2,)
        after = empty((2,), np.int64)
        after[:] = 2
        assert in_slot(after) and 0 < address(after) - address(before) < 4096
        trip.encoder.publish(outer, [[before, after]])
        del before, after
    assert [a.tolist() for a in trip.take(outer.slot)] == [[1, 1], [2, 2]]


def test_another_threads_arrays_are_ordinary(trip):
    found = []
    with trip.claim() as writer:
        thread = threading.Thread(target=lambda: found.append(in_slot(empty((3,)))))
        thread.start()
        thread.join()
    writer.abort()
    assert found == [False]


# ---- batches that several workers fill


def share_rows(trip):
    def share(rows):
        if rows.writer.propose_layout() == 0:
            assert trip.encoder.settle_direct(rows.writer, *rows.reserve(rows.writer.n_rows))
        else:
            rows.adopt(*layout(rows.writer))

    return share


def test_arrays_from_empty_are_ordinary_while_a_batch_is_shared(trip):
    # Only one worker can hold a slot; the sample is copied to its row in any case.
    with trip.claim(range(4), range_rows=2) as writer:
        assert not in_slot(empty((3,)))
        rows = RowWriter(0, 2, NUMPY, share_rows(trip))
        rows.put(0, 1.5)
        assert in_slot(layout(writer)[0])


GOOD = {"x": np.ones((2, 2), "f4"), "n": [1, (2.0,)], "text": "abc"}


@pytest.mark.parametrize(
    "other",
    [
        {**GOOD, "x": np.ones(3, "f4")},
        {"x": GOOD["x"]},
        {**GOOD, "z": 1},
        5,
        {**GOOD, "n": None},
        {**GOOD, "n": [1, (2,)]},
        {**GOOD, "n": [1, [2.0]]},
        {**GOOD, "n": [1 << 63, (2.0,)]},
        OrderedDict(GOOD),
    ],
)
def test_samples_that_do_not_fit_the_layout_have_those_before_read_back(trip, other):
    with trip.claim([70, 71, 72, 73], range_rows=2):
        rows = RowWriter(0, 2, NUMPY, share_rows(trip))
        rows.put(0, GOOD)
        assert rows.in_place
        rows.put(1, other)
        assert not rows.in_place
        first, second = rows.read_back()
        assert second is other
        assert list(first) == list(GOOD) and first["n"] == GOOD["n"] and first["text"] == "abc"
        assert first["x"].dtype == np.float32 and (first["x"] == GOOD["x"]).all()
