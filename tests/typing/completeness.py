"""No public name is unknown, or a guess, to pyright: ``python -m tests.typing.completeness``, part of `make lint`.

What pyright's ``--verifytypes`` calls public are all modules without an underscore, which most of ours do without.
Public are the names in `__all__` of the modules below, and the members of these names.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = (
    "slipring", "slipring.arrow", "slipring.clips", "slipring.errors", "slipring.images", "slipring.images.functional",
    "slipring.monitor", "slipring.queue", "slipring.streams", "slipring.tokens", "slipring.torch", "slipring.typing",
    "slipring.adapters.di_engine", "slipring.adapters.megengine", "slipring.adapters.paddle",
    "slipring.adapters.torchdata", "slipring.adapters.webdataset",
    *(["slipring.ray"] if find_spec("ray") else []),  # its signatures contain Ray's types
)  # fmt: skip


def public() -> set[str]:
    """Return the public names, and the qualified names of their values."""
    names: set[str] = set()
    for module in map(importlib.import_module, MODULES):
        for name in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
            value = getattr(module, name)
            names.add(f"{module.__name__}.{name}")
            names.add(f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}")
    return names


def symbols() -> list[dict[str, Any]]:
    """Return pyright's report on each symbol of the package."""
    beside = Path(sys.executable).parent
    # pyright runs `python` to find packages.
    environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"}
    command = ["basedpyright", "--verifytypes", "slipring", "--ignoreexternal", "--outputjson"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    found: list[dict[str, Any]] = json.loads(said)["typeCompleteness"]["symbols"]
    return found


def main() -> int:
    names, found = public(), symbols()
    ours = [s for s in found if s["name"] in names or s["name"].rpartition(".")[0] in names]
    unknown = [s for s in ours if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
    for symbol in unknown:
        print(symbol["name"], *(d["message"] for d in symbol["diagnostics"]), sep="\n    ")
    print(f"{len(ours)} public symbols, {len(unknown)} of them without a type")
    return 1 if unknown or not ours else 0


if __name__ == "__main__":
    sys.exit(main())
