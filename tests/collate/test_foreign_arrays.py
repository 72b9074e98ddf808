"""Arrays of other libraries that follow the array API standard become numpy's in a batch."""

import numpy as np
import pytest

import slipring
from tests.support.inside import default_collate
from tests.support.options import grouped

CPU, CUDA = 1, 2


class Foreign:
    """An array of another library."""

    def __init__(self, array, device=CPU):
        self.array, self.device = array, device

    def __array_namespace__(self, *, api_version=None):
        return np

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __array__(self, dtype=None, copy=None):
        assert self.device == CPU, "this memory cannot be read by the CPU"
        return np.array(self.array, dtype, copy=copy)


class Sharded(Foreign):
    def __dlpack_device__(self):
        raise BufferError("it lies on several devices")


class Samples:
    def __len__(self):
        return 12

    def __getitem__(self, k):
        return {"x": Foreign(np.full((2, 3), k, "f4").T), "n": Foreign(np.array(k)), "k": k}


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "chunk_size": 2}], ids=["inline", "chunks"])
def test_a_loader_gives_numpy_arrays_without_a_pickle(options):
    with slipring.Loader(Samples(), batch_size=4, **grouped(**options)) as loader:
        for number, batch in enumerate(loader):
            k = np.arange(4 * number, 4 * number + 4)
            assert type(batch["x"]) is type(batch["n"]) is np.ndarray
            assert batch["x"].dtype == np.float32 and np.array_equal(batch["x"], np.full((3, 2, 4), k).T.swapaxes(1, 2))
            assert np.array_equal(batch["n"], k) and np.array_equal(batch["k"], k)
        assert loader.stats().pickled_leaves == 0


def test_they_may_be_mixed_with_numpys():
    ones, zeros = Foreign(np.ones(3)), np.zeros(3)
    assert default_collate([ones, zeros]).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert default_collate([zeros, ones]).tolist() == [[0, 0, 0], [1, 1, 1]]


def stays(sample):
    return all(each is sample for each in default_collate([sample, sample]))


def test_arrays_elsewhere_and_subclasses_of_numpys_stay_as_they_are():
    assert stays(Foreign(np.ones(2), CUDA)) and stays(Sharded(np.ones(2)))
    assert stays(np.ma.masked_array([1, 2], [True, False])) and stays(np.rec.array([(1, 2.0)]))


def test_objects_of_pandas_pyarrow_and_pillow_stay_as_they_are():
    pa, image = pytest.importorskip("pyarrow"), pytest.importorskip("PIL.Image")
    pd = pytest.importorskip("pandas")
    for sample in (pa.array([1, 2]), pa.table({"x": [1]}), image.new("RGB", (2, 2)), pd.DataFrame({"x": [1]})):
        assert stays(sample)
