"""slipring.torch's states of map datasets with other ranks: one rank's state has the position of all."""

import functools
import itertools
import json
import math
import random

import numpy as np
import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, DistributedSampler  # noqa: E402

import slipring  # noqa: E402
from slipring import BatchSampler  # noqa: E402
from slipring.adapters.torchdata import StatefulDataLoader, StatefulDistributedSampler  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import as_is, flat  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402

N = 90
RANKS = range(1, 9)


class Ours:
    """slipring's sampler in slipring.torch's loader."""

    def __new__(cls, rank, ranks, batch_size, drop_last=False, loader=DataLoader, dataset=N, **options):
        sampler = BatchSampler(
            dataset, batch_size, shuffle=True, seed=3, rank=rank, world_size=ranks, drop_last=drop_last
        )
        return loader(range(dataset), batch_sampler=sampler, **options)


class Torchs:
    """torch's DistributedSampler."""

    loader, sampler = DataLoader, DistributedSampler

    def __new__(cls, rank, ranks, batch_size, drop_last=False, dataset=N, **options):
        sampler = cls.sampler(range(dataset), num_replicas=ranks, rank=rank, seed=3)
        return cls.loader(range(dataset), batch_size, sampler=sampler, drop_last=drop_last, **options)


class Adapters(Torchs):
    """The adapter's classes with torchdata's names."""

    loader, sampler = StatefulDataLoader, StatefulDistributedSampler


KINDS = [Ours, Torchs, Adapters]


def job(kind, ranks, step, **options):
    return [kind(rank, ranks, step // ranks, **options) for rank in range(ranks)]


def steps(of_ranks):
    return [sorted(flat(step)) for step in zip(*of_ranks, strict=True)]


def states_after(loaders, taken):
    """Return each rank's state after so many batches, as in a checkpoint, and the steps."""
    iterators = [iter(loader) for loader in loaders]
    seen = steps([as_lists(itertools.islice(iterator, taken)) for iterator in iterators])
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return states, seen


def resumed(loaders, state):
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


def rest_of(loaders):
    found = steps([as_lists(loader) for loader in loaders])
    for loader in loaders:
        loader.close()
    return found


@pytest.mark.parametrize(("n", "drop_last"), [(1, False), (2, True), (3, False), (8, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_stay_the_same_for_any_ranks(kind, n, drop_last):
    for m in RANKS:
        step = math.lcm(n, m) * (4 if max(n, m) < 5 else 1)
        options = {"drop_last": drop_last}
        whole = rest_of(job(kind, n, step, **options))
        states, seen = states_after(job(kind, n, step, **options), 1)
        rest = rest_of(resumed(job(kind, m, step, **options), states[m % n]))
        full = N // step
        assert seen == whole[:1]
        assert rest[: full - 1] == whole[1:full], (m, step)
        together = flat(seen) + flat(rest)
        # (torch's samplers may fill the last step of some ranks, but not of others, with the first samples.)
        exact = full * step if drop_last else N
        assert len(set(together)) == exact or (drop_last and kind is not Ours and len(set(together)) > exact)
        assert len(together) - len(set(together)) < max(m, n)


@pytest.mark.parametrize("kind", [Ours, Torchs])
@pytest.mark.parametrize(("n", "size", "m", "other"), [(2, 5, 3, 4), (3, 4, 2, 9), (1, 7, 8, 5)])
def test_with_steps_of_another_size_nothing_comes_twice_and_nothing_is_lost(kind, n, size, m, other):
    states, seen = states_after(job(kind, n, n * size), 3)
    rest = rest_of(resumed(job(kind, m, m * other), states[0]))
    left = N - 3 * n * size
    assert set(flat(seen)) | set(flat(rest)) == set(range(N))
    assert len(flat(rest)) == left + -left % m  # repeated samples at the end make the ranks' shares equal
    assert not set(flat(rest[:-1])) & set(flat(seen))


@pytest.mark.parametrize(("kind", "before", "behind"), [(Ours, 2, 0), (Adapters, 2, 1)])
def test_any_number_of_workers_continues_in_other_ranks_after_the_delivered_batches(kind, before, behind):
    whole = rest_of(job(kind, 2, 12))
    states, _ = states_after(job(kind, 2, 12, num_workers=before), 3)
    assert rest_of(resumed(job(kind, 3, 12, num_workers=behind), states[1]))[:4] == whole[3:7]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_can_be_moved_again_and_again(kind):
    whole = rest_of(job(kind, 1, 12))
    (state,), seen = states_after(job(kind, 1, 12), 1)
    for ranks in (3, 2, 2, 6, 4):
        states, step = states_after(resumed(job(kind, ranks, 12), state), 1)
        state, seen = states[-1], seen + step
    assert seen == whole[:6]


@pytest.mark.parametrize("kind", [Ours, Torchs])
@pytest.mark.parametrize("taken", [0, 8])
def test_states_of_both_ends_of_an_epoch_have_whole_epochs_behind_them(kind, taken):
    first = job(kind, 2, 12)
    states, _ = states_after(first, taken)
    if taken:
        assert [as_lists(loader) for loader in first] and states[0]["finished"] is False
        states = [loader.state_dict() for loader in first]
        assert states[0]["finished"]
    rest = rest_of(resumed(job(kind, 3, 12), states))
    assert sorted(set(flat(rest))) == list(range(N)) and len(flat(rest)) == N


class Drawn(Dataset):
    """Numbers, and what each generator draws for them."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), torch.rand(()).item(), slipring.rng().random()


def drawing(kind, rank, ranks, batch_size, **options):
    """Return a loader of a rank; torch's generator is seeded alike in all ranks."""
    options |= {"generator": torch.Generator().manual_seed(11), "rng": "sample", "collate_fn": as_is}
    if kind is Ours:
        sampler = BatchSampler(N, batch_size, shuffle=True, seed=3, rank=rank, world_size=ranks)
        return DataLoader(Drawn(), batch_sampler=sampler, **grouped(**options))
    sampler = DistributedSampler(range(N), num_replicas=ranks, rank=rank, seed=3)
    return StatefulDataLoader(Drawn(), batch_size, sampler=sampler, **grouped(**options))


@pytest.mark.parametrize(
    ("kind", "m", "step", "options"),
    [(Ours, 3, 21, {}), (Torchs, 3, 12, {"num_workers": 2}), (Ours, 6, 12, {"num_workers": 1, "chunk_size": 2})],
)
def test_samples_draw_the_same_in_other_ranks(kind, m, step, options):
    kind = functools.partial(drawing, kind)
    drawn = {sample[0]: sample for batch in kind(0, 1, N, num_workers=0) for sample in batch}
    states, seen = zip(*[drawn_until(loader, 2) for loader in job(kind, 2, 12)], strict=True)
    rest = []
    for loader in resumed(job(kind, m, step, **options), states[1]):
        rest += flat(loader)
        loader.close()
    assert len(rest) == N - 24 and {row[0] for row in rest} == set(range(N)) - {row[0] for row in flat(seen)}
    assert all(drawn[row[0]] == tuple(row) for row in [*flat(seen), *rest])
    assert len({row[3] for row in drawn.values()}) == N


def drawn_until(loader, taken):
    rows = flat(itertools.islice(loader, taken))
    return loader.state_dict(), rows


# ---- states that torchdata itself has saved


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("n", "num_workers", "drop_last"), [(2, 0, False), (3, 2, True), slow(8, 0, False)])
def test_a_state_that_torchdata_has_saved_of_our_sampler_continues_in_other_ranks(n, num_workers, drop_last):
    theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata saves the states")
    orders = [list(BatchSampler(N, shuffle=True, seed=3).order(epoch)) for epoch in range(2)]
    for m in RANKS:
        step = math.lcm(n, m) * (4 if max(n, m) < 5 else 1)
        options = {"drop_last": drop_last}
        loaders = [
            Ours(rank, n, step // n, loader=theirs.StatefulDataLoader, num_workers=num_workers, **options)
            for rank in range(n)
        ]
        iterators = [iter(loader) for loader in loaders]
        seen = steps([as_lists(itertools.islice(iterator, 1)) for iterator in iterators])
        state = loaders[m % n].state_dict()
        del iterators
        got = seen + rest_of(resumed(job(Ours, m, step, **options), state))
        full = N // step
        # (With workers, torchdata requests another epoch of the sampler before the first one.)
        wholes = [[sorted(order[at : at + step]) for at in range(0, full * step, step)] for order in orders]
        assert got[:full] in wholes, m
        assert len(got) == (full if drop_last else -(-N // step)), m
        assert drop_last or set(flat(got)) == set(range(N)), m


# ---- refusals


class Odd(DistributedSampler):
    """Divides in blocks, which slipring cannot know."""

    def __iter__(self):
        share = len(self.dataset) // self.num_replicas
        return iter(range(self.rank * share, (self.rank + 1) * share))


class Blocks(Torchs):
    sampler = Odd


class Remembers(Dataset):
    """A Stateful map dataset."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i

    def state_dict(self):
        return {"some": 1}

    def load_state_dict(self, state):
        pass


class Remembering:
    def __new__(cls, rank, ranks, batch_size, **options):
        sampler = BatchSampler(N, batch_size, rank=rank, world_size=ranks)
        return DataLoader(Remembers(), batch_sampler=sampler, **grouped(**options))


class Plainly:
    def __new__(cls, rank, ranks, batch_size):
        return DataLoader(range(N), batch_size)


@pytest.mark.parametrize(
    ("before", "behind", "options", "said"),
    [
        (Blocks, Blocks, {}, "not known how this sampler divides"),
        (Ours, Torchs, {}, "rank 0 of 2, batch_size=6, by BatchSampler; here is rank 0 of 3.*another order"),
        (Torchs, Plainly, {}, "here is nothing that knows of ranks.*another order"),
        (Plainly, Torchs, {}, "of nothing that knows of ranks; here is rank 0 of 3.*another order"),
        (Ours, Ours, {"in_order": False, "num_workers": 1}, "in_order=False each rank had delivered other"),
        (Remembering, Remembering, {}, "Stateful map dataset is each worker's own"),
    ],
)
def test_options_without_a_possible_promise_are_refused(before, behind, options, said):
    states, _ = states_after(job(before, 2, 12, **options), 2)
    with pytest.raises(ValueError, match=f"{said}.*Resume with as many ranks") as caught:
        behind(0, 3, 4).load_state_dict(states[0])
    assert "batch_size" in str(caught.value)
    finished = {**states[0], "finished": True, "rng_next": None}
    behind(0, 3, 4).load_state_dict(finished)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda states: [], TypeError, "every rank's"),
        (lambda states: [*states, 7], TypeError, "every rank's"),
        (lambda states: states[:1] * 2, ValueError, r"each of 2 ranks' once.*\[0, 0\]"),
        (lambda states: [{**states[0], "ranks": None}, states[1]], ValueError, "which rank it is of"),
        (lambda states: [states[0], {**states[1], "finished": True}], ValueError, "some are of the end"),
    ],
)
def test_lists_that_are_not_all_ranks_states_are_refused(change, error, said):
    states, _ = states_after(job(Torchs, 2, 12), 2)
    with pytest.raises(error, match=said):
        Torchs(0, 3, 4).load_state_dict(change(states))


@pytest.mark.parametrize("kind", [Ours, Torchs])
def test_ranks_that_were_at_different_steps_are_refused(kind):
    loaders = job(kind, 2, 12)
    states = [states_after([loader], taken)[0][0] for loader, taken in zip(loaders, (2, 3), strict=True)]
    with pytest.raises(ValueError, match=r"not of the same step.*\[24, 36\]"):
        kind(0, 3, 4).load_state_dict(states)


def test_a_state_that_has_lost_the_samplers_place_is_refused():
    states, _ = states_after(job(Ours, 2, 12), 2)
    del states[0]["sampler_iterator"]
    with pytest.raises(ValueError, match="does not say where the sampler was"):
        Ours(0, 3, 4).load_state_dict(states[0])


def test_a_state_of_a_sampler_of_other_indices_is_refused_when_it_is_loaded():
    states, _ = states_after(job(Ours, 2, 12), 2)
    sampler = BatchSampler(N + 1, 4, shuffle=True)
    with pytest.raises(ValueError, match=r"samples=90.*has 91"):
        DataLoader(range(N + 1), batch_sampler=sampler).load_state_dict(states[0])


@pytest.mark.parametrize(("n", "m"), [((3, 2), (2, 2)), ((4, 1), (2, 3))])
@pytest.mark.parametrize("kind", [Ours, Torchs])
def test_last_batches_that_are_not_full_leave_nothing(kind, n, m):
    """The resumed epoch is empty: it raises no error, and does not deliver the next epoch."""
    (ranks, size), (others, other_size) = n, m
    first = kind(0, ranks, size, dataset=10)
    batches = iter(first)
    for _ in range(len(first)):
        next(batches)
    state = batches.state_dict()
    for rank in range(others):
        other = kind(rank, others, other_size, dataset=10)
        other.load_state_dict(state)
        assert list(other) == [], rank
        if kind is Ours:
            assert other.batch_sampler.epoch == 1


def test_samples_dropped_at_an_epochs_end_do_not_become_the_next_epoch():
    def loader(size):
        return DataLoader(range(10), batch_sampler=BatchSampler(10, size, shuffle=True, seed=3, drop_last=True))

    first = loader(2)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    other = loader(8)
    other.load_state_dict(first.state_dict())
    assert list(other) == [] and other.batch_sampler.epoch == 1


def test_set_epoch_after_load_state_dict_says_which_epoch_comes():
    def loader():
        return DataLoader(range(8), batch_sampler=BatchSampler(8, 4, shuffle=True, seed=1), collate_fn=list)

    first = loader()
    list(first)
    state = first.state_dict()
    for epoch in (10, 0, None):
        want, got = loader(), loader()
        got.load_state_dict(state)
        want.batch_sampler.set_epoch(1 if epoch is None else epoch)
        if epoch is not None:
            got.batch_sampler.set_epoch(epoch)
        assert list(got) == list(want) and got.batch_sampler.epoch == want.batch_sampler.epoch


def test_a_state_before_the_first_batch_has_the_samplers_epoch_position_and_seed():
    def loader(seed):
        return DataLoader(range(8), batch_sampler=BatchSampler(8, 4, shuffle=True, seed=seed), collate_fn=list)

    begun = iter(loader(1))
    next(begun)
    first = loader(1)
    first.batch_sampler.load_state_dict(iter(first.batch_sampler).state_dict() | {"position": 4, "epoch": 3})
    other = loader(2)
    other.load_state_dict(first.state_dict())
    for _ in range(2):
        assert list(other) == list(first)
