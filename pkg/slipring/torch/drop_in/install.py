"""Our DataLoader in torch's place, for programs and libraries that name torch's."""

from __future__ import annotations

import copyreg
import sys
import types
import warnings
import weakref

from slipring._core.process import ForkLock
from slipring.torch.drop_in import for_accelerate
from slipring.torch.drop_in.standin import StandIn, Stock
from slipring.torch.loader import DataLoader

_warned = weakref.WeakSet()  # classes that were warned of
_lock = ForkLock()
_depth = 0
_changed = []  # (namespace, name) where Stock was, and DataLoader is now


class Installed:
    """What `install` returns: ``with install(): ...`` ends with `uninstall`."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exc: object) -> None:
        uninstall()


def install() -> Installed:
    """Put `slipring.torch.DataLoader` in the place of torch's, for this process.

    ``torch.utils.data.DataLoader`` and every global of an imported module that is torch's class become ours;
    what is imported later finds ours. Loaders made by torch's class before stay as they are, and still are
    instances of ``torch.utils.data.DataLoader``. Calls nest: as many of `uninstall` take it back.

    Only names are replaced. A reference in a closure, a default argument, or an attribute of a class goes on
    to make torch's loaders, as do classes that were derived from torch's before (a warning names them).
    Processes started by spawn call it for themselves.

    Returns
    -------
    Installed
        For ``with install(): ...``.

    Notes
    -----
    Accelerate makes loaders anew from a table of torch's arguments; ours are added to it, so that they are
    kept. With its ``use_stateful_dataloader`` it makes torchdata's loaders, as it does without.

    Examples
    --------
    >>> import slipring.torch
    >>> import torch
    >>> with slipring.torch.install():
    ...     loader = torch.utils.data.DataLoader(range(10), batch_size=4)
    >>> isinstance(loader, slipring.torch.DataLoader)
    True
    """
    global _depth
    with _lock.here():
        _tell_of_derived()  # first: where warnings are errors, nothing has been changed
        # Also when nested: modules may have been imported since.
        for namespace in _namespaces():
            for name, value in list(namespace.items()):
                if value is Stock and not _steps_over(namespace, name):
                    namespace[name] = DataLoader
                    _changed.append((namespace, name))
        copyreg.pickle(Stock, _reduce_stock)
        StandIn.installed = True
        for_accelerate.extend()
        StandIn.before_init = for_accelerate.extend  # it may be imported between this and the first loader
        _depth += 1
    return Installed()


def uninstall() -> None:
    """Take back one `install`; the last one restores the names that `install` replaced, and nothing else.

    A name that other code has changed since stays as it is. A module that was imported between `install` and
    `uninstall` keeps our class, and a loader that was made in that time stays ours.

    Raises
    ------
    RuntimeError
        It is not installed.
    """
    global _depth
    with _lock.here():
        if not _depth:
            raise RuntimeError("not installed: uninstall() was called more often than install()")
        _depth -= 1
        if _depth:
            return
        StandIn.installed = False
        StandIn.before_init = None
        if copyreg.dispatch_table.get(Stock) is _reduce_stock:
            del copyreg.dispatch_table[Stock]
        for_accelerate.restore()
        for namespace, name in _changed:
            if namespace.get(name) is DataLoader:
                namespace[name] = Stock
        _changed.clear()


def _namespaces():
    """Yield the globals of all modules but ours, without triggering those that load on first use."""
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] != "slipring" and issubclass(type(module), types.ModuleType):
            yield object.__getattribute__(module, "__dict__")


def _steps_over(namespace, name):
    """Return whether a class derived from torch's says ``super(DataLoader, self)``: that must be its true base."""
    for cls in _all_below(Stock):
        for function in vars(cls).values():
            if isinstance(function, types.FunctionType) and function.__globals__ is namespace:
                if {"super", name} <= set(function.__code__.co_names):
                    return True
    return False


def _tell_of_derived():
    """Warn once of each class that was derived from torch's: it continues to make torch's loaders."""
    derived = [
        cls
        for cls in _all_below(Stock)
        if not isinstance(cls, StandIn)
        and cls.__module__.partition(".")[0] not in ("torch", "torchdata")
        and cls not in _warned
    ]
    _warned.update(derived)
    if derived:
        names = ", ".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in derived))
        warnings.warn(
            f"derived from torch's DataLoader before install(), and still torch's: {names}. Call install() "
            "before these modules are imported",
            stacklevel=3,
        )


def _all_below(cls):
    for sub in type.__subclasses__(cls):
        yield sub
        yield from _all_below(sub)


def _reduce_stock(loader):
    """Pickle a loader of torch's class; pickle would look for that class where ours is now."""
    _, _, *state = object.__reduce_ex__(loader, 2)
    return _blank_stock, (), *state


def _blank_stock():
    return Stock.__new__(Stock)
