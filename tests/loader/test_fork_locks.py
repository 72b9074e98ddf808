"""Workers that wait for a lock that a thread of the program holds: the texts of timeout and report."""

import contextlib
import os
import re
import threading

import pytest

from slipring import Loader, LoaderTimeout, Workers
from tests.support.datasets import Made
from tests.support.inside import observing
from tests.support.processes import until

CAUSE = "JAX and TensorFlow start threads.*'forkserver', or create the workers before"


@contextlib.contextmanager
def held(lock):
    """Let another thread hold a lock."""
    there, go = threading.Event(), threading.Event()

    def hold():
        with lock:
            there.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    there.wait()
    try:
        yield
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_timeout_and_report_name_locks_of_the_parents_threads_if_workers_are_forked(monkeypatch, method):
    monkeypatch.setattr(observing("verdict"), "HANGS", 0.01)
    lock = threading.Lock()  # as a library with threads of its own has

    def read(i):
        with lock:
            return i

    with contextlib.ExitStack() as stack:
        hold = stack.enter_context(contextlib.ExitStack())
        hold.enter_context(held(lock))
        loader = stack.enter_context(
            Loader(Made(read, 8), 4, num_workers=1, timeout=0.5, workers=Workers(start_method=method))
        )
        batches = iter(loader)
        with pytest.raises(LoaderTimeout) as caught:
            next(batches)
        until(lambda: loader.report().verdict.cause == "hung", "the worker waits for the lock")
        found = loader.report().verdict
        hold.close()
    said = str(caught.value)
    assert f"start method {method!r}" in said and f"`slipring dump {os.getpid()}`" in said
    assert [bool(re.search(CAUSE, text)) for text in (said, found.advice)] == [method == "fork"] * 2
    assert f"`slipring dump {os.getpid()}`" in found.advice
