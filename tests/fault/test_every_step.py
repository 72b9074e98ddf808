"""Deaths at each step of the C ring, for a minute; `make steps` is the whole run."""

import os

import pytest

from tests.fault.steps import MUST_BE_ZERO, QUICK_JOBS
from tests.support.processes import told

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def test_a_death_at_any_step_loses_repeats_and_reorders_nothing():
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    code, total = told("tests.fault.steps", "--seed", seed, "--quick")
    assert total["failed"] == []
    assert {what: total[what] for what in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert total["no such point"] == []
    assert total["unreached"] == [], "points that no mode comes by: a mode that does, or a line in ELSEWHERE"
    assert code == 0
    # A process was hit at nearly every point in each mode; "raise" has mostly raised.
    assert total["interrupted"] >= total["points"] - total["missed"] > 40 * len(QUICK_JOBS)
    assert total["missed"] < total["points"] / 20
    assert total["raised"] > 60
