"""Code closes what it did not open, or a standard stream is missing: no file is taken for another."""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from slipring import Loader, Queue, WorkerDied, Workers
from slipring.errors import DescriptorClosed
from tests.fault.procs import ROOT, Program, alive, state, until, wait_dead, worker_pids
from tests.fault.scenes import MARK, Closing, Rows, contents
from tests.support import inside
from tests.support.inside import Descriptor, Event, Poll, engine_of, start_time

pytestmark = pytest.mark.fault

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_gets_the_segments_number_in_a_worker_is_not_touched(tmp_path, method):
    with Loader(Closing(tmp_path, 4, 8), 2, num_workers=1, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        pid = next(it)[0, 0]
        assert next(it)[0, 0] == pid
        for _ in range(2):
            with pytest.raises(
                DescriptorClosed, match=rf"\(pid {pid}\) has been closed by other code"
            ) as caught:
                next(it)
            assert "indices" in str(caught.value.__cause__)
        assert next(it, None) is None
        assert alive(pid)
    assert contents(tmp_path) == {MARK}


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_has_closed_everything_lives_as_long_as_its_consumer(tmp_path, method):
    """Also where its watch of the consumer looks again: at what is another file by then, always readable."""
    with Program("closing", method, tmp_path) as program:
        pid = json.loads(program.line())["pid"]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) == "T", "it has stopped")
        os.kill(pid, signal.SIGCONT)
        end = time.monotonic() + 2.5  # its watch looks once a second
        while time.monotonic() < end:
            assert json.loads(program.line())["pid"] == pid
        os.kill(program.pid, signal.SIGKILL)
        wait_dead(pid)
        program.end()
    assert contents(tmp_path) == {MARK}


@pytest.mark.parametrize("method", METHODS)
def test_a_consumer_that_closes_everything_goes_on(tmp_path, method):
    with Program("daemon", method, tmp_path) as program:
        line = program.line()
        assert line, program.end()
        assert json.loads(line) == {"at": "end", "rows": 64, "respawns": int(method == "fork")}
        code, _, err = program.end()
        assert (code, [line for line in err.splitlines() if "Error" in line]) == (0, [])
    assert contents(tmp_path) == {MARK}


def without_descriptors():
    """As many as there may be are open; returns them."""
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return taken


@pytest.fixture
def few_descriptors():
    """A limit that is soon met."""
    had = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, had[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, had)


@pytest.mark.usefixtures("few_descriptors")
def test_a_poll_needs_no_further_descriptor():
    poll = Poll()
    readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
    taken = without_descriptors()
    try:
        for reader in readers:
            poll.add(reader)
        assert poll.ready() == set()
        os.write(writers[1], b"x")
        assert poll.ready(60) == {readers[1]}
        poll.remove(readers[1])
        poll.remove(readers[1])  # it is not looked at: nothing
        assert poll.ready() == set()
    finally:
        for fd in (*taken, *readers, *writers):
            os.close(fd)
        poll.close()


@pytest.mark.usefixtures("few_descriptors")
def test_a_descriptor_of_which_nothing_could_be_asked_is_closed_all_the_same(monkeypatch):
    reader, writer = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(inside._ring, "identity", lambda fd: None)  # fstat: no memory
        held = Descriptor(reader)
    assert held.intact() and held.seems_intact()
    held.close()
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"nobody reads")
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


def test_a_stranger_with_a_dead_workers_number_is_not_taken_for_it():
    """The program waits for its children itself, and the number of one is another process's soon."""
    shell = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"
    stranger = int(subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, check=True).stdout)
    # The kernel tells start times in ticks of a hundredth of a second: it must not begin in the worker's.
    until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * 100 > start_time(stranger) + 1, "another tick")
    try:
        with Loader(
            Rows(80), 8, num_workers=1, prefetch_factor=1, workers=Workers(start_method="fork")
        ) as loader:
            it = iter(loader)
            next(it)
            pool = engine_of(loader).pool
            process = pool.processes[0]
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            process._popen.pid = stranger
            for fd in (pool.poll, *pool.pidfds.values()):
                os.close(fd.fd)
            with pytest.raises(WorkerDied):
                list(it)
        assert alive(stranger)
    finally:
        os.kill(stranger, signal.SIGKILL)


def test_a_queues_event_writes_into_no_other_file(tmp_path):
    event = Event()
    number = event.fd
    os.close(number)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert file == number
    event.signal()
    assert event.calm() is False
    event.fileno()
    del event
    assert os.fstat(file).st_size == 0  # and it is still open
    os.close(file)


NO_STREAMS = """
import json, os, sys
taken = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
import ctypes  # its libffi may keep a file of its own open
for fd in taken:
    os.close(fd)
from slipring import Loader, Queue, Workers
from tests.fault.scenes import Rows
method, out = sys.argv[1:]

def low():
    found = {}
    for fd in range(3):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return {fd: name for fd, name in found.items() if "null" not in name}

class Data(Rows):
    def __getitem__(self, i):
        os.closerange(200, 201)
        assert not low(), low()
        return super().__getitem__(i)

if __name__ == "__main__":
    with Loader(Data(16), 4, num_workers=2, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        next(it)
        seen = low()
        left = len(list(it))
        os.write(os.open(os.devnull, os.O_WRONLY), b"message")
    q = Queue(4)
    q.fileno()
    seen |= low()
    with open(out, "w") as file:
        json.dump([seen, left], file)
"""


@pytest.mark.parametrize("method", METHODS)
def test_without_standard_streams_nothing_of_slipring_gets_their_numbers(tmp_path, method):
    (tmp_path / "program.py").write_text(NO_STREAMS)
    command = f'exec "{sys.executable}" program.py {method} {tmp_path}/out 0<&- 1>&- 2>&-'
    path = os.pathsep.join([str(ROOT), str(ROOT / "pkg")])
    run = subprocess.run(["sh", "-c", command], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert run.returncode == 0
    assert json.loads((tmp_path / "out").read_text()) == [{}, 3]


PRINTING = """
import sys
from slipring import Loader, Workers

class Data:
    def __len__(self):
        return 16

    def __getitem__(self, i):
        if sys.argv[3] == "there":
            print(i, flush=True)
            print(i, file=sys.stderr, flush=True)
        return i

if __name__ == "__main__":
    with Loader(Data(), 4, num_workers=2, workers=Workers(start_method=sys.argv[1]), timeout=100) as loader:
        left = len(list(loader))
    with open(sys.argv[2], "w") as file:
        file.write(str(left))
"""
# In a mount namespace of its own: an empty /dev but for /dev/shm.
WITHOUT_NULL = "mount -t tmpfs none {0} && mkdir {0}/shm && mount --bind {0} /dev && "


@pytest.mark.parametrize("streams", ["open", "closed"])
@pytest.mark.parametrize("null", ["there", "missing"])
@pytest.mark.parametrize("method", METHODS)
def test_workers_start_without_standard_streams_and_without_dev_null(tmp_path, method, null, streams):
    if null == "missing" and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace")
    (tmp_path / "program.py").write_text(PRINTING)
    path = os.pathsep.join([str(ROOT), str(ROOT / "pkg")])
    command = f'exec "{sys.executable}" program.py {method} {tmp_path}/out {null}'
    command += " 0<&- 1>&- 2>&-" if streams == "closed" else ""
    shell = ["sh", "-c", command]
    if null == "missing":
        (tmp_path / "dev").mkdir()
        shell = ["unshare", "-m", "sh", "-c", WITHOUT_NULL.format(tmp_path / "dev") + command]
    run = subprocess.run(shell, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=220)
    assert run.returncode == 0
    assert (tmp_path / "out").read_text() == "4"


def test_a_queue_whose_event_is_another_file_by_now_is_not_sent_with_that(tmp_path):
    with contextlib.closing(Queue(2)) as queue:
        queue.fileno()  # from now on puts signal
        number = queue.event.fd
        os.close(number)
        assert os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR) == number
        try:
            process = multiprocessing.get_context("spawn").Process(target=queue.put, args=(1,))
            with pytest.raises(DescriptorClosed, match="queue cannot be given to another one"):
                process.start()
        finally:
            os.close(number)
        assert (tmp_path / "mine").read_bytes() == b""
