"""An object that was never initialised refuses its methods; it does not take the process down."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.support import warm

PACKAGE = Path(__file__).resolve().parents[2] / "pkg" / "slipring"
HEAP = 1 << 9  # a type flag of classes that Python code defines

# Make an object of a type by `__new__` alone, and call each method with simple arguments, each in a child.
CHILD = """
import importlib, os, signal, sys
module, name, *attributes = sys.argv[1:]
kind = getattr(importlib.import_module(module), name)
for attribute in attributes:
    if (pid := os.fork()) == 0:
        signal.alarm(600)
        try:
            made = kind.__new__(kind)
        except TypeError:
            os._exit(0)  # its constructor needs arguments
        for arguments in [(), *((value,) * n for n in (1, 2, 3, 4, 5, 6) for value in (None, 0, [0]))]:
            try:
                found = getattr(made, attribute)
                if not callable(found):
                    break
                found(*arguments)
            except BaseException:
                pass
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(attribute, status)
"""


def extension_types():
    """Return (module, name) of each type that a compiled module of the package defines."""
    found = []
    for source in sorted(PACKAGE.rglob("*.pyx")):
        module = ".".join(("slipring", *source.relative_to(PACKAGE).with_suffix("").parts))
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, type) and value.__module__ == module and not value.__flags__ & HEAP:
                found.append((module, name))
    return found


# Names of a plain object; and methods that wait forever by their nature, or end the process.
PLAIN = set(dir(object)) - {"__reduce__", "__reduce_ex__", "__repr__"}


def methods_of(module, name):
    kind = getattr(importlib.import_module(module), name)
    return sorted(set(dir(kind)) - PLAIN)


@pytest.mark.parametrize(("module", "name"), extension_types(), ids=lambda part: part.rpartition(".")[2])
def test_no_method_of_a_half_made_object_ends_the_process(module, name):
    done = warm.run(
        [sys.executable, "-c", CHILD, module, name, *methods_of(module, name)], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
