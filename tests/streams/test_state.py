"""The state of a stream, and another stream that continues from it."""

import json
import os
import signal

import numpy as np
import pytest

import slipring
from slipring.errors import BlockError
from slipring.streams import ShardStream
from tests.support.kinds import kinds
from tests.support.options import grouped

SEEDED = {"seed": 7}
WAYS = [
    {"batch_size": 10, "shuffle_buffer": 37},
    {"batch_size": 10, "num_workers": 3, "start_method": "fork"},
    {"batch_size": 10, "num_workers": 2, "start_method": "thread", "shuffle_buffer": 37, "drop_last": True},
]


def blocks(worker, num_workers):
    """Yield each worker's share of 23 blocks; worker 0's share is the longest."""
    for number in range(worker, 23, num_workers):
        yield {"x": np.arange(number * 100, number * 100 + number % 5 * 3 + (20 if worker == 0 else 1))}


def values(batches):
    return [batch["x"].tolist() for batch in batches]


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_continues_where_its_state_was_taken(way):
    with slipring.stream(blocks, **grouped(**SEEDED, **way)) as loader:
        whole = [values(loader) for _ in range(2)]
    n = len(whole[1])
    for taken in (0, 1, n // 2, n - 1, n):
        with slipring.stream(blocks, **grouped(**SEEDED, **way)) as loader:
            list(loader)
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            if taken == n:
                assert next(iterator, None) is None
            state = json.loads(json.dumps(loader.state_dict()))
        with slipring.stream(blocks, **grouped(**way)) as loader:
            loader.load_state_dict(state)
            rest = values(loader)
            if taken < n:
                assert rest == whole[1][taken:], taken
                state = loader.state_dict()
            else:
                state, third = loader.state_dict(), rest
        with slipring.stream(blocks, **grouped(**way)) as loader:
            loader.load_state_dict(state)
            after = values(loader)
        assert after != whole[1] or "shuffle_buffer" not in way
        if taken == n:
            assert third != after or "shuffle_buffer" not in way


def test_a_state_of_rows_continues_with_another_batch_size():
    with slipring.stream(blocks, 10) as loader:
        iterator = iter(loader)
        seen = next(iterator)["x"].tolist() + next(iterator)["x"].tolist()
        state = loader.state_dict()
    with slipring.stream(blocks, 7) as loader:
        loader.load_state_dict(state)
        rest = [x for batch in values(loader) for x in batch]
    with slipring.stream(blocks, 1000) as loader:
        assert [seen + rest] == values(loader)


@pytest.mark.parametrize("way", [*WAYS, {**WAYS[1], "persistent_workers": True}], ids=str)
def test_an_epoch_that_was_resumed_is_a_whole_one_when_it_comes_again(way):
    with slipring.stream(blocks, **grouped(**SEEDED, **way)) as loader:
        whole = [values(loader) for _ in range(2)]
        loader.epoch = 0
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with slipring.stream(blocks, **grouped(**way)) as loader:
        loader.load_state_dict(state)
        assert [values(loader), values(loader)] == [whole[0][2:], whole[1]]
        loader.epoch = 0
        assert [values(loader), values(loader)] == whole


WRONG = [
    (dict(num_workers=2), {}, AssertionError, "the state is of num_workers=2, the loader has num_workers=0"),
    (dict(shuffle_buffer=20), dict(shuffle_buffer=30), ValueError, "shuffle_buffer=20 and batch_size=10"),
    (dict(shuffle_buffer=20), {}, ValueError, "this is shuffle_buffer=0"),
]


@pytest.mark.parametrize(("had", "has", "kind", "text"), WRONG)
def test_a_state_that_cannot_hold_is_refused(had, has, kind, text):
    with slipring.stream(blocks, 10, **grouped(**had)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with slipring.stream(blocks, 10, **grouped(**has)) as loader, pytest.raises(kind, match=text):
        loader.load_state_dict(state)


def test_an_iterator_that_was_begun_takes_no_state_and_no_second_pass():
    with slipring.stream(blocks(0, 1), 10) as loader:
        first = next(iter(loader))
        state = loader.state_dict()
        with pytest.raises(ValueError, match="make a new loader of a new iterator"):
            loader.load_state_dict(state)
        with pytest.raises(ValueError, match="cannot be read from its beginning again"):
            next(iter(loader))
    with slipring.stream(blocks(0, 1), 10) as loader:
        loader.load_state_dict(state)
        rest = values(loader)
    with slipring.stream(blocks, 10) as loader:
        assert [first["x"].tolist(), *rest] == values(loader)


def test_a_source_that_has_become_shorter_is_an_error():
    with slipring.stream(blocks, 10) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        state["workers"][0]["states"]["iterator"]["rows"] = 10_000
    with slipring.stream(blocks, 10) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"10000 rows were read of .* now ends after"):
            next(iter(loader))


@pytest.mark.fault
@pytest.mark.parametrize("shuffle_buffer", [0, 37])
def test_a_killed_workers_part_continues_with_no_row_lost_or_twice(shuffle_buffer, tmp_path):
    once = tmp_path / "killed"

    def source(worker, num_workers):
        for number, block in enumerate(blocks(worker, num_workers)):
            if worker == 1 and number == 6 and not once.exists():
                once.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            yield block

    same = {"shuffle_buffer": shuffle_buffer, "num_workers": 2, "start_method": "fork", "seed": 1}
    with slipring.stream(blocks, 5, **grouped(**same)) as loader:
        whole = values(loader)
    with slipring.stream(source, 5, **grouped(on_death="respawn", **same)) as loader:
        assert values(loader) == whole
        assert loader.stats().respawns == 1 and once.exists()


@kinds("inline", "one thread", "one fork")
def test_a_resume_after_an_error_loses_no_row_and_does_not_raise_a_bad_blocks_error_again(kind):
    class Source:
        def __init__(self, fails):
            self.fails = fails

        def __call__(self, worker, num_workers):
            for number, block in enumerate(blocks(0, 1)):
                if number == 9 and self.fails:
                    raise OSError("the server went away")
                yield {"other": np.arange(3)} if number == 4 else block

    with slipring.stream(blocks, 10) as loader:
        whole = [x for batch in values(loader) for x in batch if not 400 <= x < 500]
    way = grouped(**kind)
    seen = []
    with slipring.stream(Source(True), 10, **way) as loader:
        for _ in range(2):
            iterator = iter(loader)
            with pytest.raises((BlockError, OSError)) as caught:
                while True:
                    seen += next(iterator)["x"].tolist()
            state = loader.state_dict()
            loader.load_state_dict(state)
    assert caught.type is OSError
    with slipring.stream(Source(False), 10, **way) as loader:
        loader.load_state_dict(state)
        seen += [x for batch in values(loader) for x in batch]
    assert seen == whole


def test_a_state_that_counts_batches_is_refused_with_another_batch_size():
    rare = slipring.Workers(start_method="thread", snapshot_every_n_steps=4)
    with slipring.stream(blocks, 16, num_workers=1, workers=rare) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    with slipring.stream(blocks, 8, num_workers=1) as loader, pytest.raises(ValueError, match="batch_size=16, this is"):
        loader.load_state_dict(state)


def test_a_state_of_another_dataset_is_refused_with_its_name():
    with slipring.Loader(ShardStream([0], lambda shard: blocks(0, 1), 10), None) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with slipring.stream(blocks, 10) as loader, pytest.raises(ValueError, match=r"another dataset: it lacks .* Stream"):
        loader.load_state_dict(state)


def test_a_state_of_an_epochs_end_begins_the_next_epoch_with_another_shuffle():
    with slipring.stream(blocks, 10, shuffle_buffer=37, num_workers=1) as loader:
        values(loader)
        state = loader.state_dict()
    with slipring.stream(blocks, 10, num_workers=1) as loader:
        whole = values(loader)
        loader.load_state_dict(state)
        assert values(loader) == whole and loader.epoch == 2


@pytest.mark.fault
def test_a_killed_workers_bad_block_is_reported_once(tmp_path):
    once = tmp_path / "killed"

    def read(shard):
        for number, block in enumerate(blocks(0, 1)):
            if shard == 1 and number == 5 and not once.exists():
                once.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"other": np.arange(3)} if number == 4 else block

    def outcome(on_death):
        workers = slipring.Workers(on_death=on_death, start_method="fork")
        found = []
        with slipring.Loader(ShardStream([0, 1, 2], read, 10), None, num_workers=1, workers=workers) as loader:
            iterator = iter(loader)
            while True:
                try:
                    found.append(next(iterator)["x"].tolist())
                except BlockError:
                    found.append("bad")
                except StopIteration:
                    return found, loader.stats().respawns

    once.write_text("")
    whole, _ = outcome("raise")
    once.unlink()
    assert outcome("respawn") == (whole, 1)
