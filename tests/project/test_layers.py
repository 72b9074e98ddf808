"""Who may use whom: bench, examples, tests -> adapters -> torch -> passes -> workers -> codec and collate -> ring ->
csrc. The tests read the table of layers on the architecture page. Only _core.ring._segment, _order and _watch and
_core.codec._cache call csrc; only csrc touches control words. A new module gets a place in that table, or the first
test fails.
"""

import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pkg" / "slipring"
PAGE = ROOT / "docs" / "architecture.md"


def layers_of(page):
    """Layer -> (its modules, the layers it may use besides itself). "torch.*" stands for a whole folder."""
    table = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ((?:`[^`|]+` ?)+)\| ([\w ]*)\|$", table, re.MULTILINE)
    return {layer: (tuple(re.findall(r"`([^`]+)`", modules)), tuple(uses.split())) for layer, modules, uses in rows}


LAYERS = layers_of(PAGE.read_text())
ALONE = "ground"  # its modules may not even use one another
DECLARING = {"_core.ring._cring", "_core.codec._ccache", "_core.ring._cwatch"}
RING = {f"_core.ring.{name}" for name in ("_check", "_order", "_segment", "_watch")}
MAY_CROSS = DECLARING | RING | {"_core.codec._cache"}
MIRRORS = {
    "_cring.pxd": {"ring.h", "layout.h", "index_order.h"},
    "_ccache.pxd": {"cache.h"},
    "_cwatch.pxd": {"watch.h"},
}

SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx", ".pxd"))


def module_name(path):
    """'torch.wrap' for pkg/slipring/torch/wrap.py; a folder's own __init__.py has the folder's name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path) for path in SOURCES}


def layer_of(module):
    """Return the layer of a module, or None if the table does not contain it."""
    by_itself = [layer for layer, (names, _) in LAYERS.items() if module in names]
    folders = {name.removesuffix("*"): layer for layer, (names, _) in LAYERS.items() for name in names if "*" in name}
    by_folder = [folders[name] for name in sorted(folders, key=len, reverse=True) if f"{module}.".startswith(name)]
    return next(iter(by_itself + by_folder), None)


@functools.cache
def text_of(path):
    return path.read_text()


IMPORT = re.compile(
    r"^[ \t]*"
    r"(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n#]*)"
    r"|c?import[ \t]+(?P<plain>[^\n#]*))",
    re.MULTILINE,
)
FOR_CHECKERS = re.compile(r"^if TYPE_CHECKING:\n(?:(?: +.*)?\n)*", re.MULTILINE)  # never imported


@functools.cache
def imports_of(path):
    """Return (line, dots, module, names) for each import statement of a source file."""
    return list(imports_in(FOR_CHECKERS.sub(lambda block: "\n" * block[0].count("\n"), text_of(path))))


def imports_in(text):
    for found in IMPORT.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["plain"] is not None:
            for name in found["plain"].split(","):
                yield line, 0, name.split()[0], []
        else:
            names = re.sub(r"#[^\n]*", "", found["names"]).strip("()").split(",")
            names = [name.split()[0] for name in names if name.strip()]
            yield line, len(found["dots"]), found["module"], names


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
    """Yield (file, line, module, used module) for each use of our modules by our modules."""
    for path in SOURCES:
        for line, dots, module, names in imports_of(path):
            for used in ours(path, dots, module, names):
                if used != module_name(path):
                    yield path.relative_to(ROOT), line, module_name(path), used


def test_every_module_has_a_layer():
    unknown = sorted(module for module in MODULES if layer_of(module) is None)
    assert not unknown, f"add {', '.join(unknown)} to the layers of {PAGE.name}, in the lowest layer that fits"


def test_the_page_names_modules_that_there_are_and_a_layer_uses_those_above_it():
    assert len(LAYERS) > 15, "the table of layers looks different now?"
    folders = {module_name(path) for path in PACKAGE.rglob("__init__.py")}
    named = {name for modules, _ in LAYERS.values() for name in modules}
    assert not [name for name in named if name not in MODULES and name.removesuffix(".*") not in folders]
    above = set()
    for layer, (_, used) in LAYERS.items():
        assert set(used) <= above, layer
        above.add(layer)


def test_modules_use_only_the_layers_below():
    wrong = []
    for path, line, module, used in uses():
        layer, target = layer_of(module), layer_of(used)
        if layer is None or target is None:
            continue  # the test above reports it
        allowed = LAYERS[layer][1] + (() if layer == ALONE else (layer,))
        if target not in allowed:
            wrong.append(f"{path}:{line}: {module} ({layer}) uses {used} ({target}); it may use: {', '.join(allowed)}")
    assert not wrong, "\n".join(["arrows that the design does not have:", *wrong])


def test_no_module_needs_itself():
    graph = {}
    for _, _, module, used in uses():
        graph.setdefault(module, set()).add(used)

    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a circle of imports: " + " -> ".join(error.args[1]))


def test_only_the_bindings_call_the_c_of_the_ring_and_the_cache():
    wrong = []
    c_headers = {path.name for path in (ROOT / "csrc").glob("*.h")}
    for path in SOURCES:
        for line, dots, module, names in imports_of(path):
            if "_core.ring._cring" in ours(path, dots, module, names) and module_name(path) not in MAY_CROSS:
                wrong.append(f"{path.relative_to(ROOT)}:{line} uses _cring")
        headers = c_headers & set(re.findall(r'cdef extern from "([^"]+)"', text_of(path)))
        if headers - MIRRORS.get(path.name, set()):
            wrong.append(f"{path.relative_to(ROOT)} declares from {', '.join(sorted(headers))}")
    assert not wrong, "only the bindings call csrc, through their .pxd:\n" + "\n".join(wrong)


def control_structs():
    """Return the shared structures with control words: those of layout.h that contain an atomic."""
    layout = (ROOT / "csrc" / "layout.h").read_text()
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", layout, re.DOTALL)
    return [name for name, body in structs if "_Atomic" in body]


def test_only_csrc_touches_control_words():
    names = control_structs()
    assert names, "layout.h has no atomics any more?"
    touching = re.compile(rf"__atomic_|__sync_|stdatomic|\batomic_\w+\(|atomics\.h|\b(?:{'|'.join(names)})\b")
    # The lock of _turnstile is in the memory of one process.
    code = {path: re.sub(r"#[^\n]*", "", text_of(path)) for path in SOURCES if path.name != "_turnstile.pyx"}
    found = {path.relative_to(ROOT): touching.findall(text) for path, text in code.items()}
    wrong = [f"{path}: {', '.join(words)}" for path, words in found.items() if words]
    assert not wrong, "only csrc/ touches control words:\n" + "\n".join(wrong)


C_DEFINITION = re.compile(r"^[a-z_][\w *]*?\b(\w+)\([^;{}]*\)\s*\{(?:([^\n]*)\}$|(.*?)^\})", re.MULTILINE | re.DOTALL)


def used_files(folder):
    """Return the files that each .c file uses; a header's inline function counts as code of its callers."""
    home, inline, functions = {}, {}, []
    for path in sorted(folder.glob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        for name, line, body in C_DEFINITION.findall(code):
            calls = set(re.findall(r"\b(sr_\w+)(?=\()", line or body))
            if path.suffix == ".c":
                home[name] = path.name
                functions.append((path.name, calls))
            else:
                inline[name] = calls
        if path.suffix == ".c" and (table := set(re.findall(r"\]\s*=\s*(sr_\w+)", code))):  # of functions
            functions.append((path.name, table))
    graph = {file: set() for file in home.values()}
    for file, calls in functions:
        while calls & inline.keys():
            calls = calls - inline.keys() | {name for call in calls & inline.keys() for name in inline[call]}
        graph[file] |= {home[name] for name in calls if name in home} - {file}
    return graph


def test_no_file_of_csrc_uses_one_that_uses_it(tmp_path):
    graph = used_files(ROOT / "csrc")
    assert {"slot.c", "handle.c", "memory.c", "wait.c"} <= graph["recover.c"], "calls are no longer found"
    graphlib.TopologicalSorter(graph).prepare()
    graph = used_files(ROOT / "csrc" / "images")
    assert {"crop.c", "warp.c"} <= graph["augment.c"], "calls are no longer found"
    graphlib.TopologicalSorter(graph).prepare()
    (tmp_path / "a.c").write_text("int sr_a(void)\n{\n    return sr_both();\n}\n")
    (tmp_path / "b.c").write_text("int sr_b(void)\n{\n    return sr_a();\n}\n")
    (tmp_path / "h.h").write_text("static inline int sr_both(void) { return sr_b(); }\n")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(used_files(tmp_path)).prepare()


def test_the_package_uses_neither_bench_nor_tests_nor_examples():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in SOURCES
        for line, dots, module, _ in imports_of(path)
        if not dots and module.split(".")[0] in ("bench", "tests", "examples")
    ]
    assert not wrong, "\n".join(wrong)


def test_csrc_knows_nothing_of_python():
    knowing = [path.name for path in (ROOT / "csrc").rglob("*.[ch]") if "Python.h" in path.read_text()]
    assert not knowing, f"csrc/ never includes Python.h: {', '.join(knowing)}"


# Libraries that take long to import, and modules of ours that import them. `slipring` and all others import none.
LATE = """
import importlib, pkgutil, sys
import slipring
late = {"torch", "pyarrow", "tqdm", "rich", "prometheus_client", "slipring.monitor"}
print(sorted(late & set(sys.modules)))
for module in ("queue", "images", "streams", "tokens", "cache", "monitor", "typing", "adapters.megengine", "__main__"):
    importlib.import_module(f"slipring.{module}")
assert slipring.__main__.main(["--json"]) == 0
print(sorted(late & set(sys.modules) - {"slipring.monitor"}))
"""


def test_modules_import_torch_and_pyarrow_only_when_these_are_needed():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("[]", "[]")
