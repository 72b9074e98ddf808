"""Every kind of numpy array comes out of a slot unchanged, in its order of dimensions and without gaps."""

import itertools

import numpy as np
import pytest

from tests.support.inside import COPY_ALWAYS, COPY_AUTO, empty
from tests.support.trip import address, same_array

DTYPES = [
    *"?bBhHiIlLqQefdgFDG", "S1", "S7", "U1", "U5", "V3", "M8[D]", "M8[ns]", "M8[25s]", "M8", "m8[us]",
    "m8",
]  # fmt: skip
STRUCTURED = [
    np.dtype([("a", "i4"), ("b", "f8", (2, 3))]),
    np.dtype([("x", "u1"), ("y", [("deep", "U3"), ("time", "M8[ms]")])]),
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["i2", "i4"], "offsets": [2, 8], "itemsize": 24}),
    np.dtype([(("a title", "a"), "i4")]),
    np.dtype([("ключ", ">u2")]),
]


def filled(dtype, shape):
    """Return an array of a dtype with different bytes."""
    dtype = np.dtype(dtype)
    n = int(np.prod(shape, dtype=int))
    if dtype.kind == "U":
        return np.array([chr(65 + i % 1000) * (i % 5) for i in range(n)], dtype).reshape(shape)
    if dtype.kind in "SV":
        return (np.arange(n * dtype.itemsize) % 251).astype(np.uint8).view(dtype).reshape(shape)
    if dtype.names is not None:
        out = np.zeros(shape, dtype)
        for name in dtype.names:
            field = dtype.fields[name][0]
            out[name] = filled(field.base, (*shape, *field.shape))
        return out
    return (np.arange(n) * 3 - n).astype(np.int64).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.dtype(d) for d in DTYPES] + STRUCTURED, ids=str)
def test_an_array_of_every_dtype_arrives_as_it_was(trip, dtype):
    for shape in ((), (3,), (2, 3, 4), (0,), (2, 0, 3)):
        sent = filled(dtype, shape)
        assert same_array(sent, trip(sent)), shape
        assert trip.pickled(sent) == 0


def test_swapped_bytes_stay_swapped(trip):
    for code in (*"hHiIqQefdFD", "U4", "M8[s]", "m8[s]"):
        dtype = np.dtype(code).newbyteorder()
        sent = filled(code, (5,)).astype(dtype)
        got = trip(sent)
        assert got.dtype.byteorder == dtype.byteorder, code
        assert same_array(sent, got)


LAYOUTS = {
    "fortran": lambda a: np.asfortranarray(a),
    "transposed": lambda a: a.transpose(2, 0, 1),
    "every second": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "backwards and transposed": lambda a: a.T[::-1, :, ::-2],
    "one repeated": lambda a: np.broadcast_to(a[:1], a.shape),
    "a window": lambda a: a[1:3, 1:, 2:4],
    "readonly": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "misaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_whatever_the_strides_were_an_array_without_gaps_arrives(trip, layout):
    for dtype in ("i4", "U3", "M8[s]", ">f8", STRUCTURED[0]):
        sent = layout(filled(dtype, (4, 3, 5)))
        got = trip(sent)
        assert same_array(sent, got), dtype
        assert got.transpose(np.argsort([-stride for stride in got.strides])).flags.c_contiguous
        assert got.flags.writeable and got.flags.aligned
        got[0, 0, 0] = got[1, 0, 0]


@pytest.mark.parametrize("ndim", [12, 13, 32])
def test_arrays_of_many_dimensions_arrive(trip, ndim):
    sent = filled("i2", (2, *[1] * (ndim - 2), 3)[:ndim])
    assert same_array(sent, trip(sent))
    assert trip.pickled(sent) == (1 if ndim > 12 else 0)


def test_large_arrays_arrive(trip):
    # Larger than the limits for copies without the GIL and for streaming stores.
    for mebibytes in (1, 5):
        sent = np.random.default_rng(0).integers(0, 255, mebibytes << 20, np.uint8)
        assert same_array(sent, trip(sent))
        assert same_array(sent[::2], trip(sent[::2]))


SCALARS = [
    np.float32(1.5), np.float64("nan"), np.float16(-0.0), np.longdouble("1e400"), np.int8(-5),
    np.uint64(2**64 - 1), np.bool_(True), np.complex64(1 + 2j), np.str_("ü"), np.bytes_(b"ab\0c"),
    np.datetime64("2024-02-29T01:02:03"), np.timedelta64(5, "h"), np.datetime64("NaT", "s"),
    np.array([-(2**63)]).view("M8")[0],  # NaT without a unit, which numpy 2.5 refuses to make from a text
    np.array((1, 2.5), [("a", "i4"), ("b", "f8")])[()], np.void(b"abc"),
]  # fmt: skip


@pytest.mark.parametrize("sent", SCALARS, ids=repr)
def test_numpy_scalars_stay_scalars_of_their_type(trip, sent):
    got = trip([sent])[0]
    assert type(got) is type(sent) and got.dtype == sent.dtype
    assert repr(got) == repr(sent)  # exact; the bytes of a longdouble's padding are arbitrary


def test_a_memory_map_arrives_as_an_array(trip):
    sent = np.arange(12).reshape(3, 4).view(np.memmap)
    got = trip(sent)
    assert type(got) is np.ndarray and got.tolist() == sent.tolist()


class Metres(np.ndarray):
    """A user's subclass without attributes."""


@pytest.mark.parametrize(
    "sent",
    [
        np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=9),
        np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.arange(3).view(Metres),
    ],
    ids=lambda a: type(a).__name__,
)
def test_subclasses_of_arrays_keep_their_type(trip, sent):
    got = trip(sent)
    assert type(got) is type(sent) and got.dtype == sent.dtype
    assert repr(got) == repr(sent)
    assert trip.pickled(sent) == 1


@pytest.mark.parametrize(
    "sent",
    [
        np.array([{}, 1, "x", None], object),
        np.array([(1, "a")], [("a", "i4"), ("b", object)]),
        np.zeros(3, {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]}),  # fields overlap
        np.zeros(3, {"names": ["b", "a"], "formats": ["i4", "i2"], "offsets": [4, 0]}),  # fields out of order
        np.zeros((2, 3), "V0"),
        np.zeros(2, [("nothing", "U0")])["nothing"],
    ],
    ids=["objects", "a field of objects", "overlapping fields", "reordered fields", "no bytes", "no text"],
)
def test_arrays_whose_bytes_or_dtype_do_not_say_all_are_pickled(trip, sent):
    got = trip(sent)
    assert got.dtype == sent.dtype and got.shape == sent.shape
    assert got.tolist() == sent.tolist()
    assert trip.pickled(sent) == 1


def test_strings_of_any_length_in_an_array_arrive(trip):
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy before 2.0 has no StringDType")
    sent = np.array(["short", "ü" * 300, ""], np.dtypes.StringDType())
    got = trip(sent)
    assert got.dtype == sent.dtype and got.tolist() == sent.tolist()
    assert trip.pickled(sent) == 1


# ---- the order of dimensions


SHAPES = [(4,), (1,), (), (2, 3), (1, 3), (3, 1), (2, 3, 4), (2, 1, 4), (1, 1, 2), (2, 3, 4, 5), (2, 1, 3, 1)]


def cuboid(shape, dtype=np.int32):
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)


@pytest.mark.parametrize("copy", [COPY_AUTO, COPY_ALWAYS], ids=["lease", "copy"])
def test_every_order_of_dimensions_stays(trip, copy):
    for shape in SHAPES:
        for axes in itertools.permutations(range(len(shape))):
            sent = cuboid(shape).transpose(axes)
            got = trip(sent, copy)
            assert same_array(sent, got) and got.strides == sent.strides, (shape, axes)
            assert got.flags.writeable and trip.pickled(sent) == 0


def test_every_dtype_may_lie_in_any_order(trip):
    for dtype in ("u1", ">f8", "U3", "M8[s]", "i4,f8"):
        sent = cuboid((2, 3, 4), "i4").astype(dtype).transpose(1, 2, 0)
        got = trip(sent)
        assert same_array(sent, got) and got.strides == sent.strides, dtype


def test_as_many_dimensions_as_a_record_has_may_lie_in_any_order(trip):
    sent = cuboid((2, 1, 2, 1, 2, 1, 3, 1, 1, 2, 1, 2)).transpose(11, 3, 0, 7, 2, 5, 4, 1, 6, 8, 10, 9)
    got = trip(sent)
    assert same_array(sent, got) and got.strides == sent.strides


def test_gaps_are_closed_and_the_order_stays(trip):
    base = cuboid((6, 8, 3))
    for sent, like in (
        (base[1:5, 2:7].transpose(2, 0, 1), (4, 60, 12)),  # a crop, channels first
        (base[::2].transpose(2, 0, 1), (4, 96, 12)),
        (base[::-1, ::-2].transpose(2, 0, 1), (4, 48, 12)),
        (base[:, ::2], (48, 12, 4)),
        (base[::-1], base.strides),
    ):
        got = trip(sent)
        assert same_array(sent, got) and got.strides == like


def test_broadcast_arrays_arrive_in_full_and_in_c_order(trip):
    for sent in (
        np.broadcast_to(cuboid((1, 4)), (3, 4)),
        np.broadcast_to(cuboid((3, 1)), (3, 4)),
        np.broadcast_to(np.int64(7), (2, 3)),
        np.lib.stride_tricks.sliding_window_view(cuboid((6,)), 3),
    ):
        got = trip(sent)
        assert same_array(sent, got) and got.flags.c_contiguous


def test_a_transposed_view_of_an_array_in_the_slot_is_not_copied(trip):
    def work():
        images = empty((100, 20, 30, 3), np.uint8)
        images[:] = 7
        return {"first": images.transpose(0, 3, 1, 2), "last": images}

    assert trip.bytes_of(work) < 100 * 20 * 30 * 3 + 1000
    got = trip(work)
    assert got["first"].strides == (1800, 1, 90, 3) and address(got["first"]) == address(got["last"])


def test_a_tensor_lies_as_torchs_clone_would(trip):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    base = torch.arange(3 * 4 * 1 * 5 * 2, dtype=torch.int16)
    for _ in range(200):
        sent = base.reshape(3, 4, 1, 5, 2).permute(*rng.permutation(5).tolist())
        for dim in range(5):
            how = rng.integers(6)
            if how == 0 and sent.shape[dim] > 2:
                sent = sent.narrow(dim, 1, sent.shape[dim] - 1)
            elif how == 1:
                sent = sent.narrow(dim, 0, 1)
            elif how == 2 and sent.shape[dim] == 1:
                sent = sent.expand(*[3 if d == dim else -1 for d in range(5)])
            elif how == 3:
                sent = sent[tuple(slice(None, None, 2) if d == dim else slice(None) for d in range(5))]
        got = trip(sent)
        assert torch.equal(got, sent)
        strides = [(d, s) for d, s in enumerate(sent.clone().stride()) if sent.shape[d] > 1]
        assert [(d, got.stride(d)) for d, _ in strides] == strides, (sent.shape, sent.stride())


def test_a_tensor_without_elements_has_torchs_strides(trip):
    torch = pytest.importorskip("torch")
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 0, 4)):
        for dtype in (torch.float32, torch.bfloat16):
            sent = torch.empty(shape, dtype=dtype)
            got = trip({"x": sent})["x"]
            assert (got.shape, got.stride(), got.dtype) == (sent.shape, sent.stride(), dtype)
