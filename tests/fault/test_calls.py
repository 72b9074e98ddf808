"""A failed system call is survived or reported; objects may be made and dropped in any order.

`python -m tests.fault.calls` fails every call of every operation, `python -m tests.fault.lifetimes` runs longer; the
tests here run a part of both, which depends on the seed.
"""

import os
import shutil

import pytest

from tests.support.processes import run

pytestmark = [pytest.mark.fault, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]
SEED = os.environ.get("SLIPRING_TEST_SEED", "1")


def test_a_worker_that_cannot_be_watched_is_not_kept_and_the_failure_is_reported_at_once():
    said = run("calls", "--operation", "iter fork", "--function", "epoll_ctl")
    assert said.splitlines()[-1] == "4 calls failed, 0 findings"


@pytest.mark.slow
@pytest.mark.parametrize(
    "operations",
    [
        ("iter fork", "next fork", "close fork", "next inline"),
        ("replace", "replaced worker", "workers fork"),
        ("fork with batches", "fork's child with batches", "queue use", "queue poll", "queue process"),
    ],
    ids=" ".join,
)
def test_a_system_call_that_fails_once_is_survived_or_said_and_leaves_nothing(operations):
    said = run("calls", "--errors", 1, "--stride", 13, "--seed", SEED, "--operation", *operations)
    counted = said.splitlines()[-1]
    assert counted.endswith(", 0 findings") and not counted.startswith("0 ")


@pytest.mark.parametrize("torch", [pytest.param(True, marks=pytest.mark.slow), False], ids=["torch", "numpy"])
def test_objects_made_and_dropped_in_random_order_have_their_values_and_leave_nothing(torch):
    if torch:
        pytest.importorskip("torch")
    run("lifetimes", "--seconds", 3, "--seeds", SEED, *(() if torch else ("--no-torch",)))
