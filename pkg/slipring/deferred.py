"""What is put off while a worker is started: Ctrl-C, other signals' handlers, the garbage collector."""

import contextlib
import gc
import signal
import threading


@contextlib.contextmanager
def no_collection():
    """Let nothing be collected between a fork and the worker's `gc.freeze`; see `slipring.life`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_interrupt(handled=False):
    """Put Ctrl-C off until the end of the block; gives the signal mask of before.

    Parameters
    ----------
    handled : bool
        And whatever else the program has handlers for: a forked worker is not to run them in its first
        instants. Not where a fork server may be started, for that would keep the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # asked first: blocking may raise what was pending
    handler = signal.getsignal(signal.SIGINT)
    numbers = signal.valid_signals() if handled else ()
    blocked = {signal.SIGINT, *(number for number in numbers if callable(signal.getsignal(number)))}
    came = []
    # The mask is for what is started here. It is not enough: a native thread may take the signal, and then
    # Python's handler runs in the main thread all the same.
    deferred = callable(handler) and threading.current_thread() is threading.main_thread()
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        if deferred:
            signal.signal(signal.SIGINT, lambda *what: came.append(what))
        yield before
    finally:
        try:
            if deferred:
                signal.signal(signal.SIGINT, handler)
        finally:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)  # handlers run here, and may raise
            finally:
                if came:
                    handler(*came[0])
