"""A system call that fails is survived or said; objects may be made and dropped in any order.

`python -m tests.fault.calls` fails every call of every operation, `python -m tests.fault.lifetimes` lives longer; here
some of both, others at each seed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
ROOT = Path(__file__).resolve().parents[2]
SEED = os.environ.get("SLIPRING_TEST_SEED", "1")
LIMIT_S = 100


def run(module, *args):
    """Run a program of this folder; fails with what it says. Returns its last line."""
    command = [sys.executable, "-m", f"tests.fault.{module}", *map(str, args)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"not done in {LIMIT_S} s: {error.stdout} {error.stderr}", pytrace=False)
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout.splitlines()[-1]


def test_a_worker_that_cannot_be_watched_is_not_kept_and_what_failed_is_said_at_once():
    told = run("calls", "--operation", "iter fork", "--function", "epoll_ctl")
    assert told == "4 calls failed, 0 findings"


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
    told = run("calls", "--errors", 1, "--stride", 13, "--seed", SEED, "--operation", *operations)
    assert told.endswith(", 0 findings") and not told.startswith("0 ")


@pytest.mark.parametrize("torch", [pytest.param(True, marks=pytest.mark.slow), False], ids=["torch", "numpy"])
def test_objects_made_and_dropped_in_random_order_have_their_values_and_leave_nothing(torch):
    if torch:
        pytest.importorskip("torch")
    run("lifetimes", "--seconds", 3, "--seeds", SEED, *(() if torch else ("--no-torch",)))
