"""The soak for some seconds, and proof that it can fail; `make soak MINUTES=20` is the long one."""

import os

import numpy as np
import pytest

from tests.soak.__main__ import PLANTS, WRONG
from tests.soak.judge import Quantity, judge
from tests.soak.watch import QUANTITIES
from tests.support.processes import told

COUNT = Quantity("descriptors")
MEMORY = Quantity("heap in use", "MiB", 1.0)
N = 240
TIMES = 5.0 * np.arange(N)  # twenty minutes
TURN = np.arange(N)
NOISE = np.random.default_rng(1).normal(0, 0.6, N)


@pytest.mark.parametrize(
    ("why", "quantity", "values", "grows"),
    [
        ("one in a hundred turns", COUNT, 30 + TURN // 100, True),
        ("one in sixty turns, and some that come and go", COUNT, 30 + TURN // 60 + 2 * (TURN % 7 == 0), True),
        ("some that come and go", COUNT, 30 + TURN % 3, False),
        ("a leak within the noise of a turn", MEMORY, 100 + 0.03 * TURN + NOISE, True),
        ("a heap that fills its holes ever more slowly", MEMORY, 100 + 9 * (1 - np.exp(-TURN / 40)), False),
        ("one step up, to stay there", MEMORY, np.where(TURN < 130, 100, 110) + NOISE, False),
    ],
)
def test_growth_is_distinguished_from_fluctuation(why, quantity, values, grows):
    assert judge(quantity, TIMES, values).grew == grows


def soak(*arguments):
    """Return a short run's exit code and figures."""
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    return told("tests.soak", "--quick", "--minutes", "0.1", "--seed", seed, *arguments)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.alone  # its measurements fluctuate less on a quiet machine
def test_some_seconds_of_soak_lose_nothing_and_leave_nothing():
    _, found = soak()
    assert {name: found["counts"][name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["left"] == [] and found["counts"]["kills"] > 0 and found["counts"]["batches"] > 1000
    # The heap still changes in such a short run: only the long run judges memory.
    assert [q.name for q in QUANTITIES if q.floor is None and q.name in found["grew"]] == []


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.alone
def test_leaks_on_purpose_are_noticed_and_named():
    code, found = soak("--plant", *PLANTS)
    assert code == 1 and {"descriptors", "heap in use"} <= set(found["grew"]) and found["left"] == []
