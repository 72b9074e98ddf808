"""Checks of the samplers' arguments, and comparisons of plans."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipring._core.options.checks import integer, real
from slipring._core.ring.digests import digest
from slipring._core.workers.redivision import hint_for
from slipring.errors import shown

_SPACED = 1024  # of a long array, for its digest
_CHECKED = 1 << 24  # bounds that are read when they are given


def compare(ours, theirs, whose, why):
    """Raise ValueError that names the first option which differs between two plans; `whose` names both."""
    for name, own in ours.items():
        if theirs.get(name) != own:
            one, other = whose
            raise ValueError(f"{name} of {other} is {shown(theirs.get(name))}, of {one} {shown(own)}: {why}")


def mapping(name, value):
    """Return a mapping of a state; raise TypeError if it is none."""
    if not isinstance(value, Mapping):
        raise TypeError(f"the state's {name} must be a dict, not {shown(value)}")
    return value


def numbers(name, value, kinds="iu", n=None):
    """Return a one-dimensional array of numbers, without a copy if it is one."""
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must have all values, not a masked array with masked ones: fill or leave them out")
    try:
        array = np.asarray(value)
    except Exception as error:
        raise TypeError(f"{name} must be an array of numbers, not {shown(value)}: {error}") from None
    if array.ndim != 1:
        what = f"shape {array.shape}" if array.ndim else f"{shown(value)}{hint_for(value)}"
        raise TypeError(f"{name} must be one-dimensional, with a number for each document, not {what}")
    if array.dtype.kind not in kinds and len(array):
        what = "integers" if kinds == "iu" else "numbers"
        raise TypeError(f"{name} must be {what} (without nulls), not {array.dtype}: {shown(value)}")
    if n is not None and len(array) != n:
        raise ValueError(f"{name} must have a number for each of {n} documents, not {len(array)}")
    return array


def check_increase(bounds, name):
    """Raise ValueError if the bounds of documents decrease; very many of them are not read."""
    if len(bounds) <= _CHECKED and (wrong := np.flatnonzero(bounds[1:] < bounds[:-1])).size:
        at = int(wrong[0])
        raise ValueError(f"bounds must not decrease: {bounds[at]} and {bounds[at + 1]} at document {at} of {name}")


def limits_of(limits, n):
    """Return {name: (array, limit)}."""
    if not isinstance(limits, Mapping):
        raise TypeError(f"limits must be a dict, not {shown(limits)}")
    found = {}
    for name, pair in limits.items():
        what = f"limits[{name!r}]"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"{what} must be (the number of each document, the limit of a pack), not {shown(pair)}")
        found[name] = numbers(what, pair[0], n=n), integer(what, pair[1], 0, 1 << 32)
    return found


def cost_of(cost, n):
    """Return two numbers as a tuple, or an array."""
    if not isinstance(cost, tuple):
        return numbers("cost", cost, "iuf", n)
    if len(cost) != 2:
        raise ValueError(f"cost must be two numbers, as (1.0, 1 / 30_000), or an array of costs, not {shown(cost)}")
    linear, quadratic = (real("cost", each) for each in cost)
    if not (0 <= linear < np.inf and 0 <= quadratic < np.inf):
        raise ValueError(f"cost must be finite and not negative, not {shown(cost)}")
    return linear, quadratic


def digest_of_array(array, more=""):
    """Return a digest of an array; of a long one, of evenly spaced values."""
    n = len(array)
    if n > 1 << 16:
        array = array[np.arange(_SPACED) * (n - 1) // (_SPACED - 1)]
    values = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return digest(f"{n} {more} ".encode() + values.tobytes())
