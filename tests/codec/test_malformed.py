"""Malformed batches of a faulty worker are refused with an error; tests/fuzz tries more of them."""

import collections
import dataclasses
import struct

import numpy as np
import pytest

from slipring.errors import CorruptBatch
from tests.fuzz.case import LEAF, Case, Window
from tests.support.inside import COPY_ALWAYS, COPY_AUTO, probe, pytree, receive
from tests.support.trip import Trip

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    a: object


@dataclasses.dataclass
class Failure(Exception):
    code: int


@pytest.fixture
def capture(trip):
    """A function that returns the case of a value in a slot."""
    window = Window(trip.ring)

    def capture(value, state=None):
        slot = trip.put([value], state=state)
        case = window.case(slot)
        trip.ring.discard(slot)
        return case

    yield capture
    window.close()


def decode(case, with_state=False):
    fields = (case.payload, case.table_off, case.n_leaves, case.def_off, case.def_bytes, case.bytes, case.def_hash)
    return probe(*fields, with_state)


FIELDS = {
    "kind": 0, "dtype": 1, "ndim": 2, "flags": 3, "itemsize": 4, "offset": 5, "nbytes": 6, "shape": 7,
    "extra": 19,
}  # fmt: skip


def changed(case, leaf=0, **fields):
    """Return the case with some fields of a leaf record replaced; shape: (dimension, value)."""
    case = case.copy()
    at = case.table_off + leaf * LEAF.size
    record = list(LEAF.unpack_from(case.payload, at))
    for name, value in fields.items():
        if name == "shape":
            record[FIELDS["shape"] + value[0]] = value[1]
        else:
            record[FIELDS[name]] = value
    LEAF.pack_into(case.payload, at, *record)
    return case


def test_valid_batches_are_read(capture):
    case = capture(np.arange(6).reshape(2, 3))
    assert decode(case)[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    case.def_hash = 12345  # the hash only finds the treedef; the bytes decide
    assert decode(case)[0].tolist() == [[0, 1, 2], [3, 4, 5]]


BAD_ARRAYS = [
    ({"offset": 2**64 - 8}, "a leaf of 48 bytes at 18446744073709551608"),
    ({"offset": 4096}, "a leaf of 48 bytes at 4096; the slot has"),
    ({"nbytes": 2**63}, "a leaf of 9223372036854775808 bytes"),
    ({"nbytes": 40}, "an array of 48 bytes in 40 bytes"),
    ({"shape": (0, 3)}, "an array of 72 bytes in 48 bytes"),
    ({"shape": (0, -1)}, "-1 elements in dimension 0"),
    ({"shape": (1, 2**62)}, "elements in dimension 1"),
    ({"shape": (0, 0)}, "an array of 0 bytes in 48 bytes"), ({"ndim": 13}, "an array of 13 dimensions"),
    ({"ndim": 1}, "an array of 16 bytes in 48 bytes"), ({"itemsize": 4}, "4 bytes per int64"),
    ({"itemsize": 0}, "0 bytes per int64"), ({"dtype": 17}, "unknown dtype 17"),
    ({"dtype": 20}, "unknown dtype 20"), ({"dtype": 200}, "unknown dtype 200"),
    ({"dtype": 255}, "dtype is missing in its tree"),
    ({"dtype": 18, "itemsize": 0}, "texts of 0 bytes each"),
    ({"dtype": 19, "itemsize": 7}, "texts of 7 bytes each"),
    ({"dtype": 18, "itemsize": 2**32 - 1}, "texts of 4294967295 bytes each"),
    ({"kind": 0}, "unknown kind 0"), ({"kind": 15}, "unknown kind 15"),
    ({"kind": 2}, "dtype None as an array"),
    ({"kind": 9, "extra": 7}, "a list of 7 texts in 48 bytes|element"),
    ({"kind": 9, "extra": 2**64 - 1}, "a list of 18446744073709551615 texts"),
    ({"kind": 11, "extra": 6}, "an object of 6 buffers in 48 bytes"),
    ({"kind": 11, "extra": 2**61}, "an object of 2305843009213693952 buffers"),
    ({"kind": 11, "extra": 0}, "cannot be unpickled|part 0"),
    ({"kind": 12}, "Arrow stream that cannot be read"),
    ({"kind": 13, "extra": 7}, "a list of 7 numbers in 48 bytes"),
    ({"kind": 14, "extra": 2**61 + 6}, "a list of 2305843009213693958 numbers in 48 bytes"),
    ({"kind": 13, "extra": 5, "nbytes": 44}, "a list of 5 numbers in 44 bytes"),
    ({"extra": 0x11}, "2 dimensions that lie in the order 0x11"), ({"extra": 0x20}, "in the order 0x20"),
    ({"extra": 0x210}, "in the order 0x210"), ({"extra": 2**64 - 1}, "in the order 0xffffffffffffffff"),
    ({"extra": 0xF0}, "in the order 0xf0"), ({"kind": 3, "extra": 1 << 63}, "in the order 0x8"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), BAD_ARRAYS, ids=str)
def test_a_wrong_record_is_refused(capture, fields, message):
    if fields.get("kind") == 2:
        pytest.importorskip("torch")
    if fields.get("kind") == 12:
        pytest.importorskip("pyarrow")
    case = capture(np.arange(6).reshape(2, 3))
    with pytest.raises(CorruptBatch, match=message):
        decode(changed(case, **fields))


def test_text_that_is_not_utf8_is_refused(capture):
    case = capture({"k": "abc"})
    case.payload[0] = 0xFF
    with pytest.raises(CorruptBatch, match="not UTF-8"):
        decode(case)
    case = capture(["abc", "d"])
    case.payload[24] = 0xFF
    with pytest.raises(CorruptBatch, match="not UTF-8"):
        decode(case)


@pytest.mark.parametrize("value", [["abc", "d"], [b"abc", b"d"]])
def test_texts_that_end_where_they_cannot_are_refused(capture, value):
    case = capture(value)
    for ends in ((2**64 - 1, 4), (5, 4), (3, 5), (3, 2**63)):
        struct.pack_into("<QQ", case.payload, 8, *ends)
        with pytest.raises(CorruptBatch, match="whose element"):
            decode(case)


@pytest.mark.parametrize("part", [0, 1])
def test_parts_of_an_object_that_do_not_fit_are_refused(capture, part):
    case = capture({frozenset("k"): np.arange(10)})
    for length in (2**64 - 1, 2**63, 5000):
        struct.pack_into("<Q", case.payload, 8 * part, length)
        with pytest.raises(CorruptBatch, match=f"part {part} has {length} bytes"):
            decode(case)


def test_a_scalar_that_is_no_text_is_refused(capture):
    case = capture(np.str_("abc"))
    struct.pack_into("<I", case.payload, 0, 0xFFFFFFF0)
    with pytest.raises(CorruptBatch, match="the code point 0xfffffff0"):
        decode(case)


def test_a_tensor_of_an_unknown_dtype_is_refused(capture):
    torch = pytest.importorskip("torch")
    case = capture(torch.ones(3, dtype=torch.bfloat16))
    at = case.payload.rindex(b"bfloat16")
    for name in (b"quint8xx", b"_dict__x", b"float32x", b"float64\0", b"complex6"):
        case.payload[at : at + 8] = name
        with pytest.raises(CorruptBatch, match="a tensor of dtype"):
            decode(case)
    case.payload[at : at + 8] = b"bfloat16"
    with pytest.raises(CorruptBatch, match="a tensor of dtype"):
        decode(changed(case, dtype=7, itemsize=8, nbytes=24))


def test_a_tensors_dtype_is_the_one_that_its_tree_names(capture):
    torch = pytest.importorskip("torch")
    case = capture(torch.ones(3))
    for number in (np.dtype(np.float32).num, np.dtype(np.int32).num, np.dtype(np.float32).num):
        (got,) = decode(changed(case, dtype=number))
        assert got.dtype is torch.float32 and got.tolist() == [1, 1, 1]
    with pytest.raises(CorruptBatch, match="a tensor of dtype"):
        decode(changed(case, dtype=np.dtype(np.int16).num, itemsize=2, nbytes=6))


BAD_RESULTS = [
    {"table_off": 2**64 - 1}, {"table_off": 1 << 20}, {"n_leaves": 2**32 - 1}, {"n_leaves": 0},
    {"n_leaves": 2}, {"def_off": 2**64 - 1}, {"def_bytes": 2**32 - 1}, {"def_bytes": 0},
    {"def_bytes": 1}, {"bytes": 0}, {"bytes": 10},
]  # fmt: skip


def test_a_wrong_result_is_refused(capture):
    case = capture(np.arange(6))
    for fields in BAD_RESULTS:
        with pytest.raises(CorruptBatch):
            decode(dataclasses.replace(case, **fields))
    # More bytes in use than there are do not count.
    assert decode(dataclasses.replace(case, bytes=2**64 - 1))[0].tolist() == list(range(6))


# ---- treedefs


def text(s):
    data = s.encode()
    return struct.pack("<I", len(data)) + data


def count(n):
    return struct.pack("<I", n)


HERE = text(__name__)
BAD_TREEDEFS = {
    "nothing": b"",
    "an unknown tag": b"x",
    "something left over": b"NN",
    "a list without elements": b"l" + count(3) + b"N",
    "a list of too many": b"l" + count(2**32 - 1),
    "a count cut short": b"l\1\0",
    "a key of an unknown tag": b"d" + count(1) + b"xN",
    "a key cut short": b"d" + count(1) + b"i\0\0",
    "a key without its value": b"d" + count(1) + b"s" + text("k"),
    "a key that is not utf-8": b"d" + count(1) + b"s" + count(1) + b"\xff" + b"N",
    "a key nested too deep": b"d" + count(1) + (b"(" + count(1)) * 200 + b"0" * 5,
    "nested too deep": (b"l" + count(1)) * 102 + b"N",
    "a dtype that is none": b"D" + text("'no dtype'"),
    "a dtype that is code": b"D" + text("__import__('os').abort()"),
    "a dtype of objects": b"D" + text("'|O'"),
    "a dtype with objects": b"D" + text("[('a', '|O')]"),
    "a dtype of no bytes": b"D" + text("'|V0'"),
    "a dtype of too many bytes": b"D" + text("('<f8', (2147483647, 2147483647))"),
    "a dtype with dimensions": b"D" + text("('<f8', (2, 2))"),
    "a dtype of strings": b"D" + text("'T'"),
    "a dtype with a syntax error": b"D" + text("["),
    "a dtype nested too deep": b"D" + text("[" * 10_000),
    "a dtype that is no extension": b"E" + text("numpy") + text("float32"),
    "a leaf that repeats itself": b"S" + count(0),
    "a leaf that repeats a later one": b"t" + count(3) + b"LS" + count(1) + b"L",
    "a leaf that repeats none": b"t" + count(2) + b"LS\0",
    "a module that is missing": b"n" + text("no.such.module") + text("Point") + count(0),
    "a module without a name": b"n" + text("") + text("Point") + count(0),
    "a relative module": b"n" + text(".tree") + text("Point") + count(0),
    "a class that is missing": b"n" + HERE + text("Missing") + count(0),
    "a class that is no namedtuple": b"n" + HERE + text("Record") + count(1) + b"N",
    "a function in place of a class": b"n" + text("os") + text("abort") + count(0),
    "a namedtuple of other fields": b"n" + HERE + text("Point") + count(1) + b"N",
    "a dataclass of other fields": b"c" + HERE + text("Record") + count(1) + text("__class__") + b"N",
    "a dataclass of too many": b"c" + HERE + text("Record") + count(2) + text("a") + text("a") + b"NN",
    "a dataclass that is an exception": b"c" + HERE + text("Failure") + count(1) + text("code") + b"N",
    "a class that is no dataclass": b"c" + HERE + text("Point") + count(2) + text("x") + text("y") + b"NN",
}


@pytest.mark.parametrize("treedef", BAD_TREEDEFS.values(), ids=BAD_TREEDEFS)
def test_bytes_that_are_no_treedef_are_refused(treedef):
    with pytest.raises(pytree.BadTreeDef):
        pytree.parse(treedef)
    with pytest.raises(CorruptBatch, match="a tree that cannot be read"):
        decode(Case(0, 0, 0, len(treedef), len(treedef), None, bytearray(treedef)))


# ---- in a slot


@pytest.mark.parametrize("copy", [COPY_AUTO, COPY_ALWAYS], ids=["lease", "copy"])
def test_a_refused_batch_frees_its_slot_and_the_next_one_arrives(copy):
    trip = Trip(2)
    window = Window(trip.ring)
    for _ in range(5):
        slot = trip.put([np.arange(6)])
        case = window.case(slot)
        window.poke(slot, changed(case, offset=2**40))
        trip.ring.wait_ready(slot, 5)
        with pytest.raises(CorruptBatch):
            receive(trip.ring, slot, copy)
        assert trip.free == 2
    assert trip(np.arange(3), copy).tolist() == [0, 1, 2]
    window.close()


def test_a_result_beyond_the_committed_bytes_is_refused(trip):
    window = Window(trip.ring)
    slot = trip.put([np.arange(6)])
    case = window.case(slot)
    for fields in ({"table_off": 1 << 30}, {"def_off": 1 << 30, "def_bytes": 100}, {"n_leaves": 1 << 24}):
        window.poke(slot, dataclasses.replace(case, bytes=2**63, **fields))
        trip.ring.wait_ready(slot, 5)
        with pytest.raises(CorruptBatch, match="the slot has"):
            receive(trip.ring, slot, COPY_AUTO)
        slot = trip.put([np.arange(6)])
    assert trip.take(slot)[0].tolist() == list(range(6))
    window.close()


@pytest.mark.parametrize(
    ("value", "state"),
    [(None, b"where it is"), (np.arange(6), b""), ({"a": b"bytes", "b": [1.5, "text"]}, bytes(100_000))],
    ids=["nothing", "an array", "a dict"],
)
def test_a_workers_state_lies_next_to_the_value(capture, trip, value, state):
    case = capture(value, state)
    read, said = decode(case, with_state=True)
    assert said == state and str(read) == str([value])
    assert str(trip.take(trip.put([value], state=state))) == str([value])
    with pytest.raises(CorruptBatch, match="leaf records"):
        decode(case)


def test_a_state_that_lies_elsewhere_is_refused(capture):
    case = capture(7, b"where it is")
    for fields in ({"kind": 4}, {"offset": 1 << 40}, {"nbytes": 1 << 40}, {"nbytes": (1 << 64) - 1}):
        with pytest.raises(CorruptBatch, match=f"a state of kind {fields.get('kind', 8)}"):
            decode(changed(case, leaf=1, **fields), with_state=True)
    with pytest.raises(CorruptBatch, match="leaf"):
        decode(capture({}), with_state=True)
