"""Libraries that only some programs have: imported when used, and named with the remedy where they are not there."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, what: str) -> Any:
    """Import an optional library.

    Raises
    ------
    ImportError
        Naming what wants it, and the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name != top:
            raise  # it is there, and lacks something itself
        raise ImportError(f"{what} needs {top}: pip install slipring[monitor]", name=top) from None
