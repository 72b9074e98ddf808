"""Processes that are killed, forked or interrupted while they use the disk cache."""

import contextlib
import os
import shutil
import signal
import sys

import pytest

from tests.remote.disks import LARGE, SIZE, bytes_below, data_of, entry_of, exit_of, files_below, forked
from tests.support.inside import DiskCache
from tests.support.signals import handling

pytestmark = pytest.mark.fault

SLOW = [pytest.mark.slow]


def hold_before_the_rename(folder, report):
    """Write an entry, and wait for a signal before the temporary file gets the name of the entry."""

    def rename(*args):
        os.write(report, b"r")
        signal.pause()

    os.rename = rename
    DiskCache(folder, LARGE).put("unfinished", data_of("unfinished"))


def test_the_temporary_file_of_a_killed_writer_disappears_and_that_of_a_living_one_stays(disk):
    told, report = os.pipe()
    with forked(hold_before_the_rename, str(disk), report) as writer:
        assert os.read(told, 1) == b"r"
        (temporary,) = files_below(disk)
        cache = DiskCache(str(disk), 2 * SIZE)
        cache.put("x", data_of("x"))  # the temporary file counts, too: both do not fit
        assert cache.get("x") is None and temporary.exists()
        os.kill(writer, signal.SIGKILL)
        assert exit_of(writer) == -signal.SIGKILL
        assert temporary.exists()
        cache.put("x", data_of("x"))  # this needs a sweep
        assert cache.get("x") == data_of("x") and not temporary.exists()
    with forked(hold_before_the_rename, str(disk), report) as writer:
        assert os.read(told, 1) == b"r"
    assert len(files_below(disk, "*.part")) == 1
    cache = DiskCache(str(disk), LARGE)
    assert files_below(disk, "*.part") == []
    assert cache.get("unfinished") is None and cache.get("x") == data_of("x")
    for fd in (told, report):
        os.close(fd)


def killed_at(step, folder, budget):
    """Open the cache and store an entry; be killed before the module's `step`-th executed line."""
    left = step

    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith("files/disk.py"):
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    DiskCache(folder, budget).put("new", data_of("new"))
    sys.settrace(None)


ROOM = {"an empty folder": (0, LARGE), "room": (3, LARGE), "no room": (5, 5 * (SIZE + 100))}


@pytest.mark.parametrize(
    ("room", "every"), [("room", 6), *(pytest.param(room, 1, marks=SLOW) for room in ROOM)], ids=str
)
def test_a_writer_that_is_killed_at_any_line_leaves_no_wrong_entry_and_no_stray_file(disk, room, every):
    count, budget = ROOM[room]
    names = [f"{number}" for number in range(count)]
    outcomes = []
    for step in range(1, 10_000, every):
        shutil.rmtree(disk, ignore_errors=True)
        for number, name in enumerate(names):
            os.utime(entry_of(disk, name), (number + 1, number + 1))
        with forked(killed_at, step, str(disk), budget) as writer:
            code = exit_of(writer)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert bytes_below(disk) <= budget
        cache = DiskCache(str(disk), budget)
        assert files_below(disk, "*.part") == []
        for number, name in enumerate(names):  # only a sweep removes entries, the oldest first
            assert cache.get(name) == data_of(name) or (room == "no room" and number < 2)
        outcomes.append(cache.get("new"))
        assert outcomes[-1] in (None, data_of("new"))
        for number in range(12):  # the total is still right
            cache.put(f"more {number}", data_of(f"more {number}"))
            assert cache.get(f"more {number}") == data_of(f"more {number}")
            assert bytes_below(disk) <= budget
    assert outcomes[0] is None and len(outcomes) > 60 / every
    assert every > 1 or outcomes[-1] is not None


def test_a_process_that_was_forked_under_the_lock_does_not_keep_the_lock(disk, monkeypatch):
    scandir, children = os.scandir, contextlib.ExitStack()

    def forking(folder):
        children.enter_context(forked(signal.pause))
        return scandir(folder)

    with children:
        monkeypatch.setattr(os, "scandir", forking)
        cache = DiskCache(str(disk), LARGE)
        monkeypatch.undo()
        cache.put("name", b"bytes")
        assert cache.get("name") == b"bytes"


def test_an_exception_of_a_signal_handler_is_no_failure_of_the_cache(disk, monkeypatch, caplog):
    def handler(*args):
        raise TimeoutError("mine")

    with handling(handler):
        cache = DiskCache(str(disk), LARGE)
        monkeypatch.setattr(os, "rename", lambda *args: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(TimeoutError, match="mine"):
            cache.put("name", b"bytes")
    assert files_below(disk) == [] and caplog.messages == []
