"""slipring.adapters.megengine: faults of MegEngine's loader that ours must not have."""

import gc
import threading

import pytest

from slipring import LoaderTimeout, WorkerError
from slipring.adapters.megengine import Collator, DataLoader, StreamDataset, StreamSampler, Transform
from tests.adapters.streams import Numbers
from tests.support.adapters import Images, fail
from tests.support.datasets import flat, wait_for_file
from tests.support.processes import LONG_S

WORKERS = [0, 2]


class Pausing(StreamDataset):
    """Waits in the middle of a sample for the file `gate`."""

    gate = None

    def __iter__(self):
        for i in range(6):
            if i == 2:
                wait_for_file(self.gate)
            yield i


class Six(StreamDataset):
    def __iter__(self):
        return iter(range(6))


class Refusing(Transform):
    def apply(self, sample):
        if sample == 3:
            raise LookupError(sample)
        return sample


@pytest.mark.parametrize(("num_workers", "parallel"), [(0, False), (2, False), (1, True)])
@pytest.mark.parametrize(
    ("stream", "error", "rest"),
    [
        ((Pausing(), StreamSampler(2)), LoaderTimeout, [[0, 1], [2, 3], [4, 5]]),
        ((Six(), StreamSampler(2), Refusing()), LookupError, [[0, 1], [4, 5]]),
    ],
)
def test_a_stream_continues_after_a_timeout_and_after_its_transform_has_failed(
    num_workers, parallel, stream, error, rest, tmp_path, monkeypatch, forked
):
    gate = tmp_path / "gate"
    monkeypatch.setattr(Pausing, "gate", gate)
    timeout = 0.4 if error is LoaderTimeout else 0
    if num_workers and error is LookupError:
        error = WorkerError
    loader = DataLoader(*stream, num_workers=num_workers, timeout=timeout, parallel_stream=parallel)
    batches, got, errors = iter(loader), [], 0
    while len(got) < len(rest):
        try:
            got.append(next(batches).tolist())
        except error:
            errors += 1
            if got:
                gate.touch()
    assert got == rest and errors
    batches.close()


@pytest.mark.parametrize(("how", "preload"), [("close", True), ("to the end", False), ("dropped", True)])
def test_no_thread_outlives_an_iteration_though_its_iterator_is_held(preload, how):
    if preload:
        pytest.importorskip("torch")
    others = set(threading.enumerate())
    loader = DataLoader(Numbers(list(range(20))), StreamSampler(2), num_workers=1, preload=preload)
    batches = iter(loader)
    next(batches)
    if how == "close":
        batches.close()
        batches.close()
    elif how == "to the end":
        assert len(list(batches)) == 9
    else:
        del batches
        gc.collect()
    for thread in set(threading.enumerate()) - others:
        thread.join(LONG_S)
        assert not thread.is_alive(), thread


@pytest.mark.parametrize("num_workers", WORKERS)
def test_preload_gives_a_batch_before_the_next_is_there(tmp_path, num_workers):
    pytest.importorskip("torch")
    gate = tmp_path / "gate"

    def wait():
        while not gate.exists():
            threading.Event().wait(0.01)

    batches = iter(DataLoader(Images(3, at=1, act=wait), num_workers=num_workers, preload=True))
    assert next(batches)[1].tolist() == [0]
    gate.touch()
    assert [label.tolist() for _, label in batches] == [[1], [2]]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_preload_gives_a_batch_though_the_next_fails(num_workers):
    pytest.importorskip("torch")
    batches = iter(DataLoader(Images(3, at=1, act=fail), num_workers=num_workers, preload=True))
    assert next(batches)[1].tolist() == [0]
    with pytest.raises(WorkerError if num_workers else LookupError, match="no such image"):
        next(batches)
    assert next(batches)[1].tolist() == [2]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(("num_workers", "parallel", "preload"), [(0, False, True), (2, False, False), (2, True, True)])
def test_a_finite_stream_ends_and_falsy_samples_and_the_tail_are_kept(num_workers, parallel, preload):
    if preload:
        pytest.importorskip("torch")
    values = [0, 0.0, 0, 0.0, 0]
    loader = DataLoader(Numbers(values, act=bool), StreamSampler(2), None, Listing(), num_workers, 0, preload, parallel)
    got = flat(list(loader))
    assert got == values * (num_workers if num_workers and parallel else 1)


class Listing(Collator):
    def apply(self, samples):
        return list(samples)


class Odd(Collator):
    def apply(self, samples):
        return samples[0]


def test_numbers_and_bytes_are_batches_like_others():
    values = [0, 1, -1, b"bytes", None, b""]
    stream = Numbers(values, act=bool)
    assert list(DataLoader(stream, StreamSampler(1), None, Odd(), 1, parallel_stream=True)) == values
