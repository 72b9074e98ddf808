"""The loader's arguments are checked at construction; messages name argument, value and rule."""

import numpy as np
import pytest

from slipring import Loader, Memory
from slipring.errors import shown
from tests.support.datasets import Into, Squares, Stream, Unshowable
from tests.support.options import grouped


# Bounds and words that the text must name; tests/project/test_arguments.py has wrong types for every option.
@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("batch_size", -3, "must be from 1 to .*not -3"),
        ("num_workers", -1, "must be from 0 to 4093"),
        ("num_workers", "many", "'auto'.*not 'many'"),
        ("num_workers", (4, 2), r"num_workers=\(4, 2\): the upper bound must be at least the lower bound"),
        ("num_workers", (0, None), r"num_workers=\(0, None\): the lower bound must be from 1 to 4093, not 0"),
        ("num_workers", (1, 2, 3), r"num_workers must be \(least, most\), not \(1, 2, 3\)"),
        ("chunk_size", 1 << 32, str((1 << 32) - 1)),
        ("slots", 1, "must be from 2 to 65536"),
        ("slot_bytes", 1 << 50, f"must be from 1 to {1 << 46}"),
        ("timeout", float("nan"), "nan"),
        ("workers", 4, "slipring.Workers, not 4; num_workers= is their number"),
        ("rng", "global", "'worker'"),
        ("rng", np.random.default_rng(0), r"when generators are seeded.*seed= sets.*slipring.rng\(\) is"),
        ("backing", "relative/path", "relative/path"),
    ],
)
def test_a_bad_value_is_refused_with_the_rule(argument, value, said):
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        Loader(Squares(), **grouped(**{argument: value}))
    assert argument in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sampler": [], "shuffle": True}, "shuffle"),
        ({"batch_sampler": [[1]], "shuffle": True}, "shuffle"),
        ({"batch_sampler": [[1]], "sampler": np.arange(3)}, "sampler"),
        ({"batch_sampler": [[1]], "drop_last": True}, "drop_last"),
        ({"batch_sampler": [[1]], "batch_size": 4}, "batch_size"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"batch_size": None, "chunk_size": 2}, "chunk_size"),
        ({"batch_size": 1000, "chunk_size": 2}, "at least 18"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        Loader(Squares(), **grouped(**arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"sampler": []},
        {"batch_sampler": [[1]]},
        {"chunk_size": 2, "batch_size": 4},
    ],
)
def test_an_iterable_dataset_sets_its_own_order(arguments):
    with pytest.raises(ValueError, match=rf"{next(iter(arguments))}.*iterable dataset \(Stream\)"):
        Loader(Stream(1), **grouped(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"chunk_size": 2, "batch_size": 4}, r"chunk_size=2.*fetch_into"),
        ({"collate_fn": list, "batch_size": 4}, r"collate_fn.*fetch_into"),
        ({"batch_size": None}, r"batch_size=None.*__getitem__"),
    ],
)
def test_a_dataset_of_whole_batches_only_refuses_options_for_samples(arguments, said):
    with pytest.raises(ValueError, match=said):
        Loader(Into(), **grouped(**arguments))


def test_more_slots_than_a_segment_has_are_refused_at_construction():
    with pytest.raises(ValueError, match=r"prefetch_factor=40000"):
        Loader(Squares(), num_workers=2, prefetch_factor=40_000)


def test_a_dataset_that_is_neither_map_nor_iterable_is_refused():
    with pytest.raises(TypeError, match=r"__getitem__.*object has none of them$"):
        Loader(object())


@pytest.mark.parametrize("make", [Squares, lambda: Squares()], ids=["class", "function"])
def test_a_function_that_makes_the_dataset_is_refused_with_the_loader_that_takes_one(make):
    with pytest.raises(TypeError, match=r"Give the dataset itself: a function .* needs share= of slipring\.torch"):
        Loader(make)


def test_a_map_dataset_without_length_needs_a_sampler():
    class Endless:
        def __getitem__(self, i):
            return i

    with pytest.raises(TypeError, match=r"Endless.*__len__"):
        Loader(Endless())
    with Loader(Endless(), 2, sampler=[5, 6, 7]) as loader:
        assert [b.tolist() for b in loader] == [[5, 6], [7]]
        assert len(loader) == 2


def test_numbers_may_be_numpy_integers():
    with Loader(
        Squares(10), np.int64(4), num_workers=np.int32(1), seed=np.int64(3), memory=Memory(slots=np.int16(8))
    ) as loader:
        assert [b[1].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert len(loader) == 3
    found = Loader(Squares(10), num_workers=[np.int64(2), np.int64(3)]).options
    assert [type(n) for n in (found.num_workers, *found.bounds)] == [int] * 3 and found.bounds == (2, 3)


def test_the_text_of_a_value_in_a_message_is_bounded():
    assert shown([1, "a", (2.5, None)]) == "[1, 'a', (2.5, None)]"
    for value in ("x" * 10**6, list(range(10**6)), {i: "y" * 10**4 for i in range(100)}):
        assert len(shown(value)) < 1000
    assert "Unshowable" in shown([Unshowable()])
