"""Signal handlers that a test sets, and the exceptions that they raise."""

import contextlib
import signal


class Raised(Exception):
    """The exception that a signal handler raises."""


@contextlib.contextmanager
def handling(handler, number=signal.SIGUSR1):
    """Set the handler of a signal within the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def raising_once(error):
    """Return a handler that raises `error` at its first call."""
    errors = [error]

    def handler(number, frame):
        if errors:
            raise errors.pop()

    return handler
