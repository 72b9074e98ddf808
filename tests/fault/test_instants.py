"""An exception of a signal handler, at any instruction of iter(), next() and close(), loses and leaks nothing.

`python -m tests.fault.instants` tests all instructions; the tests here some, which depend on the seed. Each case is a
process of its own, because interrupted frames would disturb other tests.
"""

import importlib.util
import os
import shutil

import pytest

from tests.support.parts import fast, one_fast, slow
from tests.support.processes import run

pytestmark = [pytest.mark.fault, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]
SEED = os.environ.get("SLIPRING_TEST_SEED", "1")
# (operation, workers) -> the stride between instructions
STRIDES = {("next", 0): 61, ("next", 2): 5, ("close", 0): 29, ("close", 2): 37, ("iter", 0): 67, ("iter", 2): 997}
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def go_through(adapter, workers, what, source, stride):
    """Run one case; fail with the program's output."""
    options = {"adapter": adapter, "workers": workers, "what": what, "only": source, "stride": stride, "seed": SEED}
    said = run("instants", *(part for name, value in options.items() for part in (f"--{name}", value)))
    assert f" {source}: " in said, "nothing was gone through"


SOURCES = ["map", "pickled", "sampler", "stream", "copied", "blocks"]


@pytest.mark.parametrize("source", fast(SOURCES, "map", "sampler", "stream", "blocks"))
@pytest.mark.parametrize(("what", "workers"), STRIDES)
def test_a_handlers_exception_at_any_instruction_loses_no_batch(what, workers, source):
    if source in ("stream", "blocks") and workers == 2:
        pytest.skip("two workers read the stream in turns")
    go_through("numpy", workers, what, source, STRIDES[what, workers])


@pytest.mark.parametrize("source", fast(["refusing", "failing", "ending"], "failing"))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_handlers_exception_loses_no_exception_that_comes_in_a_batchs_place(workers, source):
    go_through("numpy", workers, "next", source, STRIDES["next", workers])


@with_torch
@pytest.mark.parametrize(
    "source",
    [
        *one_fast(("map", "pickled", "sampler", "seeded", "told sampler", "stream", "told", "unordered")),
        *map(slow, ("ahead", "at once")),
    ],
)
def test_a_handlers_exception_in_next_of_torchs_drop_in_loses_no_batch(source):
    go_through("torch", 2, "next", source, 41)


@with_torch
@pytest.mark.parametrize("source", one_fast(["map", "pickled", "sampler", "stream", "seeded", "at once"]))
def test_a_handlers_exception_in_next_of_torchs_drop_in_without_workers_loses_none(source):
    go_through("torch", 0, "next", source, 61)
