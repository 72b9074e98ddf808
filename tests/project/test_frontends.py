"""All loaders are one core with answers of their own: none of them begins a pass or keeps a state by itself."""

import re
from pathlib import Path

import pytest

import slipring
from tests.support.inside import Frontend, LoaderCore

BEGINNING = ["Engine", "EngineCache", "LocalWorker", "Position", "StreamPlan", "lend", "map_plan", "loaded_positions"]


def loaders():
    yield slipring.Loader
    torch = pytest.importorskip("slipring.torch")
    yield from (kind for kind in torch.DataLoader.__mro__ if kind.__module__.startswith("slipring.torch"))


def test_a_frontend_defines_no_name_of_the_core():
    for kind in loaders():
        both = {name for name in vars(kind).keys() & vars(LoaderCore).keys() if not name.startswith("__")}
        assert both == set(), kind


def test_the_core_has_no_answer_of_its_own():
    both = {name for name in vars(Frontend).keys() & vars(LoaderCore).keys() if not name.startswith("__")}
    assert both == set()


def test_torchs_loader_imports_nothing_that_begins_a_pass():
    for file in (Path(slipring.__file__).parent / "torch").glob("*.py"):
        for names in re.findall(r"^\s*from slipring\._core[\w.]* import ([^(\n]+|\([^)]+\))", file.read_text(), re.M):
            found = set(re.findall(r"\w+", names)) & set(BEGINNING)
            assert found == set(), file.name
