"""An option is declared once, in slipring/options.py, and reaches every loader: signature, help() and the loader."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import ForwardRef, Literal, Union, get_args, get_origin

import numpy as np
import pytest

import slipring
from slipring import options
from tests.support.inside import Group, entries, rules

PACKAGE = Path(__file__).resolve().parents[2] / "pkg" / "slipring"
COMMON = options.CommonOptions.__annotations__


def loaders():
    """Return {name of a loader: (the loader, the options that it declares)}."""
    found = {
        "Loader": (slipring.Loader, options.LoaderOptions),
        "stream": (slipring.stream, options.FlowOptions),
    }
    for name, module, loader, declared in (
        ("torch.DataLoader", "slipring.torch", "DataLoader", options.TorchOptions),
        ("ray.Loader", "slipring.ray", "Loader", options.RayOptions),
    ):
        with contextlib.suppress(ImportError):
            found[name] = getattr(importlib.import_module(module), loader), declared
    return found


LOADERS = loaders()
REFUSED = {"ray.Loader": {"worker_init_fn", "persistent_workers"}}  # options that a loader cannot have


@pytest.mark.parametrize("loader", LOADERS)
def test_each_declared_option_is_in_the_signature_and_in_the_documentation_unless_it_is_refused(loader):
    made, declared = LOADERS[loader]
    parameters = inspect.signature(made).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    assert set(COMMON) <= set(declared.__annotations__) <= set(parameters)
    for name, (_, rule) in rules(declared).items():
        assert (f"\n{name} : " in inspect.getdoc(made)) == (name not in REFUSED.get(loader, ())), name
        assert parameters[name].default == rule.default or loader in ("torch.DataLoader", "ray.Loader"), name


def name_of(kind):
    """Return a type's name for documentation."""
    words = [repr(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
    if get_origin(kind) in (Union, UnionType):
        parts = [name_of(part) for part in get_args(kind)]
        words = [word for part in parts if part[0] == "{" for word in part[1:-1].split(", ")]
        parts = [part for part in parts if part[0] != "{" and not (words and part == "None")]
        none = ["None"] if words and type(None) in get_args(kind) else []
        return " or ".join(parts + ([f"{{{', '.join(none + words)}}}"] if words else []))
    if words:
        return f"{{{', '.join(words)}}}"
    if isinstance(kind, (str, ForwardRef)):
        return (kind if isinstance(kind, str) else kind.__forward_arg__).replace(" | ", " or ")
    if get_origin(kind) is tuple:
        return f"({', '.join(map(name_of, get_args(kind)))})"
    name = "None" if kind is type(None) else (get_origin(kind) or kind).__name__
    return {"Callable": "callable", "Iterable": "iterable", "PathLike": "path"}.get(name, name)


@pytest.mark.parametrize(
    "declared",
    [options.Workers, options.Memory, options.Device, *(declared for _, declared in LOADERS.values())],
    ids=lambda declared: declared.__name__,
)
def test_the_documentation_of_an_option_has_its_type_and_its_default(declared):
    shared = options.CommonOptions, options.FlowOptions, options.LoaderOptions, options.OneDeviceOptions
    classes = [declared] if issubclass(declared, Group) else [*shared, declared]
    documented = {name: entry for each in classes for name, entry in entries(each).items()}
    for name, (kind, rule) in rules(declared).items():
        default = "" if rule.default is dataclasses.MISSING else f", default {rule.default!r}"
        assert documented[name].startswith(f"{name} : {name_of(kind)}{default}\n    "), name
    assert len(classes) > 1 or set(documented) == set(rules(declared))


@pytest.mark.parametrize("frontend", ["loader.py", "streams/_loader.py", "torch/loader.py", "ray/_loader.py"])
def test_no_frontend_repeats_an_option(frontend):
    tree = ast.parse((PACKAGE / frontend).read_text())
    constructors = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in ("__init__", "stream")]
    named = {a.arg for n in constructors for a in (*n.args.args, *n.args.kwonlyargs)}
    repeated = named & set(options.FlowOptions.__annotations__)
    if frontend == "torch/loader.py":  # torch's own parameters; some are ours, too
        torch = pytest.importorskip("torch")
        repeated -= set(inspect.signature(torch.utils.data.DataLoader).parameters)
    assert constructors and not repeated


def test_torchs_parameters_are_torchs():
    torch = pytest.importorskip("torch")
    theirs = inspect.signature(torch.utils.data.DataLoader).parameters
    ours = inspect.signature(LOADERS["torch.DataLoader"][0]).parameters
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    assert list(ours)[: len(theirs)] == list(theirs)


VALUES = {
    slipring.Workers: slipring.Workers(on_death="respawn", max_restarts=7, snapshot_every_n_steps=5),
    slipring.Memory: slipring.Memory(slots=40, slot_bytes=1 << 20, backing="memfd", copy="always"),
}


def another(declared, rule):
    """Return a value of an option that is not its default."""
    if declared is bool:
        return not rule.default
    if declared is float:
        return rule.default + 2.5
    if isinstance(rule.default, Group):
        return VALUES[type(rule.default)]
    if int in get_args(declared):  # an int or None
        return 7
    return next(word for word in get_args(declared) if word != rule.default)  # of a Literal


@pytest.mark.parametrize("name", rules(options.CommonOptions))
def test_the_options_arrive(name):
    wanted = another(*rules(options.CommonOptions)[name])
    value = {name: wanted}
    assert getattr(slipring.Loader([1, 2], num_workers=1, **value).options, name) == wanted
    stream = slipring.stream(lambda worker, workers: [{"x": np.arange(3)}], 2, num_workers=1, **value)
    assert getattr(stream.options, name) == wanted
    if "torch.DataLoader" in LOADERS:
        loader = LOADERS["torch.DataLoader"][0]([1, 2], num_workers=1, **{"rng": "batch", **value})
        assert getattr(loader, name) == wanted
        reached = loader._options_now
        workers = dataclasses.replace(reached.workers, start_method=None)  # multiprocessing_context sets it
        assert getattr(dataclasses.replace(reached, workers=workers), name) == wanted


ENTRY = "    skip_odd : bool, default False\n        Leave out samples with odd indices.\n"
FIELD = "    skip_odd: Annotated[bool, Rule(False)]\n\n\n"
NEW = """
import inspect
import numpy as np
import slipring
assert inspect.signature(slipring.Loader).parameters["skip_odd"].default is False
assert "skip_odd : bool, default False\\n    Leave out samples with odd indices." in inspect.getdoc(slipring.Loader)
assert slipring.Loader([1], skip_odd=True).options.skip_odd is True
assert slipring.stream([{"x": np.arange(3)}], 2, skip_odd=True).options.skip_odd is True
try:
    slipring.Loader([1], skip_odd="yes")
except TypeError as error:
    assert "skip_odd must be True or False, not 'yes'" in str(error)
else:
    raise AssertionError("it is not checked")
"""


def test_a_new_common_option_takes_one_declaration(tmp_path):
    """A copy of the package with one more field in `CommonOptions`, and its entry in the docstring."""
    copy = tmp_path / "slipring"
    copy.mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name not in ("options.py", "__pycache__"):
            (copy / entry.name).symlink_to(entry)
    before, heading, after = (PACKAGE / "options.py").read_text().partition("class FlowOptions(CommonOptions")
    before, entry, fields = before.rstrip().partition("    skip_none : bool")
    (copy / "options.py").write_text(f"{before}{ENTRY}{entry}{fields}\n{FIELD}{heading}{after}")
    code = NEW
    if "torch.DataLoader" in LOADERS:
        code += "from slipring.torch import DataLoader\n"
        code += "assert DataLoader([1], skip_odd=True)._options_now.skip_odd\n"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert heading and done.returncode == 0, done.stderr


def test_positional_arguments_end_after_batch_size_and_the_error_says_so():
    with pytest.raises(TypeError, match="takes dataset, batch_size by position, and all other arguments by name"):
        slipring.Loader([1, 2], 2, True)
