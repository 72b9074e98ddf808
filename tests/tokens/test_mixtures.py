"""A mixture has every sample once per round, in the weights' shares, for any ranks, and continues from any step."""

import itertools
import random
import re
import threading
import types

import numpy as np
import pytest

import slipring
from slipring import tokens
from tests.support.parts import slow
from tests.tokens.planned import flat, saved, steps_of
from tests.tokens.test_bad_plans import DIVIDER, LIBRARIES

SIZES = [300, 1000, 40, 7]
WEIGHTS = [0.5, 0.3, 0.15, 0.05]


def mixed(sizes=SIZES, weights=WEIGHTS, ranks=1, batch_size=4, **options):
    """Return the sampler of each rank."""
    options = {"seed": 3, **options}
    return [tokens.MixedSampler(sizes, weights, batch_size, rank=r, world_size=ranks, **options) for r in range(ranks)]


def order(n, sizes=SIZES, weights=WEIGHTS, **options):
    """Return the first n indices of an endless epoch."""
    return mixed(sizes, weights, **{"stop": "never", **options})[0].order(0)[:n]


def in_order(steps):
    """Return the indices of steps in the order of all ranks."""
    return [index for step in steps for row in itertools.zip_longest(*step) for index in row if index is not None]


def draws(indices, sizes=SIZES):
    """Return the samples of each source in the order in which they are drawn."""
    sources, samples = tokens.MixedSampler(sizes, [1] * len(sizes)).locate(indices)
    return [samples[sources == source].tolist() for source in range(len(sizes))]


def check_rounds(indices, sizes=SIZES):
    """Assert that each round of a source has each of its samples once."""
    for size, samples in zip(sizes, draws(indices, sizes)):
        for first in range(0, len(samples), size):
            part = samples[first : first + size]
            assert len(set(part)) == len(part) and (len(part) < size or sorted(part) == list(range(size)))


def deviations(indices, weights, sizes=SIZES):
    """Return by how much each source's number of samples differs from its share, after each sample."""
    sources, _ = tokens.MixedSampler(sizes, [1] * len(sizes)).locate(indices)
    counts = np.cumsum(sources[:, None] == np.arange(len(sizes)), axis=0)
    weights = np.broadcast_to(weights, counts.shape)
    return counts - np.cumsum(weights, axis=0)


@pytest.mark.parametrize("seed", range(12))
def test_each_round_has_each_sample_once_and_shares_hold_after_every_sample(seed):
    draw = np.random.default_rng(seed)
    k = int(draw.integers(1, 12))
    sizes, weights = draw.integers(1, 3000, k).tolist(), draw.random(k) ** 3
    weights[1:] *= draw.random(k - 1) > 0.2
    indices = order(30_000, sizes, (weights * 7).tolist(), seed=seed)
    check_rounds(indices, sizes)
    weights /= weights.sum()
    assert (np.abs(deviations(indices, weights, sizes)) < 1 + weights * max(0, k - 2) + 1e-6).all()
    assert not any(samples for samples, weight in zip(draws(indices, sizes), weights) if not weight)


@pytest.mark.parametrize("size", [1, 8, 100, 5000])
def test_weights_that_change_by_the_step_hold_after_every_sample(size):
    weights = np.random.default_rng(0).random((30_000 // size + 2, 4)) + 0.01
    weights[3::7, 1] = 0
    weights /= weights.sum(1, keepdims=True)
    indices = order(20_000, weights=lambda step: weights[step], samples_per_step=size)
    check_rounds(indices)
    assert np.abs(deviations(indices, np.repeat(weights, size, axis=0)[:20_000])).max() < 1 + 4 * weights.max()


def test_epochs_seeds_and_rounds_have_other_orders_and_the_same_ones_repeat():
    (sampler,) = mixed()
    first, second = list(sampler), list(sampler)
    assert first != second and sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(mixed(seed=4)[0]) != first
    rounds = draws(order(4000))[2]
    assert rounds[:40] != rounds[40:80]
    given = draws(order(4000, shuffle=False))
    assert given == [[at % size for at in range(len(one))] for one, size in zip(given, SIZES)]


@pytest.mark.parametrize("stop", ["first", "last"])
@pytest.mark.parametrize("weights", [WEIGHTS, [1, 0, 2, 1], lambda step: [1, 1 + step % 3, 0.1 * (step % 2), 0.02]])
def test_an_epoch_stops_at_the_end_of_the_first_or_of_the_last_source(weights, stop):
    options = {"samples_per_step": 50} if callable(weights) else {}
    (sampler,) = mixed(weights=weights, batch_size=1, stop=stop, **options)
    n = len(sampler)
    indices = flat([list(sampler)])
    assert len(indices) == n == len(sampler.order(0)) and indices == sampler.order(0)[:]
    counts = [len(samples) for samples in draws(indices)]
    ended = [count >= size for count, size in zip(counts, SIZES)]
    drawn = [count > 0 for count in counts]
    assert any(ended) if stop == "first" else ended == drawn
    last = int(sampler.locate(indices[-1:])[0][0])
    assert counts[last] == SIZES[last]
    assert sum(ended) == 1 or stop == "last"


def test_an_endless_mixture_has_no_length():
    (sampler,) = mixed(stop="never")
    with pytest.raises(TypeError, match="stop='never' has no length"):
        len(sampler)
    assert len(list(itertools.islice(sampler, 5000))) == 5000


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_divide_the_same_order_in_equally_many_batches(ranks, drop_last):
    samplers = mixed(ranks=ranks, stop="last", drop_last=drop_last)
    whole = samplers[0].order(0)
    length, steps = len(samplers[0]), steps_of([*map(iter, samplers)])
    indices, n = in_order(steps), len(whole)
    assert len(steps) == length == (n // (4 * ranks) if drop_last else -(-n // (4 * ranks)))
    assert len({len(batch) for step in steps[-1:] for batch in step}) == 1
    assert indices[:n] == whole[: len(indices)]
    assert len(indices) == (len(steps) * 4 * ranks if drop_last else n + -n % ranks)
    check_rounds(indices)  # the mixture continues in the last step


def curriculum(step):
    return [1 + step % 9, 5, 4 / (1 + step % 9), 1]


@pytest.mark.parametrize("stop", ["first", "last", "never"])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_any_ranks_continue_the_same_order_at_any_step(seed, changes, stop):
    draw = random.Random(seed)
    options = {"stop": stop, "weights": WEIGHTS}
    if changes:
        options |= {"weights": curriculum, "samples_per_step": 100}
    whole = mixed(**options)[0].order(0)
    n = 9000 if stop == "never" else len(whole)
    seen, state = [], None
    while len(seen) < n:
        samplers = mixed(ranks=draw.randint(1, 8), batch_size=draw.randint(1, 9), **options)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        iterators = [*map(iter, samplers)]
        most = draw.choice([0, 1, 7, 40, 100])
        steps = steps_of(iterators, most)
        seen += in_order(steps)
        if len(steps) < most:
            break
        states = [iterator.state_dict() for iterator in iterators]
        assert len({str({**each, "rank": 0}) for each in states}) == 1
        state = saved(draw.choice(states))
    assert seen[:n] == whole[:n]
    assert len(seen) < n + 8 or stop == "never"
    check_rounds(seen)


@pytest.mark.parametrize("before", [WEIGHTS, curriculum])
@pytest.mark.parametrize("after", [[0.1, 0.1, 0.1, 0.7], [0, 0, 1, 0], lambda step: [1, step + 1, 0.1, 0.1]])
def test_weights_that_are_changed_at_a_resume_hold_from_there_on(before, after):
    (sampler,) = mixed(weights=before, stop="never", **({"samples_per_step": 64} if callable(before) else {}))
    batches = iter(sampler)
    seen = flat([list(itertools.islice(batches, 777))])
    size = {"samples_per_step": 100} if callable(after) else {}
    samplers = mixed(weights=after, stop="never", ranks=3, **size)
    for each in samplers:
        each.load_state_dict(saved(batches.state_dict()))
    rest = in_order(steps_of([*map(iter, samplers)], 500))
    check_rounds(seen + rest)
    late, at = rest[128 + len(SIZES) :], 777 * 4 + 128 + len(SIZES)
    each = [after(n // 100) if callable(after) else after for n in range(at, at + len(late))]
    each /= np.sum(each, axis=1, keepdims=True)
    assert np.abs(deviations(late, each)).max() < 2 * (1 + 4 * each.max())


def test_a_changed_mixture_stops_where_its_own_rule_says():
    (sampler,) = mixed(stop="never")
    batches = iter(sampler)
    seen = flat([list(itertools.islice(batches, 50))])
    for stop, weights in (("first", [1, 0, 0, 0]), ("last", [1, 1, 0, 1])):
        (other,) = mixed(weights=weights, stop=stop, batch_size=1)
        other.load_state_dict(saved(batches.state_dict()))
        rest = flat([list(other)])
        counts = [len(samples) for samples in draws(seen + rest)]
        last = int(other.locate(rest[-1:])[0][0]) if rest else 3
        assert counts[last] == SIZES[last] or stop == "first"
        assert stop == "first" or all(counts[source] >= SIZES[source] for source in (0, 1, 3))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_mixture_that_has_stopped_continues_after_its_last_sample(ranks):
    passes = [*map(iter, mixed([31, 500], [1, 3], ranks, 8))]
    seen = in_order(steps_of(passes))
    (other,) = mixed([31, 500], [1, 3], batch_size=1, stop="never")
    other.load_state_dict(saved(passes[0].state_dict()))
    rest = [index for (index,) in itertools.islice(other, 500)]
    assert len(seen) % (8 * ranks) and seen + rest == order(len(seen) + 500, [31, 500], [1, 3])


def test_shares_of_tokens_are_exact_after_whole_rounds():
    lengths = [np.random.default_rng(seed).integers(1, most, n) for seed, (most, n) in enumerate([(9, 200), (900, 50)])]
    (sampler,) = mixed(lengths, [3, 1], by="token", stop="never")
    each = np.concatenate(lengths)
    indices = sampler.order(0)[:400_000]
    sources, _ = sampler.locate(indices)
    found = [each[indices][sources == source].sum() for source in range(2)]
    assert found[0] / sum(found) == pytest.approx(0.75, abs=0.002)
    shares = np.array([3 / lengths[0].mean(), 1 / lengths[1].mean()])
    assert sampler.weights == pytest.approx(shares / shares.sum())


def test_a_source_and_its_index_are_those_of_a_concatenation():
    torch = pytest.importorskip("torch")
    parts = [[(source, i) for i in range(size)] for source, size in enumerate(SIZES)]
    both = torch.utils.data.ConcatDataset(parts)
    (sampler,) = mixed()
    indices = [*next(iter(sampler)), 0, 299, 300, len(both) - 1]
    sources, samples = sampler.locate(indices)
    assert [both[index] for index in indices] == [*zip(sources, samples)]
    assert [len(each) for each in sampler.locate([])] == [0, 0]
    for wrong in (-1, len(both)):
        with pytest.raises(IndexError, match=f"from 0 to {len(both) - 1}, not {wrong}"):
            sampler.locate([0, wrong])
    with pytest.raises(TypeError, match="indices must be integers, not float64"):
        sampler.locate([1.5])


def test_a_resume_of_an_endless_mixture_computes_nothing_before_its_place():
    asked = []

    def weights(step):
        asked.append(step)
        return [1 + step % 5, 1]

    (sampler,) = mixed([10**9, 10**7], weights, batch_size=1000, stop="never", samples_per_step=1000)
    batches = iter(sampler)
    for _ in range(300):
        next(batches)
    state, expected = batches.state_dict(), next(batches)
    asked.clear()
    sampler.load_state_dict(state)
    assert next(iter(sampler)) == expected
    assert min(asked) > 290


# ---- loaders


class Samples:
    """Sample i is i."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.int64(i)


def loader(face, sampler, workers):
    if face == "slipring":
        return slipring.Loader(Samples(sum(SIZES)), batch_sampler=sampler, num_workers=workers)
    torch = pytest.importorskip("slipring.torch", exc_type=ImportError)
    return torch.DataLoader(Samples(sum(SIZES)), batch_sampler=sampler, num_workers=workers)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("workers", [0, slow(1), 2, slow(3), slow(4)])
@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_loader_continues_the_order_with_other_ranks_and_workers(face, workers, changes):
    options = {"stop": "last", "weights": WEIGHTS}
    if changes:
        options |= {"weights": curriculum, "samples_per_step": 40}
    whole, seen, state = mixed(**options)[0].order(0)[:], [], None
    for ranks, size, count, number in ((3, 4, 31, workers), (2, 7, 21, 4 - workers), (5, 2, None, workers)):
        loaders = [loader(face, sampler, number) for sampler in mixed(ranks=ranks, batch_size=size, **options)]
        states, each = [], []
        for one in loaders:
            if state is not None:
                one.load_state_dict(state)
            iterator = iter(one)
            each.append([np.asarray(batch).tolist() for batch in itertools.islice(iterator, count)])
            states.append(saved(one.state_dict()))
            del iterator
            if hasattr(one, "close"):
                one.close()
        seen += in_order(zip(*each, strict=True))
        state = states[ranks // 2]
    assert seen[: len(whole)] == whole and len(seen) < len(whole) + 5


def test_torchs_own_loader_reads_a_mixture():
    torch = pytest.importorskip("torch")
    (sampler,) = mixed()
    own = torch.utils.data.DataLoader(Samples(sum(SIZES)), batch_sampler=sampler)
    length, found = len(own), [batch.tolist() for batch in own]
    assert length == len(found)
    sampler.set_epoch(0)
    assert found == list(sampler)


# ---- refusals


@pytest.mark.parametrize(
    ("sources", "weights", "options", "text"),
    [
        ([], [], {}, "sources must be a number of samples or an array of lengths for each"),
        (7, [1], {}, "sources must be a number of samples or an array of lengths for each, not 7"),
        ([5, 0], [1, 1], {}, "sources[1] must be from 1 to"),
        ([5, []], [1, 1], {}, "sources[1]"),
        ([5, 2.5], [1, 1], {}, "sources[1] must be an int, not 2.5"),
        ([5, 6], [1], {}, "weights must have a number for each of 2 sources, not 1"),
        ([5, 6], 3, {}, "weights must be a list of numbers, one for each source, not 3"),
        ([5, 6], [1, "a"], {}, "weights must be a list of numbers"),
        ([5, 6], {0: 3, 1: 1}, {}, "weights must be a list of numbers, one for each source, not {0: 3, 1: 1}"),
        ([5, 6], {3, 1}, {}, "weights must be a list of numbers, one for each source, not {1, 3}"),
        ([5, 6], [1, -0.5], {}, "the weight of source 1 is -0.5: it must be finite and not negative"),
        ([5, 6], [float("nan"), 1], {}, "the weight of source 0 is nan"),
        ([5, 6], [1, float("inf")], {}, "the weight of source 1 is inf"),
        ([5, 6], [0, 0], {}, "weights sum to 0: at least one source needs a weight"),
        ([5, 6], [1, 1], {"by": "token"}, "by='token' needs the length of each sample: sources[0] must be an array"),
        ([[5], [3, 0]], [1, 1], {"by": "token"}, "sources[1]: sample 1 has 0 tokens"),
        ([5, 6], [1, 1], {"by": "pixel"}, "by must be one of 'sample', 'token'"),
        ([5, 6], [1, 1], {"stop": "end"}, "stop must be one of 'first', 'last', 'never'"),
        ([5, 6], [1, 1], {"samples_per_step": 4}, "samples_per_step needs a function of the step"),
        ([5, 6], lambda step: [1, 1], {}, "weights are a function of the step: give samples_per_step"),
    ],
)
def test_a_bad_mixture_is_refused_with_the_source_and_the_number(sources, weights, options, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        tokens.MixedSampler(sources, weights, **options)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([1, 2, 3], "weights of step 7 must have a number for each of 4 sources, not 3"),
        ([1, 2, 3, -1], "weights of step 7: the weight of source 3 is -1.0"),
        (None, "weights of step 7 must be a list of numbers, one for each source, not None"),
        ([0, 0, 0, 0], "weights of step 7 sum to 0"),
    ],
)
def test_a_function_that_returns_no_weights_is_refused_with_the_step(wrong, text):
    (sampler,) = mixed(weights=lambda step: WEIGHTS if step < 7 else wrong, samples_per_step=1000, stop="never")
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        list(itertools.islice(sampler, 2000))


def test_a_source_that_never_ends_is_named():
    (sampler,) = mixed(weights=lambda step: [1, 1, 0, 1], samples_per_step=1 << 20, stop="last")
    with pytest.raises(ValueError, match=r"source 2 has weight 0 from sample \d+ to \d+ and has not ended"):
        len(sampler)


def test_states_of_other_mixtures_are_refused():
    (sampler,) = mixed()
    batches = iter(sampler)
    next(batches)
    state = saved(batches.state_dict())
    there = state["mixture"]
    with pytest.raises(ValueError, match="source 2 of the state has 40 samples, of this mixture 41"):
        mixed([300, 1000, 41, 7])[0].load_state_dict(state)
    with pytest.raises(ValueError, match="order='mixed, shuffled', this sampler has 'mixed, given'"):
        mixed(shuffle=False)[0].load_state_dict(state)
    for wrong, text in [
        ({}, "this is no state of slipring.tokens.MixedSampler"),
        (3, "a state must be a dict"),
        ({**state, "sizes": 3}, "the state's sizes must be those of 4 sources"),
        ({**state, "mixture": None}, "must have the mixture there, not None"),
        ({**state, "mixture": 3}, "the state's mixture must be a dict"),
        ({**state, "mixture": {**there, "from": 3}}, "multiples of 64"),
        ({**state, "mixture": {**there, "whole": [1, 2, 3]}}, "whole must be 4 integers"),
        ({**state, "mixture": {**there, "whole": [1, 2, 3, -1]}}, "whole must be from 0"),
        ({**state, "mixture": {**there, "rates": []}}, "rates must be lists"),
        ({**state, "mixture": {**there, "rates": [[0, 1, 1, 1, 1]]}}, "rates must sum to"),
        ({**state, "mixture": {**there, "rates": [[5, *there["rates"][0][1:]]]}}, "rates must begin in order from 0"),
    ]:
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            sampler.load_state_dict(wrong)


def test_a_state_that_another_thread_asks_for_does_not_disturb_the_order():
    def make(**options):
        return mixed([10**6, 10**5], lambda step: [1 + step % 7, 1], batch_size=64, stop="never", **options)[0]

    expected, sampler = list(itertools.islice(make(samples_per_step=8), 1500)), make(samples_per_step=8)
    batches, states, over = iter(sampler), [], threading.Event()
    found = [next(batches)]

    def ask():
        while not over.is_set():
            states.append(batches.state_dict())

    asking = threading.Thread(target=ask)
    asking.start()
    found += itertools.islice(batches, 1499)
    over.set()
    asking.join()
    assert found == expected and states
    for state in (states[0], states[-1]):
        other = make(samples_per_step=8)
        other.load_state_dict(saved(state))
        at = state["position"] // 64
        assert next(iter(other)) == (expected[at] if at < 1500 else next(batches))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_would_divide_a_ranks_part_of_a_mixture_is_refused(library):
    module = types.ModuleType(library)
    exec(DIVIDER.replace("ranks", LIBRARIES[library]), vars(module))
    for options in ({"rank": 1, "world_size": 2}, {}):
        with pytest.raises(ValueError, match="MixedSampler has "):
            module.Divider().read(tokens.MixedSampler(SIZES, WEIGHTS, **options))
    assert module.Divider().read(tokens.MixedSampler(SIZES, WEIGHTS, seed=0))
