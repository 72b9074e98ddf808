"""Any combination of containers and leaves arrives unchanged."""

import collections
import dataclasses

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.inside import COPY_ALWAYS, COPY_AUTO
from tests.support.trip import Trip

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    left: object
    right: object


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="<"),  # numpy's own pickle changes swapped ones
    hnp.timedelta64_dtypes(endianness="<"),
    hnp.byte_string_dtypes(min_len=1, max_len=8),
    hnp.unicode_string_dtypes(min_len=1, max_len=8),
)
DTYPES = st.one_of(DTYPES, hnp.array_dtypes(DTYPES, allow_subarrays=True))
TEXT = st.text(st.characters(exclude_categories=()))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXT,
    st.binary(),
    st.lists(TEXT),
    st.lists(st.binary()),
    st.complex_numbers(),
    hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_dims=4, max_side=4)),
)
PLAIN_KEYS = st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1), st.binary(), st.booleans(), st.none())
KEYS = st.one_of(PLAIN_KEYS, st.tuples(PLAIN_KEYS, PLAIN_KEYS), st.integers(), st.frozensets(st.integers()))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Record, inner, inner),
    ),
    max_leaves=12,
)


def same(a, b):
    """Return whether two values are equal; arrays by content, and 1, 1.0 and True differ."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, Record):
        return same(a.left, b.left) and same(a.right, b.right)
    return a == b or repr(a) == repr(b)


@pytest.fixture(scope="module")
def long_trip():
    trip = Trip()
    yield trip
    trip.end()


@given(VALUES, st.sampled_from([COPY_AUTO, COPY_ALWAYS]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.leaks_ok("the segment serves all examples")
def test_any_value_arrives_as_it_was(long_trip, sent, copy):
    assert same(sent, long_trip([sent], copy)[0])
    assert long_trip.free == 4


@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=1, min_side=1, max_dims=4)), st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.leaks_ok("the segment serves all examples")
def test_any_window_of_an_array_arrives_as_it_is(long_trip, base, data):
    window = base[data.draw(hnp.basic_indices(base.shape, allow_newaxis=True))]
    if isinstance(window, np.ndarray):
        got = long_trip(window)
        assert got.dtype == window.dtype and got.shape == window.shape
        assert got.tobytes() == window.tobytes()
