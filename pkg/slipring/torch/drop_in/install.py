"""slipring's DataLoader in torch's place, for programs and libraries that use torch's name."""

from __future__ import annotations

import copyreg
import sys
import types
import warnings
import weakref

from slipring._core.ring.process import ForkLock
from slipring.torch.drop_in import for_accelerate
from slipring.torch.drop_in.replacement import OriginalDataLoader, ReplacementMeta
from slipring.torch.loader import DataLoader

_warned = weakref.WeakSet()  # classes that a warning has named
_lock = ForkLock()
_depth = 0
_changed = []  # (namespace, name) of each replaced original


class Installed:
    """The result of `install`: ``with install(): ...`` ends with `uninstall`."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *exc: object) -> None:
        uninstall()


def install() -> Installed:
    """Replace torch's DataLoader by `slipring.torch.DataLoader` in this process.

    ``torch.utils.data.DataLoader``, and every global of an imported module that is torch's class, become slipring's
    class; later imports find it too. Earlier loaders of torch's class are unchanged, and still instances of
    ``torch.utils.data.DataLoader``. Calls nest: `uninstall` must be called as often to undo them.

    Only names are replaced. A closure, a default argument or a class attribute that refers to torch's class still makes
    torch's loaders. So do classes that were derived from torch's before; a warning names them. Processes that are
    started by spawn must call it themselves.

    Returns
    -------
    Installed
        A context manager, for ``with install(): ...``.

    Notes
    -----
    Accelerate recreates loaders from a table of torch's arguments. `install` adds slipring's arguments to it, so that
    Accelerate keeps them. With ``use_stateful_dataloader`` Accelerate still makes torchdata's loaders.

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
        _tell_of_derived()  # first: if warnings are errors, nothing has changed yet
        # Also for nested calls: modules may have been imported since.
        for namespace in _namespaces():
            for name, value in list(namespace.items()):
                if value is OriginalDataLoader and not _steps_over(namespace, name):
                    namespace[name] = DataLoader
                    _changed.append((namespace, name))
        copyreg.pickle(OriginalDataLoader, _reduce_original)
        ReplacementMeta.installed = True
        for_accelerate.extend()
        ReplacementMeta.before_init = for_accelerate.extend  # Accelerate may be imported later
        _depth += 1
    return Installed()


def uninstall() -> None:
    """Undo one `install`; the last call restores the names that `install` replaced, and nothing else.

    A name that other code has changed since is left alone. A module that was imported between `install` and
    `uninstall` keeps slipring's class, and a loader that was made in that time stays slipring's.

    Raises
    ------
    RuntimeError
        `uninstall` was called more often than `install`.
    """
    global _depth
    with _lock.here():
        if not _depth:
            raise RuntimeError("not installed: uninstall() was called more often than install()")
        _depth -= 1
        if _depth:
            return
        ReplacementMeta.installed = False
        ReplacementMeta.before_init = None
        if copyreg.dispatch_table.get(OriginalDataLoader) is _reduce_original:
            del copyreg.dispatch_table[OriginalDataLoader]
        for_accelerate.restore()
        for namespace, name in _changed:
            if namespace.get(name) is DataLoader:
                namespace[name] = OriginalDataLoader
        _changed.clear()


def _namespaces():
    """Yield the globals of all modules but slipring's, without triggering lazy modules."""
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] != "slipring" and issubclass(type(module), types.ModuleType):
            yield object.__getattribute__(module, "__dict__")


def _steps_over(namespace, name):
    """Return whether a class derived from torch's calls ``super(DataLoader, self)``, which needs its true base."""
    for cls in _all_below(OriginalDataLoader):
        for function in vars(cls).values():
            if isinstance(function, types.FunctionType) and function.__globals__ is namespace:
                if {"super", name} <= set(function.__code__.co_names):
                    return True
    return False


def _tell_of_derived():
    """Warn once of each class that was derived from torch's: it still makes torch's loaders."""
    derived = [
        cls
        for cls in _all_below(OriginalDataLoader)
        if not isinstance(cls, ReplacementMeta)
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


def _reduce_original(loader):
    """Pickle a loader of torch's class; by name, pickle would find slipring's class."""
    _, _, *state = object.__reduce_ex__(loader, 2)
    return _blank_original, (), *state


def _blank_original():
    return OriginalDataLoader.__new__(OriginalDataLoader)
