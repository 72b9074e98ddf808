"""Batches of any iteration as tensors, on a device ahead of time: the parts that other adapters use."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slipring import Loader, LoaderTimeout  # noqa: E402
from slipring.errors import Closed  # noqa: E402
from slipring.torch.device.cuda import checked_device  # noqa: E402
from slipring.torch.device.to_device import as_tensors, on_device  # noqa: E402
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


def test_a_resume_after_the_last_batch_continues_with_the_next_epoch():
    with Loader(Squares(5), 2, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        batches = on_device(iter(loader), checked_device("cpu"))
        assert numbers(batches) == [[0, 1], [2, 3], [4]] and loader.epoch == 2
        batches.close()


def test_an_iterator_from_before_a_load_raises():
    with Loader(Squares(8), 2, num_workers=1) as loader:
        batches = on_device(iter(loader), checked_device("cpu"))
        next(batches)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(Closed, match="make a new one"):
            next(batches)
        batches.close()
        assert len(list(loader)) == 3


def test_the_next_batch_is_on_the_device_before_anybody_asks(lab):
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


FIELDS = np.zeros(3, [("a", "i1"), ("b", "f8"), ("c", "c8")])
FIELDS["b"] = FIELDS["c"] = [1, 2, 3]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=">i4"),
        np.arange(3)[::-1],
        np.arange(6).reshape(2, 3)[:, ::-2],
        np.frombuffer(b"abc", np.uint8),
        FIELDS["b"],
        np.zeros(3, [("a", "f4"), ("c", "c8")])["c"],
        np.array(2, ">f4"),
    ],
    ids=["other byte order", "backwards", "columns backwards", "read-only", "unaligned", "odd steps", "no dimension"],
)
def test_arrays_that_torch_does_not_take_are_copied(array):
    tensor = as_tensors({"array": array})["array"]
    assert isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == array.shape
    assert tensor.tolist() == array.tolist()
    assert tensor.numpy().dtype == array.dtype.newbyteorder("=")
    tensor += 1  # it is no view of read-only memory


@pytest.mark.parametrize("array", [np.ones(3, "f4"), np.ones((3, 4))[:, ::2], np.ones((2, 3)).T])
def test_arrays_that_torch_takes_are_not_copied(array):
    tensor = as_tensors([array])[0]
    tensor[0] = 5
    assert (array[0] == 5).all()


def test_arrays_of_types_that_torch_has_not_stay_arrays():
    for dtype in ("g", "G", "U3", "S3", "O", "M8[s]", "V4"):
        array = np.zeros(3, dtype)
        assert as_tensors((array,))[0] is array
