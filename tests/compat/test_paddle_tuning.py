"""How many workers: found out by trying."""

import os

import pytest

from slipring import Loader
from slipring.compat import paddle_tuning as tuning
from tests.datasets import Squares


@pytest.mark.parametrize(
    ("costs", "best"),
    [((9, 5, 4.5), 2), ((1, 5), 0), ((4, 3), 0), ((9, 5, 2), 4), ((9, 5, 2, 1), 8)],
)
def test_more_workers_must_be_worth_a_quarter(monkeypatch, costs, best):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4 if len(costs) == 3 else 8)))
    monkeypatch.setattr(tuning, "seconds_per_batch", lambda made: costs[tried.index(made)])
    tried = []

    def make(workers):
        tried.append(workers)
        return workers

    assert tuning.fastest(make) == best and tried == [0, 2, 4, 8][: len(costs)]


@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_what_a_batch_takes_is_measured_and_the_loader_closed(length):
    loader = Loader(Squares(length), 1, num_workers=1)
    assert tuning.seconds_per_batch(loader) >= 0
    assert loader.stats().batches == length
    with pytest.raises(Exception, match="closed"):
        iter(loader)
