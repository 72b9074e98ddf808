"""Checks of the transforms' arguments: torchvision's rules, applied when a transform is made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import integer, one_of, real
from slipring.errors import shown
from slipring.images._render.view import INTERPOLATIONS, interpolation_name
from slipring.images._steps.base import pixels

if TYPE_CHECKING:
    from collections.abc import Sequence

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")  # in the order of enum sr_padding
RANDOM = "random"  # an interpolation that is drawn
_Three = tuple[float, float, float]


def number(name: str, value: Any, least: float, most: float, what: str) -> float:
    """Return a finite number from `least` to `most`; `what` describes it in the error message."""
    found = real(name, value, what)
    if not least <= found <= most or math.isinf(found):
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return found


def not_negative(name: str, value: Any) -> float:
    return number(name, value, 0, math.inf, "a number of at least 0")


def sequence(name: str, value: Any, lengths: Sequence[int], what: str) -> tuple[float, ...]:
    """Return a tuple or list of finite numbers, of one of these lengths, as floats."""
    found = None
    if isinstance(value, (tuple, list)) and len(value) in lengths:
        try:
            found = tuple(real(name, one) for one in value)
        except TypeError:
            found = None
    if found is None or not all(map(math.isfinite, found)):
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return found


def span(name: str, value: Any, least: float, most: float, what: str) -> tuple[float, float]:
    """Return two numbers from `least` to `most`, the smaller first."""
    low, high = sequence(name, value, (2,), what)
    if not least <= low <= high <= most:
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return low, high


def angles(name: str, value: Any, lengths: Sequence[int] = (2,)) -> tuple[float, ...]:
    """Return ranges of angles, in degrees: one number is a range from minus that number."""
    what = "a number of at least 0, or " + " or ".join(f"{n} numbers" for n in lengths)
    if not isinstance(value, (tuple, list)):
        most = number(name, value, 0, math.inf, what)
        return -most, most
    found = sequence(name, value, lengths, what)
    if any(low > high for low, high in zip(found[::2], found[1::2])):
        raise ValueError(f"{name} must have the smaller number of each range first, not {shown(value)}")
    return found


def one_or_two(name: str, value: Any, least: float = -math.inf) -> tuple[float, float]:
    """Return two numbers of at least `least`; one number counts for both."""
    what = "a number, or two" + (f", of at least {least:g}" if math.isfinite(least) else "")
    if not isinstance(value, (tuple, list)):
        return (number(name, value, least, math.inf, what),) * 2
    found = sequence(name, value, (1, 2), what)
    if min(found) < least:
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return found[0], found[-1]


def fill_of(value: Any) -> _Three:
    """Return `fill` as red, green and blue: whole numbers from 0 to 255, as Pillow takes them."""
    what = "a number from 0 to 255, or three of them, or None for black"
    if value is None:
        return 0.0, 0.0, 0.0
    if isinstance(value, (tuple, list)):
        found = sequence("fill", value, (1, 3), what)
    else:
        found = (number("fill", value, 0, 255, what),)
    if not all(0 <= one <= 255 for one in found):
        raise ValueError(f"fill must be {what}, not {shown(value)}")
    whole = tuple(float(int(one)) for one in found)
    return whole if len(whole) == 3 else whole * 3


def padding_of(value: Any) -> tuple[int, int, int, int]:
    """Return `padding` as left, top, right, bottom."""
    try:
        if isinstance(value, (tuple, list)):
            if len(value) not in (1, 2, 4):
                raise ValueError
            found = tuple(integer("padding", one, 0, 1 << 20) for one in value)
        else:
            found = (integer("padding", value, 0, 1 << 20),)
    except (TypeError, ValueError):
        raise ValueError(
            "padding must be a number of pixels from 0, or two (left and right, top and bottom), or four (left, top, "
            f"right, bottom), not {shown(value)}"
        ) from None
    return (found * 4)[:4] if len(found) < 4 else found


def padding_mode_of(value: Any) -> int:
    one_of("padding_mode", value, PADDING_MODES)
    return PADDING_MODES.index(value)


def center_of(value: Any) -> tuple[float, float] | None:
    """Return `center`: horizontal and vertical coordinate in pixels, or None for the middle."""
    if value is None:
        return None
    x, y = sequence("center", value, (2,), "two numbers (x, y) in pixels, or None for the middle")
    return x, y


def kernel_size_of(value: Any) -> tuple[int, int]:
    """Return the width and height of a blur's kernel."""
    what = "an odd number of pixels, or two of them (width, height)"
    try:
        listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        width, height = listed * 2 if len(listed) == 1 else listed
        found = pixels("kernel_size", width), pixels("kernel_size", height)
    except ValueError:
        found = 0, 0
    if not all(n % 2 for n in found):
        raise ValueError(f"kernel_size must be {what}, not {shown(value)}")
    return found


def interpolation_or_random(value: Any) -> str:
    """Return the name of an interpolation, or "random"."""
    return RANDOM if isinstance(value, str) and value == RANDOM else interpolation_name(value, (RANDOM,))


def filter_of(interpolation: str) -> int | None:
    """Return the number of an interpolation, as in csrc/images; None for "random"."""
    return None if interpolation == RANDOM else INTERPOLATIONS.index(interpolation)
