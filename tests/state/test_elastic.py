"""slipring.torch's states with other ranks.

One rank's state of a map dataset has the position of all. All ranks' states of a stream together give the unread part.
"""

import functools
import itertools
import json
import math
import random

import numpy as np
import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info  # noqa: E402

import slipring  # noqa: E402
from slipring import BatchSampler  # noqa: E402
from slipring.adapters.torchdata import StatefulDataLoader, StatefulDistributedSampler  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import as_is, flat  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.stateful import Reads  # noqa: E402
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

    sampler = DistributedSampler

    def __new__(cls, rank, ranks, batch_size, drop_last=False, dataset=N, **options):
        sampler = cls.sampler(range(dataset), num_replicas=ranks, rank=rank, seed=3)
        return DataLoader(range(dataset), batch_size, sampler=sampler, drop_last=drop_last, **options)


KINDS = [Ours, Torchs]


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
        if kind is Ours and len(whole) == 1:  # nothing was left: this is the next epoch
            assert len(rest) == 1 and rest != whole
            rest = []
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


@pytest.mark.parametrize(("kind", "before", "behind"), [(Ours, 2, 0), (Torchs, 2, 1)])
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [0, 8])
def test_states_of_both_ends_of_an_epoch_have_whole_epochs_after_them(kind, taken):
    first = job(kind, 2, 12)
    states, _ = states_after(first, taken)
    if taken:
        assert [as_lists(loader) for loader in first] and states[0]["finished"] is False
        states = [loader.state_dict() for loader in first]
        assert states[0]["finished"]
    rest = rest_of(resumed(job(kind, 3, 12), states))
    assert sorted(flat(rest)) == list(range(N))


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
    sampler = StatefulDistributedSampler(range(N), num_replicas=ranks, rank=rank, seed=3)
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
        got, full = seen + rest_of(resumed(job(Ours, m, step, **options), state)), N // step
        if drop_last and full == 1:  # nothing was left: the second step is the next epoch
            assert len(got) == 2
            got = seen
        # (With workers, torchdata requests another epoch of the sampler before the first one.)
        wholes = [[sorted(order[at : at + step]) for at in range(0, full * step, step)] for order in orders]
        assert got[:full] in wholes, m
        assert len(got) == (full if drop_last else -(-N // step)), m
        assert drop_last or set(flat(got)) == set(range(N)), m


# ---- refusals


class Odd(DistributedSampler):
    """May divide in another way, which slipring cannot know."""

    def __iter__(self):
        return super().__iter__()


class Blocks(Torchs):
    sampler = Odd


def remembering(rank, ranks, batch_size):
    return DataLoader(Reads(N), batch_sampler=BatchSampler(N, batch_size, rank=rank, world_size=ranks), collate_fn=ids)


def ids(samples):
    return [i for i, _ in samples]


def plainly(rank, ranks, batch_size):
    return DataLoader(range(N), batch_size)


@pytest.mark.parametrize(
    ("before", "behind", "options", "said"),
    [
        (Blocks, Blocks, {}, "not known how this sampler divides"),
        (Ours, Torchs, {}, "rank 0 of 2, batch_size=6, by BatchSampler; here is rank 0 of 3.*another order"),
        (Torchs, plainly, {}, "here is nothing that knows of ranks.*another order"),
        (plainly, Torchs, {}, "of nothing that knows of ranks; here is rank 0 of 3.*another order"),
        (Ours, Ours, {"in_order": False, "num_workers": 1}, "in_order=False each rank had delivered other"),
        (remembering, remembering, {}, "Stateful map dataset is each worker's own"),
    ],
)
def test_options_without_a_possible_promise_are_refused(before, behind, options, said):
    states, _ = states_after(job(before, 2, 12, **options), 2)
    with pytest.raises(ValueError, match=f"{said}.*Resume with as many ranks") as caught:
        behind(0, 3, 4).load_state_dict(states[0])
    assert "batch_size" in str(caught.value)
    finished = {**states[0], "finished": True, "rng_next": None}
    behind(0, 3, 4).load_state_dict(finished)


def test_lists_that_are_not_all_ranks_states_of_one_step_are_refused():
    (first, second), _ = states_after(job(Torchs, 2, 12), 2)
    (_, later), _ = states_after(job(Torchs, 2, 12), 3)
    for states, said in (
        ([], "every rank's"),
        ([first, second, 7], "every rank's"),
        ([first, first], r"each of 2 ranks' once.*\[0, 0\]"),
        ([{**first, "ranks": None}, second], "which rank it is of"),
        ([first, {**second, "finished": True}], "some are of the end"),
        ([first, later], r"not of the same step.*\[24, 36\]"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            Torchs(0, 3, 4).load_state_dict(states)


def test_states_of_another_order_or_without_a_position_are_refused_when_they_are_loaded():
    (state, _), _ = states_after(job(Ours, 2, 12), 2)
    with pytest.raises(ValueError, match=r"samples=90.*has 91"):
        Ours(0, 3, 4, dataset=N + 1).load_state_dict(state)
    del state["sampler_iterator"]
    with pytest.raises(ValueError, match="does not say where the sampler was"):
        Ours(0, 3, 4).load_state_dict(state)


@pytest.mark.parametrize(("n", "m"), [((3, 2), (2, 2)), ((4, 1), (2, 3))])
@pytest.mark.parametrize("kind", [Ours, Torchs])
def test_last_batches_that_are_not_full_leave_nothing(kind, n, m, caplog):
    """The next epoch follows; for torch's sampler, which epoch it is depends on the program's set_epoch()."""
    (ranks, size), (others, other_size) = n, m
    first = kind(0, ranks, size, dataset=10)
    batches = iter(first)
    for _ in range(len(first)):
        next(batches)
    state = batches.state_dict()
    for rank in range(others):
        other = kind(rank, others, other_size, dataset=10)
        other.load_state_dict(state)
        if kind is Ours:
            new = kind(rank, others, other_size, dataset=10)
            new.batch_sampler.set_epoch(1)
            assert as_lists(other) == as_lists(new) and other.batch_sampler.epoch == 2
        else:
            assert list(other) == [], rank
            assert "set_epoch() of DistributedSampler says which one is next" in caplog.text


def test_samples_dropped_at_an_epochs_end_are_no_rest_of_it():
    def loader(size):
        return DataLoader(range(10), batch_sampler=BatchSampler(10, size, shuffle=True, seed=3, drop_last=True))

    first = loader(2)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    other, new = loader(8), loader(8)
    other.load_state_dict(first.state_dict())
    new.batch_sampler.set_epoch(1)
    assert as_lists(other) == as_lists(new) and other.batch_sampler.epoch == 2


def test_a_state_after_an_empty_rest_is_of_the_next_epoch_alone():
    def loader(size):
        return DataLoader(range(10), batch_sampler=BatchSampler(10, size, shuffle=True, seed=3, drop_last=True))

    first, other, new = loader(3), loader(10), loader(10)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    other.load_state_dict(first.state_dict())
    new.batch_sampler.set_epoch(1)
    for each in (other, new):
        batches = iter(each)
        next(batches)
    found, want = other.state_dict(), new.state_dict()
    assert [found[key] for key in ("delivered", "origin", "sampler")] == [
        want[key] for key in ("delivered", "origin", "sampler")
    ]


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


# ---- streams


class Shards(IterableDataset):
    """Shards of numbers, divided among ranks and workers; the unread rest can be divided again."""

    def __init__(self, rank, ranks):
        self.rank, self.world_size = rank, ranks

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return Reading([[shard, 0] for shard in range(10)][self.rank :: self.world_size][worker::workers])

    def rest_of(self, states, num_workers):
        pieces = []
        for rank, workers in enumerate(states):
            for worker, state in enumerate(workers):
                begun = [[shard, 0] for shard in range(10)][rank :: len(states)][worker :: len(workers)]
                pieces += begun if state is None else state["iterator"]["pieces"]
        pieces = pieces[self.rank :: self.world_size]
        return [{"iterator": {"pieces": pieces[n::num_workers]}} for n in range(num_workers)]


class Reading:
    def __init__(self, pieces):
        self.pieces = pieces

    def __iter__(self):
        return self

    def __next__(self):
        while self.pieces and self.pieces[0][1] == 7:
            self.pieces = self.pieces[1:]
        if not self.pieces:
            raise StopIteration
        shard, at = self.pieces[0]
        self.pieces = [[shard, at + 1], *self.pieces[1:]]
        return 7 * shard + at

    def state_dict(self):
        return {"pieces": self.pieces}

    def load_state_dict(self, state):
        self.pieces = state["pieces"]


class Plain(IterableDataset):
    """Knows its rank, and cannot be divided again."""

    def __init__(self, rank, ranks):
        self.rank, self.world_size = rank, ranks

    def __iter__(self):
        return iter(range(self.rank, 70, self.world_size))


def streams(ranks, dataset=Shards, **options):
    return [DataLoader(dataset(rank, ranks), 3, **grouped(**options)) for rank in range(ranks)]


def read(loaders, taken):
    """Return the states of ranks that have read so many batches each, and the samples."""
    seen = []
    for loader, n in zip(loaders, taken, strict=True):
        iterator = iter(loader)
        seen += flat(as_lists(itertools.islice(iterator, n)))
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return states, seen


@pytest.mark.parametrize(
    ("taken", "before", "m", "behind"),
    [((4,), 0, 2, 0), ((3, 0, 6), 2, 2, 0), ((1, 9), 0, 4, 1), ((2, 2), 2, 2, 1)],
)
def test_the_unread_part_of_a_stream_is_read_once_by_other_ranks_and_workers(taken, before, m, behind):
    states, seen = read(streams(len(taken), num_workers=before), taken)
    new = resumed(streams(m, num_workers=behind), states[::-1])
    rest = [flat(as_lists(loader)) for loader in new]
    assert sorted(seen + flat(rest)) == list(range(70))
    later = [flat(as_lists(loader)) for loader in new]  # the next epoch is complete
    assert sorted(flat(later)) == list(range(70))
    for loader in new:
        loader.close()


def test_a_stream_can_be_divided_again_before_and_after_its_first_batch():
    states, seen = read(streams(2, num_workers=2), (3, 1))
    for ranks, taken in ((3, (0, 0, 0)), (4, (2, 0, 1, 0)), (1, (1,))):
        states, more = read(resumed(streams(ranks), states), taken)
        seen += more
    (last,) = resumed(streams(1, num_workers=2), states)
    assert sorted(seen + flat(as_lists(last))) == list(range(70))
    last.close()


def test_a_stream_that_all_ranks_have_read_begins_the_next_epoch():
    loaders = streams(2)
    assert len(flat(as_lists(loaders[0])) + flat(as_lists(loaders[1]))) == 70
    new = resumed(streams(3), [loader.state_dict() for loader in loaders])
    assert sorted(flat(flat(as_lists(loader)) for loader in new)) == list(range(70))


def test_a_stream_is_refused_by_name_where_it_cannot_be_divided():
    states, _ = read(streams(2), (1, 1))
    (other,) = streams(1)
    with pytest.raises(ValueError, match=r"rank 0 of 2, by Shards; here is rank 0 of 1.*a list of all ranks' st"):
        other.load_state_dict(states[0])
    (more,) = streams(1, num_workers=2)
    with pytest.raises(AssertionError, match=r"num_workers=0.*a list of all ranks' states"):
        more.load_state_dict({**states[0], "ranks": None})
    states, _ = read(streams(2, Plain), (1, 1))
    (plain,) = streams(1, Plain)
    with pytest.raises(ValueError, match=r"Plain has no rest_of\(states, num_workers\)"):
        plain.load_state_dict(states[0])
    with pytest.raises(TypeError, match=r"\(Plain\) has no rest_of\(states, num_workers\)"):
        plain.load_state_dict(states)
    states, _ = read(streams(2, num_workers=1, snapshot_every_n_steps=4), (3, 3))
    with pytest.raises(ValueError, match=r"rank 0 does not say where worker 0 was.*snapshot_every_n_steps=1"):
        other.load_state_dict(states)
