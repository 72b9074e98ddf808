"""Digests of the indices and weights of a sampler: a state has them, to be recognized as one of the same order."""

import datetime
import decimal
import hashlib
import json
import os
import uuid

import numpy as np

from slipring.errors import shown
from slipring.strings import StringList

_READ, _SPACED = 1 << 16, 1024  # of a user's sequence, whose elements may be slow to read


def digest_of(indices):
    """Return a digest of indices: the same in any process, and for any container of the same numbers."""
    if callable(tell := getattr(indices, "fingerprint", None)):
        if not isinstance(given := tell(), str):
            raise TypeError(f"fingerprint() of the indices must return a str, not {shown(given)}")
        return digest(f"fingerprint {given}".encode())
    n = len(indices)
    if isinstance(indices, (list, tuple, range, np.ndarray, StringList)):
        return earlier_digest_of(indices, _plain)
    if n <= _READ:
        return earlier_digest_of([indices[i] for i in range(n)], _plain)
    spaced = [indices[i * (n - 1) // (_SPACED - 1)] for i in range(_SPACED)]
    return digest(f"{earlier_digest_of(spaced, _plain)} of {n}".encode())


def earlier_digest_of(indices, plain=None):
    """Return the digest in states of earlier versions, which have the length alone of what JSON does not write.

    ``plain(value)`` returns a value that JSON writes.
    """
    if isinstance(indices, StringList):
        indices = list(indices)
    if isinstance(indices, (list, tuple)):
        indices = [each.item() if isinstance(each, np.generic) else each for each in indices]
        if set(map(type, indices)) == {int}:
            indices = np.array(indices)
    if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and len(indices):
        numbers = indices.astype(np.int64)
        steps = np.diff(numbers)
        first, step = int(numbers[0]), int(steps[0]) if len(steps) else 1
        if not step or (steps != step).any():
            return digest(numbers.tobytes())
        indices = range(first, first + step * len(numbers), step)
    if isinstance(indices, range):
        return digest(f"{len(indices)} from {indices.start} by {indices.step}".encode())
    if isinstance(indices, (list, tuple, np.ndarray)):
        try:
            return digest(json.dumps(list(indices), default=plain).encode())
        except TypeError:  # other objects may be written differently in another process
            pass
    return digest(f"{len(indices)}".encode())


def digest(written):
    """Return the digest of bytes, or of an array's."""
    return hashlib.blake2b(written, digest_size=16).hexdigest()


def _plain(value):
    """Return a value that JSON lacks as one that it writes: numbers and arrays of any library, bytes, paths, times."""
    if callable(tolist := getattr(value, "tolist", None)):
        return [str(getattr(value, "dtype", "")), tolist()]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", value.hex()]
    if isinstance(value, os.PathLike):
        return ["path", os.fspath(value)]
    if isinstance(value, (complex, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)):
        return [type(value).__name__, str(value)]
    raise TypeError(f"{type(value).__name__} has no form that is the same in any process")
