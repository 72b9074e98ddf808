"""Streams that are read by shards: an epoch that n ranks begin and m ranks finish."""

import itertools
import json
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import slipring  # noqa: E402
from slipring.errors import BlockError  # noqa: E402
from slipring.streams import ShardStream  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than processors

SIZES = (10, 7, 1, 0, 12, 5, 9, 4, 23)  # rows per shard
WHOLE = [100 * k + n for k, size in enumerate(SIZES) for n in range(size)]


class Rows(ShardStream, torch.utils.data.IterableDataset):
    """For torch's loader, which recognizes an iterable dataset by its class."""


def read(shard):
    """Return blocks of 4 rows, the last one of fewer; some have none."""
    for first in range(0, SIZES[shard], 4):
        yield {"x": np.arange(100 * shard + first, 100 * shard + min(first + 4, SIZES[shard]))}
        yield {"x": np.arange(0)}


def ranks(n, workers=0, batch_size=3, seed=7, source=read, **options):
    shards = range(len(SIZES))
    random.seed(seed)  # without workers it seeds a pass
    return [
        DataLoader(
            Rows(shards, source, batch_size, rank=rank, world_size=n, **options),
            batch_size=None,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed),
        )
        for rank in range(n)
    ]


def taken(loader, count=None):
    """Return the rows of so many batches, and the state after them."""
    found = [x for batch in itertools.islice(loader, count) for x in batch["x"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return found, state


def of_job(loaders, counts=None, states=None):
    """Return the rows that all ranks of a job get, and their states."""
    seen, behind = [], []
    for loader, count in zip(loaders, itertools.repeat(None) if counts is None else counts, strict=False):
        if states is not None:
            loader.load_state_dict(states)
        rows, state = taken(loader, count)
        seen += rows
        behind.append(state)
    return seen, behind


@pytest.mark.parametrize(
    ("n", "m", "shuffle"), [(1, 2, True), (2, 1, False), (3, 8, False), (5, 3, True), (8, 5, True)]
)
def test_samples_that_n_ranks_have_not_read_m_ranks_read_once(n, m, shuffle):
    seen, states = of_job(ranks(n, shuffle=shuffle), [rank * 5 % 4 for rank in range(1, n + 1)])
    rest, _ = of_job(ranks(m, batch_size=5, seed=99, shuffle=shuffle), states=states[::-1])
    assert sorted(seen + rest) == WHOLE


@pytest.mark.parametrize(("before", "behind"), [(3, 1), (2, 0), (0, 2), (5, 8)])
def test_other_workers_read_the_rest(before, behind):
    (loader,) = ranks(1, workers=before)
    seen, state = taken(loader, 7)
    (loader,) = ranks(1, workers=behind)
    loader.load_state_dict([state])
    rest, state = taken(loader)
    assert sorted(seen + rest) == WHOLE
    (loader,) = ranks(1, workers=3)  # the next epoch is a whole one
    loader.load_state_dict([state])
    assert sorted(taken(loader)[0]) == WHOLE


def test_other_ranks_and_workers_continue_with_slipring_loaders():
    def loader(rank, n, num_workers):
        data = ShardStream(range(len(SIZES)), read, 3, shuffle=True, rank=rank, world_size=n)
        return slipring.Loader(data, None, num_workers=num_workers)

    seen, states = of_job([loader(rank, 3, 2) for rank in range(3)], (4, 0, 2))
    rest, _ = of_job([loader(rank, 2, 3) for rank in range(2)], states=states)
    assert sorted(seen + rest) == WHOLE


def test_a_job_can_be_divided_again_before_and_after_its_first_batch():
    seen, states = of_job(ranks(3, workers=2, shuffle=True), (4, 0, 2))
    for n, counts in ((2, (0, 0)), (4, (1, 0, 3, 1)), (1, (2,))):
        rows, states = of_job(ranks(n, seed=n, shuffle=True), counts, states)
        seen += rows
    assert sorted(seen + of_job(ranks(2, workers=1, shuffle=True), states=states)[0]) == WHOLE


@pytest.mark.parametrize(("workers", "count"), [(0, 1), (2, 8), (2, 24)])
def test_as_many_workers_continue_with_the_same_batches(workers, count):
    (loader,) = ranks(1, workers, shuffle=True)
    whole, _ = taken(loader)
    (loader,) = ranks(1, workers, shuffle=True)
    seen, state = taken(loader, count)
    (loader,) = ranks(1, workers, shuffle=True)
    loader.load_state_dict(state)
    assert seen + taken(loader)[0] == whole


def test_with_drop_last_samples_that_were_not_given_out_are_left_to_others():
    workers, m = 2, 3
    seen, states = of_job(ranks(2, workers=workers, drop_last=True), (5, 9))
    rest, _ = of_job(ranks(m, workers=workers, drop_last=True), states=states)
    assert len(seen + rest) == len(set(seen + rest))
    assert 0 <= len(WHOLE) - len(seen + rest) <= m * workers * 2  # each worker drops at most two rows


def test_a_shard_that_fails_is_opened_again_at_its_row():
    opened = []

    def failing(shard):
        opened.append(shard)
        for number, block in enumerate(read(shard)):
            if shard == 4 and number == 4 and opened.count(4) == 1:
                raise OSError("gone")
            yield block

    batches, got = iter(ShardStream(range(len(SIZES)), failing, 3)), []
    with pytest.raises(OSError, match="gone"):
        for batch in batches:
            got += batch["x"].tolist()
    got += [x for batch in batches for x in batch["x"].tolist()]
    assert got == WHOLE
    assert opened.count(4) == 2


def test_a_resume_after_a_bad_block_passes_it_over_too():
    def bad(shard):
        for number, block in enumerate(read(shard)):
            yield {"other": np.arange(3)} if (shard, number) == (4, 2) else block

    stream = ShardStream(range(len(SIZES)), bad, 3)
    batches, got = iter(stream), []
    with pytest.raises(
        BlockError, match=r"^block \d+ of the stream, in shard 4, for batch 7 of batch_size=3: column 'x'"
    ):
        for batch in batches:
            got += batch["x"].tolist()
    while 411 not in got:
        got += next(batches)["x"].tolist()
    (state,) = stream.rest_of([[{"iterator": batches.state_dict()}]], 1)
    other = iter(stream)
    other.load_state_dict(state["iterator"])
    assert got + [x for batch in other for x in batch["x"].tolist()] == [x for x in WHOLE if x not in range(404, 408)]


def test_states_that_do_not_fit_are_refused():
    _, states = of_job(ranks(2), (2, 2))
    (other,) = ranks(1)
    with pytest.raises(ValueError, match="a list of all ranks' states"):
        other.load_state_dict(states[0])
    (fewer,) = ranks(1)
    fewer.dataset._division[2] = 5
    with pytest.raises(ValueError, match="is of 9 shards, divided among 2 ranks; here are 5 shards"):
        fewer.load_state_dict(states)
    (shorter,) = ranks(1, source=lambda shard: [{"x": np.arange(2)}])
    shorter.load_state_dict(states)
    with pytest.raises(ValueError, match=r"shard \d is read from row 6 on, but has 4 rows too few"):
        list(shorter)


def test_a_state_of_another_shuffle_is_refused_also_after_a_new_division():
    _, states = of_job(ranks(1, shuffle=True), (4,))
    for given in (states[0], states):
        (other,) = ranks(1)
        with pytest.raises(ValueError, match="state is of shuffle=True, this is shuffle=False"):
            other.load_state_dict(given)
            list(other)
    _, states = of_job(ranks(2, shuffle=True), (1, 1), states)
    (other,) = ranks(1)
    with pytest.raises(ValueError, match="Resume with shuffle=True"):
        other.load_state_dict(states)


def test_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="2 shards are too few for 3 ranks"):
        ShardStream([0, 1], read, 4, world_size=3)
    with pytest.raises(TypeError, match="read must be a function of a shard"):
        ShardStream([0, 1], [{}], 4)
    with pytest.raises(TypeError, match=r"not the one 'a\.parquet'"):
        ShardStream("a.parquet", read, 4)
    with pytest.raises(TypeError, match=r"what .*<lambda>\(shard\) returns"):
        next(iter(ShardStream([0], lambda shard: {"x": np.arange(3)}, 4)))
