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
from tests.support.parts import slow
from tests.support.processes import sleeps_in_futex, until, wait_dead

fork = multiprocessing.get_context("fork")
MOST = 1 << 22  # messages per producer: more than it can put in the test's time


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


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()


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


def consume(q, account):
    last = {}
    kept = []
    try:
        while True:
            got = q.get()
            check(got, account)
            assert got["number"] > last.get(got["producer"], -1)
            last[got["producer"]] = got["number"]
            kept.append(got)
            del kept[: random.randrange(3)]
    except ShutDown:
        pass


def consume_by_select(q, account):
    try:
        while True:
            select.select([q], [], [])
            try:
                while True:
                    check(q.get_nowait(), account)
            except queue.Empty:
                pass
    except ShutDown:
        pass


def verdict(account, producers, deaths):
    """Each message arrives once; each death may lose one message, and no more."""
    lost = 0
    for me in range(producers):
        put, got = account.put[me], account.got[me]
        assert got.max() <= 1, f"producer {me}: {np.flatnonzero(got > 1)} came twice"
        assert not got[put + 1 :].any()  # one message may be put but not counted
        lost += int(put - got[:put].sum())
    assert lost <= deaths, f"{lost} messages lost with {deaths} deaths"
    assert account.put.sum() > 0
    return lost


@pytest.mark.parametrize("victims", [slow("producers"), slow("consumers"), "both"])
def test_random_kills_lose_only_messages_that_the_dead_had_taken(victims):
    random.seed(victims)
    q, account = Queue(6, max_processes=8), Account(3)
    producers = [start(produce, q, me, 0, account) for me in range(3)]
    consumers = [start(consume, q, account) for _ in range(2)]
    of_consumers = 0
    for _ in range(60):
        time.sleep(random.random() * 0.04)
        if victims == "producers" or (victims == "both" and random.random() < 0.5):
            me = random.randrange(3)
            kill(producers[me])
            first = account.put[me]
            # A message that was put but not counted must not be put again with the same number.
            account.put[me] = first + 1
            account.got[me, first] |= 128
            producers[me] = start(produce, q, me, first + 1, account)
        else:
            one = random.randrange(2)
            kill(consumers[one])
            consumers[one] = start(consume, q, account)
            of_consumers += 1
    account.stop[0] = 1
    for process in producers:
        process.join()
        assert process.exitcode == 0
    q.shutdown()
    for process in consumers:
        process.join()
        assert process.exitcode == 0
    account.got[account.got >= 128] = 1  # unknown whether it was put; but not twice
    verdict(account, 3, of_consumers)


def test_a_polling_process_misses_no_message_of_killed_producers():
    q, account = Queue(4, max_processes=6), Account(2)
    consumer = start(consume_by_select, q, account)
    producers = [start(produce, q, me, 0, account) for me in range(2)]
    for _ in range(60):
        time.sleep(random.random() * 0.03)
        me = random.randrange(2)
        kill(producers[me])
        first = account.put[me]
        account.put[me] = first + 1
        account.got[me, first] |= 128
        producers[me] = start(produce, q, me, first + 1, account)
    account.stop[0] = 1
    for process in producers:
        process.join()
    q.shutdown()
    consumer.join()
    assert consumer.exitcode == 0
    account.got[account.got >= 128] = 1
    assert verdict(account, 2, 0) == 0


# ---- deaths at chosen points


class Dies:
    """Pickling it kills the producer."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def claims_and_dies(q):
    with q.slot() as s:
        s.empty(10)[:] = 1
        os.kill(os.getpid(), signal.SIGKILL)


def dies_while_encoding(q):
    q.put([np.zeros(1000), Dies()])


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


HOLDERS = [
    claims_and_dies,
    dies_while_encoding,
    gets_and_dies,
    keeps_what_it_put_and_dies,
    keeps_what_it_gave_up_and_dies,
]


@pytest.mark.parametrize("how", ["put", "put_nowait", "timeout", "slot"])
@pytest.mark.parametrize("holder", HOLDERS)
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


def test_a_waiting_process_notices_a_death():
    q, ready = Queue(1), fork.Event()

    def holder():
        with q.slot():
            ready.set()
            signal.pause()

    holding = start(holder)
    ready.wait()
    waiting = start(q.put, "on")
    until(lambda: sleeps_in_futex(waiting.pid), "it waits")
    kill(holding)
    assert q.get(timeout=60) == "on"
    waiting.join()


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


def test_a_zombie_counts_as_dead():
    q = Queue(1)
    pid = os.fork()
    if pid == 0:
        claims_and_dies(q)
    wait_dead(pid)
    q.put("on")  # the dead child has not been reaped yet
    os.waitpid(pid, 0)
    assert q.get() == "on"


def put_and_die(q, what):
    q.put(what)
    os.kill(os.getpid(), signal.SIGKILL)


def test_messages_are_got_after_all_producers_have_ended():
    q = Queue(4)
    for number in range(4):
        process = start(lambda number: (q.put(message(0, number)), os.kill(os.getpid(), signal.SIGKILL)), number)
        process.join()
    for number in range(4):
        assert q.get()["number"] == number


def test_the_makers_death_ends_nothing():
    """The process that made the queue has the same role as all others."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        q, maker = Queue(2), os.getpid()

        def after():
            wait_dead(maker)
            for i in range(20):
                q.put(i)

        def also_after():
            wait_dead(maker)  # before its death it could get messages itself
            os.write(writer, b"+" if [q.get() for _ in range(20)] == list(range(20)) else b"-")

        for part in (after, also_after):
            if os.fork() == 0:
                try:
                    part()
                finally:
                    os._exit(0)
        q.put(np.zeros(3))
        kept = q.get()
        os.kill(os.getpid(), kept is not None and signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as says:
        assert says.read() == b"+"


def test_numbers_of_the_dead_are_given_out_again():
    q = Queue(2, max_processes=3)
    for i in range(30):
        start(put_and_die, q, i).join()
        assert q.get() == i


@pytest.mark.parametrize("waits", ["get", "put"])
def test_ctrl_c_ends_a_waiting_process_with_one_traceback(waits, capfd):
    q = Queue(1)
    if waits == "put":
        q.put(0)

    def wait():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        q.get() if waits == "get" else q.put(1)

    process = start(wait)
    until(lambda: sleeps_in_futex(process.pid), "it waits")
    os.kill(process.pid, signal.SIGINT)
    process.join()
    errors = capfd.readouterr().err
    assert process.exitcode == 1 and errors.count("Traceback") == 1 and errors.count("KeyboardInterrupt") == 1
