"""The same batch forever, which shows the speed of the training alone."""

import math
import os
import time
import warnings

import numpy as np
import pytest

import slipring
from slipring import Memory, Workers
from tests.support.datasets import Squares, Where


def children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("method", ["fork", "thread"])
def test_the_very_same_objects_come_in_each_step(num_workers, method):
    with slipring.Loader(Squares(), 4, num_workers=num_workers, workers=Workers(start_method=method)) as loader:
        replayed = slipring.replay(loader, n=5)
        steps = list(replayed)
        assert len(steps) == len(replayed) == 5
        assert all(step is steps[0] for step in steps)
        rows, which = steps[0]
        assert which.tolist() == [0, 1, 2, 3]
        rows += 1  # a later step sees the change
        assert replayed.batch[0][1, 0] == 2


def test_no_worker_is_left_to_compete_and_the_batch_stays_valid():
    before = set(children())
    with slipring.Loader(
        Where(), 4, num_workers=2, persistent_workers=True, workers=Workers(start_method="fork")
    ) as loader:
        replayed = slipring.replay(loader)
        assert set(children()) <= before
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


def test_one_step_alone_has_no_figure():
    replayed = slipring.replay([1], n=1)
    assert list(replayed) == [1] and replayed.steps == 0 and math.isnan(replayed.step_s)


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


@pytest.mark.parametrize("n", [0, -1, 1.5, "3"])
def test_a_wrong_number_is_refused(n):
    with pytest.raises((TypeError, ValueError), match="n must be"):
        slipring.replay([1], n)


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ValueError, match=r"\(list\) gives none"):
        slipring.replay([])


def test_an_error_of_the_dataset_arrives_and_leaves_no_workers():
    class Broken(Squares):
        def __getitem__(self, i):
            raise ZeroDivisionError("as planned")

    before = set(children())
    with slipring.Loader(Broken(), 4, num_workers=1, workers=Workers(start_method="fork")) as loader:
        with pytest.raises(ZeroDivisionError):
            slipring.replay(loader)
        assert set(children()) <= before


EXTRAS = [{}, {"device": "cpu"}, {"preload": 2}, {"persistent_workers": True}, {"device": "cpu", "preload": 1}]


@pytest.mark.parametrize("extras", EXTRAS, ids=lambda extras: "-".join(extras) or "plain")
def test_torchs_face_is_replayed_and_can_be_used_again(make, extras):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(20))
    loader = make(data, batch_size=4, num_workers=2, **extras)
    before = set(children())
    steps = list(slipring.replay(loader, n=3))
    assert set(children()) <= before
    assert all(step[0] is steps[0][0] for step in steps)
    assert steps[0][0].tolist() == [0, 1, 2, 3]
    assert torch.cat([batch for (batch,) in loader]).tolist() == list(range(20))
    assert steps[0][0].tolist() == [0, 1, 2, 3]


def test_torchs_own_loader_is_replayed():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (batch,) = next(slipring.replay(torch.utils.data.DataLoader(data, 4, num_workers=1)))
    assert batch.tolist() == [0, 1, 2, 3]


def test_a_replayed_array_is_a_view_on_the_slot():
    with slipring.Loader(Squares(), 4, num_workers=1, memory=Memory(copy="never")) as loader:
        rows, _ = next(slipring.replay(loader))
        assert isinstance(rows, np.ndarray) and not rows.flags.owndata
        assert loader.stats().copied_batches == 0
