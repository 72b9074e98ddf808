"""Readers and writers that are killed: the others continue, learn it, and lose nothing."""

import functools
import os
import random
import signal
import threading
import time

import pytest

from slipring import Broadcast
from slipring.errors import ReaderDied, TooManyProcesses, WriterDied
from tests.support.broadcasts import Child, digest, get_all, message
from tests.support.processes import sleeps_in_futex, state, until


def hold(tell, handle):
    """Get a message, keep it, and stop."""
    reader = handle.open()
    kept = reader.get()
    tell(digest(kept)[0])
    signal.pause()


def leave_behind(tell, handle):
    """Join, and take nothing."""
    reader = handle.open()
    tell(reader.number)
    signal.pause()


@pytest.mark.parametrize("part", [get_all, hold, leave_behind])
def test_the_writer_learns_a_readers_death_once_and_continues_with_the_others(part):
    with Broadcast(2, maxsize=3) as broadcast, broadcast.handle.open(0) as reader:
        child = Child(part, broadcast.handle)
        if part is leave_behind:
            child.told()
        broadcast.put(message(0))
        assert digest(reader.get())[0] == 0
        if part is not leave_behind:
            child.told()
        child.end(kill=True)
        number = 1
        with pytest.raises(ReaderDied, match=rf"reader 1 \(pid {child.pid}\) ended without close") as died:
            while True:  # a put soon after the death may not notice it
                broadcast.put(message(number))
                assert digest(reader.get())[0] == number
                number += 1
        assert (died.value.readers, died.value.pids) == ([1], [child.pid])
        for later in range(number, number + 10):
            assert broadcast.put(message(later)) == 1
            assert digest(reader.get())[0] == later
        with broadcast.handle.open() as successor:
            assert successor.number == 1 and broadcast.put(message(99)) == 2
            assert digest(successor.get())[0] == 99


def test_a_put_that_waits_for_a_reader_learns_its_death():
    with Broadcast(1, maxsize=2) as broadcast:
        child = Child(leave_behind, broadcast.handle)
        child.told()
        for number in range(2):
            broadcast.put(number)
        with pytest.raises(TimeoutError):
            broadcast.put(2, timeout=0.01)
        killer = Child(kill_when_it_waits, os.getpid(), child.pid)
        with pytest.raises(ReaderDied):
            broadcast.put(2)
        killer.end()
        child.end()
        assert broadcast.put(2) == 0


def kill_when_it_waits(tell, waiting, victim):
    until(lambda: sleeps_in_futex(waiting), "it waits")
    os.kill(victim, signal.SIGKILL)


def test_wait_until_ready_learns_the_death_of_a_reader_that_had_joined():
    with Broadcast(2) as broadcast:
        child = Child(leave_behind, broadcast.handle)
        child.told()
        with pytest.raises(TimeoutError):
            broadcast.wait_until_ready(timeout=0)
        child.end(kill=True)
        with pytest.raises(ReaderDied):
            broadcast.wait_until_ready()
        readers = [broadcast.handle.open() for _ in range(2)]
        broadcast.wait_until_ready()
        for reader in readers:
            reader.wait_until_ready()
            reader.close()


def test_a_reader_that_ends_after_its_close_is_no_death():
    with Broadcast(2) as broadcast, broadcast.handle.open() as reader:
        child = Child(get_some, broadcast.handle, 3)
        for number in range(3):
            broadcast.put(message(number))
        assert child.end() == 0
        for number in range(3, 100):
            broadcast.put(message(number))
            reader.get()
            time.sleep(0.001)  # long enough for several checks


def get_some(tell, handle, count):
    with handle.open() as reader:
        for number in range(count):
            assert digest(reader.get())[0] == number


def write(tell, handles, count, then):
    """Make a broadcast, send its handle, put messages, and then wait in one of several states."""
    broadcast = Broadcast(1, maxsize=3)
    tell(broadcast.handle)
    for number in range(count):
        broadcast.put(message(number))
    tell("put")
    if then == "waits for a slot":
        broadcast.put(message(count))
    elif then == "writes":
        broadcast.put(Slow(tell))
    signal.pause()


class Slow:
    def __init__(self, tell):
        self.tell = tell

    def __reduce__(self):
        self.tell("writes")
        signal.pause()


@pytest.mark.parametrize("then", ["is idle", "waits for a slot", "writes"])
def test_a_reader_gets_what_was_put_and_then_learns_the_writers_death(then):
    count = 3 if then == "waits for a slot" else 2
    child = Child(write, None, count, then)
    reader = child.told().open()
    assert child.told() == "put"
    if then == "writes":
        assert child.told() == "writes"
    elif then == "waits for a slot":
        until(lambda: sleeps_in_futex(child.pid), "it waits")
    kept = reader.get()
    child.end(kill=True)
    assert [digest(reader.get())[0] for _ in range(1, count)] == list(range(1, count))
    if then == "waits for a slot":  # `kept` is a view, but others may have been taken and put meanwhile
        assert digest(kept) == digest(message(0))
    for timeout in (None, None, 0, 0.01):
        with pytest.raises(WriterDied, match=rf"the writer \(pid {child.pid}\) has ended without close") as died:
            reader.get(timeout)
    assert died.value.pid == child.pid and digest(kept) == digest(message(0))
    reader.close()


def test_a_sleeping_reader_learns_the_writers_death():
    writer = Child(write, None, 0, "is idle")
    child = Child(get_all, writer.told())
    assert child.told() == "joined"
    until(lambda: sleeps_in_futex(child.pid), "it waits")
    writer.end(kill=True)
    assert child.told() == "WriterDied"
    child.end()


def become_another_program(tell):
    broadcast = Broadcast(1)
    tell(broadcast.handle)
    broadcast.wait_until_ready()
    os.execvp("sleep", ["sleep", "600"])


def test_a_writer_that_becomes_another_program_is_dead_for_its_readers():
    child = Child(become_another_program)
    reader = child.told().open()
    reader.wait_until_ready()
    with pytest.raises(WriterDied):
        reader.get()
    reader.close()
    child.end(kill=True)


def test_a_stopped_reader_is_not_dead():
    with Broadcast(1, maxsize=2) as broadcast:
        child = Child(get_all, broadcast.handle)
        assert child.told() == "joined"
        broadcast.put(message(0))
        assert child.told() == 0
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: state(child.pid) == "T", "it is stopped")
        for number in range(1, 3):
            broadcast.put(message(number))
        with pytest.raises(TimeoutError, match=rf"reader 0 \(pid {child.pid}\) has 2 messages to get"):
            broadcast.put(message(3), timeout=0.3)
        os.kill(child.pid, signal.SIGCONT)
        broadcast.put(message(3))
        assert [child.told() for _ in range(3)] == [1, 2, 3]
        broadcast.close()
        assert child.told() == "shut down" and child.end() == 0


# ---- at random


def read_checked(tell, handle, seed, steady):
    """Get messages, keep some, close and join again; die if a message is lost, doubled or out of order."""
    rng = random.Random(seed)
    expected, kept = 0 if steady else None, []
    while True:
        with opened(handle) as reader:
            tell(os.getpid())
            for value in reader:
                number, _ = found = digest(value)
                assert found == digest(message(number)) and expected in (None, number)
                expected = number + 1
                kept.append((value, number))
                del value
                while len(kept) > rng.randrange(3):
                    old, before = kept.pop(0)
                    assert digest(old) == digest(message(before))
                if not steady and rng.random() < 0.01:
                    kept.clear()
                    expected = None
                    break
            else:
                tell(expected)
                return


def opened(handle):
    """Join as soon as the writer has noticed a death."""
    while True:
        try:
            return handle.open()
        except TooManyProcesses:
            time.sleep(0.001)


def kill_readers(kills, seed):
    """Kill readers at random instants; a reader that is never killed gets every message."""
    rng, number, killed = random.Random(seed), 0, 0
    with Broadcast(4, maxsize=6) as broadcast:
        steady = Child(read_checked, broadcast.handle, seed, True)
        mortal = [Child(read_checked, broadcast.handle, rng.random(), False) for _ in range(3)]
        for child in [steady, *mortal]:
            child.told()
        while killed < kills:
            victim = rng.randrange(3)
            child, until_s = mortal[victim], time.monotonic() + rng.random() * 0.01
            while time.monotonic() < until_s:
                number = put_on(broadcast, number)
            os.kill(child.pid, signal.SIGKILL)
            assert child.end() == -signal.SIGKILL
            killed += 1
            mortal[victim] = Child(read_checked, broadcast.handle, rng.random(), False)
        for child in mortal:
            child.end(kill=True)
        number = put_on(broadcast, number)
    assert steady.told() == number
    assert steady.end() == 0


def put_on(broadcast, number):
    """Put the next message, also after deaths; return the number after it."""
    while True:
        try:
            broadcast.put(message(number))
            return number + 1
        except ReaderDied:
            pass


def put_for_ever(tell):
    broadcast = Broadcast(2, maxsize=3)
    tell(broadcast.handle)
    number = 0
    while True:
        broadcast.put(message(number))
        number += 1


def read_until_its_death(reader, kill, kill_at):
    """Get messages until the writer, which is killed at a time, has died; return how many came."""
    expected, kept = 0, None
    while True:
        if kill_at is not None and time.monotonic() > kill_at:
            kill()
            kill_at = None
        try:
            value = reader.get(timeout=0.001 if kill_at else None)
        except TimeoutError:
            continue
        except WriterDied:
            return expected
        assert digest(value) == digest(message(expected))
        if kept is not None:
            assert digest(kept) == digest(message(expected - 1))
        kept, expected = value, expected + 1


def kill_writers(kills, seed):
    """Kill writers at random instants; their readers get the same messages, without a gap, and learn the death."""
    rng = random.Random(seed)
    for _ in range(kills):
        writer = Child(put_for_ever)
        handle = writer.told()
        first, second = handle.open(), handle.open()
        counts = []
        thread = threading.Thread(target=lambda of=second, to=counts: to.append(read_until_its_death(of, None, None)))
        thread.start()
        kill_at = time.monotonic() + rng.random() * 0.02
        count = read_until_its_death(first, functools.partial(os.kill, writer.pid, signal.SIGKILL), kill_at)
        thread.join()
        assert counts == [count]
        first.close()
        second.close()
        assert writer.end() == -signal.SIGKILL


def test_writers_that_are_killed_at_random_leave_their_readers_the_same_messages():
    kill_writers(40, os.environ.get("SLIPRING_TEST_SEED", "1"))


@pytest.mark.slow
def test_thousands_of_writers_that_are_killed_at_random_leave_their_readers_the_same_messages():
    kill_writers(2000, os.environ.get("SLIPRING_TEST_SEED", "2"))


def test_readers_that_are_killed_at_random_disturb_no_other():
    kill_readers(60, os.environ.get("SLIPRING_TEST_SEED", "1"))


@pytest.mark.slow
def test_thousands_of_readers_that_are_killed_at_random_disturb_no_other():
    kill_readers(2000, os.environ.get("SLIPRING_TEST_SEED", "2"))
