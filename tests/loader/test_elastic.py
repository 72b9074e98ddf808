"""An epoch that n ranks begin and m ranks finish: with samplers alone, and with slipring.Loader."""

import copy
import itertools
import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipring
from slipring import BatchSampler, Loader, StringList
from tests.support.datasets import flat
from tests.support.options import grouped

RANKS = range(1, 9)
N = 203  # no step divides it
WAYS = [{"shuffle": True}, {}, {"weights": np.arange(N) % 7}, {"num_samples": 150}]


def samplers(n, batch_size, **options):
    options = {"seed": 5, **options}
    return [BatchSampler(N, batch_size, rank=rank, world_size=n, **options) for rank in range(n)]


def steps(of_ranks):
    """Return the sorted indices of all ranks at each step; all ranks have as many steps."""
    return [sorted(flat(step)) for step in zip(*of_ranks, strict=True)]


def begun(ranks, epochs, taken):
    """Return the states of ranks after some epochs and `taken` batches of the next, and these steps."""
    for _ in range(epochs):
        assert len({len(list(sampler)) for sampler in ranks}) == 1
    passes = [iter(sampler) for sampler in ranks]
    seen = steps([list(itertools.islice(batches, taken)) for batches in passes])
    return [json.loads(json.dumps(batches.state_dict())) for batches in passes], seen


def expected(order, ranks, step, drop_last, position=0):
    """Return the steps as the page on elastic states defines them: the next samples of one order."""
    found = []
    for at in range(position, len(order), step):
        samples = list(order[at : at + step])
        if len(samples) < step:
            if drop_last:
                break
            samples += order[: -len(samples) % ranks]
        found.append(sorted(samples))
    return found


def after(sampler, batches):
    """Return the state of a pass of a sampler after so many batches; the sampler itself begins no pass."""
    begun = iter(copy.copy(sampler))
    for _ in range(batches):
        next(begun, None)
    return begun.state_dict()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "".join(way) or "in order")
@pytest.mark.parametrize("n", RANKS)
def test_the_steps_stay_the_same_for_any_ranks_if_a_step_is_as_large(n, way, drop_last):
    for m in RANKS:
        step = math.lcm(n, m) * (3 if max(n, m) < 4 else 1)
        first = samplers(n, step // n, drop_last=drop_last, **way)
        order = list(first[0].order(1))
        (state, *_), seen = begun(first, 1, 2)
        assert seen == expected(order, n, step, drop_last)[:2]
        for sampler in first:
            sampler.set_epoch(1)
        whole = steps(first)
        resumed = samplers(m, step // m, drop_last=drop_last, **{**way, "seed": None})
        for sampler in resumed:
            sampler.load_state_dict(state)
        rest, later = steps(resumed), steps(resumed)
        full = len(order) // step
        assert rest == expected(order, m, step, drop_last, 2 * step), m
        assert rest[: full - 2] == whole[2:full] and len(rest) == len(whole) - 2, m
        assert later[:full] == steps(first)[:full], m  # the next epoch


@given(
    n=st.sampled_from(RANKS),
    m=st.sampled_from(RANKS),
    size=st.integers(1, 9),
    other=st.integers(1, 9),
    taken=st.integers(0, 6),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_with_any_step_nothing_comes_twice_and_nothing_is_lost(n, m, size, other, taken, shuffle, drop_last):
    options = {"shuffle": shuffle, "drop_last": drop_last}
    states, seen = begun(samplers(n, size, **options), 0, taken)
    assert len({state["position"] for state in states}) == 1
    resumed = samplers(m, other, **options)
    for rank, sampler in enumerate(resumed):
        sampler.load_state_dict(states[rank % n])
    rest = [list(sampler) for sampler in resumed]
    assert len({tuple(map(len, own)) for own in rest}) == 1
    before, behind = flat(seen), flat(flat(rest))
    if drop_last:
        assert len(set(before + behind)) == len(before + behind)
        assert N - len(before + behind) < m * other or len(before) >= N
    else:
        assert set(before + behind) == set(range(N))
        added = len(before + behind) - N
        assert added < (m if behind else n)
    assert {sampler.epoch for sampler in resumed} == {1}


def test_set_epoch_drops_the_place_of_another_epoch_and_keeps_that_of_the_same():
    (state, _), _ = begun(samplers(2, 5), 3, 4)
    (sampler,) = samplers(1, 10)
    sampler.load_state_dict(state)
    sampler.set_epoch(3)
    assert next(iter(sampler)) == list(range(40, 50))
    sampler.load_state_dict(state)
    sampler.set_epoch(4)
    assert next(iter(sampler)) == list(range(10))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"samples": 7}, ValueError, "samples=7.*has 203.*same indices"),
        ({"order": "drawn"}, ValueError, "order='drawn'.*has 'shuffled'"),
        ({"position": None}, ValueError, "no state of slipring.BatchSampler.*position"),
        ("text", TypeError, "must be a dict.*'text'"),
    ],
)
def test_states_of_something_else_are_refused(change, error, said):
    (sampler,) = samplers(1, 4, shuffle=True)
    state = change
    if isinstance(change, dict):
        state = {**iter(sampler).state_dict(), **change}
        state = {name: value for name, value in state.items() if value is not None or name not in change}
    for load in (sampler.load_state_dict, iter(sampler).load_state_dict):
        with pytest.raises(error, match=said):
            load(state)


KEPT = [range(5, 35), [*range(5, 35)], (*range(5, 35),), np.arange(5, 35), np.arange(5, 35, dtype=np.uint8)]


@pytest.mark.parametrize("loaded", KEPT, ids=lambda kept: type(kept).__name__)
@pytest.mark.parametrize("saved", KEPT, ids=lambda kept: type(kept).__name__)
def test_the_same_numbers_are_the_same_indices_however_they_are_kept(saved, loaded):
    state = json.loads(json.dumps(after(BatchSampler(saved, 7), 1)))
    sampler = BatchSampler(loaded, 4)
    sampler.load_state_dict(state)
    assert flat(sampler) == list(range(12, 35))


class Own:
    """A sequence of which slipring knows only the length."""

    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return self.first + i


W = [1.0, 2.0, 3.0, 4.0] * 7 + [0.5, 0.25]


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        ({}, {"indices": range(1, 31)}, "other indices"),
        ({}, {"indices": range(0, 60, 2)}, "other indices"),
        ({}, {"indices": list(range(29, -1, -1))}, "other indices"),
        ({}, {"indices": [*range(29), 31]}, "other indices"),
        ({"indices": [4, 3, 9]}, {"indices": [3, 4, 9]}, "other indices"),
        ({"indices": np.array([4, 3, 9])}, {"indices": np.array([3, 4, 9])}, "other indices"),
        ({"indices": [5, 5, 5]}, {"indices": [6, 6, 6]}, "other indices"),
        ({"indices": ["a", "b"]}, {"indices": ["b", "a"]}, "other indices"),
        ({"indices": [("a", 1), ("b", 2)]}, {"indices": [("a", 1), ("b", 3)]}, "other indices"),
        ({"indices": StringList(["a", "b"])}, {"indices": StringList(["b", "a"])}, "other indices"),
        ({"indices": list(np.arange(3))}, {"indices": list(np.arange(1, 4))}, "other indices"),
        ({"shuffle": True}, {"shuffle": True, "indices": range(1, 31)}, "other indices"),
        ({"num_samples": 12}, {"num_samples": 12, "indices": 31}, "other indices"),
        ({"weights": W, "num_samples": 12}, {"num_samples": 12}, "other weights"),
        ({"num_samples": 12}, {"weights": W, "num_samples": 12}, "other weights"),
        ({"weights": W}, {"weights": W[::-1]}, "other weights"),
        ({"weights": W}, {"weights": [*W[:-1], W[-1] + 1e-9]}, "other weights"),
    ],
    ids=str,
)
def test_a_state_of_an_order_of_the_same_length_is_refused_all_the_same(saved, loaded, said):
    sampler = BatchSampler(**{"indices": 30, "batch_size": 4, "seed": 5, **saved})
    state = json.loads(json.dumps(after(sampler, 2)))
    same = BatchSampler(**{"indices": 30, "batch_size": 4, **saved})
    same.load_state_dict(state)
    other = BatchSampler(**{"indices": 30, "batch_size": 4, **loaded})
    for load in (other.load_state_dict, iter(other).load_state_dict):
        with pytest.raises(ValueError, match=f"{said} than this sampler's.*Resume with the same"):
            load(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("position", value) for value in (-2, True, 1 << 80, "4")),
        *(("epoch", value) for value in (-1, None, 1.0)),
        *(("seed", value) for value in (-5, 1 << 64, [])),
    ],
)
def test_a_state_with_numbers_that_cannot_be_is_refused(name, value):
    sampler = BatchSampler(30, 4, shuffle=True, seed=5)
    with pytest.raises((TypeError, ValueError), match=f"the state's {name} "):
        sampler.load_state_dict({**after(sampler, 2), name: value})


def test_a_state_with_numpys_numbers_is_as_good():
    sampler = BatchSampler(30, 4, shuffle=True, seed=np.int64(5))
    state = after(sampler, 2)
    want = list(sampler)[2:]
    other = BatchSampler(30, 4, shuffle=True)
    other.load_state_dict({key: np.int64(value) if type(value) is int else value for key, value in state.items()})
    assert list(other) == want
    json.dumps(after(other, 1))


@pytest.mark.parametrize("indices", [Own(3), [b"a", b"b"], np.array([object()] * 4)], ids=["own", "bytes", "objects"])
def test_indices_without_numbers_or_text_are_known_by_their_length(indices):
    sampler = BatchSampler(indices, 1, shuffle=True)
    sampler.load_state_dict(after(BatchSampler(indices, 1, shuffle=True), 1))
    assert len(list(sampler)) == len(indices) - 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("way", WAYS[2:], ids=list)
@pytest.mark.parametrize(("n", "size", "m", "other"), [(2, 5, 3, 4), (1, 16, 8, 3), (8, 2, 5, 7), (3, 3, 1, 1)])
def test_a_drawn_order_is_given_out_to_its_end_with_steps_of_another_size(n, size, m, other, way, drop_last):
    first = samplers(n, size, drop_last=drop_last, **way)
    order = list(first[0].order(0))
    (state, *_), seen = begun(first, 0, 3)
    assert state["position"] == 3 * n * size
    resumed = samplers(m, other, drop_last=drop_last, **{**way, "seed": None})
    for sampler in resumed:
        sampler.load_state_dict(state)
    assert seen == expected(order, n, n * size, drop_last)[:3]
    assert steps(resumed) == expected(order, m, m * other, drop_last, state["position"])


# ---- random numbers by position


class Drawn:
    """Sample i is i, and a number from each generator."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), slipring.rng().random(), slipring.rng().random()


@pytest.mark.parametrize("workers", [0, 1])
def test_with_rng_batch_as_many_ranks_draw_as_without_the_interruption(workers):
    def draws(rank, state=None, stop=None):
        sampler = BatchSampler(96, 6, shuffle=True, rank=rank, world_size=2, seed=3)
        with Loader(Drawn(), batch_sampler=sampler, seed=1, num_workers=workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found = [np.stack(batch, axis=1).tolist() for batch in itertools.islice(loader, stop)]
            return found, loader.state_dict()

    for rank in range(2):
        whole, _ = draws(rank)
        begun, state = draws(rank, stop=3)
        assert begun + draws(rank, state)[0] == whole


def test_a_report_has_the_numbers_of_the_epoch_and_of_its_batches():
    batches = iter(BatchSampler(96, 1))
    sampler = BatchSampler(96, 3)
    for _ in range(5):  # one batch of three, and two indices of the next
        next(batches)
    with Loader(Drawn(), batch_sampler=sampler, rng="sample", num_workers=1) as loader:
        sampler.load_state_dict({**batches.state_dict(), "epoch": 4})
        loader.epoch = sampler.epoch
        assert len(list(loader)) == 31
        slowest = loader.report().dict()["slowest_batches"]
    assert {batch["epoch"] for batch in slowest} == {4}
    assert {batch["seq"] for batch in slowest} <= set(range(1, 32))


class Whole(Drawn):
    """Can also make whole batches, in which samples have no positions."""

    def __getitems__(self, indices):
        raise AssertionError("asked for several at once")

    def fetch_into(self, indices, empty):
        raise AssertionError("asked for a whole batch")


def test_a_dataset_that_makes_whole_batches_is_asked_for_samples():
    with Loader(Whole(), 8, seed=1, rng="sample") as a, Loader(Drawn(), 8, seed=1, rng="sample") as b:
        assert [np.stack(batch).tolist() for batch in a] == [np.stack(batch).tolist() for batch in b]


class Listed:
    def __len__(self):
        return 4

    def __getitems__(self, indices):
        return indices


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        ({1}, {}, "rng='sample' reads samples one by one.*is iterated"),
        (Listed(), {}, "rng='sample'.*Listed has no __getitem__"),
        (range(4), {"batch_sampler": [[1], [2]]}, "batch_sampler \\(list\\) does not tell.*slipring.BatchSampler"),
        (
            range(4),
            {"sampler": type("Odd", (list,), {"rank": 1})([2])},
            "rank=1 must be less than the sampler's world_size",
        ),
    ],
)
def test_if_samples_have_no_position_it_is_refused(dataset, options, said):
    with pytest.raises(ValueError, match=said):
        Loader(dataset, rng="sample", **grouped(**options))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"rng": "sample"}, {}])
def test_an_epoch_may_be_any_kind_of_integer(options):
    sampler = BatchSampler(6, 2, shuffle=True, seed=5)
    sampler.set_epoch(np.int64(1))
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == first
    with Loader(range(6), 2, seed=np.int64(5), **grouped(**options)) as loader:
        loader.epoch = np.int64(1)
        batches = [batch.tolist() for batch in loader]
        assert type(loader.epoch) is int
        loader.epoch = 1
        assert [batch.tolist() for batch in loader] == batches


@pytest.mark.parametrize("epoch", [-1, 1.5, None, True, 1 << 32])
def test_a_value_that_is_no_epoch_is_refused_when_it_is_set(epoch):
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        BatchSampler(6).set_epoch(epoch)
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        Loader(range(6)).epoch = epoch
