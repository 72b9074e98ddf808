"""A leaf that occurs twice in a batch is stored once, and arrives as one object."""

import struct

import numpy as np
import pytest

from tests.support.inside import COPY_ALWAYS, pytree


class Thing:
    """An object that is pickled."""

    def __init__(self, number):
        self.number = number


LARGE = 1 << 16  # bytes: a second copy is larger than a batch's records


@pytest.fixture
def big():
    return np.arange(LARGE // 8).reshape(64, -1)


def test_an_array_that_occurs_twice_arrives_as_one_object(trip, big):
    got = trip({"ids": big, "labels": big, "more": [big, (big,)]})
    assert got["ids"] is got["labels"] is got["more"][0] is got["more"][1][0]
    assert np.array_equal(got["ids"], big)
    assert trip.bytes_of([big, big]) < 1.5 * LARGE


def test_copies_of_an_array_that_occurs_twice_are_one_object(trip, big):
    first, second = trip([big, big], COPY_ALWAYS)
    assert first is second


def test_arrays_over_the_same_memory_in_the_same_form_arrive_as_one_object(trip, big):
    got = trip([big, big[:], big.reshape(-1).reshape(big.shape), big.T.T])
    assert all(array is got[0] for array in got) and np.array_equal(got[0], big)


def test_other_arrays_over_the_same_memory_arrive_as_copies(trip, big):
    others = [
        big[:32], big.reshape(-1), big.T, big.view(np.uint64), big[1:], big.view([("x", "i8")]), big.view("M8[s]"),
        big.copy(),
    ]  # fmt: skip
    for other in others:
        first, second, third = trip([big, other, other])
        assert second is third and not np.shares_memory(first, second)
        assert second.dtype == other.dtype and second.tolist() == other.tolist()
        assert np.array_equal(first, big)


def test_an_object_that_occurs_twice_is_pickled_once(trip):
    thing = Thing(5)
    before = trip.ring.meter.pickled_leaves
    got = trip([thing, {"again": thing}, Thing(5)])
    assert got[0] is got[1]["again"] and got[0] is not got[2] and got[0].number == 5
    assert trip.ring.meter.pickled_leaves - before == 2


def test_arrow_data_that_occurs_twice_is_stored_once(trip):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": range(LARGE // 8)})
    got = trip([table, table])
    assert got[0] is got[1] and got[0].equals(table)
    assert trip.bytes_of([table, table]) < 1.5 * LARGE


def test_many_leaves_are_distinguished(trip):
    arrays = [np.full(3 + k % 5, k) for k in range(1000)]
    order = np.random.default_rng(1).integers(0, len(arrays), 2000).tolist()
    got = trip([arrays[k] for k in order])
    seen = {}
    for k, array in zip(order, got, strict=True):
        assert seen.setdefault(k, array) is array and array.tolist() == arrays[k].tolist()
    assert len({id(array) for array in got}) == len(seen)


def test_memory_that_is_freed_and_used_again_during_a_batch_is_another_leaf(trip):
    torch = pytest.importorskip("torch")
    # Each is materialized into memory that lives only as long as the encoder needs it.
    sent = [torch.full((64,), complex(k, 1)).conj() for k in range(50)]
    got = trip(sent)
    assert [tensor[0].item() for tensor in got] == [complex(k, -1) for k in range(50)]
    first, second = trip([sent[3], sent[3]])
    assert first is second and first[0].item() == complex(3, -1)


def test_the_arrays_of_a_batch_are_not_kept_when_it_has_been_sent(trip):
    import weakref

    sent = np.zeros(100)
    gone = weakref.ref(sent)
    slot = trip.put([sent, sent])
    del sent
    assert gone() is None
    trip.take(slot)


# ---- torch


def test_tensors_that_are_one_arrive_as_one(trip):
    torch = pytest.importorskip("torch")
    ids = torch.arange(4)
    got = trip({"ids": ids, "labels": ids, "view": ids.view(4), "half": ids[:2]})
    assert got["ids"] is got["labels"] is got["view"]
    got["ids"][0] = -100
    assert got["half"].tolist() == [0, 1]


def test_tensors_that_differ_in_dtype_or_gradient_are_two(trip):
    torch = pytest.importorskip("torch")
    one = torch.arange(8, dtype=torch.int16)
    floats = torch.ones(4)
    sent = [one, one.view(torch.bfloat16), one.view(torch.float16), floats, floats.detach().requires_grad_()]
    got = trip(sent)
    assert len({id(leaf) for leaf in got}) == len(sent)
    for leaf, wanted in zip(got, sent, strict=True):
        assert type(leaf) is type(wanted) and leaf.dtype == wanted.dtype
        assert getattr(leaf, "requires_grad", 0) == getattr(wanted, "requires_grad", 0)


# ---- treedefs


@pytest.mark.parametrize("number", [1, 2**31, 2**32 - 1])
def test_a_leaf_that_names_itself_or_a_later_one_is_refused(number):
    names_first = b"t" + struct.pack("<I", 3) + b"L" + b"S" + struct.pack("<I", 0) + b"L"
    root, leaves, repeats = pytree.parse(names_first)
    assert leaves == 2 and repeats and [child[:2] for child in root[2]] == [(0, None), (8, 0), (0, None)]
    with pytest.raises(pytree.BadTreeDef, match=f"leaf {number} is repeated, and only 1 came before"):
        pytree.parse(names_first[:7] + struct.pack("<I", number) + b"L")
