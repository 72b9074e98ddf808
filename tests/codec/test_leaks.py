"""Thousands of trips leave nothing behind: no reference, no memory, no slot."""

import collections
import dataclasses
import gc
import sys
import tracemalloc

import numpy as np
import pytest

from slipring.errors import CorruptBatch
from tests.support.inside import COPY_ALWAYS, COPY_AUTO, default_collate, empty, probe

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    a: object


CALLS = 1000  # the interpreter keeps up to 15 kB in its own caches
LITTLE = CALLS * 16  # bytes: less than the smallest object for each


class Fails:
    def __reduce__(self):
        raise ZeroDivisionError("on purpose")


def in_slot():
    array = empty((10,), np.int64)
    array[:] = 1
    return {"a": array, "b": array[2:5], "c": array.reshape(2, 5).T}


def mismatched():
    try:
        return default_collate([np.zeros(2), np.zeros(3)])
    except ValueError:
        return None


def values():
    """Return a value of each kind; it is called inside a slot writer."""
    return [
        [1, 2.5, True, None, 1 << 62],
        ["a", "b", {"s": "text", "b": b"bytes"}],
        {"a": np.arange(10), "b": np.zeros((2, 3))[:, ::2], "e": np.zeros((0, 2))},
        [np.zeros(2, "M8[s]"), np.zeros(2, "i4,f8"), np.zeros(2, ">i4"), np.zeros(2, "U3")],
        [np.float32(1), np.datetime64(5, "s")],
        (Point(1, [2]), Record((3,)), collections.OrderedDict(a=1), {(1, "k"): 2}),
        [{1, 2}, {frozenset("k"): np.arange(10)}, 1 << 100],
        in_slot(),
        default_collate([(np.zeros(3), i, "t", {"k": i / 2}, Point(i, None)) for i in range(4)]),
        mismatched(),
    ]


def grown(function):
    """Return by how many bytes Python's memory grows over many calls, after some for warm-up."""
    for _ in range(300):
        function()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(50):
            function()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(CALLS):
            function()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("copy", [COPY_AUTO, COPY_ALWAYS], ids=["leases", "copies"])
def test_repeated_trips_do_not_grow(trip, copy):
    assert grown(lambda: trip(values, copy)) < LITTLE
    assert trip.free == 4


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_five_thousand_trips_do_not_grow_the_process(trip):
    for _ in range(500):
        trip(values)
    before = resident()
    for _ in range(5000):
        trip(values)
    # Less than 100 bytes per trip: a leaked array, dict or record is more.
    assert resident() - before < 500_000
    assert trip.free == 4


def test_failures_half_way_do_not_grow(trip):
    def fail():
        writer = trip.claim()
        with writer, pytest.raises(ZeroDivisionError):
            trip.encoder.publish(writer, [[values(), Fails()]])
        writer.abort()

    assert grown(fail) < LITTLE
    assert trip.free == 4


def test_references_to_shared_objects_stay_level(trip):
    array, dtype, text = np.arange(5), np.dtype("i4,f8"), "text of its own"
    record = Record(np.zeros(2, dtype))
    shared = [array, dtype, text, record, np.dtype("i8"), None, Point, Record, np.ndarray, trip.ring]
    value = {"a": array, "s": [text, 1], "p": Point(None, record), "d": np.zeros(2, dtype)}
    trip(value)
    before = [sys.getrefcount(o) for o in shared]
    for _ in range(1000):
        trip(value)
        trip(lambda: default_collate([value, value]))
    gc.collect()
    after = [sys.getrefcount(o) for o in shared]
    assert all(abs(a - b) < 50 for a, b in zip(before, after)), list(zip(before, after))


def test_refused_payloads_do_not_grow():
    data = bytearray(4096)

    def refuse():
        for arguments in ((0, 1, 4000, 50, 4096), (0, 1, 200, 1, 4096), (5000, 1, 0, 1, 4096)):
            with pytest.raises(CorruptBatch):
                probe(data, *arguments)

    assert grown(refuse) < LITTLE


def test_trees_that_never_come_again_are_not_all_kept(trip):
    """Ragged containers have another treedef in every batch; the reader's cache keeps it only for a while."""
    gc.collect()
    before, blocks = sys.getallocatedblocks(), []
    for batch in range(600):
        trip({f"key {batch} {j}": j for j in range(200)})
        blocks.append(sys.getallocatedblocks() - before)
    assert max(blocks[300:]) < 1.2 * max(blocks[:300])


def test_torch_and_arrow_do_not_grow(trip):
    torch = pytest.importorskip("torch")
    pa = pytest.importorskip("pyarrow")
    value = {"t": torch.ones(5), "b": torch.ones(2, dtype=torch.bfloat16), "a": pa.array([1, None])}
    assert grown(lambda: trip(value)) < LITTLE
    samples = [torch.ones(3)] * 4
    assert grown(lambda: trip(lambda: default_collate(samples))) < LITTLE
    assert trip.free == 4
