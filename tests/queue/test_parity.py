"""The same script prints the same with slipring.Queue and with multiprocessing.Queue."""

import multiprocessing
import queue

import numpy as np
import pytest

import slipring
from tests.support.processes import LONG_S, until

QUEUES = {"multiprocessing": multiprocessing.Queue, "slipring": slipring.Queue}


class Point:
    """An object that is pickled."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


MESSAGES = [
    None, -1, 2**70, float("inf"), "текст \ud800", b"\0\xff", ("a", [1, {"k": (None, b"x")}]), {(1, 2): 3},
    ValueError("a value"), ..., [Point(1), "x"], int, bytearray(b"abc"), np.arange(6).reshape(2, 3), np.float32(3),
]  # fmt: skip


def same(a, b):
    if isinstance(a, BaseException):
        return type(a) is type(b) and a.args == b.args
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tolist() == b.tolist()
    return a == b and type(a) is type(b)


@pytest.fixture(params=QUEUES)
def make(request):
    made = []

    def make(maxsize):
        made.append(QUEUES[request.param](maxsize))
        return made[-1]

    yield make
    while made:
        q = made.pop()
        q.close()
        q.join_thread()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: repr(m)[:20].encode("ascii", "replace").decode())
def test_a_message_that_is_put_is_got(make, message):
    q = make(2)
    q.put(message)
    assert same(q.get(timeout=LONG_S), message)


def test_a_full_queue_says_so(make):
    q = make(2)
    q.put(1)
    q.put(2)
    for put in (
        lambda: q.put_nowait(3),
        lambda: q.put(3, False),
        lambda: q.put(3, block=False, timeout=5),
        lambda: q.put(3, True, 0.01),
        lambda: q.put(3, timeout=0),
        lambda: q.put(3, timeout=-1),
    ):
        with pytest.raises(queue.Full):
            put()
    assert q.full() and q.qsize() == 2
    until(lambda: not q.empty(), "the thread that feeds multiprocessing's queue has written")
    assert q.get(timeout=LONG_S) == 1 and not q.full()
    q.put_nowait(3)
    assert [q.get(timeout=LONG_S), q.get(timeout=LONG_S)] == [2, 3]


def test_an_empty_queue_says_so(make):
    q = make(2)
    for get in (
        lambda: q.get_nowait(),
        lambda: q.get(False),
        lambda: q.get(block=False, timeout=5),
        lambda: q.get(True, 0.01),
        lambda: q.get(timeout=0),
        lambda: q.get(timeout=-1),
    ):
        with pytest.raises(queue.Empty):
            get()
    assert q.empty() and q.qsize() == 0 and not q.full()


def test_a_closed_queue_takes_and_gives_nothing(make):
    q = make(2)
    q.close()
    q.close()
    for call in (lambda: q.put(1), lambda: q.put_nowait(1), lambda: q.get(), lambda: q.get_nowait()):
        with pytest.raises(ValueError, match="is closed"):
            call()


def test_pickling_needs_a_process_that_is_being_started(make):
    import pickle

    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(make(1))


def echo(inbox, outbox):
    while (message := inbox.get()) is not None:
        outbox.put(message)


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_messages_go_to_another_process_and_come_back(make, start_method):
    inbox, outbox = make(3), make(3)
    process = multiprocessing.get_context(start_method).Process(target=echo, args=(inbox, outbox))
    if isinstance(inbox, slipring.Queue) or start_method == "fork":
        process.start()
    else:  # multiprocessing.Queue belongs to the context that made it
        pytest.skip("multiprocessing's own queues are made for one start method")
    for message in ({"i": 1}, "x", Point(3)):
        inbox.put(message)
        assert outbox.get(timeout=LONG_S) == message
    inbox.put(None)
    process.join()
    assert process.exitcode == 0
