"""The fault run, for less than a minute; `make fault KILLS=10000` is the long one."""

import os
from collections import Counter
from importlib.util import find_spec

import pytest

from tests.fault.kills import MODES, MUST_BE_ZERO
from tests.fault.rounds import Mode, compare
from tests.support.processes import told

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    ("got", "wrong"),
    [
        ("ABCD", {}),
        ("ABD", {"lost": 1}),
        ("ABBCD", {"doubled": 1}),
        ("BACD", {"reordered": 2}),
        ("ABcD", {"changed": 1}),
    ],
)
def test_the_fault_run_notices_faults(got, wrong):
    counts = Counter()
    compare([(c.upper(), c) for c in got], [(c, c) for c in "ABCD"], Mode(), counts)
    assert {what: n for what, n in counts.items() if n} == wrong


@pytest.mark.slow
def test_workers_killed_at_random_instants_lose_repeat_and_reorder_nothing():
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    modes = [mode for mode in MODES if find_spec("torch") or not mode.startswith("torch")]
    code, total = told("tests.fault.kills", "--seconds", "25", "--seed", seed, "--modes", ";".join(modes))
    assert code == 0
    assert {what: total[what] for what in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert total["failed"] == []
    # In each mode workers were killed and replaced, and the loader continued; streams used both ways.
    assert total["kills"] >= total["respawns"] > len(modes)
    assert total["resumed"] > 0 and total["replayed"] > 0 and total["batches"] > 100 * len(modes)
