"""Messages of a broadcast: each reader gets each of them once, in order, from the same memory."""

import pickle
import threading

import numpy as np
import pytest

from slipring import Broadcast, SegmentFull
from slipring.errors import BatchTooLarge, ShutDown
from tests.support.broadcasts import Reading, digest, message


@pytest.fixture
def ends():
    """Make a broadcast with readers in this process; close all of them after the test."""
    made = []

    def make(n_readers=1, *args, spin=0, copy="auto", **options):
        broadcast = Broadcast(n_readers, *args, **options)
        readers = [broadcast.handle.open(spin=spin, copy=copy) for _ in range(n_readers)]
        made.extend([*readers, broadcast])
        return broadcast, *readers

    yield make
    for end in made:
        end.close()


@pytest.mark.parametrize("ways", [["fork"], ["fork", "spawn"], ["unrelated", "unrelated"], ["fork"] * 8], ids=str)
def test_every_reader_gets_every_message_once_and_in_order(ways):
    with Broadcast(len(ways), maxsize=4) as broadcast:
        readings = [Reading(broadcast.handle, way, keep=number % 3) for number, way in enumerate(ways)]
        expected = [digest(message(number)) for number in range(300)]
        for number in range(300):
            assert broadcast.put(message(number)) == len(ways)
    assert [reading.result() for reading in readings] == [expected] * len(ways)


@pytest.mark.parametrize("spin", [0, 100])
def test_a_reader_that_is_behind_finds_all_messages(ends, spin):
    broadcast, first, second = ends(2, 6, spin=spin)
    for number in range(5):
        broadcast.put(number)
        assert first.get() == number
    assert [second.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(TimeoutError, match="no message came within timeout=0 s"):
        second.get(timeout=0)


VALUES = {
    "a byte": b"x",
    "text": "grüße",
    "none": None,
    "numbers": [1, 2.5, True, 1 << 70],
    "nested": {"a": (1, [np.arange(3), {"b": None}]), "c": np.float32(2)},
    "an object": range(7),
    "an empty array": np.empty((0, 3)),
}


@pytest.mark.parametrize("name", VALUES)
def test_any_object_arrives_as_it_was_put(ends, name):
    broadcast, reader = ends()
    broadcast.put(VALUES[name])
    got = reader.get()
    assert pickle.dumps(got) == pickle.dumps(VALUES[name]) or str(got) == str(VALUES[name])
    assert type(got) is type(VALUES[name])


def test_readers_have_read_only_views_of_the_same_bytes(ends):
    broadcast, first, second = ends(2, 4)
    broadcast.put({"rows": np.arange(1000), "object": pickle.PickleBuffer(b"x" * 5000)})
    views = [reader.get()["rows"] for reader in (first, second)]
    assert views[0].tolist() == list(range(1000))
    for view in views:
        assert not view.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


class Buffered:
    """An object whose buffer travels out of band."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __reduce_ex__(self, protocol):
        return Buffered, (pickle.PickleBuffer(self.buffer),)


def test_the_buffers_of_pickled_objects_are_views_of_the_slot(ends):
    broadcast, reader = ends(1, 4)
    broadcast.put(Buffered(b"y" * 100_000))
    got = reader.get().buffer
    assert isinstance(got, memoryview) and got.readonly and bytes(got) == b"y" * 100_000
    broadcast.put(0)
    with pytest.raises(TimeoutError, match=r"reader 0 .* has 3 messages to get and keeps 1;"):
        for _ in range(4):
            broadcast.put(0, timeout=0)
    del got
    broadcast.put(0, timeout=0)


def test_tensors_are_views_of_the_slot(ends):
    torch = pytest.importorskip("torch")
    broadcast, first, second = ends(2, 4)
    broadcast.put({"weights": torch.arange(1000.0), "half": torch.ones(3, dtype=torch.bfloat16)})
    got = first.get(), second.get()
    for value in got:
        assert value["weights"].equal(torch.arange(1000.0)) and value["half"].dtype == torch.bfloat16
    got[0]["weights"][0] = 7  # torch cannot forbid it, and the other reader has the same bytes
    assert got[1]["weights"][0] == 7


def test_a_slot_is_used_again_after_the_last_view_of_all_readers(ends):
    broadcast, first, second = ends(2, 3)
    broadcast.put(np.arange(10))
    mine, other = first.get(copy="never"), second.get(copy="never")
    for _ in range(2):
        broadcast.put(0)
    with pytest.raises(TimeoutError, match="no slot of 3"):
        broadcast.put(0, timeout=0.01)
    del mine
    with pytest.raises(TimeoutError, match=r"reader 1 \(pid \d+\) has 2 messages to get and keeps 1;"):
        broadcast.put(0, timeout=0.01)
    part = other[5:]
    del other
    with pytest.raises(TimeoutError):
        broadcast.put(0, timeout=0.01)
    assert part.tolist() == [5, 6, 7, 8, 9]
    del part
    assert broadcast.put(0, timeout=0) == 2


def test_auto_copies_when_readers_keep_all_but_one_slot(ends):
    broadcast, reader, other = ends(2, 4)
    kept = []
    for number in range(10):
        broadcast.put(np.full(100, number))
        kept.append(reader.get())
        assert other.get(copy="always")[0] == number
    assert [value[0] for value in kept] == list(range(10))
    assert [value.flags.writeable for value in kept] == [False] * 2 + [True] * 8
    kept.clear()
    for number in range(4):  # no slot is free, but those that wait for a reader are not kept
        broadcast.put(np.full(100, number))
    assert not reader.get().flags.writeable


def test_copies_are_writable_and_keep_no_slot(ends):
    broadcast, reader = ends(1, 1, copy="always")
    for number in range(3):
        broadcast.put(np.full(10, number))
        got = reader.get()
        got += 1
        assert got[0] == number + 1
    broadcast.put(np.zeros(3))
    assert reader.get(copy="never").flags.writeable is False


@pytest.mark.parametrize("nbytes", [1, 1 << 10, 1 << 20, 256 << 20])
def test_messages_from_one_byte_to_256_mib(ends, nbytes):
    broadcast, reader = ends(1, 2)
    sent = np.arange(nbytes, dtype=np.uint64).view(np.uint8)[:nbytes]
    for _ in range(2):
        broadcast.put(sent)
        assert np.array_equal(reader.get(copy="never"), sent)


def test_a_message_that_does_not_fit_is_refused_and_takes_no_slot(ends):
    broadcast, reader = ends(1, 1, slot_bytes=1 << 16)
    for _ in range(3):
        with pytest.raises(BatchTooLarge, match="raise slot_bytes"):
            broadcast.put(np.zeros(1 << 20))
    broadcast.put("fits")
    assert reader.get() == "fits"


class Unpicklable:
    def __reduce__(self):
        raise ZeroDivisionError("not today")


def test_a_message_that_cannot_be_pickled_is_refused_and_takes_no_slot(ends):
    broadcast, reader = ends(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            broadcast.put([np.zeros(5), Unpicklable()])
    broadcast.put("works")
    assert reader.get() == "works"


class Putting:
    def __init__(self, broadcast):
        self.broadcast = broadcast

    def __reduce__(self):
        self.broadcast.put(1)
        return str, ()


def test_put_inside_put_is_refused(ends):
    broadcast, reader = ends(1, 2)
    with pytest.raises(RuntimeError, match="not reentrant"):
        broadcast.put(Putting(broadcast))
    broadcast.put("works")
    assert reader.get() == "works"


def test_threads_may_put_and_get(ends):
    broadcast, reader = ends(1, 3)
    got = [[], []]

    def put(first):
        for number in range(first, 2000, 2):
            broadcast.put(number)

    def get(to):
        try:
            while True:
                to.append(reader.get())
        except ShutDown:
            pass

    writers = [threading.Thread(target=put, args=(first,)) for first in range(2)]
    readers = [threading.Thread(target=get, args=(to,)) for to in got]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    broadcast.close()
    for thread in readers:
        thread.join()
    assert sorted(got[0] + got[1]) == list(range(2000))
    for to in got:
        for parity in range(2):
            assert (own := [number for number in to if number % 2 == parity]) == sorted(own)


def test_memory_that_is_short_is_an_error_and_nothing_is_put(ends):
    broadcast, reader = ends(1, 2, slot_bytes=1 << 41)
    with pytest.raises((SegmentFull, BatchTooLarge)):
        broadcast.put(np.broadcast_to(np.uint8(1), 1 << 40))
    broadcast.put("works")
    assert reader.get() == "works"
