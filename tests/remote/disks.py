"""Helpers for the tests of the disk cache: entries, their files, and forked processes."""

import contextlib
import fcntl
import os
import random
import signal
import traceback
from pathlib import Path

from tests.support.inside import DiskCache

LARGE = 1 << 30
SIZE = 10_000  # bytes of data per entry


def data_of(name, size=SIZE):
    return random.Random(name).randbytes(size)


def files_below(folder, *patterns):
    """Return the files of the cache: entries first, then temporary files."""
    return [path for pattern in patterns or ("*.entry", "*.part") for path in Path(folder).rglob(pattern)]


def bytes_below(folder):
    """Return the size of all entries and temporary files at one moment.

    With the lock held, no process can add or remove a file. A temporary file that becomes an entry is not counted.
    """
    total = 0
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):
            fcntl.flock(stack.enter_context(open(Path(folder, "slipring.total"), "rb")), fcntl.LOCK_EX)
        for path in files_below(folder):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
    return total


def entry_of(folder, name):
    """Store data with this name and return its file."""
    before = set(files_below(folder, "*.entry"))
    DiskCache(str(folder), LARGE).put(name, data_of(name))
    (entry,) = set(files_below(folder, "*.entry")) - before
    return entry


@contextlib.contextmanager
def forked(function, *args):
    """Run a function in a forked process and yield its pid. Kill the process at the end if it still runs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(600)  # if the test process is killed, its child ends, too
            function(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ChildProcessError):  # the test has reaped it
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def exit_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
