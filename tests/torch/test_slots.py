"""Tensors from slipring.torch are in the slots: the worker makes them there, and the consumer sees them there."""

import collections
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, default_collate  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402

import slipring.torch.collate  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.inside import ODD, collate_plain  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402

Point = collections.namedtuple("Point", "x y")


def of_the_segment(tensor):
    """Return whether a tensor's memory is in a mapped segment of this process."""
    at = tensor.data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(x, 16) for x in line.split(None, 1)[0].split("-"))
            if first <= at < last:
                return "/dev/shm/" in line or "/memfd:" in line
    return False


def first_batch(values, **options):
    with DataLoader(Values(values), batch_size=4, num_workers=1, **options) as loader:
        return next(iter(loader)), loader.stats()


SAMPLES = {
    "arrays": lambda i: np.full((3, 5), i, np.float32),
    "tensors": lambda i: torch.full((3, 5), i, dtype=torch.float32),
    "bytes": lambda i: torch.full((7,), i, dtype=torch.uint8),
    "ints": lambda i: i,
    "floats": lambda i: float(i),
    "bools": lambda i: i % 2 == 0,
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_batch_is_a_view_on_its_slot(kind):
    values = [SAMPLES[kind](i) for i in range(8)]
    got, stats = first_batch(values)
    assert type(got) is torch.Tensor and of_the_segment(got)
    want = default_collate(values[:4])
    assert got.dtype is want.dtype and torch.equal(got, want)
    assert stats.copied_batches == stats.pickled_leaves == 0
    got += got  # writable
    assert torch.equal(got, want + want)


class InSlot:
    """A collate_fn that records whether the result of torch's default_collate is in the slot already."""

    def __init__(self, path):
        self.path = os.fspath(path)

    def __call__(self, samples):
        batch = default_collate(samples)
        with open(self.path, "a") as file:
            file.write("".join("y" if of_the_segment(leaf) else "n" for leaf in batch))
        return batch


def test_torchs_collation_inside_a_collate_fn_writes_to_the_slot(tmp_path):
    values = [(np.full((8, 8), i, np.float32), torch.full((3,), i)) for i in range(16)]
    with DataLoader(Values(values), batch_size=4, num_workers=1, collate_fn=InSlot(tmp_path / "said")) as loader:
        for got, start in zip(loader, range(0, 16, 4)):
            want = default_collate(values[start : start + 4])
            assert all(torch.equal(a, b) and of_the_segment(a) for a, b in zip(got, want))
        committed = loader.stats().bytes
    assert (tmp_path / "said").read_text() == "yy" * 4
    # A copy from other memory would write the bytes twice.
    assert committed < 4 * (4 * (256 + 24) + 1024)


def test_a_registered_type_is_collated_as_its_user_says(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Point, lambda batch, *, collate_fn_map=None: "points")
    got, _ = first_batch([(Point(i, i), i) for i in range(4)])
    assert got[0] == "points" and torch.equal(got[1], torch.arange(4))


def test_collation_elsewhere_than_in_a_worker_is_torchs_own():
    assert default_collate_fn_map[torch.Tensor].__module__.startswith("torch.")
    with DataLoader(Values(list(range(8))), batch_size=4, num_workers=1) as loader:
        next(iter(loader))
    assert default_collate_fn_map[torch.Tensor].__module__.startswith("torch.")


TENSORS = {
    "negative by a flag": [torch.tensor([1 + 2j, 3 + 4j]).conj().imag] * 2,
    "one number, negative by a flag": [torch.tensor([1 + 2j]).conj().imag] * 2,
    "conjugate by a flag": [torch.tensor([1 + 2j]).conj()] * 2,
    "transposed": [torch.arange(6).view(2, 3).t(), torch.arange(6, 12).view(2, 3).t()],
    "parts of others": list(torch.arange(12).view(4, 3)),
    "columns of others": list(torch.arange(12).view(4, 3).t()),
    "expanded": [torch.ones(1).expand(3)] * 2,
    "without elements": [torch.zeros(0, 3)] * 2,
    "without dimensions": [torch.tensor(1.5), torch.tensor(2.5)],
    "in several dtypes": [torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float32)],
    **{str(dtype): [torch.ones(3).to(dtype)] * 2 for dtype in (torch.bool, torch.uint8, torch.bfloat16)},
    "16 bits": [torch.ones(3, dtype=torch.float16)] * 2,
    "of float8": [torch.ones(3).to(torch.float8_e5m2)] * 2,
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_are_stacked_as_by_torch(kind):
    values = TENSORS[kind]
    want = default_collate(values)
    with DataLoader(Values(values), batch_size=len(values), num_workers=1) as loader:
        (got,) = loader
    assert got.dtype is want.dtype and got.shape == want.shape
    as_numbers = [(t if t.is_complex() else t.double()).tolist() for t in (got, want)]
    assert as_numbers[0] == as_numbers[1]


NOT_PLAIN = {
    "a subclass": [collections.OrderedDict(a=1)] * 2,
    "dtypes differ": [np.zeros(2, np.int32), np.zeros(2, np.int64)],
    "shapes differ": [np.zeros(2), np.zeros(3)],
    "kinds of number": [1, 2.5],
    "a large int": [1 << 70, 1],
    "text in arrays": [np.array(["a"]), np.array(["b"])],
    "objects": [np.array([None]), np.array([None])],
    "numpy numbers": [np.float32(1), np.float32(2)],
    "big-endian": [np.zeros(2, ">i4")] * 2,
    "lengths differ": [(1, 2), (1,)],
    "a key that is missing": [{"a": 1}, {"b": 1}],
    "None": [None, None],
    "anything": [object()] * 2,
    "none at all": [],
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_everything_else_is_torchs_to_collate_or_refuse(kind):
    values = NOT_PLAIN[kind]
    assert collate_plain(values) is ODD
    try:
        want = default_collate(values)
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            slipring.torch.collate.default_collate(values)
        assert str(caught.value) == str(error)
    else:
        assert_same(slipring.torch.collate.default_collate(values), want)


class OnDevice(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return Fake()


class Fake(torch.Tensor):
    """A stand-in for a tensor on an accelerator."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_subclass(cls, torch.zeros(2))

    @property
    def device(self):
        return torch.device("cuda:0")


def first_of(samples):
    return samples[0]


def test_a_tensor_on_a_device_is_refused_with_the_remedy():
    loader = DataLoader(OnDevice(), batch_size=2, num_workers=1, collate_fn=first_of)
    with loader, pytest.raises(TypeError, match="tensor on cuda:0; return CPU tensors"):
        next(iter(loader))


class Arrays:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"x": np.full(5, i), "more": (np.ones(2), [i])}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tensors_of_cached_samples_can_be_written_to(num_workers):
    data = slipring.cached(Arrays(), "1MiB")
    for _ in range(2):  # the second time from the cache, whose pages are read-only
        with DataLoader(data, batch_size=None, num_workers=num_workers) as loader:
            got = [(sample["x"].add_(1).tolist(), sample["more"][0].add_(1).tolist()) for sample in loader]
        assert got == [([i + 1] * 5, [2.0, 2.0]) for i in range(4)]
