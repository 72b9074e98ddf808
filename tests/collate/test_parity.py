"""Batches hold the same values as torch's default_collate, in the samples' own containers."""

import collections
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate as torch_collate  # noqa: E402

import slipring  # noqa: E402
from tests.support.datasets import Point, Values  # noqa: E402
from tests.support.kinds import loaded  # noqa: E402

WAYS = ["call", "0", "2", "2 in chunks"]


def batches_of(lists, way):
    """Yield a batch of each list of samples, made in one of several ways."""
    if way == "call":
        yield from map(slipring.default_collate, lists)
        return
    ends = list(itertools.accumulate(map(len, lists), initial=0))
    batches = [list(range(*pair)) for pair in itertools.pairwise(ends)]
    chunk_size = 2 if "chunks" in way else None
    values = Values([sample for samples in lists for sample in samples])
    yield from loaded(values, batch_sampler=batches, num_workers=int(way[0]), chunk_size=chunk_size)


def assert_as_torch(ours, theirs, at):
    """Compare values and positions; torch converts numbers and arrays to tensors, and tuples to lists."""
    if isinstance(theirs, torch.Tensor):
        ours = torch.from_numpy(ours) if isinstance(ours, np.ndarray) else ours
        assert isinstance(ours, torch.Tensor), at
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs), at
    elif isinstance(theirs, collections.abc.Mapping):
        assert type(ours) is type(theirs) and list(ours) == list(theirs), at
        for key in theirs:
            assert_as_torch(ours[key], theirs[key], at)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), at
        for a, b in zip(ours, theirs, strict=True):
            assert_as_torch(a, b, at)
    else:
        assert ours == theirs, at


SAMPLES = {
    "ints": [3, -1, 2, 0],
    "floats": [1.5, float("inf"), -0.0, 2.0],
    "bools": [True, False, True],
    "float32 scalars": [np.float32(1), np.float32(2)],
    "int8 scalars": [np.int8(1), np.int8(-2)],
    "bool scalars": [np.bool_(True), np.bool_(False)],
    "arrays of no dimension": [np.array(1.5), np.array(2.5)],
    "arrays": [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(5)],
    "uint8 images": [np.full((4, 4, 3), i, np.uint8) for i in range(4)],
    "float16 arrays": [np.ones(3, np.float16), np.zeros(3, np.float16)],
    "complex arrays": [np.array([1 + 2j]), np.array([3j])],
    "arrays with no elements": [np.zeros((0, 2)), np.zeros((0, 2))],
    "strided arrays": [np.arange(20).reshape(4, 5)[::2, ::2].T for _ in range(3)],
    "reversed arrays": [np.arange(5)[::-1] for _ in range(3)],
    "text": ["a", "", "ü€𝄞"],
    "bytes": [b"a", b"", b"\xff\x00"],
    "tuples": [(i, float(i)) for i in range(4)],
    "lists": [[i, [i, i]] for i in range(4)],
    "dicts": [{"x": i, "y": {"z": np.ones(2) * i}} for i in range(4)],
    "ordered dicts": [collections.OrderedDict(b=i, a=2.0) for i in range(3)],
    "default dicts": [collections.defaultdict(list, b=i, a=2.0) for i in range(3)],
    "namedtuples": [Point(i, np.arange(i, i + 2)) for i in range(4)],
    "a mixture": [{"image": np.ones((2, 2), np.uint8), "name": f"n{i}", "box": (i, 1.5)} for i in range(5)],
    "tensors": [torch.arange(3) + i for i in range(4)],
    "bfloat16 tensors": [torch.ones(3, dtype=torch.bfloat16) * i for i in range(4)],
    "bool tensors": [torch.tensor([True, False]) for _ in range(2)],
    "tensors of no dimension": [torch.tensor(1.5), torch.tensor(2.5)],
    "tensors in dicts": [{"x": torch.ones(2) * i, "n": i} for i in range(3)],
    "tensors that need gradients": [torch.ones(2, requires_grad=True).detach() for _ in range(2)],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_holds_the_same_values_as_torchs(way):
    for (name, samples), ours in zip(SAMPLES.items(), batches_of(SAMPLES.values(), way), strict=True):
        # torch cannot read every array.
        theirs = torch_collate([np.ascontiguousarray(s) for s in samples] if "reversed" in name else samples)
        assert_as_torch(ours, theirs, name)


@pytest.mark.parametrize("way", WAYS)
def test_dtypes_that_torch_does_not_know_are_kept(way):
    samples = [
        {
            "time": np.array(["2020-01-01", "NaT"], "datetime64[s]"),
            "span": np.timedelta64(i, "ms"),
            "text": np.array(["a", "ü"], "U3"),
            "bytes": np.array([b"a", b"b"], "S2"),
            "row": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
            "big-endian": np.arange(3, dtype=">i4"),
            "uint16": np.uint16(i),
        }
        for i in range(4)
    ]
    (batch,) = batches_of([samples], way)
    for key in samples[0]:
        expected = np.stack([s[key] for s in samples]).astype(samples[0][key].dtype)
        assert batch[key].dtype == expected.dtype and batch[key].shape == expected.shape, key
        assert batch[key].tobytes() == expected.tobytes(), key


MIXED = [
    [np.ones(2, np.float32), np.ones(2, np.float64), np.ones(2, np.int8)],
    [np.ones(2, np.int8), np.ones(2, np.float32), np.ones(2, np.float64)],
    [1, 2.5, True],
    [2.5, 1, 1],
]


@pytest.mark.parametrize("way", ["call", "0", "2", "1 in chunks", "3 in chunks"])
def test_dtypes_that_differ_become_one_that_holds_all(way):
    for _ in range(5 if "chunks" in way else 1):  # in any order of the chunks
        for samples, mixed in zip(MIXED, batches_of(MIXED, way), strict=True):
            assert mixed.dtype == np.float64
            assert mixed.tolist() == [np.asarray(sample).tolist() for sample in samples]
