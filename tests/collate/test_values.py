"""The default collation: samples in, batches out."""

import collections
import dataclasses
import itertools
import re
import threading
import types

import numpy as np
import pytest

from tests.support.inside import default_collate
from tests.support.trip import Trip

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Record:
    image: object
    name: str = ""


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object


@pytest.fixture(params=["outside a worker", "in a worker"])
def collate(request):
    """The function alone, and within the trip of a batch."""
    if request.param == "outside a worker":
        yield default_collate
        return
    trip = Trip()
    yield lambda samples: trip(lambda: default_collate(samples))
    trip.end()


def same(got, wanted):
    if isinstance(wanted, np.ndarray):
        return type(got) is np.ndarray and got.dtype == wanted.dtype and got.tolist() == wanted.tolist()
    if isinstance(wanted, dict):
        return type(got) is type(wanted) and list(got) == list(wanted) and all(same(got[k], wanted[k]) for k in got)
    if isinstance(wanted, (list, tuple)):
        return type(got) is type(wanted) and len(got) == len(wanted) and all(map(same, got, wanted))
    return type(got) is type(wanted) and got == wanted


i8, f8 = np.int64, np.float64
CASES = {
    "ints": ([1, 2, 3], np.array([1, 2, 3], i8)),
    "one int": ([5], np.array([5], i8)),
    "negative ints": ([-1, -(2**63)], np.array([-1, -(2**63)], i8)),
    "floats": ([1.5, 2], np.array([1.5, 2], f8)),
    "a float later": ([1, 2.5], np.array([1, 2.5], f8)),
    "bools": ([True, False], np.array([True, False])),
    "bools and ints": ([True, 5], np.array([1, 5], i8)),
    "bools and floats": ([True, 0.5], np.array([1, 0.5], f8)),
    "unsigned ints": ([1, 2**63], np.array([1, 2**63], np.uint64)),
    "ints and bools too large": ([True, 2**64], [True, 2**64]),
    "ints too large": ([1, 2**64], [1, 2**64]),
    "ints too large both ways": ([-1, 2**63], [-1, 2**63]),
    "numpy ints": ([np.int8(1), np.int8(2)], np.array([1, 2], np.int8)),
    "a numpy float later": ([1, np.float32(2.5)], np.array([1, 2.5], f8)),
    "numpy bools": ([np.True_, np.False_], np.array([True, False])),
    "numpy dates": ([np.datetime64("2024-01-01")] * 2, np.array(["2024-01-01"] * 2, "M8[D]")),
    "numpy and python": ([np.float64(1), 2], np.array([1, 2], f8)),
    "texts": (["a", "b"], ["a", "b"]),
    "bytes": ([b"a", b"b"], [b"a", b"b"]),
    "texts and others": (["a", 1], ["a", 1]),
    "nothing": ([None, None], None),
    "tuples": ([(1, "a"), (2, "b")], (np.array([1, 2], i8), ["a", "b"])),
    "empty tuples": ([(), ()], ()),
    "lists": ([[1, 2.0], [3, 4.0]], [np.array([1, 3], i8), np.array([2, 4], f8)]),
    "a tuple and a list": ([(1,), [2]], (np.array([1, 2], i8),)),
    "dicts": ([{"a": 1, "b": "x"}, {"b": "y", "a": 2}], {"a": np.array([1, 2], i8), "b": ["x", "y"]}),
    "dicts of dicts": ([{"a": {"b": 1}}] * 2, {"a": {"b": np.array([1, 1], i8)}}),
    "ordered": (
        [collections.OrderedDict(z=1, a=2)] * 2,
        collections.OrderedDict(z=np.array([1, 1], i8), a=np.array([2, 2], i8)),
    ),
    "namedtuples": ([Point(1, "a"), Point(2, "b")], Point(np.array([1, 2], i8), ["a", "b"])),
    "anything else": ([{1}, {2}], [{1}, {2}]),
    "complex": ([1j, 2j], [1j, 2j]),
    "objects in arrays": ([np.array([{}], object)] * 2, [np.array([{}], object)] * 2),
}


def test_values_become(collate):
    for name, (samples, wanted) in CASES.items():
        assert same(collate(samples), wanted), name


DTYPES = [*"?bBhHiIlLqQefdgFDG", "S3", "U4", "M8[D]", "m8[ms]", "V5", [("a", "i4"), ("b", "f4", (2,))]]
DTYPES += [">i4", ">f8", ">g", ">c8", ">U4", ">M8[D]", [("a", ">i4"), ("b", "u1"), ("c", ">f4", (2,))]]


def test_arrays_are_stacked_as_numpy_does(collate):
    rng = np.random.default_rng(0)
    for dtype, shape, n in itertools.product(map(np.dtype, DTYPES), [(), (3,), (2, 3), (0,), (2, 0, 3)], (1, 5)):
        size = int(np.prod(shape, dtype=int)) * dtype.itemsize
        if dtype.kind == "U":
            samples = [np.full(shape, f"s{i}", dtype) for i in range(n)]
        else:
            high = 2 if dtype.kind == "b" else 256
            samples = [rng.integers(0, high, size, np.uint8).view(dtype).reshape(shape) for _ in range(n)]
        wanted, got = np.stack(samples), collate(samples)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, (dtype, shape, n)
        assert got.tobytes() == wanted.tobytes(), (dtype, shape, n)


def test_arrays_of_any_strides_are_stacked(collate):
    base = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    for samples in (
        [base.T, base.T + 1],
        [base[::-1], base[::-1]],
        [base[:, ::2], np.ascontiguousarray(base[:, ::2])],
        [np.broadcast_to(base[:1], base.shape), base],
        [np.asfortranarray(base), base],
    ):
        assert same(collate(samples), np.stack(samples))


PROMOTED = [
    ("i4", "f4"), ("i2", "i8"), ("u1", "i1"), ("f4", "f8"), ("?", "u1"), ("f8", "c8"), ("S2", "S5"),
    ("U1", "U3"), ("M8[D]", "M8[s]"), ("<i4", ">i4"),
]  # fmt: skip


def test_dtypes_of_a_kind_are_promoted_as_numpy_does(collate):
    for pair in PROMOTED:
        samples = [np.ones(2, "i4").astype(d) for d in pair]
        got = collate(samples)
        assert got.dtype == np.stack(samples).dtype and (got == np.stack(samples)).all(), pair
        assert same(collate(samples[::-1]), np.stack(samples[::-1])), pair


def test_memory_maps_are_stacked(collate):
    mapped = np.array([1, 2], np.int32).view(np.memmap)
    assert same(collate([mapped, mapped]), np.array([[1, 2], [1, 2]], np.int32))
    assert same(collate([np.array([3, 4], np.int32), mapped]), np.array([[3, 4], [1, 2]], np.int32))


def test_dataclasses_are_put_together_field_by_field(collate):
    got = collate([Record(np.full(2, i), f"n{i}") for i in range(3)])
    assert type(got) is Record and got.name == ["n0", "n1", "n2"]
    assert got.image.tolist() == [[0, 0], [1, 1], [2, 2]]
    got = collate([Slotted(1), Slotted(2)])
    assert type(got) is Slotted and got.a.tolist() == [1, 2]


def test_other_mappings_keep_their_type_where_they_can():
    got = default_collate([collections.defaultdict(list, a=1), collections.defaultdict(list, a=2)])
    assert type(got) is collections.defaultdict and got.default_factory is list and got["a"].tolist() == [1, 2]
    got = default_collate([types.MappingProxyType({"a": 1})] * 2)
    assert type(got) is types.MappingProxyType and got["a"].tolist() == [1, 1]
    got = default_collate([collections.ChainMap({"a": 1}, {"b": 2})] * 2)
    assert got["a"].tolist() == [1, 1] and got["b"].tolist() == [2, 2]
    got = default_collate([collections.Counter("aab"), collections.Counter("abb")])  # its update() would add
    assert type(got) is collections.Counter and got["a"].tolist() == [2, 1] and got["b"].tolist() == [1, 2]


def test_rows_that_another_thread_replaces_in_the_samples_list_meanwhile_are_whole():
    samples = [np.full(4_000_000, i, np.uint8) for i in range(6)]
    over = threading.Event()

    def replace():
        while not over.is_set():
            for i in range(6):
                samples[i] = np.full(4_000_000, i, np.uint8)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(8):
            batch = default_collate(samples)
            assert all((row == i).all() for i, row in enumerate(batch))
    finally:
        over.set()
        thread.join()


# ---- samples that do not match: the message names the position, both samples and the difference


z = np.zeros
WRONG = {
    "shapes": ([z(2), z(3)], "{0} has shape (2,), {1} has shape (3,)"),
    "one has no dimension": ([z(2), z(())], "{0} has shape (2,), {1} has shape ()"),
    "text among numbers": ([z(2), z(2, "U3")], "{0} has dtype float64, {1} has dtype <U3"),
    "bytes and text": ([z(2, "S3"), z(2, "U3")], "{0} has dtype |S3, {1} has dtype <U3"),
    "objects among numbers": ([z(2), z(2), z(2, object)], "{0} has dtype float64, {2} has dtype object"),
    "a time and a number": ([z(2, "M8[s]"), z(2, "i8")], "{0} has dtype datetime64[s], {1} has dtype int64"),
    "structures": ([z(2, "i4,i4"), z(2, "i4,f4,i4")], "{1} has dtype"),
    "an array and a number": ([z(2), 5], "{0} has shape (2,), {1} has shape ()"),
    "an array and nothing": ([z(2), None], "{0} has type ndarray, {1} has type NoneType"),
    "a number and an array": ([1, z(2)], "{0} has type int, {1} has type ndarray"),
    "a number and a text": ([1, 2, "3"], "{0} has type int, {2} has type str"),
    "nothing and a number": ([None, 1], "{0} has type NoneType, {1} has type int"),
    "lengths": ([(1, 2), (1, 2), (1,)], "{0} has length 2, {2} has length 1"),
    "a tuple and a text": ([("a", "b"), "ab"], "{0} has type tuple, {1} has type str"),
    "a missing key": ([{"a": 1, "b": 2}, {"a": 1}], "{0} has keys ['a', 'b'], {1} has keys ['a']"),
    "one key more": ([{"a": 1}, {"a": 1, "b": 2}], "{0} has keys ['a'], {1} has keys ['a', 'b']"),
    "a dict and a list": ([{0: 1}, [1]], "{0} has type dict, {1} has type list"),
    "dataclasses": ([Record(1), Point(1, 2)], "{0} has type Record, {1} has type Point"),
    "deep inside": (
        [{"a": [Point(z(2), 1)]}, {"a": [Point(z(3), 1)]}],
        "at ['a'][0][0]: {0} has shape (2,), {1} has shape (3,)",
    ),
    "in a dataclass": ([Record({"k": 1}), Record({"k": "x"})], "at .image['k']: {0} has type int, {1} has type str"),
}


@pytest.mark.parametrize(("samples", "message"), WRONG.values(), ids=WRONG)
def test_the_difference_is_named_by_position_and_in_a_worker_by_index(trip, samples, message):
    positions = re.escape(message.format(*[f"sample {i}" for i in range(len(samples))]))
    with pytest.raises(ValueError, match=f"{positions}.*make them alike in the dataset, or give a collate_fn"):
        default_collate(samples)
    indices = [1000, "key", 30][: len(samples)]
    writer = trip.claim(indices)
    with writer, pytest.raises(ValueError, match=re.escape(message.format(*[f"index {i!r}" for i in indices]))):
        default_collate(samples)
    writer.abort()
    assert trip.free == 4


def test_no_samples_are_an_error():
    with pytest.raises(ValueError, match="the sampler gave an empty batch"):
        default_collate([])


def test_a_sample_that_contains_itself_is_an_error():
    endless = [1]
    endless.append(endless)
    circle = {}
    circle["me"] = circle
    for sample in (endless, circle, (endless,)):
        with pytest.raises(ValueError, match="nested deeper than 100"):
            default_collate([sample, sample])
