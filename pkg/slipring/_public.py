"""Public names: a public object names the module that users import it from, as do its pickle and its repr."""

import sys


def publish(module: str) -> None:
    """Let the classes and functions of a module's ``__all__`` name this module, unless another public one has them.

    So modules can be moved and divided, and pickles that other releases made still load.
    """
    public = vars(sys.modules[module])
    for name in public["__all__"]:
        value = public.get(name)  # None: imported at first use
        home = getattr(value, "__module__", None)
        if home is not None and ("._" in home or name not in getattr(sys.modules[home], "__all__", ())):
            value.__module__ = module
