"""A plan that is interrupted continues with other ranks and other batches per step, and so does each loader."""

import itertools
import random

import numpy as np
import pytest

import slipring
from slipring import tokens
from tests.support.inside import TokenLengths
from tests.support.parts import slow
from tests.tokens.planned import (
    KINDS,
    check_limits,
    flat,
    lengths,
    ranks_of,
    saved,
    steps_of,
    steps_of_changing_ranks,
    tokens_of,
)

SIZES = lengths(3000)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", KINDS)
def test_any_ranks_continue_at_any_step_with_each_document_once(kind, seed):
    draw = random.Random(seed)
    overflow = draw.choice(["drop", "truncate", "split"])
    options = {"overflow": overflow, "window": draw.choice([5, 60, 10_000]), "max_tokens": 200}
    options["last"] = last = draw.choice(["split", "repeat", "drop"])

    def make():
        return ranks_of(kind, SIZES, draw.randint(1, 8), batches_per_step=draw.choice([1, 1, 2, 4]), **options)

    seen = steps_of_changing_ranks(draw, make, [0, 1, 7, 40, 300])
    check_limits([batch for step in seen for batch in step], SIZES, kind is tokens.TokenBatchSampler, 200)
    found = [tokens_of(member, SIZES) for member in flat(seen)]
    every = range(len(SIZES)) if overflow != "drop" else np.flatnonzero(SIZES <= 200).tolist()
    most = {"drop": 256, "truncate": 200, "split": 256}[overflow]
    assert len(set(found)) == len(found) or last == "repeat"
    if last != "drop":
        assert {index for index, _, _ in found} == set(every)
        assert sum(stop - start for _, start, stop in set(found)) == SIZES[every].clip(max=most).sum()


def test_the_same_ranks_continue_the_same_batches():
    def job():
        return ranks_of(tokens.PackedSampler, SIZES, 3, batches_per_step=2, window=50)

    whole = steps_of([*map(iter, job())])
    for taken in (0, 1, 25, 51, 52, 100, len(whole) - 1, len(whole)):
        iterators = [*map(iter, job())]
        assert steps_of(iterators, taken) == whole[:taken]
        resumed = job()
        for sampler in resumed:
            sampler.load_state_dict(saved(iterators[1].state_dict()))
        assert steps_of([*map(iter, resumed)]) == whole[taken:]


def test_a_resume_plans_only_the_parts_that_it_reads(monkeypatch):
    planned, packed = [], TokenLengths.packed

    def counted(self, documents, key):
        planned.append(len(documents))
        return packed(self, documents, key)

    monkeypatch.setattr(TokenLengths, "packed", counted)
    sizes = np.full(10_000_000, 100, np.int32)
    batches = iter(tokens.PackedSampler(sizes, 1000, seed=0))
    for _ in range(150_000):
        next(batches)
    state, expected = batches.state_dict(), [next(batches) for _ in range(30_000)]
    resumed = tokens.PackedSampler(sizes, 1000, seed=0)
    resumed.load_state_dict(state)
    planned.clear()
    assert list(itertools.islice(resumed, 30_000)) == expected
    assert sum(planned) < 1_000_000


class Documents:
    """Document i is `sizes[i]` times i; a piece is a part of it."""

    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        if isinstance(index, tokens.Piece):
            return np.full(index.stop - index.start, index.index)
        return np.full(self.sizes[index], index)


def read(loader, most=None):
    """Return the documents of each batch, and of how many tokens: from the loader or its iterator."""
    found = []
    for batch in loader:
        values, counts = np.unique(np.asarray(batch), return_counts=True)
        found.append(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        if len(found) == most:
            break
    return found


def loader_of(face, sampler, workers):
    if face == "slipring":
        return slipring.Loader(Documents(SIZES), batch_sampler=sampler, num_workers=workers, collate_fn=np.concatenate)
    torch = pytest.importorskip("slipring.torch", exc_type=ImportError)
    return torch.DataLoader(Documents(SIZES), batch_sampler=sampler, num_workers=workers, collate_fn=np.concatenate)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, slow(1), 2, slow(3), slow(4)])
@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_loader_continues_with_other_ranks_and_workers_with_each_token_once(face, workers):
    seen, state = [], None
    for ranks, batches, count, number in ((3, 1, 31, workers), (2, 4, 21, 4 - workers), (5, 2, None, workers)):
        samplers = ranks_of(
            tokens.PackedSampler, SIZES, ranks, batches_per_step=batches, max_tokens=200, overflow="split", window=30
        )
        loaders = [loader_of(face, sampler, number) for sampler in samplers]
        states = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            seen.append(read(iterator, count))
            states.append(saved(loader.state_dict()))
            del iterator
            if hasattr(loader, "close"):
                loader.close()
        assert len({len(each) for each in seen[-ranks:]}) == 1
        state = states[ranks // 2]
    total = np.zeros(len(SIZES), int)
    for batch in (batch for each in seen for batch in each):
        assert sum(batch.values()) <= 200
        for index, count in batch.items():
            total[index] += count
    assert (total == SIZES).all()


@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_a_state_with_batches_that_were_read_ahead_in_another_window_is_exact(face):
    def make(ranks, workers):
        samplers = ranks_of(tokens.PackedSampler, SIZES, ranks, window=2, max_tokens=200, overflow="split")
        return [loader_of(face, sampler, workers) for sampler in samplers]

    (whole,) = (read(loader) for loader in make(1, 0))
    for taken in (1, 2, 3, 10, len(whole) - 1):
        (first,) = make(1, 2)
        iterator = iter(first)
        assert read(iterator, taken) == whole[:taken]
        state = saved(first.state_dict())
        del iterator
        (again,) = make(1, 0)
        again.load_state_dict(state)
        assert read(again) == whole[taken:]
        if taken == len(whole) - 1:  # a single document cannot be divided between two ranks
            continue
        others = make(2, 0)
        for loader in others:
            loader.load_state_dict(state)
        left = [read(loader) for loader in others]
        total = sum(sum(batch.values()) for each in left for batch in each)
        assert total == SIZES.sum() - sum(sum(batch.values()) for batch in whole[:taken])


def test_a_state_with_more_batches_in_flight_than_a_sampler_remembers_is_refused():
    sampler = tokens.PackedSampler([10] * 2000, 10, window=1, seed=0)
    with slipring.Loader(Documents([10] * 2000), batch_sampler=sampler, num_workers=1, prefetch_factor=1100) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match=r"more than 1024 batches are in flight.*a smaller prefetch_factor"):
            loader.state_dict()


@pytest.mark.parametrize("face", ["slipring", "torch"])
def test_each_epoch_of_a_loader_is_another_plan_of_all_documents(face):
    loader = loader_of(face, tokens.PackedSampler(SIZES, 256, seed=0), 0)
    first, second = read(loader), read(loader)
    assert first != second
    for epoch in (first, second):
        assert sum(sum(batch.values()) for batch in epoch) == SIZES.sum()
    loader.load_state_dict(saved(loader.state_dict()))
    assert read(loader) not in (first, second)


def test_torchs_own_loader_reads_the_packs():
    torch = pytest.importorskip("torch")
    sampler = tokens.PackedSampler(SIZES, 256, seed=0)
    loader = torch.utils.data.DataLoader(Documents(SIZES), batch_sampler=sampler, collate_fn=np.concatenate)
    assert len(loader) == len(sampler)
    assert sum(sum(batch.values()) for batch in read(loader)) == SIZES.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_is_resumed_at_the_end_has_a_state(kind):
    (sampler,) = ranks_of(kind, SIZES, 1)
    batches = iter(sampler)
    count = len(list(batches))
    (resumed,) = ranks_of(kind, SIZES, 1)
    resumed.load_state_dict(saved(batches.state_dict()))
    rest = iter(resumed)
    assert list(rest) == [] and rest.state_dict() == batches.state_dict() and count
