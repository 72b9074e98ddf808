"""The dependencies of csrc's files, without cycles, and the extension modules that contain them."""

import graphlib
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC, PACKAGE = ROOT / "csrc", ROOT / "pkg" / "slipring"
DEFINITION = re.compile(
    r"^[a-z_][\w *]*?\b(?P<name>\w+)\([^;{}]*\)\s*\{(?:(?P<line>[^\n]*)\}$|(?P<body>.*?)^\})",
    re.MULTILINE | re.DOTALL,
)
CALL = re.compile(r"\b(sr_\w+)(?=\()")


def functions(folder):
    """Yield (file, name, called names) of each function in a folder's sources and headers."""
    for path in sorted(folder.glob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        for found in DEFINITION.finditer(code):
            yield path.name, found["name"], set(CALL.findall(found["line"] or found["body"] or ""))


def uses(folder):
    """Return the files that each .c file uses; a header's inline function counts as code of its callers."""
    found = list(functions(folder))
    home = {name: file for file, name, _ in found if file.endswith(".c")}
    inline = {name: calls for file, name, calls in found if file.endswith(".h")}
    graph = {file: set() for file in home.values()}
    for file, _, calls in found:
        if file.endswith(".c"):
            while calls & inline.keys():
                calls = calls - inline.keys() | {name for call in calls & inline.keys() for name in inline[call]}
            graph[file] |= {home[name] for name in calls if name in home} - {file}
    return graph


def cycle_in(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(error.args[1])


def test_no_file_of_csrc_uses_one_that_uses_it():
    graph = uses(CSRC)
    assert {"slot.c", "handle.c", "memory.c", "wait.c"} <= graph["recover.c"], "calls are no longer found"
    assert not cycle_in(graph)


def test_a_cycle_by_way_of_an_inline_function_is_found(tmp_path):
    (tmp_path / "a.c").write_text("int sr_a(void)\n{\n    return sr_both();\n}\n")
    (tmp_path / "b.c").write_text("int sr_b(void)\n{\n    return sr_a();\n}\n")
    (tmp_path / "h.h").write_text("static inline int sr_both(void) { return sr_b(); }\n")
    assert uses(tmp_path) == {"a.c": {"b.c"}, "b.c": {"a.c"}}
    assert cycle_in(uses(tmp_path))


def test_c_code_with_state_of_its_own_is_in_one_extension_module():
    stateful = ("fork.c", "copy.c", "segment.c")
    with_state = {name for file, name, _ in functions(CSRC) if file in stateful and name.startswith("sr_")}
    having = {}
    for module in PACKAGE.rglob("*.so"):
        symbols = subprocess.run(["nm", "--defined-only", module], capture_output=True, text=True, check=True)
        having[module.parent.name + "." + module.name.split(".")[0]] = with_state & set(symbols.stdout.split())
    assert [module for module in having if having[module]] == ["_core._ring"]
    assert {"sr_attach", "sr_after_fork", "sr_copy_rows"} <= having["_core._ring"]
