"""The batches of a SizedBatchSampler: one size each, each image once, for any ranks and after any resume."""

import random
import re
from collections import Counter

import numpy as np
import pytest

from slipring import images, tokens
from tests.tokens.planned import saved, steps_of

BUCKETS = [(512, 512), (448, 576), (576, 448), (384, 640), (640, 384)]
N = 700
SHAPES = np.random.default_rng(0).integers(60, 900, (N, 2))
LENGTHS = [128, 256, 576, 784, 1024]
KINDS = {
    "aspect": {"images": SHAPES, "sizes": BUCKETS, "batch_size": 6},
    "drawn": {"images": N, "sizes": LENGTHS, "max_tokens": 4096},
    "squares": {"images": N, "sizes": [(160, 160), (224, 224)], "batch_size": 5},
}


def ranks_of(kind, ranks, **options):
    options = {"seed": 3, **KINDS[kind], **options}
    return [images.SizedBatchSampler(rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def check(batches, sampler):
    """Assert that each batch has one size, and not too many images; return all indices."""
    most = dict(zip(sampler.sizes, sampler.batch_sizes))
    for batch in batches:
        (size,) = {size for _, size in batch}
        assert 0 < len(batch) <= most[size]
    return [index for batch in batches for index, _ in batch]


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("kind", KINDS)
def test_any_ranks_continue_at_any_step_with_each_image_once(kind, seed):
    draw = random.Random(seed)
    options = {"window": draw.choice([3, 20, 10_000]), "shuffle": draw.random() < 0.8}
    seen, state = [], None
    while True:
        batches = draw.choice([1, 1, 2, 3])
        samplers = ranks_of(kind, draw.randint(1, 8), batches_per_step=batches, **options)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        iterators = [*map(iter, samplers)]
        most = draw.choice([0, 1, 4, 9, 300])
        steps = steps_of(iterators, most)
        seen += [batch for step in steps for batch in step]
        states = [iterator.state_dict() for iterator in iterators]
        assert len({str({**each, "rank": 0}) for each in states}) == 1
        if len(steps) < most:
            break
        state = saved(draw.choice(states))
    found = check(seen, samplers[0])
    assert set(found) == set(range(N))
    # Only if the last optimizer step has fewer images than batches, some of them are repeated.
    last = check(seen[-len(samplers) * batches :], samplers[0])
    once = len(found) - len(last)
    assert len(set(found[:once])) == once and set(found[:once]).isdisjoint(last)
    assert len(set(last)) == len(last) or len(last) == len(samplers) * batches


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ranks_continue_the_same_batches(kind):
    whole = steps_of([*map(iter, ranks_of(kind, 3, window=10))])
    assert len(whole) == len(ranks_of(kind, 3, window=10)[0])
    for taken in (0, 1, 7, len(whole) - 1, len(whole)):
        iterators = [*map(iter, ranks_of(kind, 3, window=10))]
        assert steps_of(iterators, taken) == whole[:taken]
        resumed = ranks_of(kind, 3, window=10)
        for sampler in resumed:
            sampler.load_state_dict(saved(iterators[1].state_dict()))
        assert steps_of([*map(iter, resumed)]) == whole[taken:]


def test_an_image_is_in_the_bucket_of_the_nearest_aspect_in_every_epoch():
    (sampler,) = ranks_of("aspect", 1)
    for _ in range(2):
        for index, size in (sized for batch in sampler for sized in batch):
            off = [abs(np.log(h / w) - np.log(SHAPES[index][0] / SHAPES[index][1])) for h, w in BUCKETS]
            assert off[BUCKETS.index(size)] == pytest.approx(min(off), abs=1e-12)
    assert len(list(sampler)) == len(sampler)


def test_buckets_of_the_same_aspect_are_represented_by_the_first():
    sampler = images.SizedBatchSampler([(10, 10), (10, 20)], [(8, 8), (4, 4), (4, 8)], batch_size=1, seed=0)
    assert sorted(sized.size for (sized,) in sampler) == [(4, 8), (8, 8)]


def test_drawn_sizes_are_others_in_each_epoch_and_equally_many_batches_have_each():
    sampler = images.SizedBatchSampler(60_000, LENGTHS, max_tokens=8192, seed=0)
    assert sampler.batch_sizes == (64, 32, 14, 10, 8)
    first, second = ({index: size for batch in sampler for index, size in batch} for _ in range(2))
    assert 0.1 < np.mean([first[index] == second[index] for index in first]) < 0.5
    batches = Counter(batch[0].size for batch in sampler)
    assert batches.keys() == set(LENGTHS) and max(batches.values()) < 1.1 * min(batches.values())
    tokens_of = [len(batch) * batch[0].size for batch in sampler]
    assert max(tokens_of) <= 8192 and np.mean(np.array(tokens_of) > 8192 - 784) > 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_drop_last_leaves_only_full_batches(kind):
    samplers = ranks_of(kind, 3, drop_last=True)
    found = [batch for step in steps_of([*map(iter, samplers)]) for batch in step]
    full = dict(zip(samplers[0].sizes, samplers[0].batch_sizes))
    assert found and all(len(batch) == full[batch[0].size] for batch in found)
    indices = check(found, samplers[0])
    assert len(set(indices)) == len(indices)
    report = samplers[0].report(0)
    assert len(indices) + report.dropped + report.left_out == N
    assert list(images.SizedBatchSampler(3, [4], batch_size=4, drop_last=True)) == []


def test_ranks_have_equal_costs_and_the_plan_has_the_sizes():
    samplers = ranks_of("drawn", 4, images=20_000)
    assert samplers[2].report(0).balance < 1.01
    plan, steps = samplers[0].plan(0), steps_of([*map(iter, samplers)])
    packs = [batch for step in steps for batch in step]
    assert [sized.index for batch in packs for sized in batch] == plan.members.tolist()
    assert [sized.size for batch in packs for sized in batch] == [LENGTHS[number] for number in plan.starts]
    assert plan.bounds.tolist() == np.cumsum([0, *map(len, packs)]).tolist()


def test_no_images_make_no_batches():
    for none in (0, [], np.empty((0, 2), int)):
        sampler = images.SizedBatchSampler(none, [(8, 8)], batch_size=2)
        assert len(sampler) == 0 and list(sampler) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"images": [(5, 5), (0, 7)]}, ValueError, "image 1 has the height and width [0, 7]: both must be above 0"),
        ({"images": [(5, 5), (5, -7)]}, ValueError, "image 1 has the height and width [5, -7]"),
        ({"images": [5, 7]}, ValueError, "integers of shape (n, 2), height and width, not int64 of shape (2,)"),
        ({"images": [(5, 7.5)]}, ValueError, "integers of shape (n, 2), height and width, not float64"),
        ({"images": -1}, ValueError, "images must be from 0 to"),
        ({"images": 2.5}, TypeError, "images must be an int, not 2.5"),
        ({"sizes": []}, ValueError, "sizes must have at least one size"),
        ({"sizes": 224}, TypeError, "sizes must be a list of (height, width) or of numbers, not 224"),
        ({"sizes": [(8, 0)]}, ValueError, "each of sizes must be a number of pixels from 1"),
        ({"sizes": [(8, 8, 8)]}, ValueError, "each of sizes must be a number, or height and width"),
        ({"sizes": [(8, 8), 8]}, TypeError, "sizes must be all (height, width), or all numbers"),
        ({"sizes": [(8, 8), (8, 9), (8, 8)]}, ValueError, "sizes must be different from each other, and (8, 8) is"),
        ({"sizes": [8]}, ValueError, "sizes must be (height, width), with the heights and widths of images"),
        ({"batch_size": 0}, ValueError, "batch_size must be from 1"),
        ({"batch_size": None}, ValueError, "give batch_size or max_tokens, and not both"),
        ({"max_tokens": 100}, ValueError, "give batch_size or max_tokens, and not both"),
        ({"batch_size": None, "max_tokens": 9}, ValueError, "max_tokens is for sizes that are numbers"),
        (
            {"images": 5, "sizes": [64, 128], "batch_size": None, "max_tokens": 100},
            ValueError,
            "max_tokens=100 must be at least the largest of sizes, 128",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        images.SizedBatchSampler(**{"images": [(5, 7)], "sizes": BUCKETS, "batch_size": 2, **arguments})


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"batch_size": 7}, "batch_sizes of the state is [6, 6, 6, 6, 6], of this sampler [7, 7, 7, 7, 7]"),
        ({"sizes": BUCKETS[:-1]}, "lengths of the state"),
        ({"images": SHAPES[::-1]}, "lengths of the state"),
        ({"drop_last": True}, "last of the state is 'split', of this sampler 'drop'"),
    ],
)
def test_a_state_of_other_batches_names_what_differs(other, text):
    (sampler,), (different,) = ranks_of("aspect", 1), ranks_of("aspect", 1, **other)
    with pytest.raises(ValueError, match=re.escape(text)):
        different.load_state_dict(saved(iter(sampler).state_dict()))
    padded = tokens.TokenBatchSampler(np.full(N, 5), batch_size=6, seed=0)
    with pytest.raises(ValueError, match="of the state is"):
        sampler.load_state_dict(saved(iter(padded).state_dict()))
    with pytest.raises(ValueError, match=re.escape("this is no state of slipring.images.SizedBatchSampler")):
        sampler.load_state_dict({})
