"""Packs and padded batches of a mixture: its documents, divided and continued as other plans are."""

import itertools
import random
import re
from collections import Counter

import numpy as np
import pytest

from tests.tokens.planned import KINDS, check_limits, flat, lengths, ranks_of, saved, steps_of, steps_of_changing_ranks
from tests.tokens.test_elastic_plans import SIZES, loader_of, read
from tests.tokens.test_mixtures import curriculum, draws, mixed

SOURCES = [1500, 1000, 400, 100]  # SIZES has 3,000
WEIGHTS = [0.5, 0.3, 0.15, 0.05]
CHANGING = {"weights": curriculum, "samples_per_step": 100}


def mixture(sources=SOURCES, **options):
    return mixed(sources, **{"weights": WEIGHTS, **options})[0]


def counts_of(documents, sources=SOURCES):
    """Return how often each document of each source occurs."""
    return np.split(np.bincount(documents, minlength=sum(sources)), np.cumsum(sources)[:-1])


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_together_read_the_documents_of_the_mixture_in_equally_many_batches(kind, ranks):
    for batches, stop in ((1, "first"), (3, "last")):
        of = mixture(stop=stop)
        samplers = ranks_of(kind, SIZES, ranks, batches_per_step=batches, window=100, mixture=of)
        length, steps = len(samplers[0]), steps_of([*map(iter, samplers)])
        assert sorted(flat(steps)) == sorted(of.order(0))
        assert len(steps) == length == samplers[0].report(0).batches
        check_limits([batch for step in steps for batch in step], SIZES, kind.__name__ == "TokenBatchSampler")


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_any_ranks_continue_at_any_step_with_the_documents_of_the_mixture(kind, seed, changes):
    draw = random.Random(seed)
    of = mixture(stop=draw.choice(["first", "last"]), **(CHANGING if changes else {}))
    options = {"window": draw.choice([5, 60, 10_000]), "mixture": of}

    def make():
        return ranks_of(kind, SIZES, draw.randint(1, 8), batches_per_step=draw.choice([1, 1, 2, 4]), **options)

    steps = steps_of_changing_ranks(draw, make, [0, 1, 7, 40, 300])
    seen, expected = Counter(flat(steps)), Counter(of.order(0)[:])
    # If the last step lacks documents, packs of it are repeated.
    assert seen >= expected and seen - expected <= Counter(flat(steps[-4:]))


LARGE = [500_000, 300_000]


def large(weights, ranks=1, stop="first", **options):
    of = mixture(LARGE, weights=weights, stop=stop, **options)
    sizes = lengths(sum(LARGE))
    return ranks_of(KINDS[0], sizes, ranks, max_tokens=100_000, window=50, mixture=of)


@pytest.mark.parametrize("before", [[1, 1], lambda step: [1, 1 + step % 3]])
@pytest.mark.parametrize("after", [[9, 1], lambda step: [1, 9]])
def test_weights_that_are_changed_at_a_resume_hold_after_the_planned_documents(before, after):
    batches = iter(large(before, **({"samples_per_step": 4096} if callable(before) else {}))[0])
    seen = [next(batches) for _ in range(200)]
    size = {"samples_per_step": 4096} if callable(after) else {}
    state = saved(batches.state_dict())
    others = large(after, 2, **size)
    for sampler in others:
        sampler.load_state_dict(state)
    iterators = [*map(iter, others)]
    seen += [batch for step in steps_of(iterators, 60) for batch in step]
    state = saved(iterators[1].state_dict())
    (again,) = large(after, 1, **size)
    again.load_state_dict(state)
    immediately = iter(again)
    again.load_state_dict(saved(immediately.state_dict()))
    rest = list(again)
    seen += rest
    counts = counts_of(flat([seen]), LARGE)
    assert all(count.max() - count.min() <= 1 for count in counts)
    assert any(count.min() == 1 for count in counts)
    late = [len(samples) for samples in draws(flat([rest[-60:]]), LARGE)]
    weights = after(0) if callable(after) else after
    assert late[0] / sum(late) == pytest.approx(weights[0] / sum(weights), abs=0.05)


def test_an_endless_mixture_is_planned_part_by_part():
    (sampler,) = large([1, 3], stop="never")
    batches = iter(sampler)
    for _ in range(1200):
        next(batches)
    state, expected = saved(batches.state_dict()), list(itertools.islice(batches, 400))
    (other,) = large([1, 3], stop="never")
    other.load_state_dict(state)
    assert list(itertools.islice(other, 400)) == expected
    found = [len(samples) for samples in draws(flat([expected]), LARGE)]
    assert found[0] / sum(found) == pytest.approx(0.25, abs=0.02)
    for ask in (lambda: len(sampler), sampler.plan, sampler.report):
        with pytest.raises(TypeError, match="stop='never' has no length"):
            ask()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("options", [{}, CHANGING])
@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_loader_of_packs_of_a_mixture_continues_with_other_ranks(face, options):
    of, seen, state = mixture(stop="last", **options), [], None
    for ranks, count, workers in ((3, 31, 2), (2, 21, 0), (5, None, 2)):
        samplers = ranks_of(KINDS[0], SIZES, ranks, window=100, mixture=of)
        states, each = [], []
        for loader in (loader_of(face, sampler, workers) for sampler in samplers):
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            each.append(read(iterator, count))
            states.append(saved(loader.state_dict()))
            del iterator
            if hasattr(loader, "close"):
                loader.close()
        assert len({len(one) for one in each}) == 1
        seen += flat([each])
        state = states[ranks // 2]
    total = np.zeros(len(SIZES), int)
    for batch in seen:
        for index, count in batch.items():
            total[index] += count
    assert (total == np.bincount(of.order(0), minlength=len(SIZES)) * SIZES).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_documents_is_that_of_the_mixture(kind):
    (sampler,) = ranks_of(kind, [1] * 43, 1, mixture=mixture([3, 40], weights=[1, 0], stop="never"))
    order = sampler.order(1)
    assert sorted(order[:3]) == sorted(order[3:6]) == [0, 1, 2]
    assert sorted(ranks_of(kind, [1] * 43, 1)[0].order(1)) == list(range(43))


def test_a_mixture_that_does_not_fit_is_refused():
    for options, text in [
        ({"mixture": [1, 2]}, "mixture must be a slipring.tokens.MixedSampler, not [1, 2]"),
        ({"mixture": mixture([5, 6], weights=[1, 1])}, "mixture has 11 samples in all sources, lengths are of 3000"),
        ({"mixture": mixture(), "shuffle": False}, "shuffle=False cannot be used with a mixture"),
    ]:
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            ranks_of(KINDS[0], SIZES, 1, **options)


def test_a_state_of_a_plan_of_another_mixture_names_it():
    batches = iter(ranks_of(KINDS[0], SIZES, 1, mixture=mixture())[0])
    next(batches)
    state = saved(batches.state_dict())
    for other in ({}, {"mixture": mixture(stop="last")}, {"mixture": mixture([1000, 1500, 400, 100])}):
        with pytest.raises(ValueError, match="mixture of the state is"):
            ranks_of(KINDS[0], SIZES, 1, **other)[0].load_state_dict(state)
    for wrong in (None, {"from": 0}):
        with pytest.raises(ValueError, match="the state's mixture must be a dict of totals and rates"):
            ranks_of(KINDS[0], SIZES, 1, mixture=mixture())[0].load_state_dict({**state, "mixture": wrong})
