"""The methods of every loader (`LoaderMethods`) and the keys of a state are defined once."""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pkg" / "slipring"
FRONTENDS = {
    "loader.py": "Loader",
    "torch/loader.py": "DataLoader",
    "ray/_loader.py": "Loader",
}
HOOKS = {"_add_waits"}  # of `LoaderMethods`, for frontends to define
MOST_LINES = 250  # per module of a frontend, without docstrings and overloads
ELSEWHERE = {"sampler.py"}  # it has another state, with keys of the same name
# Words that mean something else in other modules, too.
COMMON = {
    *("batch_size", "epoch", "kind", "num_workers", "order", "ranks", "rng", "sampler", "seed", "slipring"),
    "workers",
}


def names_of(path, kind):
    (found,) = (
        node
        for node in ast.parse((PACKAGE / path).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == kind
    )
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in found.body if isinstance(node, functions)}


def test_no_frontend_defines_a_method_of_all_loaders():
    common = names_of("_core/loader.py", "LoaderMethods")
    assert {"resize", "stats", "report", "__exit__"} <= common
    again = {path: names_of(path, kind) & common - HOOKS for path, kind in FRONTENDS.items()}
    assert not any(again.values()), again


def lines_of(path):
    """Return the number of lines without docstrings and overloads, which only describe."""
    text = (PACKAGE / path).read_text()
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                left_out.update(range(first.lineno, first.end_lineno + 1))
            if any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list):
                left_out.update(range(node.lineno - 1, node.end_lineno + 1))
    return len(text.splitlines()) - len(left_out)


def test_a_frontend_is_short():
    lines = {path: lines_of(path) for path in [*FRONTENDS, "streams/_loader.py"]}
    assert min(lines.values()) > 20
    assert {path: n for path, n in lines.items() if n > MOST_LINES} == {}


def test_the_keys_of_a_state_stand_in_one_module():
    keys = set(json.loads((ROOT / "docs" / "state.schema.json").read_text())["properties"]) - COMMON
    assert {"beyond", "drawn", "rng_before_iter"} <= keys
    quoted = re.compile(rf"""["'](?:{"|".join(sorted(keys))})["']""")
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyx", ".pxi")]
    found = {str(path.relative_to(PACKAGE)) for path in sources if quoted.search(path.read_text())}
    assert found - ELSEWHERE == {"_core/state.py"}
