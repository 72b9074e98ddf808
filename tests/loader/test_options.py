"""The loader's arguments are checked at construction; messages name argument, value and rule."""

import dataclasses
import inspect

import numpy as np
import pytest

from slipring import Loader, Memory, Workers
from slipring.errors import shown
from tests.support.datasets import Into, Squares, Stream, leave_be
from tests.support.inside import Options
from tests.support.options import grouped

BAD = {
    # argument: (value, exception, a text that the message must contain besides the argument's name)
    "batch_size": [
        (0, ValueError, "0"),
        (-3, ValueError, "-3"),
        (2.5, TypeError, "2.5"),
        (True, TypeError, "True"),
        ("8", TypeError, "'8'"),
    ],
    "num_workers": [
        (-1, ValueError, "-1"),
        (5000, ValueError, "4093"),
        (1.0, TypeError, "1.0"),
        (None, TypeError, "None"),
        ("many", TypeError, "'auto'"),
    ],
    "fetch_threads": [(0, ValueError, "0"), (2.5, TypeError, "2.5"), (1 << 20, ValueError, "1024")],
    "rank": [(-1, ValueError, "-1"), (True, TypeError, "True"), ("1", TypeError, "'1'")],
    "prefetch_factor": [(0, ValueError, "0"), (None, TypeError, "None"), (1.5, TypeError, "1.5")],
    "chunk_size": [(0, ValueError, "0"), ("4", TypeError, "'4'"), (1 << 32, ValueError, str((1 << 32) - 1))],
    "slots": [(1, ValueError, "1"), (65537, ValueError, "65536"), (3.0, TypeError, "3.0")],
    "slot_bytes": [(0, ValueError, "0"), (1 << 50, ValueError, str(1 << 50)), ("1 GB", TypeError, "'1 GB'")],
    "seed": [(1.5, TypeError, "1.5"), ("x", TypeError, "'x'")],
    "timeout": [
        (-1, ValueError, "-1"),
        (float("nan"), ValueError, "nan"),
        (float("inf"), ValueError, "inf"),
        ("1", TypeError, "'1'"),
        (True, TypeError, "True"),
        (None, TypeError, "None"),
    ],
    "max_restarts": [
        (-1, ValueError, "-1"),
        (1 << 40, ValueError, str((1 << 32) - 1)),
        (None, TypeError, "None"),
    ],
    "snapshot_every_n_steps": [
        (-1, ValueError, "-1"),
        (1 << 40, ValueError, str((1 << 32) - 1)),
        ("4", TypeError, "'4'"),
    ],
    "shuffle": [(1, TypeError, "1"), ("yes", TypeError, "'yes'")],
    "drop_last": [(1, TypeError, "1")],
    "persistent_workers": [(0, TypeError, "0")],
    "in_order": [("no", TypeError, "'no'")],
    "start_method": [("threads", ValueError, "'thread'"), (1, ValueError, "'spawn'")],
    "workers": [(4, TypeError, "slipring.Workers, not 4; num_workers= is their number")],
    "memory": [({}, TypeError, "slipring.Memory")],
    "skip_none": [(1, TypeError, "True or False"), ("yes", TypeError, "True or False")],
    "rng": [("global", ValueError, "'worker'"), ([], ValueError, "[]")],
    "copy": [(True, ValueError, "'never'")],
    "on_death": [("ignore", ValueError, "'respawn'")],
    "backing": [
        ("disk", ValueError, "'disk'"),
        ("relative/path", ValueError, "relative/path"),
        (3, ValueError, "3"),
    ],
    "collate_fn": [(3, TypeError, "3"), ("f", TypeError, "'f'")],
    "worker_init_fn": [([], TypeError, "[]")],
    "sampler": [(3, TypeError, "3")],
    "batch_sampler": [(object, TypeError, "object")],
}


@pytest.mark.parametrize(
    ("argument", "value", "kind", "said"), [(a, *case) for a, cases in BAD.items() for case in cases]
)
def test_a_bad_argument_is_refused_by_name_value_and_rule(argument, value, kind, said):
    with pytest.raises(kind) as caught:
        Loader(Squares(), **grouped(**{argument: value}))
    assert argument in str(caught.value) and said in str(caught.value)


def test_every_argument_has_a_case_above():
    expert = {field.name for group in (Workers, Memory) for field in dataclasses.fields(group)}
    assert set(BAD) == set(inspect.signature(Loader).parameters) - {"dataset"} | expert


def test_the_signature_is_the_documented_one():
    parameters = inspect.signature(Loader).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["dataset", "batch_size"]
    keyword_only = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert keyword_only == {
        "collate_fn": None,
        "shuffle": False,
        "sampler": None,
        "batch_sampler": None,
        "num_workers": 0,
        "drop_last": False,
        "timeout": 0,
        "worker_init_fn": None,
        "seed": None,
        "prefetch_factor": 2,
        "persistent_workers": True,
        "in_order": True,
        "rng": "batch",
        "workers": Workers(),
        "memory": Memory(),
        "skip_none": False,
        "rank": None,
    }
    assert str(inspect.signature(Workers)) == (
        "(*, start_method: Optional[Literal['fork', 'forkserver', 'spawn', 'thread']] = None, "
        "chunk_size: int | None = None, fetch_threads: int | None = None, "
        "on_death: Optional[Literal['raise', 'respawn']] = None, max_restarts: int = 3, "
        "snapshot_every_n_steps: int | None = 1) -> None"
    )
    assert [field.default for field in dataclasses.fields(Memory)] == [None, None, "auto", "auto"]


def test_the_loaders_defaults_are_those_of_its_options():
    options = Options()
    for name, parameter in inspect.signature(Loader).parameters.items():
        if name != "dataset":
            assert getattr(options, name) == parameter.default, name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_workers": (4, 2)}, r"num_workers=\(4, 2\): the upper bound must be at least the lower bound"),
        (
            {"num_workers": (0, None)},
            r"num_workers=\(0, None\): the lower bound must be from 1 to 4093, not 0",
        ),
        ({"num_workers": (1, 2, 3)}, r"num_workers must be \(least, most\), not \(1, 2, 3\)"),
        ({"sampler": [1], "shuffle": True}, "shuffle"),
        ({"sampler": [], "shuffle": True}, "shuffle"),
        ({"batch_sampler": [[1]], "shuffle": True}, "shuffle"),
        ({"batch_sampler": [[1]], "sampler": [1]}, "sampler"),
        ({"batch_sampler": [[1]], "sampler": []}, "sampler"),
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
        {"sampler": [1]},
        {"sampler": np.arange(3)},
        {"sampler": []},
        {"batch_sampler": [[1]]},
        {"chunk_size": 2, "batch_size": 4},
    ],
)
def test_an_iterable_dataset_sets_its_own_order(arguments):
    with pytest.raises(ValueError, match=rf"{next(iter(arguments))}.*iterable dataset \(Stream\)"):
        Loader(Stream(1), **grouped(**arguments))


def test_whole_batches_cannot_be_split_in_chunks():
    with pytest.raises(ValueError, match=r"chunk_size=2.*fetch_into"):
        Loader(Into(), 4, workers=Workers(chunk_size=2))


def test_whole_batches_leave_nothing_to_collate():
    with pytest.raises(ValueError, match=r"collate_fn.*fetch_into"):
        Loader(Into(), 4, collate_fn=list)


class Both(Into):
    """Makes whole batches, and single samples for callers that need them."""

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("arguments", [{"chunk_size": 2}, {"collate_fn": sum}, {"chunk_size": 2, "collate_fn": sum}])
def test_a_dataset_of_whole_batches_and_samples_gives_samples_where_they_are_needed(arguments):
    with Loader(Both(), 4, num_workers=1, **grouped(**arguments)) as loader:
        got = next(iter(loader))
        assert got == 6 if "collate_fn" in arguments else got.tolist() == [0, 1, 2, 3]


def test_without_batching_samples_are_read_one_by_one():
    with pytest.raises(ValueError, match=r"batch_size=None.*__getitem__"):
        Loader(Into(), None)


def test_more_slots_than_a_segment_has_are_refused_at_construction():
    with pytest.raises(ValueError, match=r"prefetch_factor=40000"):
        Loader(Squares(), num_workers=2, prefetch_factor=40_000)


def test_a_dataset_that_is_neither_map_nor_iterable_is_refused():
    with pytest.raises(TypeError, match=r"__getitem__.*object"):
        Loader(object())


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


def test_a_loader_shows_its_options_that_differ_from_the_defaults():
    loader = Loader(Squares(), 8, sampler=np.arange(3), worker_init_fn=leave_be)
    assert repr(loader).startswith("Loader(Squares, batch_size=8, sampler=array([0, 1, 2])")
    assert "num_workers" not in repr(loader)
    assert repr(Loader(Squares(), num_workers=(1, 3))) == "Loader(Squares, num_workers=(1, 3))"


class Unshowable:
    def __repr__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize("argument", ["batch_size", "timeout", "collate_fn", "drop_last", "sampler", "rng", "slots"])
def test_a_refusal_says_what_is_wrong_of_a_value_whose_repr_raises(argument):
    with pytest.raises((TypeError, ValueError), match=f"{argument} must be .*Unshowable"):
        Loader(Squares(), **grouped(**{argument: Unshowable()}))


@pytest.mark.parametrize("value", ["x" * 10**6, list(range(10**6))])
def test_a_refusal_shows_the_beginning_of_what_is_long(value):
    with pytest.raises(TypeError, match="batch_size must be an int") as caught:
        Loader(Squares(), batch_size=value)
    assert len(str(caught.value)) < 1000


def test_the_text_of_a_value_in_a_message_is_bounded():
    assert shown([1, "a", (2.5, None)]) == "[1, 'a', (2.5, None)]"
    for value in ("x" * 10**6, list(range(10**6)), {i: "y" * 10**4 for i in range(100)}):
        assert len(shown(value)) < 1000
    assert "Unshowable" in shown([Unshowable()])


def test_a_generator_given_as_rng_is_refused_with_the_right_argument():
    for given in (np.random.default_rng(0), "batches"):
        with pytest.raises(ValueError, match=r"when generators are seeded.*seed= sets.*slipring.rng\(\) is"):
            Loader(Squares(), rng=given)
