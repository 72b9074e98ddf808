"""An epoch that n ranks begin and m ranks finish: with samplers alone, and with slipring.Loader."""

import copy
import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipring
from slipring import BatchSampler, Loader, StringList
from tests.support.datasets import Made, Numbers, flat
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
    """Return the steps as docs/randomness.md defines them: the next samples of one order."""
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
@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_steps_stay_the_same_for_any_ranks_if_a_step_is_as_large(n, way, drop_last):
    for m in (1, 2, 6):
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


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"samples": 7}, ValueError, "samples=7.*has 203.*same indices"),
        ({"order": "drawn"}, ValueError, "order='drawn'.*has 'shuffled'"),
        ({"position": 1 << 80}, ValueError, "the state's position "),
        ({"position": True}, TypeError, "the state's position "),
        ({"epoch": -1}, ValueError, "the state's epoch "),
        ({"epoch": None}, TypeError, "the state's epoch "),
        ({"seed": 1 << 64}, ValueError, "the state's seed "),
        ({"seed": []}, TypeError, "the state's seed "),
        ({"": 0}, ValueError, "no state of slipring.BatchSampler.*position"),
        ("text", TypeError, "must be a dict.*'text'"),
    ],
    ids=str,
)
def test_states_of_something_else_are_refused(change, error, said):
    (sampler,) = samplers(1, 4, shuffle=True)
    state = change
    if isinstance(change, dict):
        state = {**iter(sampler).state_dict(), **change}
    if change == {"": 0}:
        del state["position"]
    for load in (sampler.load_state_dict, iter(sampler).load_state_dict):
        with pytest.raises(error, match=said):
            load(state)


KEPT = [range(5, 35), [*range(5, 35)], (*range(5, 35),), np.arange(5, 35), np.arange(5, 35, dtype=np.uint8)]


@pytest.mark.parametrize(("saved", "loaded"), list(zip(KEPT, [*KEPT[1:], KEPT[0]])))
def test_the_same_numbers_are_the_same_indices_however_they_are_kept(saved, loaded):
    state = json.loads(json.dumps(after(BatchSampler(saved, 7), 1)))
    sampler = BatchSampler(loaded, 4)
    sampler.load_state_dict(state)
    assert flat(sampler) == list(range(12, 35))


def test_indices_without_numbers_or_text_are_known_by_their_length():
    def kept():
        return Numbers(4), [b"a", b"b"], np.array([object()] * 4)

    for saved, loaded in zip(kept(), kept()):
        sampler = BatchSampler(loaded, 1, shuffle=True)
        sampler.load_state_dict(after(BatchSampler(saved, 1, shuffle=True), 1))
        assert len(list(sampler)) == len(loaded) - 1


class Mixture:
    """A sequence of a user's class: the index at a position is `indices(position)`. It counts those that are read."""

    def __init__(self, n, indices):
        self.n, self.indices, self.read = n, indices, 0

    def __len__(self):
        return self.n

    def __getitem__(self, position):
        self.read += 1
        return self.indices(position)


class Named(Mixture):
    name = "seven to three"

    def fingerprint(self):
        return self.name


def test_a_state_of_another_sequence_of_a_users_class_is_refused():
    saved = [7 * i % 10 for i in range(10)]
    state = json.loads(json.dumps(after(BatchSampler(Mixture(10, saved.__getitem__), 2), 1)))
    for same in (Mixture(10, saved.__getitem__), saved, np.array(saved)):
        sampler = BatchSampler(same, 2)
        sampler.load_state_dict(state)
        assert flat(sampler) == saved[2:]
    for other in (Mixture(10, lambda i: 3 * i % 10), Mixture(10, lambda i: str(saved[i])), range(10)):
        with pytest.raises(ValueError, match="other indices"):
            BatchSampler(other, 2).load_state_dict(state)


KINDS_OF_INDICES = {
    "arrays of floats": lambda order: np.array(order, np.float32),
    "bytes": lambda order: [bytes([i]) for i in order],
    "bytes in an array": lambda order: np.array([bytes([i + 1]) for i in order]),
    "paths": lambda order: [Path(str(i)) for i in order],
    "times": lambda order: np.array(order, "datetime64[D]"),
    "tuples": lambda order: [(np.int64(i), 0) for i in order],
    "single numbers in arrays": lambda order: [np.array([i]) for i in order],
}


@pytest.mark.parametrize("kind", KINDS_OF_INDICES)
def test_a_state_of_other_indices_of_any_kind_is_refused(kind):
    indices = KINDS_OF_INDICES[kind]
    state = json.loads(json.dumps(after(BatchSampler(indices([5, 3, 1, 0]), 2), 1)))
    BatchSampler(indices([5, 3, 1, 0]), 2).load_state_dict(state)
    with pytest.raises(ValueError, match="other indices"):
        BatchSampler(indices([5, 3, 0, 1]), 2).load_state_dict(state)


def test_a_fingerprint_identifies_a_users_sequence_which_is_not_read():
    sampler = BatchSampler(Named(10, lambda i: i), 2)
    state = json.loads(json.dumps(iter(sampler).state_dict()))
    BatchSampler(Named(10, lambda i: -i), 2).load_state_dict(state)
    assert sampler.indices.read == 0
    other = Named(10, lambda i: i)
    other.name = "nine to one"
    with pytest.raises(ValueError, match="other indices"):
        BatchSampler(other, 2).load_state_dict(state)
    other.name = None
    with pytest.raises(TypeError, match=r"fingerprint\(\).*str, not None"):
        BatchSampler(other, 2).load_state_dict(state)


def test_a_state_reads_few_indices_of_a_long_sequence_and_once():
    n = 10**9
    sampler, other = (BatchSampler(Mixture(n, lambda i, by=by: by * i), 2, shuffle=True, seed=1) for by in (1, -1))
    passes = iter(sampler)
    states = [passes.state_dict(), next(passes) and passes.state_dict()]
    assert sampler.indices.read <= 2000
    with pytest.raises(ValueError, match="other indices"):
        other.load_state_dict(states[1])
    same = BatchSampler(Mixture(n, lambda i: i), 2, shuffle=True, seed=1)
    same.load_state_dict(states[1])
    assert next(iter(same)) == next(passes)
    short = BatchSampler(Mixture(n - 1, lambda i: i), 2, num_samples=n)
    with pytest.raises(ValueError, match="other indices"):
        short.load_state_dict(iter(BatchSampler(Mixture(n, lambda i: i), 2, num_samples=n)).state_dict())


W = [1.0, 2.0, 3.0, 4.0] * 7 + [0.5, 0.25]


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        ({}, {"indices": range(1, 31)}, "other indices"),
        ({}, {"indices": list(range(29, -1, -1))}, "other indices"),
        ({"indices": [4, 3, 9]}, {"indices": [3, 4, 9]}, "other indices"),
        ({"indices": np.array([5, 5, 5])}, {"indices": np.array([6, 6, 6])}, "other indices"),
        ({"indices": [("a", 1), ("b", 2)]}, {"indices": [("a", 1), ("b", 3)]}, "other indices"),
        ({"indices": StringList(["a", "b"])}, {"indices": StringList(["b", "a"])}, "other indices"),
        ({"shuffle": True}, {"shuffle": True, "indices": range(1, 31)}, "other indices"),
        ({"num_samples": 12}, {"num_samples": 12, "indices": 31}, "other indices"),
        ({"weights": W, "num_samples": 12}, {"num_samples": 12}, "other weights"),
        ({"num_samples": 12}, {"weights": W, "num_samples": 12}, "other weights"),
        ({"weights": W}, {"weights": [*W[:-1], W[-1] + 1e-9]}, "other weights"),
    ],
    ids=str,
)
def test_a_state_of_an_order_of_the_same_length_is_refused_all_the_same(saved, loaded, said):
    sampler = BatchSampler(**{"indices": 30, "batch_size": 4, "seed": np.int64(5), **saved})
    state = json.loads(json.dumps(after(sampler, 2)))
    same = BatchSampler(**{"indices": 30, "batch_size": 4, **saved})
    same.load_state_dict(state)
    other = BatchSampler(**{"indices": 30, "batch_size": 4, **loaded})
    for load in (other.load_state_dict, iter(other).load_state_dict):
        with pytest.raises(ValueError, match=f"{said} than this sampler's.*Resume with the same"):
            load(state)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("way", WAYS[2:], ids=list)
@pytest.mark.parametrize(("n", "size", "m", "other"), [(2, 5, 3, 4), (8, 2, 5, 7)])
def test_a_drawn_order_is_given_out_to_its_end_with_steps_of_another_size(n, size, m, other, way, drop_last):
    first = samplers(n, size, drop_last=drop_last, **way)
    order = list(first[0].order(0))
    (state, *_), seen = begun(first, 0, 3)
    assert state["position"] == 3 * n * size
    resumed = samplers(m, other, drop_last=drop_last, **{**way, "seed": None})
    for sampler in resumed:
        sampler.load_state_dict({key: np.int64(value) if type(value) is int else value for key, value in state.items()})
    assert seen == expected(order, n, n * size, drop_last)[:3]
    assert steps(resumed) == expected(order, m, m * other, drop_last, state["position"])


def drawn(i):
    return i, random.random(), np.random.rand(), slipring.rng().random(), slipring.rng().random()


class Whole(Made):
    """Can also make whole batches, in which samples have no positions."""

    def __getitems__(self, indices):
        raise AssertionError("asked for several at once")

    def fetch_into(self, indices, empty):
        raise AssertionError("asked for a whole batch")


def test_a_dataset_that_makes_whole_batches_is_asked_for_samples():
    with (
        Loader(Whole(drawn, 96), 8, seed=1, rng="sample") as a,
        Loader(Made(drawn, 96), 8, seed=1, rng="sample") as b,
    ):
        assert [np.stack(batch).tolist() for batch in a] == [np.stack(batch).tolist() for batch in b]


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        ({1}, {}, "rng='sample' reads samples one by one.*is iterated"),
        (range(4), {"batch_sampler": [[1], [2]]}, "batch_sampler \\(list\\) does not tell.*slipring.BatchSampler"),
    ],
)
def test_if_samples_have_no_position_it_is_refused(dataset, options, said):
    with pytest.raises(ValueError, match=said):
        Loader(dataset, rng="sample", **grouped(**options))


@pytest.mark.parametrize("epoch", [-1, 1.5, True, 1 << 32])
def test_a_value_that_is_no_epoch_is_refused_when_it_is_set(epoch):
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        BatchSampler(6).set_epoch(epoch)
    with pytest.raises((TypeError, ValueError), match="epoch must be"):
        Loader(range(6)).epoch = epoch
