"""Batches of any iteration on a device ahead of time: the part of preload that other adapters use."""

import pytest

torch = pytest.importorskip("torch")

from slipring import Loader, LoaderTimeout  # noqa: E402
from slipring.torch.device.cuda import checked_device  # noqa: E402
from slipring.torch.device.onto import on_device  # noqa: E402
from tests.preload.conftest import lab  # noqa: E402, F401 (a fixture)
from tests.support.datasets import Squares, Waiting  # noqa: E402


def numbers(batches):
    return [batch[1].tolist() for batch in batches]


def test_arrays_come_as_tensors_and_the_end_is_the_iterations():
    with Loader(Squares(5), 2, num_workers=1) as loader:
        batches = on_device(iter(loader), checked_device("cpu"))
        assert iter(batches) is batches
        got = list(batches)
        assert numbers(got) == [[0, 1], [2, 3], [4]] and all(torch.is_tensor(b[0]) for b in got)
        with pytest.raises(StopIteration):
            next(batches)
        batches.close()
        batches.close()


def test_the_next_batch_is_on_the_device_before_anybody_asks(lab):  # noqa: F811
    with Loader(Squares(6), 2, num_workers=1) as loader:
        batches = on_device(iter(loader), checked_device("privateuseone"))
        lab.await_copies(1)
        assert [lab.read(batch[1]).tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
        batches.close()


def test_the_iterations_timeout_counts_for_the_waiting_call(tmp_path):
    gate = tmp_path / "gate"
    with Loader(Waiting(str(gate)), 1, num_workers=1, timeout=0.2) as loader:
        batches = on_device(iter(loader), checked_device("cpu"))
        with pytest.raises(LoaderTimeout, match=r"timeout=0\.2"):
            while True:
                next(batches)
        gate.touch()
        batches.close()


@pytest.mark.parametrize("device", ["quantum", "cuda:99", 1.5])
def test_a_value_that_is_no_device_is_refused(device):
    with Loader(Squares(5), 2, num_workers=1) as loader, pytest.raises((TypeError, ValueError, RuntimeError)):
        on_device(iter(loader), checked_device(device))
