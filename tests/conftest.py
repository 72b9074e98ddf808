"""For every test: a watchdog that nothing can block, and a check for leaks."""

import contextlib
import faulthandler
import gc
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings

import hypothesis
import pytest

# Set before numpy is imported: OpenBLAS would start one thread per CPU, and these threads spin after each fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.support import warm
from tests.support.leaks import Snapshot, name_semaphores
from tests.support.options import grouped
from tests.support.trip import Trip

failed = pytest.StashKey[bool]()
stderr = pytest.StashKey[int]()
begun = pytest.StashKey[float]()


# No test asserts a maximum time; a loaded machine may make any example slow.
hypothesis.settings.register_profile("slipring", deadline=None, print_blob=True)
hypothesis.settings.load_profile("slipring")


def pytest_addoption(parser):
    # pytest-timeout raises in the main thread and can do nothing while that is stuck in C.
    parser.addini("watchdog_grace", "seconds after a test's timeout until the run is ended", default="120")
    parser.addini("leak_grace", "seconds that what a test started has to go after it", default="120")
    parser.addoption(
        "--budget", type=float, metavar="S", help="skip the tests that have not begun after so many seconds"
    )
    parser.addoption("--sample", type=int, metavar="N", help="run one in N of the tests of each file, at least one")
    parser.addoption("--sample-seed", type=int, default=1, metavar="SEED", help="which of them --sample chooses")


def pytest_configure(config):
    # Processes started by exec carry this mark, their forked children too, also when they were orphaned.
    os.environ["SLIPRING_TEST_RUN"] = f"{os.getpid()}-{os.urandom(4).hex()}"
    name_semaphores()
    config.stash[stderr] = os.dup(sys.__stderr__.fileno())  # the real one: pytest captures fd 2 later
    faulthandler.enable(config.stash[stderr])
    # A shell ignores SIGINT in background jobs, and nohup ignores SIGHUP. Child processes would inherit that. Tests
    # send them both signals, so restore the defaults.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def forked():
    """Make "fork" the default start method: workers then have the test's local functions and classes."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config, items):
    """With ``--sample N`` run one in N tests of each file, at least one; the seed decides which."""
    n, seed = config.getoption("sample"), config.getoption("sample_seed")
    if n is None:
        return
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    chosen = set()
    for tests in files.values():
        tests.sort(key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())
        chosen.update(tests[: -(-len(tests) // n)])
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_collection_finish(session):
    """Freeze the imported objects, so that no garbage collection, here or in a forked child, visits them again.

    With torch these are hundreds of thousands of objects, and each child would copy their pages.
    """
    gc.collect()
    gc.freeze()
    session.config.stash[begun] = time.monotonic()


def pytest_unconfigure(config):
    warm.end()
    faulthandler.cancel_dump_traceback_later()


def timeout_of(item):
    """Return pytest-timeout's limit for `item`: of its marker, the command line, or the configuration."""
    marker = item.get_closest_marker("timeout")
    if marker and (marker.args or "timeout" in marker.kwargs):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    from_command_line = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if from_command_line is None else from_command_line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Dump every thread's traceback and exit when a test hangs where Python cannot interrupt it."""
    budget = item.config.getoption("budget")
    if budget is not None and time.monotonic() - item.config.stash[begun] > budget:
        pytest.skip(f"the budget of {budget:g} s is spent")
    limit = timeout_of(item)
    if limit > 0:
        limit += float(item.config.getini("watchdog_grace"))
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[stderr])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Disarm the watchdog after the test."""
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed or (report.skipped and hasattr(report, "wasxfail")):
        item.stash[failed] = True
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Fail if a test leaves a process, a thread, a file of ours in /dev/shm or a file descriptor.

    After a failed test only clean up, because its traceback keeps objects alive. Mark a test that
    must leave something with ``@pytest.mark.leaks_ok("why")``.
    """
    if request.node.get_closest_marker("leaks_ok"):
        yield
        return
    before = Snapshot.take()
    yield
    leaks = [] if request.node.stash.get(failed, False) else before.leaks()
    if leaks:
        gc.collect()
        leaks = before.leaks(wait_s=float(request.config.getini("leak_grace")))
    if leaks or request.node.stash.get(failed, False):
        before.kill_new_processes()
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def trip():
    """A segment of four slots that one process uses as consumer and worker."""
    trip = Trip()
    yield trip
    trip.end()


@pytest.fixture
def make():
    """Make slipring.torch's loaders, and close them at the end; options as in `tests.support.options`."""
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    made = []

    def loader(*args, **kwargs):
        made.append(DataLoader(*args, **grouped(**kwargs)))
        return made[-1]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield loader
    for each in made:
        each.close()


@pytest.fixture
def small(tmp_path):
    """A function that mounts a tmpfs of a given size and returns its path."""
    with contextlib.ExitStack() as stack:

        def mount(size, name="small"):
            directory = tmp_path / name
            directory.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=True)
            return str(directory)

        yield mount
