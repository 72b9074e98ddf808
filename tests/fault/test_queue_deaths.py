"""A queue whose producers and consumers are killed: each message arrives once, and no process waits forever."""

import mmap
import multiprocessing
import os
import queue
import random
import select
import signal
import time

import numpy as np
import pytest

from slipring import Queue
from slipring.errors import ShutDown
from tests.support.inside import count_of
from tests.support.processes import LONG_S, sleeps_in_futex, until, wait_dead

fork = multiprocessing.get_context("fork")
MOST = 1 << 22  # messages per producer: more than it can put in the test's time
UNKNOWN = 128  # in the count of a message of which it is unknown whether it was put


class Account:
    """Counts of a test's processes, in shared memory that survives a kill."""

    def __init__(self, producers):
        self.put = shared(producers, np.int64)  # calls of put() that have returned
        self.got = shared(producers * MOST, np.uint8).reshape(producers, MOST)
        self.stop = shared(1, np.uint8)


def shared(n, dtype):
    return np.frombuffer(mmap.mmap(-1, n * np.dtype(dtype).itemsize), dtype)


def start(target, *args):
    process = fork.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def message(producer, number):
    return {"producer": producer, "number": number, "rows": np.full(1 + number % 3000, number)}


def check(got, account):
    """Count a message, and check its content."""
    number = got["number"]
    assert got["rows"].shape == (1 + number % 3000,) and (got["rows"] == number).all()
    account.got[got["producer"], number] += 1


def produce(q, me, first, account):
    number = first
    try:
        while not account.stop[0] and number < MOST:
            if number % 3:
                q.put(message(me, number))
            else:
                with q.slot() as s:
                    rows = s.empty(1 + number % 3000, np.int64)
                    rows[:] = number
                    s.put({"producer": me, "number": number, "rows": rows})
                    del rows  # a producer that waits for a slot while it keeps another can lock the queue
            number += 1
            account.put[me] = number
    except ShutDown:
        pass


def consume(q, account, polls):
    last = {}
    kept = []
    try:
        while True:
            if polls:
                select.select([q], [], [])
            try:
                got = q.get_nowait() if polls else q.get()
            except queue.Empty:
                continue
            check(got, account)
            assert got["number"] > last.get(got["producer"], -1)
            last[got["producer"]] = got["number"]
            kept.append(got)
            del kept[: random.randrange(3)]
    except ShutDown:
        pass


def test_random_kills_lose_only_messages_that_the_dead_had_taken():
    """Each message arrives once; each death of a consumer may lose one message, and no more."""
    seed = os.environ.get("SLIPRING_TEST_SEED", "1")
    rng = random.Random(seed)
    q, account = Queue(6, max_processes=8), Account(3)
    producers = [start(produce, q, me, 0, account) for me in range(3)]
    consumers = [start(consume, q, account, polls) for polls in (False, True)]
    of_consumers = 0
    for _ in range(80):
        time.sleep(rng.random() * 0.04)
        if rng.random() < 0.6:
            me = rng.randrange(3)
            producers[me].kill()
            producers[me].join()
            first = account.put[me]
            # A message that was put but not counted must not be put again with the same number.
            account.put[me] = first + 1
            account.got[me, first] |= UNKNOWN
            producers[me] = start(produce, q, me, first + 1, account)
        else:
            one = rng.randrange(2)
            consumers[one].kill()
            consumers[one].join()
            consumers[one] = start(consume, q, account, one == 1)
            of_consumers += 1
    account.stop[0] = 1
    for process in producers:
        process.join()
        assert process.exitcode == 0
    q.shutdown()
    for process in consumers:
        process.join()
        assert process.exitcode == 0
    unknown = account.got >= UNKNOWN
    assert (account.got[unknown] <= UNKNOWN + 1).all(), seed
    account.got[unknown] = 1
    lost = 0
    for me in range(3):
        put, got = account.put[me], account.got[me]
        assert got.max() <= 1, f"seed {seed}, producer {me}: {np.flatnonzero(got > 1)} came twice"
        assert not got[put + 1 :].any()  # one message may be put but not counted
        lost += int(put - got[:put].sum())
    assert account.put.sum() > 0 and lost <= of_consumers, (seed, lost)


# ---- deaths at chosen points


def claims_and_dies(q):
    with q.slot() as s:
        s.empty(10)[:] = 1
        os.kill(os.getpid(), signal.SIGKILL)


def gets_and_dies(q):
    q.put(np.zeros(3))
    kept = q.get(copy="never")
    os.kill(os.getpid(), kept is not None and signal.SIGKILL)


def keeps_what_it_put_and_dies(q):
    with q.slot() as s:
        kept = s.empty(3)
        s.put(None)
        q.get()
        os.kill(os.getpid(), kept is not None and signal.SIGKILL)


def keeps_what_it_gave_up_and_dies(q):
    with q.slot() as s:
        kept = s.empty(3)
    os.kill(os.getpid(), kept is not None and signal.SIGKILL)


@pytest.mark.parametrize(
    ("holder", "how"),
    [
        (claims_and_dies, "put"),
        (claims_and_dies, "slot"),
        (gets_and_dies, "put_nowait"),
        (keeps_what_it_put_and_dies, "timeout"),
        (keeps_what_it_gave_up_and_dies, "put"),
    ],
)
def test_the_slots_of_a_dead_process_are_free_for_waiting_ones(holder, how):
    q = Queue(1)
    process = start(holder, q)
    process.join()
    assert process.exitcode == -signal.SIGKILL and count_of(q)() == (0, 0)
    if how == "put":
        q.put("on")
    elif how == "slot":
        with q.slot() as s:
            s.put("on")
    else:
        until(lambda: put_soon(q, how), "the dead process's slot is free again")
    assert q.get() == "on" and count_of(q)() == (0, 1)


def put_soon(q, how):
    try:
        q.put("on", how == "timeout", 0.01)
    except queue.Full:
        return False
    return True


def test_a_waiting_process_notices_a_death_although_nobody_has_reaped_the_dead():
    q, ready = Queue(1), fork.Event()

    def holder():
        with q.slot():
            ready.set()
            signal.pause()

    holding = start(holder)
    ready.wait()
    waiting = start(q.put, "on")
    until(lambda: sleeps_in_futex(waiting.pid), "it waits")
    os.kill(holding.pid, signal.SIGKILL)
    assert q.get(timeout=LONG_S) == "on"
    waiting.join()
    holding.join()


def test_the_makers_death_ends_nothing():
    """The process that made the queue has the same role as all others."""
    reader, writer = os.pipe()
    maker = os.fork()
    if maker == 0:
        q, me = Queue(2, max_processes=2), os.getpid()
        if os.fork() == 0:
            wait_dead(me)  # before its death it could get messages itself
            try:
                for i in range(20):  # each process gets the number of the dead one before it
                    if (pid := os.fork()) == 0:
                        q.put(i)
                        os.kill(os.getpid(), signal.SIGKILL)
                    os.waitpid(pid, 0)
                    assert q.get() == i
                os.write(writer, b"+")
            finally:
                os._exit(0)
        q.put(np.zeros(3))
        kept = q.get()
        os.kill(me, kept is not None and signal.SIGKILL)
    os.waitpid(maker, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as says:
        assert says.read() == b"+"


def test_a_stopped_process_keeps_its_slots():
    q, ready = Queue(1), fork.Event()

    def holder():
        with q.slot() as s:
            ready.set()
            os.kill(os.getpid(), signal.SIGSTOP)
            s.put("late")

    process = start(holder)
    ready.wait()
    with pytest.raises(queue.Full):
        q.put("early", timeout=0.5)
    os.kill(process.pid, signal.SIGCONT)
    assert q.get() == "late"
    process.join()
