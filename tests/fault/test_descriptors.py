"""Code closes descriptors that it did not open: an error names them, and no other file is mistaken for ours."""

import contextlib
import json
import multiprocessing
import os
import re
import resource
import signal
import time

import numpy as np
import pytest

from slipring import Cache, Loader, Queue, Workers
from slipring.errors import DescriptorClosed
from tests.support.inside import Descriptor, Event, Poll, engine_of
from tests.support.parts import slow
from tests.support.processes import Program, alive, state, until, wait_dead, worker_pids
from tests.support.scenes import MARK, Closing, Rows, contents

pytestmark = pytest.mark.fault

METHODS = ["fork", "spawn", slow("forkserver")]
CLOSED = "slipring's file descriptor of .* has been closed by other code"


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_gets_the_segments_number_in_a_worker_is_not_touched(tmp_path, method):
    with Loader(Closing(tmp_path, 4, 8), 2, num_workers=1, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        pid = next(it)[0, 0]
        assert next(it)[0, 0] == pid
        for _ in range(2):
            with pytest.raises(DescriptorClosed, match=rf"\(pid {pid}\) has been closed by other code") as caught:
                next(it)
            assert "indices" in str(caught.value.__cause__)
        assert next(it, None) is None
        assert alive(pid)
    assert contents(tmp_path) == {MARK}


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_has_closed_everything_lives_as_long_as_its_consumer(tmp_path, method):
    """This holds even if its descriptor of the consumer has become another file, which is always readable."""
    with Program("closing", method, tmp_path) as program:
        pid = json.loads(program.line())["pid"]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) == "T", "it has stopped")
        os.kill(pid, signal.SIGCONT)
        end = time.monotonic() + 2.5  # its watch checks once a second
        while time.monotonic() < end:
            assert json.loads(program.line())["pid"] == pid
        os.kill(program.pid, signal.SIGKILL)
        wait_dead(pid)
        program.end()
    assert contents(tmp_path) == {MARK}


@pytest.mark.parametrize("method", METHODS)
def test_a_consumer_that_closes_everything_gets_an_error_and_its_workers_end(tmp_path, method):
    with Program("daemon", method, tmp_path) as program:
        line = program.line()
        assert line, program.end()
        told = json.loads(line)
        assert re.search(CLOSED, told["error"]) and "worker" in told["error"]
        assert f"(pid {program.pid})" in told["error"]
        for pid in told["workers"]:
            wait_dead(pid)
        code, _, err = program.end()
        assert code == 0
        assert "The workers end by themselves" in err
    assert contents(tmp_path) == {MARK}


@pytest.mark.parametrize("streams", ["kept", "closed"])
@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_closes_everything_makes_its_own_loader_and_disturbs_no_parent(method, streams):
    with Program("daemonised", method, streams) as program:
        assert json.loads(program.line()) == {"at": "end", "child": 0, "rows": 64}
        assert program.end()[0] == 0


def without_descriptors():
    """Open as many descriptors as the limit allows; return them."""
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return taken


@pytest.fixture
def few_descriptors():
    """A low limit on descriptors."""
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, had[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, had)


@pytest.mark.usefixtures("few_descriptors")
def test_a_poll_needs_no_further_descriptor():
    poll = Poll("a poll")
    readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
    taken = without_descriptors()
    try:
        for reader in readers:
            poll.add(reader)
        assert poll.ready() == set()
        os.write(writers[1], b"x")
        assert poll.ready(60) == {readers[1]}
        poll.remove(readers[1])
        poll.remove(readers[1])  # the poll does not check it: no effect
        assert poll.ready() == set()
    finally:
        for fd in (*taken, *readers, *writers):
            os.close(fd)
        poll.close()


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_pool_names_its_descriptor_that_was_closed(caplog, number):
    """Return the descriptor of the epoll (0), or of a worker's pidfd (1)."""
    with Loader(Rows(80), 8, num_workers=1, workers=Workers(start_method="fork")) as loader:
        it = iter(loader)
        next(it)
        pool = engine_of(loader).pool
        pid = worker_pids(loader)[0]
        fd = (pool.poll, pool.pidfds[0])[number].fd
        os.close(fd)
        with open(os.devnull) as other:  # it has the number by now
            assert other.fileno() == fd
            with pytest.raises(DescriptorClosed, match=("epoll of a worker pool", "pidfd of worker 0")[number]):
                pool.check()
            del it
            loader.close()
            os.fstat(fd)
    wait_dead(pid)
    assert "The workers end by themselves" in caplog.text


def test_a_descriptor_closes_no_other_file(tmp_path):
    reader, writer = os.pipe()
    held = Descriptor(reader, "a pipe")
    os.close(reader)
    with open(tmp_path / "file", "wb") as file:
        assert file.fileno() == reader and not held.intact()
        with pytest.raises(DescriptorClosed, match="descriptor of a pipe in this process"):
            held.number()
        held.close()
        del held
        os.fstat(reader)
    os.close(writer)


def test_the_end_of_workers_is_seen_without_a_free_descriptor():
    loader = Loader(Rows(80), 8, num_workers=2, workers=Workers(start_method="fork"))
    it = iter(loader)
    next(it)
    pids = worker_pids(loader).values()
    taken = without_descriptors()
    try:
        loader.close()
    finally:
        for fd in taken:
            os.close(fd)
    assert not any(alive(pid) for pid in pids)
    del it


def test_a_queues_event_writes_into_no_other_file(tmp_path):
    event = Event()
    event.fileno()
    number = event.fd
    os.close(number)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert file == number
    for call in (event.signal, event.calm, event.fileno):
        with pytest.raises(DescriptorClosed, match="a queue's event"):
            call()
    del event
    assert os.fstat(file).st_size == 0  # and the file is still open
    os.close(file)


@pytest.mark.parametrize("what", ["event", "epoll"])
def test_a_queue_that_is_polled_puts_and_gets_nothing_without_its_descriptors(what):
    with contextlib.closing(Queue(2)) as queue:
        queue.put(1)
        polled = queue.fileno()
        os.close(queue.event.fd if what == "event" else polled)
        with pytest.raises(DescriptorClosed, match=f"a queue's {what}"):
            queue.fileno()
        if what == "event":
            for call in (queue.get_nowait, lambda: queue.put_nowait(2)):
                with pytest.raises(DescriptorClosed, match="a queue's event"):
                    call()
        assert queue.qsize() == 1


def read_link(fd):
    """Return the name of an open file; "" if the descriptor has been closed meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_a_cache_without_its_descriptor_says_so_when_it_needs_memory(tmp_path):
    with contextlib.closing(Cache("64MiB")) as cache:
        assert cache.get_or_make(1, lambda: np.ones(8)).sum() == 8
        names = {int(fd): read_link(fd) for fd in os.listdir("/proc/self/fd")}
        (number,) = (fd for fd, name in names.items() if name.startswith("/memfd:slipring-cache"))
        os.close(number)
        assert os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR) == number
        with pytest.raises(DescriptorClosed, match="descriptor of a cache"):
            cache.get_or_make(2, lambda: np.ones(5 << 20))
        assert cache.get_or_make(1, lambda: None).sum() == 8
    os.close(number)
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_queue_whose_event_is_another_file_by_now_is_not_sent_with_that(tmp_path):
    with contextlib.closing(Queue(2)) as queue:
        queue.fileno()  # from now on put() signals
        number = queue.event.fd
        os.close(number)
        assert os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR) == number
        try:
            process = multiprocessing.get_context("spawn").Process(target=queue.put, args=(1,))
            with pytest.raises(DescriptorClosed, match="a queue's event"):
                process.start()
        finally:
            os.close(number)
        assert (tmp_path / "mine").read_bytes() == b""
