"""slipring.torch's report counts waiting time that no slot records, and long waits are logged."""

import time

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader, Device  # noqa: E402
from tests.loader.test_warn_after import opening  # noqa: E402
from tests.support.datasets import Slow, Waiting  # noqa: E402


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


class Timed(Slow):
    """It measures how long its reads take on any machine."""

    took = 0.0

    def __getitem__(self, i):
        begun = time.perf_counter()
        super().__getitem__(i)
        self.took += time.perf_counter() - begun
        return i


def test_the_loops_time_between_batches_that_it_makes_itself_counts_and_that_between_epochs_does_not():
    data, steps, took = Timed(40, 0.001), 0.0, 0.0
    with DataLoader(data, 4) as loader:
        for _ in range(2):
            begun = time.perf_counter()
            for number, _ in enumerate(loader):
                step = -time.perf_counter()
                time.sleep(0.02)
                steps += 0 if number == 9 else step + time.perf_counter()
            took += time.perf_counter() - begun
            time.sleep(0.2)
        report = loader.report()
    assert data.took / took <= report.verdict.wait_share <= 1 - steps / took  # about 4 of 24 ms


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_long_wait_is_logged_also_by_the_thread_that_prepares_batches(tmp_path, device):
    data = Waiting(tmp_path / "gate", at=4, n=6)
    options = {"num_workers": 2, "device": device}
    with opening(tmp_path, batch=2) as lines, DataLoader(data, 2, warn_after=0.01, **options) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert len(lines) == 1
