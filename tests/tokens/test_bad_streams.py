"""Streams that cannot be packed, and states that do not fit: errors that name the document and the rule."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from slipring import tokens  # noqa: E402
from slipring.streams import ShardStream, Stream  # noqa: E402
from tests.support.kinds import loading  # noqa: E402
from tests.tokens.packed import BUDGET, SIZES, Numbers, Positioned, Walk, job, ranks_of  # noqa: E402


class Given:
    def __init__(self, *documents):
        self.documents = documents

    def __iter__(self):
        return Walk(self.documents)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ([], ValueError, "document 1 of this worker's part of Given has 0 tokens: each must have at least one"),
        ({"text": "x"}, TypeError, "document 1 .* is 'x', which has no length"),
        ({}, ValueError, "document 1 .* has no field 'input_ids'; it has"),
        (7, TypeError, "document 1 .* is 7, which has no length"),
        ([1] * 101, ValueError, "document 1 .* has 101 tokens, more than max_tokens=100 .*: give overflow="),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_document_that_cannot_be_packed_is_an_error_and_the_others_follow(bad, error, text, workers):
    packs = tokens.pack(Given([1] * 60, bad, [2] * 70), BUDGET)
    with loading(packs, batch_size=None, num_workers=workers) as loader:
        batches = iter(loader)
        with pytest.raises(error, match=text):
            next(batches)
        assert sorted(len(each) for pack in batches for each in pack) == [60, 70]


def test_a_field_that_does_not_count_tokens_cannot_be_cut():
    given = {"input_ids": [1] * 150, "pixel_values": np.zeros((4, 8))}
    packs = iter(tokens.pack(Given(given, {"input_ids": [1] * 20}), BUDGET, overflow="split"))
    with pytest.raises(ValueError, match=r"document 0 .*pixel_values.* of 4 rows.*overflow='drop'"):
        next(packs)
    assert [len(pack) for pack in packs] == [1]


def test_a_length_may_be_another_field_or_a_function():
    given = [{"a": [1], "b": [1] * n} for n in (60, 50, 40)]
    for length in ("b", lambda sample: len(sample["b"])):
        assert sorted(len(pack) for pack in tokens.pack(Given(*given), BUDGET, length=length)) == [1, 2]


def test_a_resume_with_changed_documents_is_an_error():
    (packs,) = ranks_of(1)
    for stream, other in [
        (packs.stream, ShardStream(range(len(SIZES)), lambda shard: [], 1)),
        (packs.stream, ShardStream(range(len(SIZES)), lambda _: [{"input_ids": pa.array([[1]] * 50)}], 1)),
        (Numbers(), Numbers(3)),
        (Positioned(), Positioned(3)),
    ]:
        iterator = iter(tokens.pack(stream, BUDGET))
        for _ in range(5):
            next(iterator)
        resumed = iter(tokens.pack(other, BUDGET))
        resumed.load_state_dict(iterator.state_dict())
        with pytest.raises(ValueError, match=r"resume with the (documents|shards) that the states? w(as|ere) taken of"):
            next(resumed)


def test_a_state_of_other_options_is_refused():
    (packs,) = ranks_of(1)
    with loading(packs, batch_size=None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    (other,) = ranks_of(1, open_packs=3)
    for given in (state, [state]):
        with (
            loading(other, batch_size=None) as loader,
            pytest.raises(ValueError, match=r"open_packs of the state is 16, of this pack\(\) 3"),
        ):
            loader.load_state_dict(given)


@pytest.mark.parametrize("stream", [Numbers(), ranks_of(1)[0].stream], ids=["numbers", "shards"])
def test_a_damaged_state_names_what_is_wrong(stream):
    iterator = iter(tokens.pack(stream, BUDGET, steps_per_epoch=20))
    next(iterator)
    state = iterator.state_dict()
    ((*location, _, stop), *_), *_ = state["packs"]
    for wrong, text in [
        ({"packs": 3}, "the state's packs must be a list, not 3"),
        ({"packs": [[3]]}, "the state's packs must be lists of"),
        ({"packs": [[[*location, -1, stop]]]}, "the state's packs must be at least 0, not -1"),
        ({"rests": [[]]}, "the state's rests must be lists of"),
        ({"left": 21}, "the state's left must be from 0 to 20, not 21"),
        ({"round": None}, "the state's round must be an int, not None"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            iter(tokens.pack(stream, BUDGET, steps_per_epoch=20)).load_state_dict({**state, **wrong})
    for name in ("packs", "left", "round"):
        with pytest.raises(ValueError, match="it lacks keys of"):
            iterator.load_state_dict({key: value for key, value in state.items() if key != name})


def test_states_of_ranks_at_other_steps_are_refused():
    ranks = ranks_of(2, steps_per_epoch=20)
    states = [job([packs], 0, most)[1][0] for packs, most in zip(ranks, (3, 4), strict=True)]
    with (
        loading(ranks[0], batch_size=None) as loader,
        pytest.raises(ValueError, match=r"not of the same step: \[17, 16\]"),
    ):
        loader.load_state_dict(states)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[1]], 8), TypeError, "list is indexed: give its lengths to slipring.tokens.PackedSampler"),
        ((iter([[1]]), 8), TypeError, "dataset is an iterator"),
        ((Stream([], 4), 8), ValueError, "yields 4 rows at once, and each row is a document: give it batch_size=1"),
        ((Given(), 0), ValueError, "max_tokens"),
    ],
)
def test_a_wrong_argument_is_named(arguments, error, text):
    with pytest.raises(error, match=text):
        tokens.pack(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"split": True, "overflow": "drop"}, ValueError, "leave out overflow='drop'"),
        ({"overflow": "cut"}, ValueError, "overflow must be one of"),
        ({"length": 3}, TypeError, "length must be a field's name or a function"),
        ({"document_multiple_of": 9}, ValueError, "document_multiple_of"),
        ({"open_packs": 0}, ValueError, "open_packs"),
        ({"steps_per_epoch": 0}, ValueError, "steps_per_epoch"),
    ],
)
def test_a_wrong_option_is_named(options, error, text):
    with pytest.raises(error, match=text):
        tokens.pack(Given(), 8, **options)


def test_packs_in_batches_are_refused():
    (packs,) = ranks_of(1)
    with (
        loading(packs, batch_size=2, collate_fn=tokens.Flat()) as loader,
        pytest.raises(TypeError, match="load a stream of packs with batch_size=None"),
    ):
        next(iter(loader))


def test_steps_of_a_loader_without_states_cannot_be_equal():
    with pytest.raises(TypeError, match=r"loader must be a slipring\.Loader"):
        next(tokens.equal_steps([1, 2]))
