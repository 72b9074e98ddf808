"""How readers join a broadcast, how both ends close, and handles that cannot be opened."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from slipring import Broadcast
from slipring.broadcast import BroadcastReader
from slipring.errors import Closed, ShutDown, TooManyProcesses
from tests.support.broadcasts import Child, get_all
from tests.support.leaks import read
from tests.support.processes import FUTEX, in_child, sleeps_in_futex, until


@pytest.fixture
def broadcast():
    with Broadcast(2, 4) as broadcast:
        yield broadcast


# ---- joining


def test_the_first_put_waits_until_all_readers_have_joined(broadcast):
    with broadcast.handle.open() as first:
        with pytest.raises(TimeoutError, match=r"1 of 2 readers have joined within timeout=0.01 s.*n_readers=1"):
            broadcast.put("early", timeout=0.01)
        with pytest.raises(TimeoutError, match="1 of 2"):
            broadcast.wait_until_ready(timeout=0)
        child = Child(get_all, broadcast.handle)
        assert broadcast.put("hello", timeout=None) == 2
        assert first.get() == "hello" and broadcast.readers == 2
        child.end(kill=True)


def test_wait_until_ready_tells_the_readers(broadcast):
    readers = [broadcast.handle.open() for _ in range(2)]
    with pytest.raises(TimeoutError):
        readers[0].wait_until_ready(timeout=0.01)
    broadcast.wait_until_ready()
    readers[0].wait_until_ready()
    broadcast.put(1)
    assert [reader.get() for reader in readers] == [1, 1]  # the second has not waited, and the mark is no message
    broadcast.put(2)
    for _ in range(2):
        readers[1].wait_until_ready()  # a message says the same, and is not lost
    assert [reader.get() for reader in readers] == [2, 2]
    readers[0].wait_until_ready(timeout=0)  # it has got a message
    for reader in readers:
        reader.close()


def test_a_message_that_comes_in_place_of_the_mark_is_not_lost(broadcast):
    readers = [broadcast.handle.open() for _ in range(2)]
    broadcast.put(1)  # without wait_until_ready(): no mark has come
    for reader in readers:
        reader.wait_until_ready()
        assert reader.get(timeout=5) == 1
        reader.close()


def test_threads_that_wait_until_the_writer_is_ready_lose_no_message(broadcast):
    readers = [broadcast.handle.open() for _ in range(2)]
    threads = [raised_in_a_thread(readers[0].wait_until_ready)[0] for _ in range(3)]
    for number in range(4):
        broadcast.put(number)
    for thread in threads:
        thread.join()
    assert sorted(readers[0].get() for _ in range(4)) == [0, 1, 2, 3]
    for reader in readers:
        reader.close()


def test_a_reader_gets_what_is_put_after_it_joined(broadcast):
    first, second = (broadcast.handle.open() for _ in range(2))
    broadcast.put(1)
    second.close()
    assert broadcast.put(2) == 1
    third = broadcast.handle.open()
    assert third.number == 1
    broadcast.put(3)
    assert [first.get() for _ in range(3)] == [1, 2, 3] and third.get() == 3
    first.close()
    third.close()
    assert broadcast.put(4) == 0 == broadcast.readers


def test_more_readers_than_announced_are_refused(broadcast):
    first, second = broadcast.handle.open(1), broadcast.handle.open()
    assert (first.number, second.number) == (1, 0)
    with pytest.raises(TooManyProcesses, match=rf"all 2 readers .*pids {os.getpid()}, {os.getpid()}\): raise n_read"):
        broadcast.handle.open()
    with pytest.raises(ValueError, match="reader 1 of this segment takes part already"):
        broadcast.handle.open(1)
    with pytest.raises(ValueError, match="made for 2 readers"):
        broadcast.handle.open(2)
    first.close()
    second.close()


def test_a_number_is_taken_while_its_process_keeps_messages(broadcast):
    handle = broadcast.handle

    def keep():
        reader = handle.open(0)
        value = reader.get()
        reader.close()
        return value

    def part(tell):
        value = keep()
        tell(value.tolist())
        signal.pause()

    first, child = broadcast.handle.open(1), Child(part)
    broadcast.put(np.arange(3))
    assert child.told() == [0, 1, 2]
    with pytest.raises(ValueError, match="reader 0"):
        broadcast.handle.open(0)
    child.end(kill=True)

    def is_free():
        try:
            broadcast.put(0)
            first.get()
            handle.open(0).close()
        except ValueError:
            return False
        return True

    until(is_free, "the writer notices its death")
    first.close()


# ---- closing


def test_after_a_close_readers_get_what_was_put_and_then_shut_down(broadcast):
    readers = [broadcast.handle.open() for _ in range(2)]
    for number in range(3):
        broadcast.put(number)
    broadcast.close()
    broadcast.close()
    assert [readers[0].get() for _ in range(3)] == [0, 1, 2] == list(readers[1])
    with pytest.raises(ShutDown, match="the writer has closed"):
        readers[0].get()
    for call in (
        lambda: broadcast.put(1),
        broadcast.wait_until_ready,
        lambda: broadcast.handle,
        lambda: broadcast.readers,
    ):
        with pytest.raises(Closed, match="Broadcast closed"):
            call()
    for reader in readers:
        reader.close()
        reader.close()
        with pytest.raises(Closed, match="BroadcastReader closed"):
            reader.get()


def test_a_writer_and_a_reader_that_are_dropped_are_closed(broadcast):
    reader = broadcast.handle.open(0)
    second = broadcast.handle.open(1)
    broadcast.put(1)
    del reader
    assert broadcast.readers == 1
    other = Broadcast(1)
    third = other.handle.open()
    del other
    with pytest.raises(ShutDown):
        third.get()
    second.close()
    third.close()


def raised_in_a_thread(call):
    """Call in a thread that sleeps by the time that this function returns; return (thread, what it raised)."""
    raised = []

    def run():
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    task = f"/proc/self/task/{thread.native_id}/syscall"
    until(lambda: read(task).split()[0] in FUTEX, "it waits")
    return thread, raised


@pytest.mark.parametrize("call", ["get", "wait_until_ready"])
def test_a_close_from_another_thread_wakes_a_waiting_reader(broadcast, call):
    readers = [broadcast.handle.open() for _ in range(2)]
    if call == "get":
        broadcast.put(0)
        assert [reader.get() for reader in readers] == [0, 0]
    thread, raised = raised_in_a_thread(getattr(readers[0], call))
    readers[0].close()
    thread.join()
    assert type(raised[0]) is Closed
    with broadcast.handle.open():  # the first put() waits for as many readers
        broadcast.put(1)
        assert readers[1].get() == 1
    readers[1].close()


@pytest.mark.parametrize("call", ["put", "put when full", "wait_until_ready"])
def test_a_close_from_another_thread_wakes_a_waiting_writer(broadcast, call):
    readers = [broadcast.handle.open() for _ in range(2 if call == "put when full" else 1)]
    if call == "put when full":
        for number in range(4):
            broadcast.put(number)
    thread, raised = raised_in_a_thread(
        broadcast.wait_until_ready if call == "wait_until_ready" else lambda: broadcast.put(0)
    )
    broadcast.close()
    thread.join()
    assert type(raised[0]) is Closed and str(raised[0]).startswith("<Broadcast closed at ")
    for reader in readers:
        reader.close()


def test_a_put_of_another_thread_counts_for_the_timeout(broadcast):
    thread, raised = raised_in_a_thread(lambda: broadcast.put(0))
    with pytest.raises(TimeoutError, match="another thread has been putting"):
        broadcast.put(1, timeout=0.01)
    broadcast.close()
    thread.join()
    assert type(raised[0]) is Closed


class Alarm(Exception):
    pass


@pytest.mark.parametrize("call", ["get", "put"])
def test_a_signal_handler_may_raise_out_of_a_wait(broadcast, call):
    def ring(*_):
        raise Alarm

    readers = [broadcast.handle.open() for _ in range(2)]
    before = signal.signal(signal.SIGALRM, ring)
    if call == "put":
        for number in range(4):
            broadcast.put(number)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Alarm):
        broadcast.put(4) if call == "put" else readers[0].get()
    signal.signal(signal.SIGALRM, before)
    expected = [0, 1, 2, 3] if call == "put" else [5]
    if call == "get":
        broadcast.put(5)
    for reader in readers:
        assert [reader.get() for _ in expected] == expected
        reader.close()


AT_EXIT = """
import slipring

broadcast = slipring.Broadcast(2)
readers = [broadcast.handle.open() for _ in range(2)]
broadcast.put(1)
kept = readers[0].get()
circle = [broadcast, readers, kept]
circle.append(circle)
"""


def test_a_program_may_end_without_closing_anything():
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broadcast_may_have_a_record_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPRING_RECORD", str(tmp_path / "record"))
    with Broadcast(1) as broadcast, broadcast.handle.open() as reader:
        assert broadcast.put(np.arange(3)) == 1
        assert reader.get().tolist() == [0, 1, 2]
    assert (tmp_path / "record").stat().st_size > 0


# ---- forks and pickles


def test_a_forked_child_can_use_neither_end_but_can_join(broadcast):
    reader = broadcast.handle.open()
    handle = broadcast.handle

    def child():
        for call in (lambda: broadcast.put(1), lambda: reader.get(), lambda: broadcast.handle):
            with pytest.raises(Closed, match="belongs to the parent process"):
                call()
        broadcast.close()
        reader.close()
        with handle.open() as own:
            return own.number

    assert in_child(child) == 1
    assert broadcast.readers == 1
    with handle.open():
        assert broadcast.put(1) == 2
    assert reader.get() == 1
    reader.close()


def test_only_the_handle_can_be_pickled(broadcast):
    reader = broadcast.handle.open()
    with pytest.raises(TypeError, match="send its handle"):
        pickle.dumps(broadcast)
    with pytest.raises(TypeError, match="send the broadcast's handle"):
        pickle.dumps(reader)
    assert pickle.loads(pickle.dumps(broadcast.handle)) == broadcast.handle
    reader.close()


def test_programs_that_a_process_executes_do_not_get_the_descriptors(broadcast):
    with broadcast.handle.open() as reader:
        assert not os.get_inheritable(broadcast.ring.fd) and not os.get_inheritable(reader.ring.fd)


# ---- handles that cannot be opened


def test_a_handle_of_a_closed_or_dead_writer_is_refused(broadcast):
    def make():
        other = Broadcast(1)
        os._exit_handle = other  # it lives until the process ends
        return other.handle

    handle = broadcast.handle
    broadcast.close()
    for gone in (handle, in_child(make)):
        with pytest.raises(Closed, match=rf"its writer \(pid {gone.pid}\) has closed it or ended"):
            gone.open()


def test_a_descriptor_with_another_file_is_refused(broadcast, tmp_path):
    with open(tmp_path / "other", "wb") as other:
        changed = dataclasses.replace(broadcast.handle, fd=other.fileno())
        with pytest.raises(Closed, match="is gone"):
            changed.open()


def test_readers_of_another_version_container_or_user_are_refused(broadcast, monkeypatch):
    handle = broadcast.handle
    with pytest.raises(ValueError, match=r"made by slipring 0.0.1, and this process has slipring \d"):
        dataclasses.replace(handle, version="0.0.1").open()
    with pytest.raises(OSError, match="another PID namespace"):
        dataclasses.replace(handle, pid_namespace=12345).open()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="12345"):
        handle.open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused(broadcast):
    handle = broadcast.handle

    def child():
        os.setuid(65534)
        with pytest.raises(PermissionError, match=rf"runs as user 65534 .* writer \(pid {handle.pid}\)"):
            handle.open()

    in_child(child)


def test_wrong_arguments_are_refused(broadcast):
    for wrong in (0, 41, -1, "2", 1.5, None):
        with pytest.raises((ValueError, TypeError), match="n_readers"):
            Broadcast(wrong)
    for name, wrong in {"maxsize": 0, "slot_bytes": 0, "backing": "disk"}.items():
        with pytest.raises(ValueError, match=name):
            Broadcast(1, **{name: wrong})
    for name, wrong in {"copy": "sometimes", "spin": -1, "number": -1}.items():
        with pytest.raises(ValueError, match=name):
            broadcast.handle.open(**{name: wrong})
    with pytest.raises(ValueError, match="spin must be from 0 to 1000000 microseconds"):
        broadcast.handle.open(spin=float("nan"))
    with broadcast.handle.open() as reader, pytest.raises(TypeError, match="timeout"):
        reader.get(timeout="1")
    with pytest.raises(TypeError):
        BroadcastReader()


def test_an_idle_reader_sleeps(broadcast):
    child = Child(get_all, broadcast.handle)
    assert child.told() == "joined"
    until(lambda: sleeps_in_futex(child.pid), "it sleeps")
    child.end(kill=True)
