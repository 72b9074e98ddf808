"""`warn_after` in torch's loader: see tests/loader/test_warn_after.py."""

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.loader.test_warn_after import opening  # noqa: E402
from tests.support.datasets import Waiting  # noqa: E402


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_long_wait_is_logged_also_by_the_thread_that_prepares_batches(tmp_path, device):
    data = Waiting(tmp_path / "gate", at=4, n=6)
    options = {"num_workers": 2, "device": device}
    with opening(tmp_path, batch=2) as lines, DataLoader(data, 2, warn_after=0.01, **options) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert len(lines) == 1
