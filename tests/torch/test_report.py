"""slipring.torch's report counts waiting time that no slot records."""

import os
import time

import pytest

torch = pytest.importorskip("torch")

import slipring  # noqa: E402
from slipring.torch import DataLoader, Device  # noqa: E402
from tests.support.datasets import Slow  # noqa: E402
from tests.support.inside import attach  # noqa: E402


class Timed(Slow):
    """It measures how long its reads take on any machine."""

    def __init__(self, *args):
        super().__init__(*args)
        self.took = 0.0

    def __getitem__(self, i):
        begun = time.perf_counter()
        try:
            return super().__getitem__(i)
        finally:
            self.took += time.perf_counter() - begun


def begins_late(number):
    time.sleep(0.3)


def test_the_wait_for_preload_at_each_epochs_begin_counts():
    data = Slow(40, 0.0)
    with DataLoader(data, 4, num_workers=1, worker_init_fn=begins_late, device=Device("cpu", preload=1)) as loader:
        begun = None
        for _ in range(3):
            for _ in loader:
                begun = begun or time.perf_counter()
                time.sleep(0.005)
        took = time.perf_counter() - begun
        report = loader.report()
    # The first of the three times occurs once per loader. If the loop was delayed, it missed one of the others.
    assert report.verdict.wait_share >= 0.3 / took


def test_the_loops_time_between_batches_that_it_makes_itself_counts():
    data, steps, begun = Timed(40, 0.001), [], time.perf_counter()
    with DataLoader(data, 4) as loader:
        for _ in loader:
            steps.append(-time.perf_counter())
            time.sleep(0.02)
            steps[-1] += time.perf_counter()
        took = time.perf_counter() - begun
        report = loader.report()
    assert data.took / took <= report.verdict.wait_share <= 1 - sum(steps[:-1]) / took  # about 4 of 24 ms


def test_the_time_between_epochs_of_batches_made_in_the_loop_is_no_part_of_them():
    data, took = Timed(40, 0.001), 0.0
    with DataLoader(data, 4) as loader:
        for _ in range(2):
            begun = time.perf_counter()
            for _ in loader:
                pass
            took += time.perf_counter() - begun
            time.sleep(0.2)
        report = loader.report()
    assert report.verdict.wait_share >= data.took / took  # nearly all of it; with the pauses a sixth


@pytest.mark.parametrize(
    ("batches", "named"),
    [(slipring.BatchSampler(12, 3), "list, batch_size=3"), ([[0, 1], [2]], "list, batch_sampler")],
    ids=["sized", "list"],
)
def test_a_loader_with_a_batch_sampler_shows_the_samplers_batch_size(batches, named):
    with DataLoader(list(range(12)), batch_sampler=batches, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        names = [job.named() for job in attach(os.getpid())]  # including other tests' loaders while their batches live
        del iterator
    assert sum(name.startswith(f"{named} \u00b7 ") for name in names) == 1
