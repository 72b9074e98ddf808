"""Objects are made and dropped in random order; `python -m tests.fault.lifetimes` runs longer."""

import os

import pytest

from tests.support.parts import slow
from tests.support.processes import run

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("torch", [slow(True), False], ids=["torch", "numpy"])
def test_objects_made_and_dropped_in_random_order_have_their_values_and_leave_nothing(torch):
    if torch:
        pytest.importorskip("torch")
    run("lifetimes", "--seconds", 3, "--seeds", os.environ.get("SLIPRING_TEST_SEED", "1"), *(["--torch"] * torch))
