"""The result kind EMPTY: a batch of which no sample is left counts as delivered, but next() does not return it."""

import json
import os
import signal

import pytest

from tests.support.datasets import Made, Shard
from tests.support.inside import NO_SAMPLES, Fetcher
from tests.support.kinds import kinds, loaded, loading

EMPTY = {1, 2, 5, 9}  # batches of two samples; 9 is the last one
LEFT = [number for number in range(10) if number not in EMPTY]


NUMBERS = Made(lambda i: None if i // 2 in EMPTY else i, 20)  # of some batches no sample can be read


def firsts(batches):
    return [int(batch[0]) // 2 for batch in batches]


every_kind = kinds("inline", "fork", "thread")


@every_kind
@pytest.mark.parametrize("in_order", [True, False])
def test_batches_without_samples_are_passed_over_and_not_counted(kind, in_order):
    with loading(NUMBERS, 2, skip_none=True, in_order=in_order, **kind) as loader:
        for _ in range(2):
            found = firsts(loader)
            assert (found if in_order else sorted(found)) == LEFT
        assert loader.stats().batches == 2 * len(LEFT)
        if kind["num_workers"]:
            assert loader.report().dict()["batches"] == 2 * len(LEFT)


@every_kind
def test_a_state_counts_a_batch_without_samples_as_delivered(kind):
    for delivered in (1, 2, len(LEFT)):
        with loading(NUMBERS, 2, skip_none=True, **kind) as loader:
            batches = iter(loader)
            before = firsts(next(batches) for _ in range(delivered))
            state = json.loads(json.dumps(loader.state_dict()))
        with loading(NUMBERS, 2, skip_none=True, **kind) as loader:
            loader.load_state_dict(state)
            assert before == LEFT[:delivered]
            assert firsts(loader) == (LEFT[delivered:] or LEFT)  # after the last one comes the next epoch


def test_a_worker_that_dies_near_empty_batches_loses_none(tmp_path):
    def sample(i):
        mark = tmp_path / str(i)
        if i in (3, 4, 10, 19) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return NUMBERS[i]

    assert firsts(loaded(Made(sample, 20), 2, skip_none=True, num_workers=2, on_death="respawn")) == LEFT


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_passes_them_over_too(num_workers):
    pytest.importorskip("torch")
    from slipring.torch import DataLoader, Device

    device = Device("cpu", preload=2)
    with DataLoader(NUMBERS, 2, skip_none=True, num_workers=num_workers, device=device) as loader:
        assert firsts(loader) == LEFT
        assert loader.state_dict()["finished"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_fetcher_may_leave_out_a_batch_of_a_stream_too(num_workers, monkeypatch):
    """`skip_none` fills a stream's batch with the samples that follow, so the test replaces the collation."""
    collate = Fetcher.collate

    def collated(self, rows):
        batch = collate(self, rows)
        return NO_SAMPLES if int(batch[0]) // 2 in EMPTY else batch

    monkeypatch.setattr(Fetcher, "collate", collated)
    assert firsts(loaded(Shard(20), 2, num_workers=num_workers, start_method="fork")) == LEFT
