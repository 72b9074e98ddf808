"""Defer signal handlers and garbage collection, or let the interpreter release what other threads have dropped."""

import contextlib
import gc
import signal
import threading

from slipring._core.ring._check import hand_back, put_handlers


@contextlib.contextmanager
def no_collection():
    """Disable garbage collection between a fork and the worker's `gc.freeze` in `worker_main`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_interrupt(handled=False):
    """Defer the program's signal handlers, Ctrl-C's too, until the end of the block; yield the previous signal mask.

    `handled`: block all signals that have a handler, not only SIGINT. A forked worker must not run the handlers in its
    first instants. Do not use it where a fork server may be started: the server would keep the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # queried first: blocking may run pending handlers
    handlers = {n: handler for n in signal.valid_signals() if callable(handler := signal.getsignal(n))}
    blocked = {signal.SIGINT, *(handlers if handled else ())}
    came = []
    # Processes that start in the block inherit the mask. It is not enough: a native thread may receive the signal, and
    # then Python's handler runs in the main thread nevertheless.
    masked = handlers if threading.current_thread() is threading.main_thread() else {}
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        put_handlers(dict.fromkeys(masked, lambda *what: came.append(what)))
        yield before
    finally:
        hand_back(masked, before, came)


def settle():
    """Run Python code: only then does a free-threaded Python count the references that other threads have dropped."""
