"""The metaclass that lets our DataLoader stand in for torch's while it is installed."""

from __future__ import annotations

import abc
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch.utils.data

if TYPE_CHECKING:
    from collections.abc import Callable

OriginalDataLoader = torch.utils.data.DataLoader


class ReplacementMeta(abc.ABCMeta):
    """The metaclass of our loader: while `installed`, instance checks also accept torch's loaders.

    Only the class derived directly from torch's accepts them. Libraries that call
    ``isinstance(loader, torch.utils.data.DataLoader)`` also mean earlier loaders and classes derived from torch's. It
    is an ABCMeta, so that ``class Mine(DataLoader, SomeABC)`` is possible. Its registry of virtual subclasses is not
    used, because classes cannot be removed from it.
    """

    installed: bool = False
    before_init: Callable[[], object] | None = None  # called before a loader is made, while installed

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        cls._stands_in = OriginalDataLoader in bases
        if cls._stands_in:
            for attribute, own in namespace.items():
                theirs = getattr(OriginalDataLoader, attribute, None)
                if isinstance(own, types.FunctionType) and callable(theirs):
                    setattr(cls, attribute, _for_either(own, theirs, attribute == "__init__"))

    def extras(cls) -> dict[str, Any]:
        """Return {name: default} of the arguments that torch's class does not have."""
        theirs = inspect.signature(OriginalDataLoader.__init__).parameters
        ours = inspect.signature(cls.__init__).parameters
        return {name: p.default for name, p in ours.items() if name not in theirs}

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls.__seen(), instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(cls.__seen(), subclass)

    def __subclasses__(cls) -> list[type]:
        """Return the subclasses, which Lightning walks to make classes derived from torch's loader reproducible."""
        own = type.__subclasses__(cls)
        if cls.__seen() is OriginalDataLoader:
            own += [sub for sub in type.__subclasses__(OriginalDataLoader) if sub is not cls]
        return own

    def __seen(cls) -> type:
        return OriginalDataLoader if ReplacementMeta.installed and cls._stands_in else cls


def _for_either(own, theirs, is_init):
    """Return a method that calls `own` for slipring's loaders and `theirs` for torch's.

    A class derived from torch's loader before `install` may call ``torch.utils.data.DataLoader.__init__(self, ...)``,
    where the name now means slipring's class.
    """

    @functools.wraps(own)
    def method(self, *args, **kwargs):
        if isinstance(type(self), ReplacementMeta):
            if is_init and ReplacementMeta.before_init is not None:
                ReplacementMeta.before_init()
            return own(self, *args, **kwargs)
        return theirs(self, *args, **kwargs)

    return method
