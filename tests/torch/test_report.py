"""What the report of torch's face counts as waiting, where no slot tells it."""

import time

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.datasets import Slow  # noqa: E402


def begins_late(number):
    time.sleep(0.3)


def test_the_wait_for_preload_at_each_epochs_begin_counts():
    data = Slow(40, 0.0)
    with DataLoader(data, 4, num_workers=1, preload=1, worker_init_fn=begins_late) as loader:
        for _ in range(3):
            for _ in loader:
                time.sleep(0.005)
        report = loader.report()
    # Two of the three times; the first one is once in a loader's life. The steps take 0.15 s in all.
    assert report.verdict.wait_share > 0.5


def test_what_the_loop_does_between_batches_that_it_makes_itself_counts():
    with DataLoader(Slow(40, 0.001), 4) as loader:
        for _ in loader:
            time.sleep(0.02)
        report = loader.report()
    assert 0.05 < report.verdict.wait_share < 0.5  # 4 of 24 ms


def test_what_is_between_two_epochs_of_batches_made_in_the_loop_is_no_part_of_them():
    with DataLoader(Slow(40, 0.001), 4) as loader:
        for _ in range(2):
            for _ in loader:
                pass
            time.sleep(0.2)
        report = loader.report()
    assert report.verdict.wait_share > 0.5  # all of what the epochs took, and a sixth of it with the pauses
