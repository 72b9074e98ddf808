"""Repeated attempts to read: which errors are worth another one, how long to wait before it, and the final error.

Each attempt is counted, and failed ones are logged: see `slipring._core.ring.sample_marks`.
"""

import asyncio
import concurrent.futures
import errno
import logging
import random
import time
import traceback

from slipring._core.ring._check import from_handler
from slipring._core.ring._segment import READ_COUNTS
from slipring._core.ring.sample_marks import counts
from slipring.errors import RemoteError, message_of
from slipring.redaction import redacted

BLOCK = 1 << 18  # bytes that a reader of headers requests at least, and the disk cache's unit for them
FIRST_S, LONGEST_S = 0.1, 5.0  # to wait before the second attempt, and before any later one
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
# Before Python 3.11, these three are different classes.
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_LATER = {408, 425, 429}  # HTTP statuses below 500 that mean: try again later
# Classes of libraries that are no OSErrors: errors of the connection or an answer, not of the request.
_BROKEN = {
    ("aiohttp", "ClientError"),
    ("botocore", "FlexibleChecksumError"),
    ("botocore", "ConnectionError"),
    ("botocore", "HTTPClientError"),
}
# Texts of servers that limit requests, if no status is passed on: codes of S3, also in pyarrow's wording.
_LIMITED = ("SlowDown", "SLOW_DOWN", "ServiceUnavailable", "SERVICE_UNAVAILABLE", "Throttl", "THROTTL")
# Refusals that pyarrow's S3 reports only as text.
_REFUSED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "ExpiredToken",
    "MISSING_",
)
_jitter = random.Random()  # not the program's own generator: its numbers must not depend on a server


class Short(OSError):
    """An answer with another number of bytes than requested."""


class Damaged(OSError):
    """An answer with other bytes than requested."""


def is_transient(error):
    """Return whether another attempt may succeed: there was no answer, a broken one, or one that says so."""
    if isinstance(error, _FINAL):
        return False
    status = _status(error)
    if status >= 300:
        return status in _LATER or status >= 500
    if isinstance(error, _TIMEOUTS):
        return True
    if isinstance(error, OSError):  # also aiohttp's ClientOSError, and s3fs's translations of botocore's errors
        # An invalid request (S3's statuses 400, 412 and 416) stays invalid.
        return error.errno != errno.EINVAL and not any(word in str(error) for word in _REFUSED)
    return any((kind.__module__.partition(".")[0], kind.__name__) in _BROKEN for kind in type(error).__mro__)


def _outcome(error, transient):
    """Return the name in `READ_COUNTS` of the reason why an attempt failed."""
    if not transient:
        return "rejected"
    if isinstance(error, _TIMEOUTS):
        return "timeouts"
    # s3fs keeps botocore's error, and with it the answer, as the cause.
    answer = getattr(error.__cause__, "response", None)
    answered = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, dict) else 0
    limited = any(word in str(error) for word in _LIMITED)
    return "refused" if _status(error) >= 400 or answered >= 400 or limited else "broken"


_SAID = {
    "timeouts": "got no answer in time",
    "broken": "met a broken connection or answer",
    "refused": "were refused for the moment",
}


def _count_failure(error, outcome, begun, wait, url, wanted):
    """Count a failed attempt; log the first one of its kind, the tenth, the hundredth, ..., by whichever worker."""
    ns = time.monotonic_ns() - begun + int(wait * 1e9)
    number = counts().add_read(READ_COUNTS.index(outcome), 0, ns) + 1
    if outcome in _SAID and str(number).rstrip("0") == "1":
        text = f"{url}: {wanted} could not be read ({type(error).__name__}: {message_of(error)}). Attempts that "
        text += f"{_SAID[outcome]}, and are repeated: {number} so far"
        logging.getLogger("slipring").warning("%s", redacted(text))


def is_refused(error):
    """Return whether the server rejects the credentials; other credentials may be accepted."""
    return isinstance(error, PermissionError) or _status(error) in (401, 403)


def _status(error):
    """Return the HTTP status that an error reports; 0: none."""
    names = ("status", "code", "status_code")  # aiohttp's, gcsfs's, Azure's
    status = next((found for name in names if (found := getattr(error, name, None))), None)
    return status if isinstance(status, int) else 0


def persist(attempt, url, wanted, attempts, timeout, each, start=None, stop=None):
    """Return the result of ``attempt(seconds)``, and repeat the attempt while that is useful.

    `attempt` gets the seconds that it may take. `timeout` is the limit for all attempts together, `each` for one,
    both in seconds. `url`, `wanted`, `start` and `stop` describe the read in the error. Raise RemoteError with
    the last attempt's error as its cause. If that error's text has a secret, the cause is an OSError with the rest of
    the text. An ImportError of an attempt is raised as it is.
    """
    end, number = time.monotonic() + timeout, 0
    while True:
        number += 1
        begun = time.monotonic_ns()
        try:
            result = attempt(max(0.001, min(each, end - time.monotonic())))
        except Exception as error:
            if isinstance(error, ImportError) or from_handler(error):  # a missing library stays missing
                raise
            transient = is_transient(error)
            wait = min(LONGEST_S, FIRST_S * 2 ** (number - 1)) * _jitter.uniform(0.5, 1)
            is_last = not transient or number >= attempts or time.monotonic() + wait >= end
            _count_failure(error, _outcome(error, transient), begun, 0 if is_last else wait, url, wanted)
            if is_last:
                failed = _failed(error, transient, url, wanted, number, timeout, start, stop)
                failed.__cause__ = _without_secrets(error)
                break
        else:
            n_bytes = len(result) if isinstance(result, bytes) else 0
            counts().add_read(0, n_bytes, time.monotonic_ns() - begun)
            return result
        time.sleep(wait)  # give the server time: there is no event to wait for
    raise failed  # here, so that the library's own error is not its context


def _without_secrets(error):
    """Return the error, or another in its place if its traceback would print credentials."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if redacted(text) == text:
        return error
    return OSError(f"{type(error).__name__}: {message_of(error)}").with_traceback(error.__traceback__)


def _failed(error, transient, url, wanted, attempts, timeout, start, stop):
    missing = isinstance(error, FileNotFoundError)
    kind = type(error).__name__
    why = f"no answer in time ({kind})" if isinstance(error, _TIMEOUTS) else f"{kind}: {message_of(error)}"
    if missing:
        text = f"{url} does not exist: {wanted} was wanted ({why})"
    elif transient:
        text = f"{url}: {wanted} cannot be read, after {attempts} attempts, timeout={timeout} s; the last one: {why}"
    else:
        text = f"{url}: {wanted} may not be read, or not in this way: {why}"
    return RemoteError(text, url=url, start=start, stop=stop, attempts=attempts, missing=missing)
