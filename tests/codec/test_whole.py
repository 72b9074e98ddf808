"""Values with more state than a treedef can describe are pickled, and lose nothing."""

import collections
import copyreg
import dataclasses

import numpy as np
import pytest

Point = collections.namedtuple("Point", "x y")


class Base:
    __slots__ = ("extra",)


@dataclasses.dataclass
class BelowSlots(Base):
    x: int


class Named:
    __slots__ = "_Named__hidden", "__weakref__"


@dataclasses.dataclass
class BelowPrivateSlots(Named):
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
class Doubles:
    """An attribute that a property writes."""

    x: int


Doubles.x = property(lambda self: vars(self)["x"], lambda self, value: vars(self).update(x=2 * value))


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


class StatefulPoint(Point):
    def __getstate__(self):
        return {"state": "kept"}


class TwicePoint(Point):
    """`_make` would return a different value."""

    __slots__ = ()

    @classmethod
    def _make(cls, values):
        return cls(*[value * 2 for value in values])


class Length(np.float64):
    """A number with a unit."""

    def __reduce__(self):
        return length, (float(self), self.extra)


def length(number, unit):
    return with_extra(Length(number), unit)


def with_extra(value, extra="more"):
    value.extra = extra
    return value


def test_slots_of_a_dataclasss_bases_arrive(trip):
    for wrap in (lambda value: value, lambda value: {"a": [value]}):
        got = trip(wrap(with_extra(BelowSlots(1))))
        got = got if type(got) is BelowSlots else got["a"][0]
        assert (got.x, got.extra) == (1, "more")
    assert not hasattr(trip(BelowSlots(1)), "extra")
    sent = BelowPrivateSlots(2)
    sent._Named__hidden = 3
    assert trip(sent)._Named__hidden == 3


def test_fields_in_slots_of_a_base_arrive(trip):
    got = trip(FieldOfBoth(1, 2))
    assert (got.x, got.y) == (1, 2)
    assert with_extra(FieldOfBoth(1, 2)).extra == trip(with_extra(FieldOfBoth(1, 2))).extra


def test_a_field_that_init_does_not_set_arrives_set_or_not(trip):
    sent = Late(1)
    assert vars(trip(sent)) == {"x": 1}
    sent.made = np.arange(3)
    assert trip(sent).made.tolist() == [0, 1, 2] and trip.pickled(sent) == 0


def test_a_field_with_a_property_is_not_written_twice(trip):
    sent = Doubles(1)
    assert sent.x == 2 and trip(sent).x == 2


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
    assert vars(trip(StatefulPoint(1, 2))) == {"state": "kept"}


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


def test_a_subclass_of_numpys_numbers_keeps_class_and_attributes(trip):
    got = trip([length(2.5, "m"), 0])[0]
    assert type(got) is Length and got == 2.5 and got.extra == "m"


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
