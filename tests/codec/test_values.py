"""Numbers, texts, containers and objects come out of a slot unchanged."""

import collections
import copyreg
import dataclasses
import enum
import math
import struct
import sys
import typing

import numpy as np
import pytest

import slipring
from tests.support.inside import Encoder
from tests.support.trip import same_array

Point = collections.namedtuple("Point", "x y")


class Typed(typing.NamedTuple):
    name: str
    value: float = 0.0


@dataclasses.dataclass
class Plain:
    image: object
    label: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: object


class Colour(enum.IntEnum):
    RED = 1


class Thing:
    def __init__(self, payload):
        self.payload = payload

    def __eq__(self, other):
        return type(other) is Thing and same_array(self.payload, other.payload)


class TextSubclass(str):
    pass


NUMBERS = [
    0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**40, True, False, None, 0.0,
    -0.0, 1.5, float("inf"), -float("inf"), 5e-324, sys.float_info.max, 1 + 2j, Colour.RED,
]  # fmt: skip


@pytest.mark.parametrize("sent", NUMBERS, ids=repr)
def test_numbers_keep_type_and_value(trip, sent):
    got = trip([sent])[0]
    assert type(got) is type(sent) and got == sent
    if type(sent) is float:
        assert struct.pack("d", got) == struct.pack("d", sent)


def test_not_a_number_keeps_its_bits(trip):
    strange = struct.unpack("d", struct.pack("Q", 0x7FF8DEADBEEF0001))[0]
    got = trip(strange)
    assert math.isnan(got) and struct.pack("d", got) == struct.pack("d", strange)


TEXTS = ["", "a", "ü", "漢字", "🎉" * 1000, "nul\0inside", "lone \ud800 surrogate \udfff", "x" * (1 << 17)]
BYTES = [b"", b"a", b"\0\xff" * 10, bytes(1 << 17)]


@pytest.mark.parametrize("sent", TEXTS + BYTES, ids=lambda t: repr(t)[:20])
def test_texts_and_bytes_arrive(trip, sent):
    for value in (sent, {"in": [sent, 1]}, [sent]):
        assert trip(value) == value


@pytest.mark.parametrize("sent", [TEXTS, BYTES, [""], [b""], ["a"] * 1000], ids=lambda t: repr(t)[:20])
def test_lists_of_texts_are_one_leaf(trip, sent):
    assert trip(sent) == sent
    assert trip.bytes_of(["a"] * 1000) < 1000 * 10 + 256
    assert trip.pickled(sent) == 0


LISTS_OF_NUMBERS = [[1], [0, -1, 2**63 - 1, -(2**63)], [0.5, -0.0, math.inf], [*range(1000)], [0.25] * 1000]


@pytest.mark.parametrize("sent", LISTS_OF_NUMBERS, ids=lambda t: repr(t)[:20])
def test_lists_of_numbers_are_one_leaf(trip, sent):
    got = trip(sent)
    assert got == sent and repr(got) == repr(sent) and type(got) is list
    assert trip({"ids": [sent, [*sent, sent[0]]]}) == {"ids": [sent, [*sent, sent[0]]]}
    assert trip.bytes_of(sent) < len(sent) * 8 + 256
    assert trip.pickled(sent) == 0


MIXED = [
    [1, True], [True, 1], [1, 2.5], [2.5, 1], [1, 2**63], [1, Colour.RED], [1, None], (1, 2), [-(2**63) - 1],
    ["a", b"b"], ["a", 1], [b"a", None], ["a", TextSubclass("b")], ("a", "b"), [True, False], [None, None],
]  # fmt: skip


@pytest.mark.parametrize("sent", MIXED, ids=repr)
def test_lists_of_several_types_keep_each_elements_type(trip, sent):
    got = trip(sent)
    assert got == sent and [type(v) for v in got] == [type(v) for v in sent]


def test_token_lists_as_tokenizers_return_them_are_not_pickled(trip):
    batch = {
        "input_ids": [[101, 7, 102], [101, 102], []],
        "labels": [1, 0, -100],
        "offsets": [[(0, 3), (3, 4)], [], None],
        "special": [[True, False], [None, 1]],
    }
    sent = [batch, {"nested": {"batch": [batch["input_ids"]]}}]
    assert repr(trip(sent)) == repr(sent)
    assert trip.pickled(sent) == 0


CONTAINERS = [
    {}, [], (), {"a": {}}, [[]], [()], collections.OrderedDict(), [None], (None,),
    [[1, [2, (3, {"four": 5})]]], {"a": [1, 2], "b": (3.5, {"c": None})},
    collections.OrderedDict([("z", 1), ("a", 2)]), Point(1, [2]), Typed("n"),
    {"p": Point(Typed("x", 1.0), None)}, Plain(1), Plain([1], 2), Frozen(1, "b"), Slotted((1, 2)),
    FrozenSlotted({"a": 1}), [Plain(Frozen(1, 2))], {1, 2}, frozenset((1, 2)),
    collections.deque([1, 2]), collections.defaultdict(list, a=[1]), collections.Counter("abca"),
    range(5), slice(1, 2), bytearray(b"ab"), Ellipsis, int, len,
]  # fmt: skip


@pytest.mark.parametrize("sent", CONTAINERS, ids=lambda v: repr(v)[:40])
def test_containers_keep_type_and_order(trip, sent):
    got = trip([sent])[0]
    assert type(got) is type(sent) and got == sent
    assert repr(got) == repr(sent)


def test_namedtuples_and_dataclasses_are_not_pickled(trip):
    for sent in (Point(1, 2), Typed("a"), Plain(1), Frozen(1), Slotted(1), FrozenSlotted(1)):
        assert trip.pickled([sent, {"again": sent}]) == 0, sent


def test_a_class_that_cannot_be_found_is_refused_by_pickle(trip):
    Local = collections.namedtuple("Local", "a")  # neither process can import it
    with pytest.raises(Exception, match="Local"):
        trip(Local(1))
    assert trip(1) == 1


KEYS = [
    "a", "", "ü\ud800", b"k", 0, -5, 2**63 - 1, 1.5, -0.0, float("inf"), True, False, None, (),
    (1, "a"), (1, (2, (None, b"x"))),
]  # fmt: skip


def test_keys_of_all_plain_kinds_are_part_of_the_tree(trip):
    sent = {}
    for i, key in enumerate(KEYS):
        sent[key] = i
    got = trip(sent)
    assert list(map(repr, got)) == list(map(repr, sent))
    assert got == sent and trip.pickled(sent) == 0


@pytest.mark.parametrize(
    "key", [2**63, np.int64(3), Colour.RED, frozenset("a"), TextSubclass("t"), (1, np.int32(2)), Point(1, 2)], ids=repr
)
def test_a_dict_with_any_other_key_is_pickled_once_and_whole(trip, key):
    sent = {"before": np.arange(3), key: [{1, 2}], "after": "x"}
    got = trip(sent)
    assert [type(k) for k in got] == [type(k) for k in sent]
    assert list(got) == list(sent) and got[key] == [{1, 2}] and got["after"] == "x"
    assert got["before"].tolist() == [0, 1, 2]
    assert trip.pickled(sent) == 1


def test_objects_are_pickled_with_their_buffers_beside(trip):
    payload = np.arange(100_000)
    assert trip(Thing(payload)) == Thing(payload)
    assert trip.pickled(Thing(payload)) == 1
    # Once, out of band: within the pickle there would be two copies, or one without alignment.
    assert trip.bytes_of(Thing(payload)) < payload.nbytes + 2000
    assert trip(Thing(payload)).payload.__array_interface__["data"][0] % 64 == 0


def test_a_container_that_contains_itself_is_an_error(trip):
    endless = [1]
    endless.append(endless)
    circle = {}
    circle["again"] = (circle,)
    for sent in (endless, circle):
        with pytest.raises(ValueError, match="nested deeper than 100"):
            trip(sent)


def test_containers_may_be_nested_a_hundred_deep_and_keys_deeper(trip):
    sent, key = 5, ()
    for i in range(100):
        sent = [sent] if i % 2 else {"k": sent}
    assert trip(sent) == sent
    for _ in range(150):
        key = (key,)
    assert trip({key: 1}) == {key: 1}
    assert trip.pickled({key: 1}) == 1


class Fails:
    def __reduce__(self):
        raise ZeroDivisionError("on purpose")


def test_an_encoder_that_failed_half_way_begins_again(trip):
    encoder, fill = Encoder(), trip.claim()
    with fill:
        with pytest.raises(ZeroDivisionError):
            encoder.publish(fill, [[np.arange(1000), "text", {"k": [Fails()]}]])
        fill.rewind()
        encoder.publish(fill, [{"second": 2}])
    assert trip.take(fill.slot) == {"second": 2}


class Calls:
    """Pickling it calls a function."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        self.function()
        return int, ()


def test_code_that_runs_while_a_batch_is_encoded_changes_nothing_of_it(trip):
    sent = ["a", 1]
    sent += [Calls(lambda: sent.append("grown")), "last"]
    assert trip(sent) == ["a", 1, 0, "last"]
    sent = ["a", 1]
    sent += [Calls(sent.clear), "last"]
    assert trip(sent) == ["a", 1, 0, "last"]
    assert trip([1, Calls(lambda: slipring.empty((5,), np.int64)), [7] * 5]) == [1, 0, [7] * 5]
    with pytest.raises(RuntimeError, match="each worker needs its own"):
        trip([1, Calls(lambda: trip.put(1))])


# ---- values with more state than a treedef can describe are pickled, and lose nothing


class Base:
    __slots__ = ("extra",)


@dataclasses.dataclass
class BelowSlots(Base):
    x: int


@dataclasses.dataclass(slots=True)
class SlottedBase:
    x: int


@dataclasses.dataclass
class FieldOfBoth(SlottedBase):
    """The field's value is in the slot of the base class, other attributes in a dictionary."""

    y: int = 0


@dataclasses.dataclass
class Late:
    x: int
    made: object = dataclasses.field(init=False)


@dataclasses.dataclass
class Restored:
    """Defines how it is pickled."""

    a: int

    def __getstate__(self):
        return {"a": self.a + 1}

    def __setstate__(self, state):
        self.a = state["a"]


@dataclasses.dataclass
class Failure(Exception):
    """Has more than its fields: args, a traceback."""

    code: int


@dataclasses.dataclass
class Registered:
    x: int


class RegisteredPoint(Point):
    __slots__ = ()


def registered(kind, *values):
    return kind(*values)


copyreg.pickle(Registered, lambda value: (registered, (Registered, "as")))
copyreg.pickle(RegisteredPoint, lambda value: (registered, (RegisteredPoint, "as", "registered")))


class ReducedPoint(Point):
    __slots__ = ()

    def __reduce__(self):
        return ReducedPoint, ("as", "reduced")


class TwicePoint(Point):
    """`_make` would return a different value."""

    __slots__ = ()

    @classmethod
    def _make(cls, values):
        return cls(*[value * 2 for value in values])


def with_extra(value, extra="more"):
    value.extra = extra
    return value


def test_slots_of_a_dataclasss_bases_arrive(trip):
    for wrap in (lambda value: value, lambda value: {"a": [value]}):
        got = trip(wrap(with_extra(BelowSlots(1))))
        got = got if type(got) is BelowSlots else got["a"][0]
        assert (got.x, got.extra) == (1, "more")
    assert not hasattr(trip(BelowSlots(1)), "extra")


def test_fields_in_slots_of_a_base_arrive(trip):
    got = trip(FieldOfBoth(1, 2))
    assert (got.x, got.y) == (1, 2)
    assert with_extra(FieldOfBoth(1, 2)).extra == trip(with_extra(FieldOfBoth(1, 2))).extra


def test_a_field_that_init_does_not_set_arrives_set_or_not(trip):
    sent = Late(1)
    assert vars(trip(sent)) == {"x": 1}
    sent.made = np.arange(3)
    assert trip(sent).made.tolist() == [0, 1, 2] and trip.pickled(sent) == 0


def test_a_dataclass_with_more_than_its_fields_loses_nothing(trip):
    sent = with_extra(Late(1))
    assert trip(sent).extra == "more" and trip.pickled(sent) == 1
    got = trip(Failure(5))
    assert type(got) is Failure and got.code == 5 and got.args == Failure(5).args


def test_a_class_that_says_how_to_be_pickled_is_asked(trip):
    assert trip(Restored(1)).a == 2
    assert trip([Registered(1), 0])[0].x == "as"
    got = trip([RegisteredPoint(1, 2), 0])[0]
    assert type(got) is RegisteredPoint and got == ("as", "registered")
    assert trip(ReducedPoint(1, 2)) == ("as", "reduced")


def test_a_namedtuple_arrives_as_it_was_whatever_its_class_makes_of_values(trip):
    got = trip(TwicePoint(1, 2))
    assert type(got) is TwicePoint and got == (1, 2)


def test_an_ordered_dict_with_attributes_keeps_them(trip):
    sent = with_extra(collections.OrderedDict(a=np.arange(3)))
    got = trip([sent])[0]
    assert got.extra == "more" and got["a"].tolist() == [0, 1, 2]
    assert trip.pickled(sent) == 1 and trip.pickled(collections.OrderedDict(a=1)) == 0


def subclass_of(kind):
    return type(f"Own_{kind.__name__}", (kind,), {"__module__": __name__})


SUBCLASSES = {kind: subclass_of(kind) for kind in (list, dict, set, tuple, Point, collections.deque, str)}
globals().update({kind.__name__: kind for kind in SUBCLASSES.values()})


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_subclasses_of_containers_keep_class_and_attributes(trip, kind):
    sent = with_extra(SUBCLASSES[kind](*([1, 2] if kind is Point else [])))
    got = trip([sent, 1])[0]
    assert type(got) is type(sent) and got == sent and got.extra == "more"


def noted(dtype):
    return np.dtype(dtype, metadata={"unit": "m"})


@pytest.mark.parametrize(
    ("dtype", "plain"),
    [
        (noted("f4"), "f4"),
        (noted(">i2"), ">i2"),
        (np.dtype([("a", noted("f4")), ("b", "i4")]), [("a", "f4"), ("b", "i4")]),
    ],
    ids=["number", "swapped", "field"],
)
def test_the_metadata_of_a_dtype_arrives(trip, dtype, plain):
    def unit(dtype):
        return unit(dtype[0]) if dtype.names else (dtype.metadata or {}).get("unit")

    plain = np.zeros(3, plain)
    assert trip.pickled(plain) == 0  # first an equal dtype without metadata
    got = trip(np.zeros(3, dtype))
    assert got.dtype == dtype and unit(got.dtype) == "m"
    assert unit(trip(plain).dtype) is None


def test_an_array_of_records_has_records_in_it(trip):
    sent = np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]).view(np.ndarray)
    plain = sent.astype([("a", "i4"), ("b", "f8")])
    assert type(plain[0]) is np.void and type(trip(plain)[0]) is np.void
    assert type(sent[0]) is np.record and trip(sent)[0].b == 2.5
    record = trip([sent[0]])[0]
    assert type(record) is np.record and (record.a, record.b) == (1, 2.5)
