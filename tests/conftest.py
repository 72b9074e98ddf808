"""What every test gets: a watchdog that cannot be blocked, and a check that nothing was left behind."""

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import warnings

import hypothesis
import pytest

from tests.leaks import Snapshot, name_semaphores
from tests.trip import Trip

failed = pytest.StashKey[bool]()
stderr = pytest.StashKey[int]()


# No test asserts a maximum time; a loaded machine may make any example slow.
hypothesis.settings.register_profile("slipring", deadline=None, print_blob=True)
hypothesis.settings.load_profile("slipring")


def pytest_addoption(parser):
    # pytest-timeout raises in the main thread and can do nothing while that is stuck in C.
    parser.addini("watchdog_grace", "seconds after a test's timeout until the run is ended", default="30")
    parser.addini("leak_grace", "seconds that what a test started has to go after it", default="10")


def pytest_configure(config):
    # Processes started by exec carry this mark, their forked children too, also when they were orphaned.
    os.environ["SLIPRING_TEST_RUN"] = f"{os.getpid()}-{os.urandom(4).hex()}"
    name_semaphores()
    config.stash[stderr] = os.dup(sys.__stderr__.fileno())  # the real one: pytest captures fd 2 later
    faulthandler.enable(config.stash[stderr])
    # A shell starts its background jobs with SIGINT ignored, and so would be all that tests send it to.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def forked():
    """Workers begin by a fork where nobody says how, with functions and classes that only the test has."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """What is measured may be wrong once where the machine had other work; three times it has another reason."""
    for item in items:
        if item.get_closest_marker("measured"):
            item.add_marker(pytest.mark.alone)
            # What hangs, or leaves something behind, fails at once; a limit of time is each try's own.
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))
            item.add_marker(pytest.mark.timeout(timeout_of(item), func_only=True), append=False)


def pytest_collection_finish():
    """What was imported stays: neither a collection nor a forked child that collects goes through it again.

    With torch these are hundreds of thousands of objects, and each child would copy their pages.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    faulthandler.cancel_dump_traceback_later()


def timeout_of(item):
    """The limit that pytest-timeout puts on `item`: its marker, the command line, or the configuration."""
    marker = item.get_closest_marker("timeout")
    if marker and (marker.args or "timeout" in marker.kwargs):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    from_command_line = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if from_command_line is None else from_command_line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Dump every thread's traceback and exit when a test hangs where Python cannot interrupt it."""
    limit = timeout_of(item)
    if limit > 0:
        limit += float(item.config.getini("watchdog_grace"))
        faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[stderr])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End the watch when all tries are over."""
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
    """After each test: no process, no file of ours in /dev/shm, no file descriptor more than before.

    A test that failed is only cleaned up after, since its traceback keeps objects alive. Mark a test that
    must leave something with ``@pytest.mark.leaks_ok("why")``.
    """
    if request.node.get_closest_marker("leaks_ok"):
        yield
        return
    before = Snapshot.take()
    request.node.stash[failed] = False  # it may be another try
    yield
    leaks = [] if request.node.stash.get(failed, False) else before.leaks()
    if leaks:
        gc.collect()
        leaks = before.leaks(wait_s=float(request.config.getini("leak_grace")))
    before.kill_new_processes()
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def trip():
    """A segment of four slots, used by one process as consumer and worker."""
    trip = Trip()
    yield trip
    trip.end()


@pytest.fixture
def make():
    """Make slipring.torch's loaders, which are closed in the end."""
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    made = []

    def loader(*args, **kwargs):
        made.append(DataLoader(*args, **kwargs))
        return made[-1]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield loader
    for each in made:
        each.close()
