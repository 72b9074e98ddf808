"""Numbers, texts, containers and objects come out of a slot unchanged."""

import collections
import dataclasses
import enum
import math
import struct
import sys
import typing

import numpy as np
import pytest

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


@dataclasses.dataclass
class Child(Plain):
    more: object = None


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
    ["a", b"b"], ["a", 1], [b"a", None], ["a", TextSubclass("b")], ("a", "b"),
]  # fmt: skip


@pytest.mark.parametrize("sent", MIXED, ids=repr)
def test_lists_of_several_types_keep_each_elements_type(trip, sent):
    got = trip(sent)
    assert got == sent and [type(v) for v in got] == [type(v) for v in sent]


CONTAINERS = [
    {}, [], (), {"a": {}}, [[]], [()], collections.OrderedDict(), [None], (None,),
    [[1, [2, (3, {"four": 5})]]], {"a": [1, 2], "b": (3.5, {"c": None})},
    collections.OrderedDict([("z", 1), ("a", 2)]), Point(1, [2]), Typed("n"),
    {"p": Point(Typed("x", 1.0), None)}, Plain(1), Plain([1], 2), Frozen(1, "b"), Slotted((1, 2)),
    FrozenSlotted({"a": 1}), Child(1, 2, 3), [Plain(Frozen(1, 2))], {1, 2}, frozenset((1, 2)),
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


def test_a_dataclass_with_less_than_its_fields_arrives_so(trip):
    sent = Plain(1, 2)
    del sent.image
    assert vars(trip(sent)) == {"label": 2}


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


def test_an_object_that_cannot_be_pickled_says_so_and_the_worker_continues(trip):
    with pytest.raises((TypeError, AttributeError), match=r"pickle|lambda|generator"):
        trip([1, (i for i in range(3))])
    fill = trip.ring.claim(1, 0)
    assert fill is None
    assert trip([1, 2]) == [1, 2]


def test_a_container_that_contains_itself_is_an_error(trip):
    endless = [1]
    endless.append(endless)
    circle = {}
    circle["again"] = (circle,)
    for sent in (endless, circle):
        with pytest.raises(ValueError, match="nested deeper than 100"):
            trip(sent)


@pytest.mark.parametrize("depth", [1, 99, 100])
def test_containers_may_be_nested_a_hundred_deep(trip, depth):
    sent = 5
    for i in range(depth):
        sent = [sent] if i % 2 else {"k": sent}
    assert trip(sent) == sent


def test_a_key_nested_deeper_than_definitions_allow_goes_another_way(trip):
    key = ()
    for _ in range(150):
        key = (key,)
    assert trip({key: 1}) == {key: 1}
    assert trip.pickled({key: 1}) == 1


class ChangesItsList:
    """Pickling it changes the list that contains it."""

    def __init__(self, home):
        self.home = home

    def __reduce__(self):
        self.home.append("grown")
        return (int, ())


def test_a_list_that_grows_while_it_is_encoded_arrives_as_it_began(trip):
    sent = ["a", 1]
    sent.append(ChangesItsList(sent))
    sent.append("last")
    assert trip(sent) == ["a", 1, 0, "last"]


class PublishesWhilePickled:
    def __init__(self, trip):
        self.trip = trip

    def __reduce__(self):
        self.trip.put(1)
        return (int, ())


def test_an_encoder_at_work_refuses_a_second_batch(trip):
    with pytest.raises(RuntimeError, match="each worker needs its own"):
        trip([1, PublishesWhilePickled(trip)])


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


def test_thousands_of_different_trees_do_not_pile_up(trip):
    for n in range(1500):
        assert trip([0] * (n % 50) + [{str(n): n}])[-1] == {str(n): n}
