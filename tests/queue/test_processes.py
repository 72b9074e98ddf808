"""The end of a queue, and its processes: forks, numbers, signals, threads."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from slipring import Queue
from slipring.errors import ShutDown, TooManyProcesses
from tests.support.inside import count_of
from tests.support.processes import in_child

# ---- the end


def test_after_a_shutdown_earlier_messages_can_be_got():
    q = Queue(3)
    q.put(1)
    q.put(2)
    q.shutdown()
    for put in (lambda: q.put(3), lambda: q.put_nowait(3), lambda: q.slot().__enter__()):
        with pytest.raises(ShutDown, match="nothing can be put"):
            put()
    assert [q.get(), q.get_nowait()] == [1, 2]
    for get in (lambda: q.get(), lambda: q.get_nowait(), lambda: q.get(timeout=1)):
        with pytest.raises(ShutDown, match="all that was in it"):
            get()
    assert "shut down" in repr(q)


def test_an_immediate_shutdown_discards_all_messages():
    q = Queue(3)
    q.put(np.arange(3))
    q.put(2)
    q.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        q.get()
    assert q.qsize() == 0


@pytest.mark.parametrize("waits", ["get", "put"])
@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_a_waiting_process_is_woken_by_the_end(waits, end):
    q = Queue(1)
    if waits == "put":
        q.put(0)
    raised = []

    def wait():
        try:
            q.get() if waits == "get" else q.put(1)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)  # by now it probably sleeps; in any case it must end
    getattr(q, end)()
    thread.join()
    assert type(raised[0]) is (ShutDown if end == "shutdown" else ValueError)


@pytest.mark.parametrize("call", [lambda q: q.shutdown(immediate=True), lambda q: q.fileno()])
def test_a_queue_may_be_closed_in_the_middle_of_any_call(call, monkeypatch):
    write = os.eventfd_write

    def write_and_close(fd, value):  # as another thread may do while this one writes
        write(fd, value)
        q.close()

    def child():
        q.put(1)
        q.fileno()
        monkeypatch.setattr(os, "eventfd_write", write_and_close)
        call(q)
        with pytest.raises(ValueError, match="closed"):
            q.get()
        return q.ring is None

    q = Queue(3)
    assert in_child(child)


def test_a_queue_may_be_shown_while_another_thread_closes_it():
    """Without a GIL, the thread that shows it would otherwise use a segment that the other one has just freed."""
    barrier = threading.Barrier(2)

    def show(q):
        barrier.wait()
        return {repr(q).split(" at ")[0] for _ in range(20)}

    with ThreadPoolExecutor(1) as pool:
        for _ in range(100):
            q = Queue(3)
            shown = pool.submit(show, q)
            barrier.wait()
            q.close()
            assert shown.result() <= {"<Queue maxsize=3", "<Queue closed"}


# ---- processes


def has_closed_descriptors(q):
    assert not os.get_inheritable(q.event.fd)
    assert not os.get_inheritable(q.ring.fd)


def test_a_program_that_a_process_executes_does_not_get_the_queues_descriptors():
    process = multiprocessing.get_context("spawn").Process(target=has_closed_descriptors, args=(Queue(2),))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_child_forked_inside_a_slots_block_leaves_it_to_its_parent():
    q = Queue(2)
    with q.slot() as s:
        a = s.empty(3)

        def child():
            with pytest.raises(RuntimeError, match="has forked"):
                s.put(1)
            s.__exit__(None, None, None)
            return count_of(q)()

        assert in_child(child) == (0, 1)
        a[:] = 4
        s.put(a)
    assert q.get().tolist() == [4, 4, 4]


class Forks:
    """Pickling it forks, and both processes continue."""

    pid = None

    def __reduce__(self):
        self.pid = os.fork()
        return str, ("pickled",)


def put(q, message):
    q.put(message)


def put_in_a_slot(q, message):
    with q.slot() as s:
        s.put({**message, "inside": s.empty(3)})


@pytest.mark.parametrize("way", [put, put_in_a_slot])
@pytest.mark.parametrize("behind", [None, np.zeros(20_000)])
def test_a_child_forked_while_a_message_is_pickled_leaves_it_to_its_parent(way, behind):
    q, value, error = Queue(3), Forks(), None
    reader, writer = os.pipe()
    try:
        way(q, {"before": np.arange(3), "value": value, "behind": behind})
    except BaseException as raised:
        error = raised
    if value.pid == 0:
        try:
            q.put("from the child")
            q.close()
            os.write(writer, f"{q.closed} {q.ring} {error!r}".encode())
        finally:
            os._exit(0)
    os.waitpid(value.pid, 0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert said.read().startswith('True None RuntimeError("this process has been forked while')
    assert error is None
    got = [q.get(), q.get()]
    got.remove("from the child")
    assert count_of(q)()[0] == 0 and got[0]["value"] == "pickled"


def test_more_processes_than_numbers_are_told_so_and_the_dead_make_room():
    q = Queue(4, max_processes=2)
    with q.slot() as s:
        s.put(os.getpid())

    def second():
        q.put("second")

        def third():
            with pytest.raises(TooManyProcesses, match=r"2 living processes .* raise max_processes= \(now 2\)"):
                q.put("third")

        return in_child(third)

    for _ in range(3):  # each process gets the number of the dead one before it
        in_child(second)
    assert [q.get() for _ in range(4)] == [os.getpid(), *["second"] * 3]


def test_a_shutdown_needs_no_number_and_a_child_counts_for_itself():
    q = Queue(4, max_processes=2)
    q.put(1)
    q.get()

    def second():
        assert q.stats().got == 0
        q.put(2)
        q.get()
        in_child(q.shutdown)
        return q.stats().got

    assert in_child(second) == 1 and q.stats().got == 1
    with pytest.raises(ShutDown):
        q.get()


def test_a_disconnected_process_gives_its_number_to_another():
    q = Queue(4, max_processes=2)

    def child():
        q.put("child")
        assert in_child(lambda: q.disconnect_client()) is None

        def grandchild():
            with pytest.raises(TooManyProcesses):
                q.put("grandchild")

        in_child(grandchild)
        q.disconnect_client()
        in_child(lambda: q.put("grandchild"))
        q.put("child again")

    in_child(child)
    assert [q.get() for _ in range(3)] == ["child", "grandchild", "child again"]


def test_a_process_that_holds_something_keeps_its_number():
    q = Queue(4, max_processes=2)
    q.put(np.arange(3))
    kept = q.get()
    q.disconnect_client()
    in_child(lambda: q.put("child"))
    assert q.get() == "child" and kept.tolist() == [0, 1, 2] and count_of(q)() == (0, 3)


@pytest.mark.parametrize("waits", ["get", "put"])
def test_ctrl_c_ends_a_wait_with_one_clean_exception(waits):
    q = Queue(1)
    if waits == "put":
        q.put(0)
    for after in (0.05, 0.1, 0.1003, 0.1006, 0.2001):  # in the middle of a wait, and between two waits
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt) as caught:
            timer.start()
            q.get() if waits == "get" else q.put(1)
        timer.join()
        assert caught.value.__context__ is None
    assert count_of(q)() == ((0, 1) if waits == "get" else (1, 0))


def test_threads_share_one_end():
    q, got = Queue(3), []

    def produce(k):
        for i in range(200):
            q.put((k, i, np.full(10, i)))

    def consume():
        while (message := q.get()) is not None:
            assert (message[2] == message[1]).all()
            got.append(message[:2])

    with ThreadPoolExecutor(5) as pool:
        consumers = [pool.submit(consume) for _ in range(2)]
        for producer in [pool.submit(produce, k) for k in range(3)]:
            producer.result()
        for _ in consumers:
            q.put(None)
        for consumer in consumers:
            consumer.result()
    assert sorted(got) == [(k, i) for k in range(3) for i in range(200)]
