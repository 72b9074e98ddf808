"""The plan of an epoch: every document once, no limit exceeded, and ranks with equal costs."""

import numpy as np
import pytest

import slipring
from slipring import tokens
from tests.tokens.planned import KINDS, check_limits, flat, lengths, ranks_of, steps_of, tokens_of

SIZES = lengths(3000)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_together_read_each_document_once_in_equally_many_batches(kind, ranks):
    for batches in (1, 3):
        steps = steps_of([*map(iter, ranks_of(kind, SIZES, ranks, batches_per_step=batches, window=100))])
        assert sorted(flat(steps)) == list(range(len(SIZES)))
        assert len(steps) % batches == 0
        check_limits([batch for step in steps for batch in step], SIZES, kind is tokens.TokenBatchSampler)
        assert len(steps) == len(kind(SIZES, max_tokens=256, seed=3, world_size=ranks, batches_per_step=batches))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_a_rank_is_the_plans_pack_of_its_position(kind):
    samplers = ranks_of(kind, SIZES, 3, batches_per_step=2, window=50)
    plan = samplers[0].plan()
    packs = [plan.members[a:b].tolist() for a, b in zip(plan.bounds, plan.bounds[1:])]
    assert [batch for step in steps_of([*map(iter, samplers)]) for batch in step] == packs
    assert (plan.stops - plan.starts == SIZES[plan.members]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_packs_are_the_same_for_any_number_of_ranks_but_the_last_steps(kind):
    def packs(ranks):
        steps = steps_of([*map(iter, ranks_of(kind, SIZES, ranks, last="drop"))])
        return {tuple(batch) for step in steps for batch in step}

    assert len(packs(1) - packs(8)) < 8
    assert packs(8) <= packs(1)


def test_epochs_and_seeds_have_other_plans_and_the_same_ones_repeat():
    sampler = tokens.PackedSampler(SIZES, 256, seed=1)
    first, second = list(sampler), list(sampler)
    assert first != second and sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(tokens.PackedSampler(SIZES, 256, seed=2)) != first
    given = tokens.PackedSampler(SIZES, 256, seed=1, shuffle=False)
    assert list(given) == list(given)


def test_lengths_of_any_container_make_the_same_plan(tmp_path):
    expected = list(tokens.PackedSampler(SIZES, 256, seed=0))
    np.save(tmp_path / "lengths.npy", SIZES)
    bounds = np.concatenate([[7], 7 + np.cumsum(SIZES, dtype=np.int64)])
    assert list(tokens.PackedSampler(SIZES.tolist(), 256, seed=0)) == expected
    assert list(tokens.PackedSampler(np.load(tmp_path / "lengths.npy", mmap_mode="r"), 256, seed=0)) == expected
    assert list(tokens.PackedSampler(bounds, 256, seed=0, cumulative=True)) == expected


def test_columns_of_arrow_are_lengths():
    arrow = pytest.importorskip("pyarrow")
    expected = list(tokens.PackedSampler(SIZES, 256, seed=0))
    assert list(tokens.PackedSampler(arrow.array(SIZES), 256, seed=0)) == expected
    assert list(tokens.PackedSampler(arrow.chunked_array([SIZES[:9], SIZES[9:]]), 256, seed=0)) == expected
    lists = arrow.array([[0] * size for size in SIZES[:200].tolist()])
    packs = list(tokens.PackedSampler(lists.offsets, 256, seed=0, cumulative=True))
    assert packs == list(tokens.PackedSampler(SIZES[:200], 256, seed=0))


@pytest.mark.parametrize("overflow", ["drop", "truncate", "split"])
@pytest.mark.parametrize("multiple", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_documents_above_the_budget_are_treated_as_told_and_counted(kind, multiple, overflow):
    sizes = lengths(2000, most=5000, mean=5.0)
    options = {"max_tokens": 200, "overflow": overflow, "document_multiple_of": multiple}
    sampler = kind(sizes, seed=0, **options)
    batches, report = list(sampler), sampler.report(0)
    check_limits(batches, sizes, kind is tokens.TokenBatchSampler, 200, multiple)
    most = 200 // multiple * multiple
    long, whole = np.flatnonzero(sizes > most), np.flatnonzero(sizes <= most)
    expected = {(index, 0, int(sizes[index])) for index in whole.tolist()}
    if overflow == "truncate":
        expected |= {(index, 0, most) for index in long.tolist()}
    elif overflow == "split":
        expected |= {(i, at, min(at + most, int(sizes[i]))) for i in long.tolist() for at in range(0, sizes[i], most)}
    found = [tokens_of(member, sizes) for batch in batches for member in batch]
    assert sorted(found) == sorted(expected)
    counts = {"dropped": report.dropped, "truncated": report.truncated, "split": report.split}
    assert counts == {
        "dropped": 0,
        "truncated": 0,
        "split": 0,
        {"drop": "dropped", "truncate": "truncated"}.get(overflow, overflow): len(long),
    }
    assert report.tokens == sum(stop - start for _, start, stop in expected)
    padded = sum(-(-(stop - start) // multiple) * multiple for _, start, stop in expected)
    assert kind is tokens.TokenBatchSampler or report.padding == padded - report.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_further_limits_hold_too(kind):
    images = np.random.default_rng(1).integers(0, 5, len(SIZES))
    most = {"max_documents": 4} if kind is tokens.PackedSampler else {"batch_size": 4}
    batches = list(kind(SIZES, max_tokens=256, seed=0, limits={"images": (images, 6)}, **most))
    check_limits(batches, SIZES, kind is tokens.TokenBatchSampler, most=4)
    assert max(images[batch].sum() for batch in batches) <= 6
    assert sorted(flat([batches])) == list(range(len(SIZES)))
    left = list(kind(SIZES, max_tokens=256, seed=0, limits={"images": (images, 3)}, overflow="drop"))
    assert sorted(flat([left])) == np.flatnonzero(images <= 3).tolist()


def test_padded_batches_have_the_given_number_of_documents_of_similar_lengths():
    sampler = tokens.TokenBatchSampler(SIZES, batch_size=8, seed=0)
    batches = list(sampler)
    assert {len(batch) for batch in batches} == {8}
    assert sampler.report(0).fill > 0.97
    assert sampler.report(0).padding == sum(8 * SIZES[batch].max() - SIZES[batch].sum() for batch in batches)


def test_the_last_step_is_divided_dropped_or_repeated():
    sizes = lengths(500)
    counts = {}
    for last in ("split", "drop", "repeat"):
        steps = steps_of([*map(iter, ranks_of(tokens.PackedSampler, sizes, 8, last=last))])
        report = tokens.PackedSampler(sizes, 256, world_size=8, seed=3, last=last).report()
        members = flat(steps)
        counts[last] = report.batches
        assert len(steps) == report.batches
        assert report.left_out == len(sizes) - len(set(members)) and (last == "drop") == bool(report.left_out)
        assert (len(members) > len(set(members))) == bool(report.repeated) == (last == "repeat")
    assert counts["drop"] + 1 == counts["split"] == counts["repeat"]


def test_documents_without_costs_are_divided_among_the_ranks_of_the_last_step_too():
    steps = steps_of([*map(iter, ranks_of(tokens.PackedSampler, [1] * 40, 8, cost=(0.0, 0.0)))])
    assert sorted(flat(steps)) == list(range(40))
    assert len(steps) == 1 and all(batch for batch in steps[0])


def test_fewer_documents_than_ranks_are_repeated_and_that_is_reported():
    steps = steps_of([*map(iter, ranks_of(tokens.PackedSampler, [5, 6, 7], 8))])
    assert len(steps) == 1 and set(flat(steps)) == {0, 1, 2}
    assert tokens.PackedSampler([5, 6, 7], 256, world_size=8).report().repeated == 5
    assert list(tokens.PackedSampler([], 256, world_size=8)) == []
    assert len(tokens.PackedSampler([], 256, world_size=8)) == 0
    assert all(type(each) is int for each in tokens.PackedSampler([], 256).report()[5:10])


@pytest.mark.parametrize("cost", [(1.0, 0.01), np.random.default_rng(2).random(20_000)])
def test_the_ranks_costs_are_alike_in_each_step_and_steps_are_mixed(cost):
    sizes = lengths(20_000)
    plan = tokens.PackedSampler(sizes, 256, world_size=8, cost=cost, seed=0).plan()
    each = (
        cost[plan.members] if isinstance(cost, np.ndarray) else sizes[plan.members] + 0.01 * sizes[plan.members] ** 2.0
    )
    steps = np.add.reduceat(each, plan.bounds[:-1]).reshape(-1, 8)
    ratio = steps.max(1) / steps.mean(1)
    assert ratio[:-1].mean() < 1.01
    assert steps.mean(1)[:100].mean() == pytest.approx(steps.mean(), rel=0.1)
    report = tokens.PackedSampler(sizes, 256, world_size=8, cost=cost, seed=0).report()
    assert report.balance == pytest.approx(ratio.mean())


def test_the_batches_of_an_optimizer_step_have_costs_from_all_strata_the_dearest_first():
    sizes = lengths(20_000)
    plan = tokens.PackedSampler(sizes, 256, world_size=2, batches_per_step=4, cost=(1.0, 0.01), seed=0).plan()
    each = sizes[plan.members] + 0.01 * sizes[plan.members] ** 2.0
    steps = np.add.reduceat(each, plan.bounds[:-1]).reshape(-1, 4, 2)[:-1]
    assert (np.diff(steps.sum(2), axis=1) <= 0).all()
    strata = np.sort(steps, axis=0)
    assert (strata[0, :-1].min(1) >= strata[-1, 1:].max(1)).all()


@pytest.mark.parametrize("budget", [2048, 4096, 16384])
def test_packs_are_full(budget):
    sizes = lengths(200_000, mean=6.0, most=budget)
    assert tokens.PackedSampler(sizes, budget, seed=0).report().fill > 0.999


def test_a_pack_mixes_neighbours_of_the_order():
    sizes = np.full(100_000, 100)
    plan = tokens.PackedSampler(sizes, 1000, seed=0, shuffle=False).plan()
    assert np.ptp(plan.members.reshape(-1, 10), axis=1).max() < 16 * 10


def test_more_documents_than_are_planned_at_once_and_parts_without_a_pack():
    sizes = np.random.default_rng(0).integers(1, 3000, 900_000, dtype=np.int32)
    sampler = tokens.PackedSampler(sizes, 4096, seed=0, world_size=4, window=20_000)
    plan = sampler.plan()
    assert (np.bincount(plan.members, minlength=len(sizes)) == 1).all()
    assert np.add.reduceat(sizes[plan.members], plan.bounds[:-1]).max() <= 4096
    assert len(sampler) * 4 == len(plan.bounds) - 1
    sizes[:600_000] = 5000
    sampler = tokens.PackedSampler(sizes, 4096, seed=0, shuffle=False, overflow="drop")
    assert sorted(sampler.plan().members) == list(range(600_000, 900_000))


def test_the_samplers_are_batch_samplers_of_slipring():
    assert isinstance(tokens.PackedSampler([1], 1), slipring.BatchSampler)
    with pytest.raises(ValueError, match="rng='sample' seeds by a sample's position"):
        next(iter(slipring.Loader([0], batch_sampler=tokens.PackedSampler([1], 1), rng="sample")))
