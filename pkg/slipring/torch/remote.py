"""Errors in torch's words, which users of torch's loader know."""

import pickle
import signal

from slipring._core.workers.error_record import SIGNALS, caught, where, worker_error
from slipring.errors import LoaderTimeout, SlipringError, WorkerDied
from slipring.torch.private import KeyErrorMessage


def rebuild(described, original=None):
    """Return the exception to raise for an error record: of the original class, with torch's text.

    As in torch, the text contains the worker's traceback, and a class that takes no text becomes RuntimeError. The
    cause is a `WorkerError` with the worker, the batch number and the indices. If `original` is given, it is returned:
    it is the exception itself, raised in this process.
    """
    if original is not None:
        return original
    error = _made(_class(described), caught(described))
    if isinstance(error, SlipringError):
        error.__dict__.update(_attributes(described))
    who = f"worker {described['worker']} (pid {described['pid']})"
    error.__cause__ = worker_error(where(described, who), described)
    return error


def _class(described):
    try:
        return pickle.loads(described["class"])
    except Exception:  # a class that was made in the worker: use RuntimeError
        return RuntimeError


def _attributes(described):
    """Return the attributes of an exception besides its text."""
    try:
        return vars(pickle.loads(described["pickle"]))
    except Exception:  # it was too large, or cannot be rebuilt here; the text has the same information
        return {}


def _made(kind, text):
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, SIGNALS):
        return RuntimeError(text)
    if kind is KeyError:
        return KeyError(KeyErrorMessage(text))  # its str() is not a repr
    try:
        # For torch, a class that has this attribute takes its text by this name.
        made = kind(message=text) if getattr(kind, "message", None) else kind(text)
    except Exception:
        return RuntimeError(text)
    return made if isinstance(made, BaseException) else RuntimeError(text)


def in_torchs_words(error, timeout):
    """Return a WorkerDied or LoaderTimeout (of `timeout` seconds) with torch's text before slipring's."""
    if isinstance(error, WorkerDied):
        code = error.exitcode
        if code is not None and code < 0:
            text = f"DataLoader worker (pid {error.pid}) is killed by signal: {signal.strsignal(-code)}. "
        else:
            text = f"DataLoader worker (pid(s) {error.pid}) exited unexpectedly with exit code {code}. "
        made = WorkerDied(text + str(error))
    else:
        made = LoaderTimeout(f"DataLoader timed out after {timeout} seconds: {error}")
    made.__dict__.update(error.__dict__)
    made.__cause__ = error
    return made
