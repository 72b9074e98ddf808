"""The ingest of Ray Data: exact batches, each row once, after any death."""

import os
import signal

import numpy as np
import pytest

from slipring import Workers

ray = pytest.importorskip("ray", reason="pip install -r requirements-ray.txt")
data = pytest.importorskip("ray.data")

import slipring  # noqa: E402
import slipring.ray  # noqa: E402
from tests.clients.rays import MARKS, WAIT, cluster  # noqa: E402, F401

pytestmark = MARKS


def columns(rows):
    """Return a block with a column of each kind."""
    ids = rows["id"]
    return {
        "id": ids,
        "tensor": np.broadcast_to(ids[:, None, None], (len(ids), 4, 3)).astype(np.float32),
        "text": [f"number {i}" for i in ids],
        "nested": [{"a": int(i), "b": [int(i)] * (int(i) % 3)} for i in ids],
    }


def table(rows=500, blocks=7):
    return data.range(rows, override_num_blocks=blocks).map_batches(columns)


def ids_of(batches, batch_size=64):
    """Return the ids of all batches, after a check that their columns belong together."""
    found = []
    for batch in batches:
        ids = np.asarray(batch["id"]).tolist()
        assert np.asarray(batch["tensor"])[:, 3, 2].tolist() == ids
        assert batch["text"].to_pylist() == [f"number {i}" for i in ids]
        assert [(row["a"], len(row["b"])) for row in batch["nested"].to_pylist()] == [(i, i % 3) for i in ids]
        assert len(ids) <= batch_size
        found.append(ids)
    return found


def once(found, rows=500):
    return sorted(i for ids in found for i in ids) == list(range(rows))


@pytest.mark.parametrize("kind", ["dataset", "iterator", "split"])
def test_batches_are_exact_and_hold_each_row_once_in_every_epoch(kind):
    made = table()
    given = {"dataset": lambda: made, "iterator": made.iterator, "split": lambda: made.streaming_split(1)[0]}[kind]()
    with slipring.ray.Loader(given, 64, timeout=WAIT) as loader:
        for _ in range(2):
            found = ids_of(loader)
            assert [len(ids) for ids in found] == [64] * 7 + [52]
            assert once(found)
        assert loader.stats().pickled_leaves == 0


def test_two_workers_share_the_blocks():
    with slipring.ray.Loader(table(), 32, num_workers=2, in_order=False, timeout=WAIT) as loader:
        found = ids_of(loader)
        assert once(found) and sum(len(ids) < 32 for ids in found) <= 2


def test_a_killed_worker_loses_no_row_and_none_comes_twice():
    with slipring.ray.Loader(table(), 16, num_workers=2, timeout=WAIT) as loader:
        found = []
        for n, batch in enumerate(loader):
            found += ids_of([batch])
            if n in (3, 11):
                os.kill(loader.report().workers[0].pid, signal.SIGKILL)
        assert once(found)


def test_a_worker_that_is_not_replaced_says_how_it_died():
    with slipring.ray.Loader(table(), 16, timeout=WAIT, workers=Workers(on_death="raise")) as loader:
        batches = iter(loader)
        next(batches)
        os.kill(loader.report().workers[0].pid, signal.SIGKILL)
        with pytest.raises(slipring.WorkerDied, match="SIGKILL"):
            list(batches)
