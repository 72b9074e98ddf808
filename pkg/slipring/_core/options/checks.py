"""Checks of single arguments. The TypeError or ValueError of a wrong one has its name, its value and the rule."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import os
import re
from typing import TYPE_CHECKING, Any, SupportsIndex

from slipring._core.ring.ring_limits import EPOCH_BITS, MAX_WORKERS
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_EPOCH = (1 << EPOCH_BITS) - 1
MAX_NODE = 1023  # Linux has at most 1024
MAX_COUNT = (1 << 32) - 1  # of rows in a batch and of other counts, as in csrc/layout.h

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_MOST_BYTES = 1 << 46


def integer(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, optional: bool = False, hint: str = ""
) -> Any:
    """Return `value` as an int from `least` to `most`, or raise an exception. `hint` ends the error below `least`."""
    if value is None and optional:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # arrays have an __index__ that fails
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, not {shown(value)}")
    below = least is not None and number < least
    if below or (most is not None and number > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {rule}, not {shown(value)}{hint if below else ''}")
    return number


def epoch_number(value: SupportsIndex) -> int:
    """Return the number of an epoch as an int; raise an exception unless it is one."""
    return integer("epoch", value, 0, MAX_EPOCH)


def size_in_bytes(name: str, value: int | str) -> int:
    """Return a size given as a number of bytes, or in words such as "32GiB"."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ValueError(
                f"{name} must be a size such as '32GiB', '500 MB' or a number of bytes, not {shown(value)}"
            )
        power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
        nbytes = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    else:
        try:
            nbytes = integer(name, value)
        except TypeError:
            raise TypeError(f"{name} must be a size such as '32GiB' or a number of bytes, not {shown(value)}") from None
    if not 1 <= nbytes <= _MOST_BYTES:
        raise ValueError(f"{name} must be from 1 byte to 64 TiB, not {shown(value)}")
    return nbytes


def real(name: str, value: Any, what: str = "a number") -> float:
    """Return any real number, numpy's too, as a float. NaN and infinity pass; the caller's rule must refuse them."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def seconds(name: str, value: Any, zero: str = "wait forever") -> None:
    """Raise an exception unless `value` is a time in seconds; `zero` says what 0 means."""
    if not 0 <= real(name, value, "a number of seconds") < math.inf:
        raise ValueError(f"{name} must be 0 ({zero}) or seconds, not {shown(value)}")


def flag(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is a bool or None, which means False."""
    if not isinstance(value, (bool, type(None))):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")


def instance(name: str, value: Any, kind: type, hint: str = "") -> None:
    """Raise TypeError unless `value` is an instance of one of slipring's classes. `hint` ends the error message."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__module__}.{kind.__name__}, not {shown(value)}{hint}")


def one_of(name: str, value: Any, allowed: Iterable[str | None], hint: str = "") -> None:
    """Raise ValueError unless `value` is one of the allowed strings. `hint` ends the error message."""
    if not isinstance(value, (str, type(None))) or value not in allowed:
        words = list(allowed)
        listed = ", ".join(map(repr, words))
        meant = hint or (did_you_mean(value, filter(None, words)) if isinstance(value, str) else "")
        raise ValueError(f"{name} must be one of {listed}, not {shown(value)}{meant}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that names the known word nearest to `word`, to append to a text; empty if none is near."""
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower_case, 1)
    return f". Did you mean {by_lower_case[near[0]]!r}?" if near else ""


def function(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {shown(value)}")


def iterable(name: str, value: Any, what: str) -> None:
    """Raise TypeError unless `value` is iterable; numpy scalars and arrays of 0 dimensions are not."""
    iterates = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if not iterates or isinstance(value, type) or is_scalar(value):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")


def map_dataset(name: str, value: Any) -> None:
    """Raise TypeError unless `value` has the methods of a map dataset."""
    if not hasattr(value, "__getitem__") or not hasattr(value, "__len__") or is_scalar(value):
        raise TypeError(f"{name} must have __getitem__ and __len__; {type(value).__name__} has not")


def is_scalar(value: Any) -> bool:
    """Return whether it is one of numpy's scalars, or an array or tensor without a dimension."""
    return getattr(value, "ndim", 1) == 0


def names(name: str, value: Any, what: str = "column", none: str = "all of them") -> list[str] | None:
    """Return a sequence of names, each once, as a list; None, which means `none`, stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name} must be a sequence of names, not the one name {shown(value)}")
    iterable(name, value, "a sequence of names or None")
    listed = list(value)
    if not listed:
        raise ValueError(f"{name} must be None ({none}) or name at least one, not {shown(value)}")
    for one in listed:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be names, and {shown(one)} is not a name")
        if (times := listed.count(one)) > 1:
            raise ValueError(f"{name} must name each {what} once, and {shown(one)} is there {times} times")
    return listed


def file_path(name: str, value: Any) -> str:
    """Return a path or URL as a str."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} must be a path, not {shown(value)}") from None
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name} must be a path that a file system can have, not {shown(value)}")


def worker_count(name: str, value: Any) -> Any:
    """Check a number of workers: an int from 0, 'auto', or (least, most), each an int from 1 or None."""
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, (tuple, list)):
        try:
            return integer(name, value, 0, MAX_WORKERS, hint="; 0 loads in this process")
        except TypeError:
            raise TypeError(f"{name} must be an int, 'auto' or (least, most), not {shown(value)}") from None
    if len(value) != 2:
        raise ValueError(f"{name} must be (least, most), not {shown(value)}")
    least, most = (
        integer(f"{name}={shown(value)}: the {what} bound", bound, 1, MAX_WORKERS, optional=True)
        for what, bound in zip(("lower", "upper"), value, strict=True)
    )
    if least is not None and most is not None and most < least:
        raise ValueError(f"{name}={shown(value)}: the upper bound must be at least the lower bound")
    return least, most


def checked_backing(value: Any, kinds: Sequence[str] = ("auto", "shm", "memfd")) -> str | os.PathLike[str]:
    """Return `backing`: where the memory comes from."""
    if isinstance(value, str) and value in kinds:
        return value
    if not isinstance(value, (str, os.PathLike)) or not os.path.isabs(value):
        listed = ", ".join(map(repr, kinds))
        raise ValueError(f"backing must be {listed} or the absolute path of a directory on a tmpfs, not {shown(value)}")
    if not os.path.isdir(value):
        raise ValueError(f"backing names {shown(value)}, which is not a directory")
    return value


def numa_node(name: str, value: Any) -> Any:
    """Return the number of a NUMA node, 'auto' or None; raise TypeError or ValueError otherwise."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return value
    try:
        return integer(name, value, 0, MAX_NODE)
    except TypeError:
        raise TypeError(f"{name} must be the number of a NUMA node, 'auto' or None, not {shown(value)}") from None


def pool_name(name: str, value: Any) -> None:
    """Raise TypeError unless the value can name a pool of workers."""
    if value is not None and (not isinstance(value, str) or not value):
        raise TypeError(f"{name} must be 'node', another name of a pool, or None, not {shown(value)}")
