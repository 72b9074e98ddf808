"""Tests reach private parts of slipring only through tests/support/inside.py."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
INSIDE = TESTS / "support" / "inside.py"
PACKAGE = TESTS.parent / "pkg" / "slipring"
# Programs that need a module's own name, and one that type checkers read.
NAME_MODULES = (
    "cli/test_main.py cli/test_top.py fault/points.py fault/test_interrupt.py fuzz/codec.py loader/test_forks.py "
    "remote/test_storage.py typing/loader.py"
)
# Private attributes that single tests still use themselves. Only ever shorten this list.
STILL_USED = (
    "_attach _begun _change _choose _division _early _end _kept _loader _mine _open _open_here "
    "_queue _samples _shut_down_all _workers"
)
# Attributes of objects of torch, Python, pytest and fsspec that objects of slipring have, too.
OF_OTHERS = (
    "_array _core _exit _indices _next_data _next_index _prefetch_factor _repr_html_ _shutdown_workers "
    "_strip_protocol _values"
)


def sources():
    """Yield (its name, the text) of each test file but those of tests/support and the tests of the project itself."""
    for path in TESTS.rglob("*.py"):
        if path.parent not in (INSIDE.parent, Path(__file__).parent):
            yield str(path.relative_to(TESTS)), path.read_text()


def private_modules(text):
    """Return the private modules of slipring that a source names, in programs in strings too."""
    return re.findall(r"\bslipring(?:\.\w+)*\._[a-z]\w*|from slipring[\w.]* import [^\n;]*\b_[a-z]\w*", text)


def private_attributes(text):
    """Return the names with a leading underscore that a source asks objects for, but those of `self`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def own_attributes():
    """Return the private attributes, methods and functions that slipring defines."""
    kinds = (".py", ".pyx", ".pxd")
    texts = [path.read_text() for path in PACKAGE.rglob("*") if path.suffix in kinds]
    return {name for text in texts for name in re.findall(r"(?:self\.|def |cdef \w+ )(_[a-z]\w*)", text, re.M)}


def test_tests_import_no_private_module():
    found = {name for name, text in sources() if private_modules(text)}
    assert found == set(NAME_MODULES.split())


def test_tests_use_no_private_attribute():
    own, listed = own_attributes() - set(OF_OTHERS.split()), set(STILL_USED.split())
    used = {name: private_attributes(text) & own for name, text in sources()}
    assert {name: found - listed for name, found in used.items() if found - listed} == {}
    assert set().union(*used.values()) == listed
    assert "_engines" in own & private_attributes(INSIDE.read_text())
