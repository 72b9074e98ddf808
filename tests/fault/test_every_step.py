"""Deaths at each step of the C ring, for a minute; `make steps` is the whole run."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fault import points
from tests.fault.steps import ELSEWHERE, MUST_BE_ZERO, QUICK_JOBS
from tests.support.processes import ROOT, told

# The first test compiles the ring.
pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def build():
    return points.build()


def in_a_build_with_points(build, *lines):
    """Return the output of a program that has the points as `P`."""
    program = "\n".join(["from tests.fault.points import load", f"P = load({str(build)!r})", *lines])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_every_point_has_a_name_of_its_own(build):
    code, said, err = in_a_build_with_points(build, "print(*P.names, sep='\\n')")
    assert (code, err) == (0, "")
    names = said.splitlines()
    assert len(set(names)) == len(names) > 150
    assert {"sr_publish: before cas &s->state", "sr_publish: after cas &s->state"} < set(names)
    # Each reason for a point that no process passes must name an existing point.
    assert [what for what in ELSEWHERE if not any(name.startswith(what) for name in names)] == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0])
def test_a_process_that_passes_after_the_given_number_of_hits_dies_as_ordered(build, how):
    code, said, _ = in_a_build_with_points(
        build,
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "from tests.support.inside import Ring",
        "ring = Ring(2, 2)",
        f"P.order('sr_begin_iteration: before store &ring->header->iteration', {int(how)}, skip=2, participant=0)",
        "for run in range(9):",
        "    print(run, flush=True)",
        "    ring.begin_iteration(run)",
    )
    assert (code, said.split()) == (-how or 3, ["0", "1", "2"])


@pytest.mark.timeout(600)
def test_a_death_at_any_step_loses_repeats_and_reorders_nothing(build):
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    quick = [] if os.environ.get("SLIPRING_TEST_ALL_STEPS") else ["--quick"]
    code, total = told("tests.fault.steps", "--seed", seed, *quick)
    assert total["failed"] == []
    assert {what: total[what] for what in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert total["unreached"] == [], "points that no mode comes by: a mode that does, or a line in ELSEWHERE"
    assert code == 0
    # A process was hit at nearly every point in each mode; "raise" has mostly raised.
    assert total["interrupted"] >= total["points"] - total["missed"] > 40 * len(QUICK_JOBS)
    assert total["missed"] < total["points"] / 20
    assert total["raised"] > 60
