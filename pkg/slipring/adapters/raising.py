"""Refuse bad arguments by the exceptions that the original library raises."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


_Init = TypeVar("_Init", bound="Callable[..., None]")


def raising_as(kind: type[Exception]) -> Callable[[_Init], _Init]:
    """Make the ValueErrors and TypeErrors of a constructor exceptions of `kind`, which users of the original catch."""

    def decorate(init):
        @functools.wraps(init)
        def checked(*args, **kwargs):
            try:
                init(*args, **kwargs)
            except (ValueError, TypeError) as error:
                if isinstance(error, kind):
                    raise
                raise _both(kind, ValueError if isinstance(error, ValueError) else TypeError)(str(error)) from error

        return checked

    return decorate


@functools.cache
def _both(kind, rule):
    return type(f"Argument{rule.__name__}", (kind, rule), {"__module__": __name__})
