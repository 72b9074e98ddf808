"""Who may use whom: bench, examples, tests -> adapters -> torch -> loader -> iteration -> workers -> codec and collate
-> ring -> csrc. The tests read the table of layers on the architecture page. Only _core/_ring and _core/_cache call
csrc; only csrc touches control words. A new module gets a place in that table, or the first test fails.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pkg" / "slipring"
PAGE = ROOT / "docs" / "architecture.md"


def layers_of(page):
    """Layer -> (its modules, the layers it may use besides itself). "torch.*" stands for the whole folder."""
    table = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ((?:`[^`|]+` ?)+)\| ([\w ]*)\|$", table, re.MULTILINE)
    return {layer: (tuple(re.findall(r"`([^`]+)`", modules)), tuple(uses.split())) for layer, modules, uses in rows}


LAYERS = layers_of(PAGE.read_text())
ALONE = "ground"  # its modules may not even use one another
HEAVY = {"torch", "pyarrow"}  # imported at module level only by...
MAY_BE_HEAVY = {"torch", "adapters", "ray"}
# ... and by these, which are themselves imported only for the first tensor or Arrow data.
IMPORTED_LATE = {
    "_core.tensors": "torch",
    "_core.tensor_objects": "torch",
    "arrow": "pyarrow",
    "arrow.blocks": "pyarrow",
    "arrow.files": "pyarrow",
    "arrow.nulls": "pyarrow",
    "arrow.rows": "pyarrow",
    "arrow.tables": "pyarrow",
}

MAY_CROSS = {"_core._ring", "_core._cring", "_core._ccache", "_core._cwatch", "_core._cache"}
MIRRORS = {
    "_cring.pxd": {"ring.h", "layout.h", "index_order.h"},
    "_ccache.pxd": {"cache.h"},
    "_cwatch.pxd": {"watch.h"},
}

SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd", ".pxi"))


def module_name(path):
    """'torch.wrap' for pkg/slipring/torch/wrap.py; a folder's own __init__.py has the folder's name.

    A .pxi is a part of the .pyx whose name starts its own.
    """
    if path.suffix == ".pxi":
        path = path.with_name(f"_{path.stem.split('_')[1]}.pyx")
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path) for path in SOURCES}


def layer_of(module):
    """Return the layer of a module, or None if the table does not contain it."""
    by_itself = [layer for layer, (names, _) in LAYERS.items() if module in names]
    by_folder = [layer for layer, (names, _) in LAYERS.items() if f"{module.split('.')[0]}.*" in names]
    return next(iter(by_itself + by_folder), None)


def imports_of(path):
    """Yield (line, dots, module, names, at module level) for each import statement of a source file."""
    if path.suffix == ".py":
        return python_imports(path.read_text())
    return cython_imports(path.read_text())


def python_imports(text):
    tree = ast.parse(text)
    lazy = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(function)
    }
    for_checkers = {
        id(inner)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for inner in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_checkers:
            continue  # for type checkers only: it is never imported
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name, [], id(node) not in lazy
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield node.lineno, node.level, node.module or "", names, id(node) not in lazy


CYTHON_IMPORT = re.compile(
    r"^(?P<indent>[ \t]*)"
    r"(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]*)"
    r"|c?import[ \t]+(?P<plain>[^\n#]*))",
    re.MULTILINE,
)


def cython_imports(text):
    for found in CYTHON_IMPORT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        top = not found["indent"]
        if found["plain"] is not None:
            for name in found["plain"].split(","):
                yield line, 0, name.split()[0], [], top
        else:
            names = re.sub(r"#[^\n]*", "", found["names"]).strip("()").split(",")
            names = [name.split()[0] for name in names if name.strip()]
            yield line, len(found["dots"]), found["module"], names, top


def ours(path, dots, module, names):
    """Return the modules of ours that an import statement names."""
    if dots:
        package = ["slipring", *path.relative_to(PACKAGE).parent.parts]
        base = package[: len(package) - dots + 1]
        absolute = ".".join(base + ([module] if module else []))
    else:
        absolute = module
    if absolute != "slipring" and not absolute.startswith("slipring."):
        return set()
    inside = absolute.removeprefix("slipring").lstrip(".")
    submodules = {f"{inside}.{name}".lstrip(".") for name in names} & MODULES
    from_itself = [name for name in names if f"{inside}.{name}".lstrip(".") not in MODULES]
    # `from . import errors` uses errors alone; `from . import Loader` uses the package's adapter.
    return submodules | ({inside or "__init__"} if from_itself or not names else set())


def uses():
    """Yield (file, line, module, used module, at module level) for each use of our modules by our modules."""
    for path in SOURCES:
        for line, dots, module, names, top in imports_of(path):
            for used in ours(path, dots, module, names):
                if used != module_name(path):
                    yield path.relative_to(ROOT), line, module_name(path), used, top


def test_every_module_has_a_layer():
    unknown = sorted(module for module in MODULES if layer_of(module) is None)
    assert not unknown, f"add {', '.join(unknown)} to the layers of {PAGE.name}, in the lowest layer that fits"


def test_the_page_names_modules_that_there_are_and_a_layer_uses_those_above_it():
    assert len(LAYERS) > 20, "the table of layers looks different now?"
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    named = {name for modules, _ in LAYERS.values() for name in modules}
    assert not [name for name in named if name not in MODULES and name.removesuffix(".*") not in folders]
    above = set()
    for layer, (_, used) in LAYERS.items():
        assert set(used) <= above, layer
        above.add(layer)


def test_modules_use_only_the_layers_below():
    wrong = []
    for path, line, module, used, _ in uses():
        layer, target = layer_of(module), layer_of(used)
        if layer is None or target is None:
            continue  # the test above reports it
        allowed = LAYERS[layer][1] + (() if layer == ALONE else (layer,))
        if target not in allowed:
            wrong.append(f"{path}:{line}: {module} ({layer}) uses {used} ({target}); it may use: {', '.join(allowed)}")
    assert not wrong, "\n".join(["arrows that the design does not have:", *wrong])


def test_no_module_needs_itself():
    graph = {}
    for _, _, module, used, top in uses():
        if top:
            graph.setdefault(module, set()).add(used)

    def walk(module, way):
        if module in way:
            pytest.fail("a circle of imports: " + " -> ".join([*way[way.index(module) :], module]))
        for used in sorted(graph.get(module, ())):
            walk(used, [*way, module])

    for module in sorted(graph):
        walk(module, [])


def test_only_two_modules_call_the_c_of_the_ring_and_the_cache():
    wrong = []
    c_headers = {path.name for path in (ROOT / "csrc").glob("*.h")}
    for path in SOURCES:
        for line, dots, module, names, _ in imports_of(path):
            if "_core._cring" in ours(path, dots, module, names) and module_name(path) not in MAY_CROSS:
                wrong.append(f"{path.relative_to(ROOT)}:{line} uses _cring")
        headers = c_headers & set(re.findall(r'cdef extern from "([^"]+)"', path.read_text()))
        if headers - MIRRORS.get(path.name, set()):
            wrong.append(f"{path.relative_to(ROOT)} declares from {', '.join(sorted(headers))}")
    assert not wrong, "only _core/_ring and _core/_cache call csrc, through their .pxd:\n" + "\n".join(wrong)


def control_structs():
    """Return the shared structures with control words: those of layout.h that contain an atomic."""
    layout = (ROOT / "csrc" / "layout.h").read_text()
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", layout, re.DOTALL)
    return [name for name, body in structs if "_Atomic" in body]


def test_only_csrc_touches_control_words():
    names = control_structs()
    assert names, "layout.h has no atomics any more?"
    touching = re.compile(rf"__atomic_|__sync_|stdatomic|\batomic_\w+\(|atomics\.h|\b(?:{'|'.join(names)})\b")
    code = {path: re.sub(r"#[^\n]*", "", path.read_text()) for path in SOURCES}
    found = {path.relative_to(ROOT): touching.findall(text) for path, text in code.items()}
    wrong = [f"{path}: {', '.join(words)}" for path, words in found.items() if words]
    assert not wrong, "only csrc/ touches control words:\n" + "\n".join(wrong)


def test_csrc_knows_nothing_of_python():
    knowing = [path.name for path in (ROOT / "csrc").rglob("*.[ch]") if "Python.h" in path.read_text()]
    assert not knowing, f"csrc/ never includes Python.h: {', '.join(knowing)}"


def test_each_part_of_a_cython_module_is_included_once_by_the_module_it_is_named_after():
    including = {
        (str(path.relative_to(ROOT).with_name(name)), path.stem)
        for path in SOURCES
        for name in re.findall(r'^include "(.*)"$', path.read_text(), re.M)
    }
    parts = [path for path in SOURCES if path.suffix == ".pxi"]
    named_after = {(str(path.relative_to(ROOT)), module_name(path).split(".")[-1]) for path in parts}
    assert parts and including == named_after


CONSTANT = re.compile(r"^(?: {4}|cdef [a-z0-9_]+ )?_?([A-Z][A-Z0-9_]+) = ([^#\n]+?) *(?:#.*)?$", re.MULTILINE)


def test_no_constant_is_defined_twice():
    places = {}
    for path in SOURCES:
        for name, value in CONSTANT.findall(path.read_text()):
            if not value.endswith((f".{name}", "object()")):  # an alias for speed, or a unique sentinel
                places.setdefault((name, value), set()).add(str(path.relative_to(ROOT)))
    twice = [f"{name} = {value}: {sorted(where)}" for (name, value), where in places.items() if len(where) > 1]
    assert not twice, "define each once, and import it from there:\n" + "\n".join(twice)


def test_the_package_uses_neither_bench_nor_tests_nor_examples():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in SOURCES
        for line, dots, module, _, _ in imports_of(path)
        if not dots and module.split(".")[0] in ("bench", "tests", "examples")
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_and_pyarrow_are_imported_at_module_level_only_under_their_adapters():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in SOURCES
        if layer_of(module_name(path)) not in MAY_BE_HEAVY
        for line, dots, module, _, top in imports_of(path)
        if top and not dots and module.split(".")[0] in HEAVY - {IMPORTED_LATE.get(module_name(path))}
    ]
    assert not wrong, "import these inside the function that needs them:\n" + "\n".join(wrong)


def test_modules_that_import_torch_or_pyarrow_are_imported_late():
    wrong = [
        f"{path}:{line}: {module} imports {used}"
        for path, line, module, used, top in uses()
        if used in IMPORTED_LATE and top and module not in IMPORTED_LATE and layer_of(module) not in MAY_BE_HEAVY
    ]
    assert not wrong, "import these when the first tensor, or Arrow array, is met:\n" + "\n".join(wrong)


def test_importing_slipring_imports_neither_torch_nor_pyarrow():
    code = f"import sys, slipring; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"import slipring also imported {done.stdout.strip()}"


CYTHON_EXAMPLE = """
from . cimport _cring
from .errors import (  # why
    Closed,  # one
    SegmentFull as Full,
)
cimport numpy as cnp, cython
from slipring._ring cimport Lease
def f():
    import pyarrow
"""


def test_imports_of_cython_sources_are_understood():
    assert list(cython_imports(CYTHON_EXAMPLE)) == [
        (2, 1, "", ["_cring"], True),
        (3, 1, "errors", ["Closed", "SegmentFull"], True),
        (7, 0, "numpy", [], True),
        (7, 0, "cython", [], True),
        (8, 0, "slipring._ring", ["Lease"], True),
        (10, 0, "pyarrow", [], False),
    ]


@pytest.mark.parametrize(
    ("statement", "used"),
    [
        ((1, "", ["errors"]), {"errors"}),
        ((1, "", ["Loader"]), {"__init__"}),
        ((1, "errors", ["Closed"]), {"errors"}),
        ((0, "slipring.errors", []), {"errors"}),
        ((0, "slipring", ["errors", "Loader"]), {"errors", "__init__"}),
        ((0, "torch.utils.data", []), set()),
    ],
)
def test_imports_are_resolved_to_modules_of_ours(monkeypatch, statement, used):
    monkeypatch.setitem(globals(), "MODULES", {"__init__", "errors"})
    assert ours(PACKAGE / "loader.py", *statement) == used
