"""An exception of a signal handler, at any instruction of iter(), next() and close(), loses and leaks nothing.

`python -m tests.fault.instants` tests all instructions; the tests here some, which depend on the seed. Each case is a
process of its own, because interrupted frames would disturb other tests.
"""

import os
import shutil
from importlib.util import find_spec

import pytest

from tests.support.parts import one_fast, slow
from tests.support.processes import run

pytestmark = [pytest.mark.fault, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]
SEED = os.environ.get("SLIPRING_TEST_SEED", "1")
# (operation, workers) -> the stride between instructions
STRIDES = {("next", 0): 61, ("next", 2): 5, ("close", 0): 29, ("close", 2): 37, ("iter", 0): 167, ("iter", 2): 1997}
with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def go_through(adapter, workers, what, source, stride):
    """Run one case; fail with the program's output."""
    options = {"adapter": adapter, "workers": workers, "what": what, "only": source, "stride": stride, "seed": SEED}
    said = run("instants", *(part for name, value in options.items() for part in (f"--{name}", value)))
    assert f" {source}: " in said, "nothing was gone through"


SOURCES = {0: ("map", "pickled", "sampler", "stream", "copied", "blocks"), 2: ("map", "pickled", "sampler", "copied")}
CASES = [(what, workers, source) for what, workers in STRIDES for source in SOURCES[workers]]
OFTEN = [case for case in CASES if case[2] == "map" or (case[0] == "next" and case[2] in ("sampler", "blocks"))]


@pytest.mark.parametrize(("what", "workers", "source"), [case if case in OFTEN else slow(*case) for case in CASES])
def test_a_handlers_exception_at_any_instruction_loses_no_batch(what, workers, source):
    go_through("numpy", workers, what, source, STRIDES[what, workers])


@pytest.mark.parametrize(("source", "workers"), [slow("failing", 0), ("failing", 2), ("ending", 0), slow("ending", 2)])
def test_a_handlers_exception_loses_no_exception_that_comes_in_a_batchs_place(source, workers):
    go_through("numpy", workers, "next", source, STRIDES["next", workers])


@with_torch
@pytest.mark.parametrize(
    "source",
    one_fast(("map", "pickled", "sampler", "seeded", "told sampler", "stream", "unordered", "ahead", "at once")),
)
def test_a_handlers_exception_in_next_of_torchs_drop_in_loses_no_batch(source):
    go_through("torch", 2, "next", source, 83)


@with_torch
@pytest.mark.parametrize("source", one_fast(["map", "pickled", "sampler", "stream", "seeded", "at once"]))
def test_a_handlers_exception_in_next_of_torchs_drop_in_without_workers_loses_none(source):
    go_through("torch", 0, "next", source, 127)
