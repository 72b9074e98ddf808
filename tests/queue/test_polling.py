"""fileno(): readable while get() may succeed, for select, epoll and asyncio, in every process."""

import asyncio
import contextlib
import os
import queue
import resource
import select
import signal
import threading
import time

import numpy as np
import pytest

from slipring import Queue
from slipring.errors import ShutDown
from tests.support.inside import count_of
from tests.support.processes import LONG_S, in_child


def readable(q, seconds=0.0):
    return bool(select.select([q], [], [], seconds)[0])


def quiet(q):
    """Return whether an empty queue's descriptor is mostly unreadable: a tick may come at any time."""
    for _ in range(100):
        with pytest.raises(queue.Empty):
            q.get_nowait()
        if not readable(q):
            return True
    return False


def test_the_descriptor_is_readable_while_something_can_be_got():
    q = Queue(4)
    q.fileno()
    assert quiet(q)
    q.put(1)
    q.put(2)
    assert readable(q) and readable(q)
    assert q.get() == 1 and readable(q)
    assert q.get() == 2
    assert quiet(q)
    q.put(3)
    assert readable(q)


def test_messages_from_before_the_first_request_are_signalled_too():
    q = Queue(4)
    q.put(1)
    assert readable(q) and q.get() == 1


def test_the_descriptor_stays_the_same_until_the_queue_is_closed():
    q = Queue(4)
    fd = q.fileno()
    assert q.fileno() == fd
    q.close()
    with pytest.raises(ValueError, match="is closed"):
        q.fileno()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_queue_that_gets_no_descriptor_closes_no_other():
    def child():
        highest = max(map(int, os.listdir("/proc/self/fd")))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        refused = 0
        for limit in range(3, highest + 4):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                Queue(2)
            except OSError:
                refused += 1
        os.fstat(0)
        return refused

    assert in_child(child) > 1


def test_another_process_has_a_descriptor_of_its_own():
    q = Queue(4)
    q.fileno()

    def child():
        assert readable(q, 60)
        value = q.get()
        q.put(value + 1)
        return q.fileno() >= 0

    q.put(1)
    assert in_child(child)
    assert readable(q) and q.get() == 2
    assert quiet(q)


def test_a_shutdown_is_readable_for_all_and_for_ever():
    q = Queue(2)
    q.fileno()
    assert quiet(q)
    in_child(q.shutdown)
    for _ in range(3):
        assert readable(q, 60)
        with pytest.raises(ShutDown):
            q.get_nowait()


def test_nobody_takes_back_the_signal_of_a_shutdown():
    def get(q):
        with contextlib.suppress(ShutDown):
            while True:
                with contextlib.suppress(queue.Empty):
                    q.get_nowait()

    for i in range(200):
        q = Queue(2)
        q.fileno()
        thread = threading.Thread(target=get, args=(q,))
        thread.start()
        time.sleep(0.0002 * (i % 5))
        q.shutdown()
        thread.join()
        assert select.select([q.event.fd], [], [], 0)[0]


def test_a_polling_process_finds_a_message_of_a_process_that_died_before_its_signal():
    q = Queue(2)
    fd = q.fileno()  # requested once, as event loops do: fileno() itself checks the queue
    assert quiet(q)
    for i in range(3):  # only a tick reports it, and the tick repeats
        q.put(i)
        os.eventfd_read(q.event.fd)  # the signal that a killed producer would not send
        assert select.select([fd], [], [], 60)[0] and q.get_nowait() == i
        with pytest.raises(queue.Empty):
            q.get_nowait()


def test_a_polling_process_frees_the_slots_of_the_dead():
    q = Queue(1)
    q.fileno()
    pid = os.fork()
    if pid == 0:
        with q.slot():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    while count_of(q)() == (0, 0):
        assert readable(q, 60)
        with pytest.raises(queue.Empty):
            q.get_nowait()
    assert count_of(q)() == (0, 1)


def test_no_put_is_missed_between_a_look_and_a_sleep():
    """Each round trip gives the two sides a chance to miss each other."""
    there, back = Queue(1), Queue(1)
    back.fileno()

    def answer():
        for _ in range(3000):
            back.put(there.get())

    thread = threading.Thread(target=answer)
    thread.start()
    for i in range(3000):
        there.put(i)
        while True:
            select.select([back.event.fd], [], [])  # without the tick: a missed signal is a hang
            try:
                assert back.get_nowait() == i
                break
            except queue.Empty:
                pass
    thread.join()


def test_asyncio_can_wait_for_messages():
    q = Queue(4)
    got = []

    async def consume():
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def ready():
            try:
                while len(got) < 20:
                    got.append(int(q.get_nowait()["n"][0]))
            except queue.Empty:
                return
            done.set()

        loop.add_reader(q, ready)
        try:
            await asyncio.wait_for(done.wait(), LONG_S)
        finally:
            loop.remove_reader(q)

    producer = threading.Thread(target=lambda: [q.put({"n": np.array([i])}) for i in range(20)])
    producer.start()
    asyncio.run(consume())
    producer.join()
    assert got == list(range(20))
