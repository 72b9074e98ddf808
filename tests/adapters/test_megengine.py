"""slipring.adapters.megengine: behaviour of MegEngine's loader that is kept."""

import os
import re
import sys
import time
import types

import numpy as np
import pytest

from slipring import LoaderTimeout, WorkerDied
from slipring.adapters import megengine as mge
from slipring.adapters import megengine_own
from slipring.adapters.megengine import (
    Collator,
    DataLoader,
    SequentialSampler,
    StreamDataset,
    StreamSampler,
    Transform,
)
from tests.adapters.streams import Numbers
from tests.support.adapters import Images, Pair, die, fail, labels, leave
from tests.support.datasets import flat
from tests.support.inside import memory as growth

WORKERS = [0, 2]
TIMES = re.compile(r"idx: (\d+), dataset_time: ([0-9.]+),")


class Pickled(Exception):
    def __reduce__(self):
        raise TypeError("not this one")


class Doubling(Transform):
    """Records which of its methods was called."""

    def apply(self, sample):
        return sample * 2

    def apply_batch(self, samples):
        return [(image * 2, label + 100) for image, label in samples]


class Summing(Collator):
    def apply(self, samples):
        return {"sum": np.sum([sample[0] for sample in samples], axis=0), "n": len(samples)}


# ---- behaviour that is kept


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_map_is_read_by_a_map_sampler(num_workers):
    sampler = SequentialSampler(Images(), batch_size=4)
    loader = DataLoader(Images(), sampler, num_workers=num_workers)
    assert len(loader) == len(sampler) == len(iter(loader)) == 3
    for _ in range(2):
        assert labels(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [image.shape for image, _ in DataLoader(Images(2))] == [(1, 2)] * 2, "the default: one by one"


@pytest.mark.parametrize(("num_workers", "parallel"), [(0, False), (2, False), (2, True)])
def test_a_stream_is_read_by_a_stream_sampler(num_workers, parallel):
    loader = DataLoader(Numbers(), StreamSampler(3), num_workers=num_workers, parallel_stream=parallel)
    for _ in range(2):
        got = [batch.tolist() for batch in loader]
        assert sorted(flat(got)) == list(range(7)) and max(map(len, got)) == 3
        if not (num_workers and parallel):
            assert got == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"dataset": 3}, AssertionError, "int"),
        ({"sampler": 3}, AssertionError, "Images is a map, which needs a sampler of indices, not int"),
        ({"sampler": StreamSampler(2)}, AssertionError, "Images.*StreamSampler"),
        ({"dataset": Numbers(), "sampler": SequentialSampler(Images())}, AssertionError, "Numbers.*SequentialSampler"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, kind, said):
    with pytest.raises(kind, match=said):
        DataLoader(**{"dataset": Images(), **arguments})


@pytest.mark.parametrize("num_workers", WORKERS)
def test_transform_and_collator_are_applied(num_workers):
    sampler = SequentialSampler(Images(), 5)
    loader = DataLoader(Images(), sampler, Doubling(), num_workers=num_workers)
    assert [(image[:, 0].tolist(), label.tolist()) for image, label in loader] == [
        ([0, 2, 4, 6, 8], [100, 101, 102, 103, 104]),
        ([10, 12, 14, 16, 18], [105, 106, 107, 108, 109]),
    ]
    sums = [batch for batch in DataLoader(Images(), sampler, Doubling(), Summing(), num_workers)]
    assert [(batch["sum"][0], batch["n"]) for batch in sums] == [(20, 5), (70, 5)]
    for parallel in (False, True):
        stream = DataLoader(Numbers(), StreamSampler(4), Doubling(), None, num_workers, parallel_stream=parallel)
        assert sorted(np.concatenate(list(stream)).tolist()) == [0, 2, 4, 6, 8, 10, 12]


def test_a_collator_gets_a_tuple_from_the_default_transform():
    class Kind(Collator):
        def apply(self, inputs):
            return type(inputs).__name__, len(inputs)

    assert list(DataLoader(Images(), SequentialSampler(Images(), 5), None, Kind())) == [("tuple", 5)] * 2


@pytest.mark.parametrize("num_workers", WORKERS)
def test_attributes_set_on_a_loader_between_two_passes_count(num_workers):
    loader = DataLoader(Images(), SequentialSampler(Images(), 5), num_workers=num_workers)
    assert labels(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    loader.sampler = SequentialSampler(Images(), 2, indices=[7, 1, 3])
    assert labels(loader) == [[7, 1], [3]] and len(loader) == 2
    loader.transform = Doubling()
    assert labels(loader) == [[107, 101], [103]]
    loader.num_workers, loader.collator = 2 - num_workers, Summing()
    assert [batch["n"] for batch in loader] == [2, 1]


class Telling(StreamDataset):
    def __iter__(self):
        info = mge.get_worker_info()
        with pytest.raises(RuntimeError, match="only be read: idx cannot become 5"):
            info.idx = 5
        with pytest.raises(RuntimeError, match="only be read: idx cannot be deleted"):
            del info.idx
        assert repr(info) == f"WorkerInfo(idx={info.idx}, worker={info.worker}, seed={info.seed})"
        yield info.idx, info.worker, info.seed


def test_each_worker_iterates_a_parallel_stream_and_knows_its_number():
    loader = DataLoader(Telling(), StreamSampler(1), num_workers=2, parallel_stream=True)
    told = sorted(tuple(int(part[0]) for part in batch) for batch in loader)
    assert [(idx, worker) for idx, worker, _ in told] == [(0, 2), (1, 2)]
    assert told[1][2] == told[0][2] + 1
    assert mge.get_worker_info() is None


class Here(StreamDataset):
    def __iter__(self):
        for _ in range(4):
            yield os.getpid()


class Where(Transform):
    def apply(self, pid):
        return pid, os.getpid()


def test_otherwise_this_process_reads_and_workers_transform(caplog):
    DataLoader(Numbers(), StreamSampler(2), num_workers=2, parallel_stream=True)
    DataLoader(Numbers(), StreamSampler(2), num_workers=1)
    assert not caplog.records
    for read, transformed in DataLoader(Here(), StreamSampler(2), Where(), num_workers=2):
        assert set(read.tolist()) == {os.getpid()} and os.getpid() not in transformed.tolist()
    assert "parallel_stream=True" in caplog.text


def test_an_override_of_a_stream_sampler_without_effect_causes_a_warning(caplog):
    class Finite(StreamSampler):
        def sample(self):
            return range(4)

    DataLoader(Numbers(), StreamSampler(2))
    assert not caplog.records
    DataLoader(Numbers(), Finite(2))
    assert "batch_size alone counts: Finite.sample is not called" in caplog.text


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [(0, {}), (2, {}), (2, {"parallel_stream": True}), (0, {"preload": True}), (2, {"preload": True}), (2, None)],
)
def test_a_timeout_is_an_error(num_workers, options, hang):
    """Kept: `timeout` seconds -> error "dataloader timeout"; for maps, and for streams in every mode."""
    if options is None:
        loader = DataLoader(Images(act=hang, at=0), num_workers=num_workers, timeout=0.2)
    else:
        if "preload" in options:
            pytest.importorskip("torch")
        stream = Numbers([1, 2], act=hang)
        loader = DataLoader(stream, StreamSampler(4), num_workers=num_workers, timeout=0.2, **options)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="dataloader timeout") as caught:
        next(batches)
    assert isinstance(caught.value, LoaderTimeout)
    batches.close()


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_workers_exception_is_raised_with_its_traceback(num_workers):
    loader = DataLoader(Images(act=fail, at=5), SequentialSampler(Images(), 4), num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError if num_workers else LookupError, match="no such image") as caught:
        next(batches)
    if num_workers:
        said = re.escape("Caught LookupError in DataLoader worker process ") + r"\d\.\nOriginal Traceback"
        assert re.match(said, str(caught.value)) and "in fail" in str(caught.value)
        original = caught.value.__cause__
        assert type(original) is LookupError and original.args == ("no such image",)
        assert caught.value.worker in (0, 1) and caught.value.seq == 1
        assert caught.value.indices == [4, 5, 6, 7]
    else:
        original = caught.value
    assert "in fail" in original.__cause__.traceback
    assert next(batches)[1].tolist() == [8, 9]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("preload", [False, True])
def test_a_workers_exception_that_cannot_be_pickled_is_a_runtime_error(preload):
    def refuse():
        raise Pickled("as text alone")

    if preload:
        pytest.importorskip("torch")
    batches = iter(DataLoader(Images(at=0, act=refuse), num_workers=1, preload=preload))
    with pytest.raises(RuntimeError, match="Caught Pickled in DataLoader worker process 0") as caught:
        next(batches)
    assert "as text alone" in str(caught.value.__cause__)


def test_exceptions_of_a_sampler_or_a_stream_in_this_process_come_unchanged():
    class Failing(SequentialSampler):
        def sample(self):
            raise LookupError("no order")

    with pytest.raises(LookupError, match="no order"):
        next(iter(DataLoader(Images(), Failing(Images(), 2), num_workers=1)))
    with pytest.raises(LookupError, match="no such image"):
        list(DataLoader(Numbers(act=fail), StreamSampler(2), num_workers=1))


def test_dead_workers_are_named():
    with pytest.raises(RuntimeError, match=r"worker\(s\): [01], pid\(s\): \d+") as caught:
        next(iter(DataLoader(Images(act=die, at=0), num_workers=2)))
    assert isinstance(caught.value, WorkerDied)
    assert "exitcode(s): -9" in str(caught.value) and "memory" in str(caught.value)
    with pytest.raises(RuntimeError, match=r"exitcode\(s\): 3"):
        next(iter(DataLoader(Images(act=leave, at=0), num_workers=2)))


class Nested(Images):
    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return {"pair": Pair(image, label), "seq": [image, (label,)], "name": f"n{i}"}


@pytest.mark.parametrize("num_workers", WORKERS)
def test_preload_makes_tensors_in_nested_structures(num_workers):
    torch = pytest.importorskip("torch")
    loader = DataLoader(Nested(), SequentialSampler(Images(), 4), num_workers=num_workers, preload=True)
    batches = list(loader)
    assert len(batches) == 3
    first = batches[0]
    assert type(first["pair"]) is Pair and isinstance(first["pair"].image, torch.Tensor)
    assert isinstance(first["seq"][1][0], torch.Tensor) and first["name"] == ["n0", "n1", "n2", "n3"]
    assert first["pair"].label.tolist() == [0, 1, 2, 3]


class Tensor:
    def __init__(self, data):
        assert type(data) is np.ndarray
        self.data = data.copy()


def test_preload_makes_megengines_tensors_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "megengine", types.SimpleNamespace(Tensor=Tensor))
    loader = DataLoader(Nested(), SequentialSampler(Images(), 4), num_workers=2, preload=True)
    for _ in range(2):
        labels = [batch["pair"].label for batch in loader]
        assert all(type(label) is Tensor for label in labels)
        assert [label.data.tolist() for label in labels] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for _ in loader:
        break  # batches in flight end with the iteration


def test_preload_without_any_tensors_is_refused(monkeypatch):
    monkeypatch.setattr(megengine_own, "there", lambda name: False)
    with pytest.raises(ImportError, match="megengine or torch"):
        DataLoader(Images(), preload=True)


@pytest.mark.usefixtures("forked")
def test_times_are_printed_every_so_many_batches(monkeypatch, capfd):
    monkeypatch.setenv("MGE_DATA_MONITOR", "1")
    monkeypatch.setenv("MGE_DATA_MONITOR_FREQUENCY", "3")
    for num_workers in WORKERS:
        slow = Images(at=3, act=lambda: time.sleep(0.05))
        list(DataLoader(slow, SequentialSampler(slow, 1), Doubling(), num_workers=num_workers))
        lines = capfd.readouterr().out.splitlines()
        made = [line for line in lines if "dataset_time" in line]
        assert sorted(int(line.split("idx: ")[1].split(",")[0]) for line in made) == [0, 3, 6, 9]
        assert all(re.search(r"transform_time: \d+\.\d.*collate_time: \d+\.\d", line) for line in made)
        read = {int(found[1]): float(found[2]) for found in map(TIMES.search, made)}
        assert read[3] >= 0.05 and all(read[k] >= 0 for k in (0, 6, 9))
        transport = [line for line in lines if "IPC_time" in line]
        assert len(transport) == (4 if num_workers else 0)
    monkeypatch.setenv("MGE_DATA_MONITOR", "0")
    list(DataLoader(Images(), num_workers=1))
    assert capfd.readouterr().out == ""


def test_too_many_workers_for_the_container_are_warned_of(monkeypatch, caplog):
    resident = 1 << 20  # at least
    monkeypatch.setattr(growth, "memory_available", lambda root: (0, 3 * resident, "a container", "memory.max"))
    DataLoader(Images(), num_workers=0)
    assert not caplog.records
    DataLoader(Images(), num_workers=3)
    assert "each of 3 workers" in caplog.text and "a container (memory.max)" in caplog.text


@pytest.mark.usefixtures("forked")
def test_the_same_seed_of_numpys_generator_gives_the_same_epochs():
    class Drawing(Images):
        def __getitem__(self, i):
            return np.random.rand(), i

    def run(num_workers, seed=3):
        np.random.seed(seed)
        loader = DataLoader(Drawing(), SequentialSampler(Images(), 4), num_workers=num_workers)
        return [batch[0].tolist() for _ in range(2) for batch in loader]

    assert run(2) == run(2) == run(1) != run(1, seed=4)
