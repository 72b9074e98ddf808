"""Arrays of any iteration as tensors, for adapters other than torch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slipring.torch.device.onto import as_tensors  # noqa: E402

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


@pytest.mark.parametrize("dtype", ["g", "G", "U3", "S3", "O", "M8[s]", "V4"])
def test_arrays_of_types_that_torch_has_not_stay_arrays(dtype):
    array = np.zeros(3, dtype)
    assert as_tensors((array,))[0] is array
