"""Code closes descriptors that it did not open: an error names them, and no other file is mistaken for ours."""

import contextlib
import json
import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pytest

from slipring import Cache, Loader, Queue, Workers
from slipring.errors import DescriptorClosed
from tests.support.inside import engine_of
from tests.support.leaks import link
from tests.support.parts import slow
from tests.support.processes import Program, alive, state, until, wait_dead, worker_pids
from tests.support.scenes import MARK, Closing, Rows, contents

pytestmark = pytest.mark.fault

METHODS = ["fork", slow("spawn"), slow("forkserver")]
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


def test_a_worker_that_has_closed_everything_lives_as_long_as_its_consumer(tmp_path):
    """This holds even if its descriptor of the consumer has become another file, which is always readable."""
    with Program("closing", tmp_path) as program:
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


@pytest.mark.parametrize(("method", "streams"), [("fork", "kept"), ("fork", "closed"), slow("spawn", "closed")])
def test_a_child_that_closes_everything_makes_its_own_loader_and_disturbs_no_parent(method, streams):
    with Program("daemonised", method, streams) as program:
        assert json.loads(program.line()) == {"at": "end", "child": 0, "rows": 64}
        assert program.end()[0] == 0


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_pool_names_its_descriptor_that_was_closed(caplog, number):
    """Close the descriptor of the epoll (0), or of a worker's pidfd (1)."""
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


def test_the_end_of_workers_is_seen_without_a_free_descriptor():
    loader = Loader(Rows(80), 8, num_workers=2, workers=Workers(start_method="fork"))
    it = iter(loader)
    next(it)
    pids = worker_pids(loader).values()
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    try:
        loader.close()
    finally:
        for fd in taken:
            os.close(fd)
    assert not any(alive(pid) for pid in pids)
    del it


@pytest.mark.parametrize("what", ["event", "epoll"])
def test_a_queue_that_is_polled_puts_and_gets_nothing_without_its_descriptors(tmp_path, what):
    with contextlib.closing(Queue(2)) as queue:
        queue.put(1)
        polled = queue.fileno()
        number = queue.event.fd if what == "event" else polled
        os.close(number)
        assert os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR) == number
        calls = [queue.fileno]
        if what == "event":
            spawn = multiprocessing.get_context("spawn")
            calls += [queue.get_nowait, lambda: queue.put_nowait(2), spawn.Process(target=queue.put, args=(1,)).start]
        for call in calls:
            with pytest.raises(DescriptorClosed, match=f"a queue's {what}"):
                call()
        assert queue.qsize() == 1
    os.close(number)
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_cache_without_its_descriptor_says_so_when_it_needs_memory(tmp_path):
    def caches():
        links = {int(fd): link(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        return {fd for fd, name in links.items() if name.startswith("/memfd:slipring-cache")}

    before = caches()  # of other tests' modules
    with contextlib.closing(Cache("64MiB")) as cache:
        assert cache.get_or_make(1, lambda: np.ones(8)).sum() == 8
        (number,) = caches() - before
        os.close(number)
        assert os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR) == number
        with pytest.raises(DescriptorClosed, match="descriptor of a cache"):
            cache.get_or_make(2, lambda: np.ones(5 << 20))
        assert cache.get_or_make(1, lambda: None).sum() == 8
    os.close(number)
    assert (tmp_path / "mine").read_bytes() == b""
