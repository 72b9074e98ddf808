"""Batches hold the same values as torch's default_collate, in the samples' own containers."""

import collections
import dataclasses

import numpy as np
import pytest

from slipring import Workers

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate as torch_collate  # noqa: E402

import slipring  # noqa: E402
from slipring import Loader  # noqa: E402
from tests.support.datasets import Point, Record, Values  # noqa: E402

WAYS = ["call", "0", "2", "2 in chunks"]


def batch_of(samples, way):
    """Return all samples in one batch, made in one of several ways."""
    if way == "call":
        return slipring.default_collate(samples)
    chunk_size = 2 if "chunks" in way else None
    with Loader(
        Values(samples), len(samples), num_workers=int(way[0]), workers=Workers(chunk_size=chunk_size)
    ) as loader:
        [batch] = loader
        return batch


def assert_as_torch(ours, theirs):
    """Compare values and positions; torch converts numbers and arrays to tensors, and tuples to lists."""
    if isinstance(theirs, torch.Tensor):
        if isinstance(ours, np.ndarray):
            ours = torch.from_numpy(ours)
        assert isinstance(ours, torch.Tensor)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, collections.abc.Mapping):
        assert type(ours) is type(theirs) and list(ours) == list(theirs)
        for key in theirs:
            assert_as_torch(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_as_torch(a, b)
    else:
        assert ours == theirs


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
@pytest.mark.parametrize("name", SAMPLES)
def test_a_batch_holds_the_same_values_as_torchs(name, way):
    samples = SAMPLES[name]
    # torch cannot read every array.
    theirs = torch_collate([np.ascontiguousarray(s) for s in samples] if "reversed" in name else samples)
    assert_as_torch(batch_of(samples, way), theirs)


def kind_of(value):
    """Return the nested types of a value."""
    if isinstance(value, dict):
        return type(value), {k: kind_of(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], (str, bytes))):
        return type(value), [kind_of(v) for v in value]
    if dataclasses.is_dataclass(value):
        return type(value), kind_of(vars(value))
    return type(value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((1, 2.0), (tuple, [np.ndarray, np.ndarray])),
        ([1, (2,)], (list, [np.ndarray, (tuple, [np.ndarray])])),
        ((), (tuple, [])),
        ({}, (dict, {})),
        ({"a": (1,), 5: [True]}, (dict, {"a": (tuple, [np.ndarray]), 5: (list, [np.ndarray])})),
        (Point(1, "x"), (Point, [np.ndarray, list])),
        (collections.OrderedDict(a=1), (collections.OrderedDict, {"a": np.ndarray})),
        (
            Record(1, Record(np.ones(2), "s")),
            (
                Record,
                (
                    dict,
                    {
                        "a": np.ndarray,
                        "b": (Record, (dict, {"a": np.ndarray, "b": list})),
                    },
                ),
            ),
        ),
        (None, type(None)),
        ((None, 1), (tuple, [type(None), np.ndarray])),
        ("text", list),
        (b"bytes", list),
    ],
)
def test_containers_are_the_samples_own(sample, expected, way):
    assert kind_of(batch_of([sample] * 3, way)) == expected


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
    batch = batch_of(samples, way)
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


@pytest.mark.parametrize("way", ["call", "0", "2"])
@pytest.mark.parametrize("samples", MIXED)
def test_dtypes_that_differ_become_one_that_holds_all(samples, way):
    mixed = batch_of(samples, way)
    assert mixed.dtype == np.float64
    assert mixed.tolist() == [np.asarray(sample).tolist() for sample in samples]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("samples", MIXED)
def test_in_chunks_dtypes_that_differ_become_the_same_in_any_order(samples, num_workers):
    with Loader(Values(samples), 3, num_workers=num_workers, workers=Workers(chunk_size=1)) as loader:
        for _ in range(5):
            (mixed,) = loader
            assert mixed.dtype == np.float64
            assert mixed.tolist() == [np.asarray(sample).tolist() for sample in samples]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "samples",
    [
        [np.zeros(2), np.zeros(2), np.zeros(3)],
        [{"a": 1}, {"a": 1}, {"b": 1}],
        [(1, 2), (1, 2), (1, 2, 3)],
        [1, 2, "x"],
    ],
    ids=["shapes", "keys", "lengths", "kinds"],
)
def test_samples_that_torch_cannot_collate_are_an_error_here_too(samples, way):
    with pytest.raises((RuntimeError, KeyError, TypeError)):
        torch_collate(samples)
    with pytest.raises(ValueError, match="cannot be put together"):
        batch_of(samples, way)
