"""The same batch forever, which shows the speed of the training alone."""

import math
import os
import time

import pytest

import slipring
from slipring import Memory, Workers
from tests.support.datasets import Squares, Where
from tests.support.processes import descendants
from tests.support.scenes import Raise, Rows


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_very_same_objects_come_in_each_step(num_workers):
    with slipring.Loader(Squares(), 4, num_workers=num_workers, memory=Memory(copy="never")) as loader:
        replayed = slipring.replay(loader, n=5)
        steps = list(replayed)
        assert len(steps) == len(replayed) == 5
        assert all(step is steps[0] for step in steps)
        rows, which = steps[0]
        assert rows.flags.owndata == (num_workers == 0) and loader.stats().copied_batches == 0
        assert which.tolist() == [0, 1, 2, 3]
        rows += 1  # a later step sees the change
        assert replayed.batch[0][1, 0] == 2


def test_no_worker_is_left_to_compete_and_the_batch_stays_valid():
    before = set(descendants(os.getpid()))
    with slipring.Loader(
        Where(), 4, num_workers=2, persistent_workers=True, workers=Workers(start_method="fork")
    ) as loader:
        replayed = slipring.replay(loader)
        assert set(descendants(os.getpid())) <= before
        indices, workers, _ = next(replayed)
        assert indices.tolist() == [0, 1, 2, 3] and set(workers.tolist()) <= {0, 1}
        again = [batch[0].tolist() for batch in loader]  # the loader can be used again, with new workers
        assert len(again) == 25
        assert indices.tolist() == [0, 1, 2, 3]


def test_it_continues_forever_without_n():
    replayed = slipring.replay([7, 8])
    assert [next(replayed) for _ in range(1000)] == [7] * 1000
    with pytest.raises(TypeError, match="has no end"):
        len(replayed)
    with pytest.raises(ValueError, match=r"\(list\) gives none"):
        slipring.replay([])


def test_it_says_how_long_a_step_takes_after_the_first():
    replayed = slipring.replay([1], n=4)
    assert math.isnan(replayed.step_s) and "0 steps" in repr(replayed)
    ends = []
    for _ in replayed:
        time.sleep(0.01 if ends else 0.05)  # a step; the first one warms up
        ends.append(time.perf_counter())
    assert replayed.steps == 3
    assert 0.01 <= replayed.step_s <= (time.perf_counter() - ends[0]) / 3
    said = replayed.step_s
    with pytest.raises(StopIteration):
        next(replayed)
    assert replayed.step_s == said


def test_an_error_of_the_dataset_arrives_and_leaves_no_workers():
    before = set(descendants(os.getpid()))
    data = Rows(8, on={1: Raise(ZeroDivisionError("on purpose"))})
    with slipring.Loader(data, 4, num_workers=1, workers=Workers(start_method="fork")) as loader:
        with pytest.raises(ZeroDivisionError):
            slipring.replay(loader)
        assert set(descendants(os.getpid())) <= before


def test_a_generators_iteration_is_ended_unless_it_is_the_callers():
    ended = []

    def batches():
        try:
            yield from range(10)
        finally:
            ended.append(True)

    class Wrapped:
        def __iter__(self):
            return batches()

    assert next(slipring.replay(Wrapped())) == 0 and ended == [True]
    own = batches()
    assert next(slipring.replay(own)) == 0 and next(own) == 1


@pytest.mark.parametrize("extras", [{"persistent_workers": True}, {"device": "cpu", "preload": 1}], ids="-".join)
def test_torchs_face_is_replayed_and_can_be_used_again(make, extras):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(20))
    loader = make(data, batch_size=4, num_workers=2, **extras)
    before = set(descendants(os.getpid()))
    steps = list(slipring.replay(loader, n=3))
    assert set(descendants(os.getpid())) <= before
    assert all(step[0] is steps[0][0] for step in steps)
    assert steps[0][0].tolist() == [0, 1, 2, 3]
    assert torch.cat([batch for (batch,) in loader]).tolist() == list(range(20))
    assert steps[0][0].tolist() == [0, 1, 2, 3]
