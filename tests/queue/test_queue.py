"""slipring.Queue beyond multiprocessing's: arguments, views and copies, sizes, slots."""

import queue
import signal

import numpy as np
import pytest

import slipring
from slipring import Queue, SegmentFull
from slipring.errors import BatchTooLarge, Closed, ShutDown
from tests.support.inside import count_of
from tests.support.processes import LONG_S


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0,), ValueError, "maxsize must be from 1 to 65536, not 0 .*without bound"),
        ((65537,), ValueError, "maxsize .* not 65537"),
        ((1.5,), TypeError, "maxsize must be an int, not 1.5"),
        ((2, 0), ValueError, "slot_bytes must be from 1"),
    ],
)
def test_arguments_that_make_no_queue_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        Queue(*arguments)


def test_copying_that_there_is_not_is_refused_by_get_too():
    q = Queue(2)
    q.put(1)
    with pytest.raises(ValueError, match="copy must be one of 'auto', 'always', 'never', not "):
        q.get(copy="sometimes")
    assert q.get() == 1


def test_a_timeout_that_is_no_number_is_refused():
    q = Queue(1)
    for wait in (lambda t: q.get(timeout=t), lambda t: q.put(1, timeout=t), lambda t: q.slot(timeout=t).__enter__()):
        with pytest.raises(ValueError, match="timeout must be a number of seconds or None, not nan"):
            wait(float("nan"))
        with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not '1'"):
            wait("1")
    assert count_of(q)() == (0, 1)


def test_the_names_of_errors_are_those_that_the_standard_library_has():
    assert issubclass(ShutDown, Closed)
    assert not hasattr(queue, "ShutDown") or issubclass(ShutDown, queue.ShutDown)


# ---- views and copies


def test_a_message_is_a_view_whose_end_frees_its_slot():
    q = Queue(4)
    q.put({"a": np.arange(5), "b": np.ones(3)})
    got = q.get()
    a = got["a"][1:]
    assert count_of(q)() == (0, 3) and type(got["a"].base).__name__ == "Lease" and q.stats().copied == 0
    del got
    assert count_of(q)() == (0, 3)
    del a
    assert count_of(q)() == (0, 4)


def test_results_that_are_kept_do_not_lock_the_queue():
    q = Queue(3)
    kept = []
    for i in range(50):
        q.put(np.full(4, i), timeout=LONG_S)
        kept.append(q.get(timeout=LONG_S))
    assert [int(k[0]) for k in kept] == list(range(50))
    assert q.stats().copied == 49 and q.stats().got == 50


@pytest.mark.parametrize("per", ["queue", "get"])
def test_copies_can_be_had_always_or_never(per):
    for copy, free in (("always", 4), ("never", 3)):
        q = Queue(4, copy=copy if per == "queue" else "auto")
        q.put(np.arange(3))
        kept = q.get() if per == "queue" else q.get(copy=copy)
        assert count_of(q)() == (0, free) and kept.tolist() == [0, 1, 2]
        assert kept.flags.writeable


def test_never_copying_fills_the_queue_with_live_messages():
    q = Queue(2, copy="never")
    kept = []
    for _ in range(2):
        q.put(np.arange(3))
        kept.append(q.get())
    assert q.full() and q.empty()
    with pytest.raises(queue.Full, match=r"no slot of 2 is free: 0 have messages .* 2 are being filled"):
        q.put_nowait(1)
    with pytest.raises(queue.Full, match=r"became free within 0.01 s: .* raise maxsize \(now 2\)"):
        q.put(1, timeout=0.01)
    kept.pop()
    q.put_nowait(1)


def test_a_producers_changes_after_the_put_do_not_reach_the_consumer():
    q, array = Queue(2), np.zeros(3)
    q.put(array)
    array += 1
    assert q.get().tolist() == [0, 0, 0]


# ---- sizes and failures


def test_a_message_larger_than_a_slot_is_refused_with_the_numbers():
    q = Queue(2, 65536)
    with pytest.raises(BatchTooLarge, match=r"does not fit a slot of .*raise slot_bytes to at least 1000000") as caught:
        q.put(np.zeros(1_000_000, np.uint8))
    assert caught.value.needed >= 1_000_000
    assert count_of(q)() == (0, 2)
    q.put(np.zeros(60_000, np.uint8))


def test_no_memory_for_a_message_is_said_with_the_numbers():
    q = Queue(7, 1 << 42)
    assert q.stats().slot_bytes == 1 << 42
    with pytest.raises(
        SegmentFull, match=r"no memory for a message: .* more are needed, .*maxsize \(now 7\)"
    ) as caught:
        q.put(np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 41,), (0,)))
    assert caught.value.needed > caught.value.free
    assert count_of(q)() == (0, 7)
    q.put(1)
    assert q.get() == 1


class Bomb:
    def __reduce__(self):
        raise ZeroDivisionError("cannot be pickled")


class Trap:
    def __reduce__(self):
        return int, ("not a number",)


def test_a_value_that_cannot_be_encoded_is_not_put():
    q = Queue(2)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            q.put([np.zeros(10), Bomb()])
    assert count_of(q)() == (0, 2)
    q.put("fine")
    assert q.get() == "fine"


def test_a_value_that_cannot_be_unpickled_is_lost_and_reported():
    q = Queue(2)
    q.put(Trap())
    q.put("fine")
    with pytest.raises(slipring.errors.CorruptBatch, match="cannot be unpickled here: ValueError"):
        q.get()
    assert q.get() == "fine" and count_of(q)() == (0, 2)


def test_a_handlers_exception_in_an_earlier_call_is_not_taken_for_one_of_unpickling():
    def handler(number, frame):
        raise ValueError("raised by the handler")

    q, previous = Queue(2), signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(20):
            with pytest.raises(ValueError, match="raised by the handler"):
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                q.get(timeout=LONG_S)
            q.put(Trap())
            with pytest.raises(slipring.errors.CorruptBatch, match="cannot be unpickled here: ValueError"):
                q.get()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Puts:
    """Pickling it puts into the same queue."""

    def __init__(self, q):
        self.q = q

    def __reduce__(self):
        self.q.put("from inside")
        return str, ("outside",)


def test_a_put_inside_a_put_works():
    q = Queue(3)
    q.put(Puts(q))
    assert [q.get(), q.get()] == ["from inside", "outside"]


# ---- slots


def test_a_message_is_its_consumers_alone_whatever_its_maker_keeps():
    q = Queue(4)
    with q.slot() as s:
        a = s.empty((2, 3), "f4")
        a[:] = 7
        s.put({"a": a, "again": a[1], "n": 1})
        a[0, 0] = 8
    got = q.get()
    assert got["n"] == 1 and got["a"].tolist() == [[7, 7, 7], [7, 7, 7]]
    got["a"][:] = 5
    assert a.tolist() == [[8, 7, 7], [7, 7, 7]]
    assert np.shares_memory(got["a"], got["again"])
    assert q.stats().kept == 1


def test_an_array_that_moves_with_its_slot_is_not_copied():
    q = Queue(4)
    with q.slot() as s:
        a = s.empty((2, 3), "f4")
        a[:] = 7
        where = a.ctypes.data
        s.put({"a": a, "n": 1}, move=True)
        del a
    got = q.get()
    assert got["n"] == 1 and got["a"].tolist() == [[7, 7, 7], [7, 7, 7]] and got["a"].ctypes.data == where
    assert q.stats().kept == 0


def test_a_slot_does_not_circulate_while_its_maker_keeps_the_array():
    q = Queue(2)
    with q.slot() as s:
        kept = s.empty(4)
        kept[:] = 5
        s.put(kept, move=True)
    q.get()
    assert count_of(q)() == (0, 1)
    for i in range(5):
        q.put(np.full(4, i))
        assert q.get()[0] == i
    assert kept.tolist() == [5] * 4
    del kept
    assert count_of(q)() == (0, 2)


@pytest.mark.parametrize("how", ["exception", "nothing put"])
def test_a_slot_that_is_not_put_was_never_there(how):
    q = Queue(1)
    for _ in range(3):
        try:
            with q.slot() as s:
                kept = s.empty(10)
                kept[:] = 1
                if how == "exception":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert count_of(q)() == (0, 0)  # the producer still has the array
        assert kept.tolist() == [1] * 10
        del kept
        assert count_of(q)() == (0, 1)


def test_a_slot_is_put_once_and_only_inside_its_block():
    q = Queue(3)
    with q.slot() as s:
        s.put(1)
        for call in (lambda: s.put(2), lambda: s.empty(3)):
            with pytest.raises(RuntimeError, match="not this block's any more"):
                call()
    with pytest.raises(RuntimeError, match="not this block's any more"):
        s.put(3)
    with q.slot() as s, pytest.raises(TypeError, match="no fixed size"):
        s.empty(3, object)
    assert q.get() == 1 and q.empty()


def test_a_slot_waits_and_gives_up_as_put_does():
    q = Queue(1)
    q.put(1)
    for options in ({"block": False}, {"timeout": 0.01}):
        with pytest.raises(queue.Full), q.slot(**options):
            pass
