"""The start method in a loader's `multiprocessing_context`."""

import multiprocessing
import threading
from multiprocessing.process import BaseProcess

from slipring._core.options.values import default_start_method

_METHODS = multiprocessing.get_all_start_methods()


def start_of(context):
    """Return (start method, `context` if its workers are processes of a custom class, else None).

    `context` is the loader's `multiprocessing_context`, or None for the default.
    """
    if context is None:
        return default_start_method(), None
    kind = getattr(context, "Process", None)
    if isinstance(kind, type) and issubclass(kind, threading.Thread):
        return "thread", None
    if isinstance(kind, type) and issubclass(kind, BaseProcess):
        # multiprocessing.Process has None there: it uses the start method of the default context.
        method = getattr(kind, "_start_method", "") or multiprocessing.get_start_method()
        if method in _METHODS:
            standard = multiprocessing.Process, multiprocessing.get_context(method).Process
            return method, None if kind in standard else context
    name = f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else repr(kind)
    raise ValueError(
        f"multiprocessing_context={context!r}: its Process must be a subclass of threading.Thread, or of a process "
        f"class of multiprocessing that is started by {', '.join(_METHODS)}, not {name}"
    )


def check_threads(method, num_workers, context, dataset):
    """Raise ValueError if several threads would each read the whole of an iterable dataset."""
    if method == "thread" and num_workers > 1:
        raise ValueError(
            f"num_workers={num_workers} threads of {context!r} would each read the whole of "
            f"{type(dataset).__name__}: torch's get_worker_info() cannot tell threads of a process apart. Use one, "
            "or processes"
        )
