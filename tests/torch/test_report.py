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


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_long_wait_is_logged_also_by_the_thread_that_prepares_batches(tmp_path, device):
    data = Waiting(tmp_path / "gate", at=4, n=6)
    options = {"num_workers": 2, "device": device}
    with opening(tmp_path, batch=2) as lines, DataLoader(data, 2, warn_after=0.01, **options) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert len(lines) == 1
