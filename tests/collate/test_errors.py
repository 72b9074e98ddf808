"""Samples that do not match: the message names the position, both samples and the difference."""

import collections
import dataclasses
import re

import numpy as np
import pytest

from tests.support.inside import default_collate

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Record:
    a: object


z = np.zeros
WRONG = {
    "shapes": ([z(2), z(3)], "{0} has shape (2,), {1} has shape (3,)"),
    "shapes later": ([z(2), z(2), z((2, 1))], "{0} has shape (2,), {2} has shape (2, 1)"),
    "one has no dimension": ([z(2), z(())], "{0} has shape (2,), {1} has shape ()"),
    "shapes of another dtype": ([z(2), z(3, "i4")], "{0} has shape (2,), {1} has shape (3,)"),
    "text among numbers": ([z(2), z(2, "U3")], "{0} has dtype float64, {1} has dtype <U3"),
    "numbers among text": ([z(2, "S3"), z(2)], "{0} has dtype |S3, {1} has dtype float64"),
    "bytes and text": ([z(2, "S3"), z(2, "U3")], "{0} has dtype |S3, {1} has dtype <U3"),
    "objects among numbers": ([z(2), z(2), z(2, object)], "{0} has dtype float64, {2} has dtype object"),
    "a time and a number": ([z(2, "M8[s]"), z(2, "i8")], "{0} has dtype datetime64[s], {1} has dtype int64"),
    "structures": ([z(2, "i4,i4"), z(2, "i4,f4,i4")], "{1} has dtype"),
    "an array and a number": ([z(2), 5], "{0} has shape (2,), {1} has shape ()"),
    "an array and a text": ([z(2), "ab"], "{0} has type ndarray, {1} has type str"),
    "an array and nothing": ([z(2), None], "{0} has type ndarray, {1} has type NoneType"),
    "a number and an array": ([1, z(2)], "{0} has type int, {1} has type ndarray"),
    "a number and a text": ([1, 2, "3"], "{0} has type int, {2} has type str"),
    "a number and a numpy text": ([1, np.str_("3")], "{0} has type int, {1} has type str_"),
    "a number and nothing": ([1.5, None], "{0} has type float, {1} has type NoneType"),
    "nothing and a number": ([None, 1], "{0} has type NoneType, {1} has type int"),
    "lengths": ([(1, 2), (1, 2), (1,)], "{0} has length 2, {2} has length 1"),
    "a tuple and a number": ([(1, 2), 5], "{0} has type tuple, {1} has type int"),
    "a tuple and a text": ([("a", "b"), "ab"], "{0} has type tuple, {1} has type str"),
    "a missing key": ([{"a": 1, "b": 2}, {"a": 1}], "{0} has keys ['a', 'b'], {1} has keys ['a']"),
    "one key more": ([{"a": 1}, {"a": 1, "b": 2}], "{0} has keys ['a'], {1} has keys ['a', 'b']"),
    "another key": ([{"a": 1}, {"b": 1}], "{0} has keys ['a'], {1} has keys ['b']"),
    "a dict and a list": ([{0: 1}, [1]], "{0} has type dict, {1} has type list"),
    "dataclasses": ([Record(1), Point(1, 2)], "{0} has type Record, {1} has type Point"),
    "deep inside": (
        [{"a": [Point(z(2), 1)]}, {"a": [Point(z(3), 1)]}],
        "at ['a'][0][0]: {0} has shape (2,), {1} has shape (3,)",
    ),
    "in a dataclass": ([Record({"k": 1}), Record({"k": "x"})], "at .a['k']: {0} has type int, {1} has type str"),
}


@pytest.mark.parametrize(("samples", "message"), WRONG.values(), ids=WRONG)
def test_the_difference_is_named_by_position_and_in_a_worker_by_index(trip, samples, message):
    positions = re.escape(message.format(*[f"sample {i}" for i in range(len(samples))]))
    with pytest.raises(ValueError, match=f"{positions}.*make them alike in the dataset, or give a collate_fn"):
        default_collate(samples)
    indices = [1000, "key", 30][: len(samples)]
    fill = trip.claim(indices)
    with fill, pytest.raises(ValueError, match=re.escape(message.format(*[f"index {i!r}" for i in indices]))):
        default_collate(samples)
    fill.abort()
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
