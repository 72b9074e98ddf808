"""A failed system call is survived or reported.

`python -m tests.fault.calls` fails every call of every operation; the tests here fail some of them,
which depend on the seed.
"""

import os
import shutil

import pytest

from tests.support.processes import run

pytestmark = [pytest.mark.fault, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]
SEED = os.environ.get("SLIPRING_TEST_SEED", "1")


@pytest.mark.parametrize(
    ("operation", "function", "calls"),
    [("iter fork", "fork", 4), ("iter fork", "epoll_ctl", 4), ("iter thread", "pthread_create", 2)],
)
def test_workers_that_cannot_be_started_or_watched_are_reported_and_leave_nothing(operation, function, calls):
    said = run("calls", "--operation", operation, "--function", function)
    assert said.splitlines()[-1] == f"{calls} calls failed, 0 findings"


@pytest.mark.slow
@pytest.mark.parametrize(
    "operations",
    [
        ("iter fork", "next fork", "close fork", "next inline"),
        ("replace", "replaced worker", "workers fork"),
        ("fork with batches", "fork's child with batches", "queue use"),
    ],
    ids=" ".join,
)
def test_a_system_call_that_fails_once_is_survived_or_said_and_leaves_nothing(operations):
    said = run("calls", "--errors", 1, "--stride", 13, "--seed", SEED, "--operation", *operations)
    counted = said.splitlines()[-1]
    assert counted.endswith(", 0 findings") and not counted.startswith("0 ")
