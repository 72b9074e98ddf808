"""Tensors from slipring.torch are in the slots: the worker makes them there, and the consumer sees them there."""

import collections
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402

import slipring  # noqa: E402
from slipring.torch import DataLoader, collate  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.drawn import LEAVES, check_rows  # noqa: E402
from tests.support.inside import TORCH, RowWriter  # noqa: E402
from tests.support.trip import Trip  # noqa: E402

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


def sample(i):
    bytes_of_i, array = torch.full((7,), i, dtype=torch.uint8), np.full((3, 5), i, np.float32)
    return array, torch.from_numpy(array), bytes_of_i, i, float(i), i % 2 == 0


def test_a_batch_is_a_view_on_its_slot():
    values = [sample(i) for i in range(8)]
    with DataLoader(Values(values), batch_size=4, num_workers=1) as loader:
        batch, stats = next(iter(loader)), loader.stats()
    for got, want in zip(batch, default_collate(values[:4]), strict=True):
        assert type(got) is torch.Tensor and of_the_segment(got)
        assert got.dtype is want.dtype and torch.equal(got, want)
        got += got  # writable
        assert torch.equal(got, want + want)
    assert stats.copied_batches == stats.pickled_leaves == 0


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
    with DataLoader(Values([(Point(i, i), i) for i in range(4)]), batch_size=4, num_workers=1) as loader:
        (batch,) = loader
    assert batch[0] == "points" and batch[1].tolist() == [0, 1, 2, 3]


def test_collation_elsewhere_than_in_a_worker_is_torchs_own():
    assert default_collate_fn_map[torch.Tensor].__module__.startswith("torch.")
    with DataLoader(Values(list(range(8))), batch_size=4, num_workers=1) as loader:
        next(iter(loader))
    assert default_collate_fn_map[torch.Tensor].__module__.startswith("torch.")


class Arrays:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"x": np.full(5, i), "more": (np.ones(2), [i])}


def test_tensors_of_cached_samples_can_be_written_to():
    data = slipring.cached(Arrays(), "1MiB")
    for num_workers in (0, 0, 1):  # the second time from the cache, whose pages are read-only
        with DataLoader(data, batch_size=None, num_workers=num_workers) as loader:
            got = [(sample["x"].add_(1).tolist(), sample["more"][0].add_(1).tolist()) for sample in loader]
        assert got == [([i + 1] * 5, [2.0, 2.0]) for i in range(4)]


# ---- rows: with torch's rules, too, a batch that is made row by row equals the collated list


LAYOUTS = [
    lambda tensor: tensor,
    lambda tensor: tensor.transpose(0, -1) if tensor.dim() else tensor,
    lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
    lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    lambda tensor: tensor.to_sparse(),
    lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
]
DTYPES = [torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.bool]


def tensor(rng):
    shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
    made = torch.ones(shape).mul(rng.randrange(3)).to(rng.choice(DTYPES))
    if made.is_complex() and rng.random() < 0.5:
        return made.conj()
    return rng.choice(LAYOUTS)(made) if rng.random() < 0.6 else made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(30))
def test_any_samples_make_the_batch_or_the_error_that_their_list_makes(seed):
    check_rows(seed, [*LEAVES[:10], *[tensor] * 6], TORCH, collate.default_collate)


@pytest.mark.parametrize("number", [np.float64(1.5), np.complex128(1j), np.float32(2), np.int64(3), np.bool_(True)])
def test_numpys_numbers_leave_the_arrays_beside_them_in_their_rows(number):
    trip = Trip()
    writer = trip.claim(range(2))
    with writer:
        rows = RowWriter(0, 2, TORCH)
        for row in range(2):
            rows.put(row, (np.full(3, row), number))
            assert rows.in_place
        trip.encoder.publish(writer, [rows.batch(collate.default_collate)])
    del rows
    got, want = trip.take(writer.slot), default_collate([(np.ones(3), number)] * 2)
    assert got[1].dtype is want[1].dtype and got[1].tolist() == want[1].tolist()
