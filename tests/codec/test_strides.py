"""An array's dimensions keep their order in memory; gaps are removed."""

import itertools

import numpy as np
import pytest

from tests.support.inside import COPY_ALWAYS, COPY_AUTO, empty
from tests.support.trip import address, same_array

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


def test_new_dimensions_of_one_element_stay_where_they_are(trip):
    base = cuboid((4, 5))
    for sent in (base[None], base[:, None], base[..., None], base.T[None], base.T[:, None]):
        got = trip(sent)
        assert same_array(sent, got)
        assert (got.flags.c_contiguous, got.flags.f_contiguous) == (sent.flags.c_contiguous, sent.flags.f_contiguous)


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
