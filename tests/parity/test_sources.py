"""Samplers, streams and data pipes: the samples, their order and their batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402
from torch.utils.data.datapipes.iter import IterableWrapper  # noqa: E402
from torch.utils.data.datapipes.map import SequenceWrapper  # noqa: E402

from tests.support.datasets import Values  # noqa: E402
from tests.support.torch_datasets import Stream, assert_as_torch, batches  # noqa: E402

WORKERS = [0, 2]
NUMBERS = Values(list(range(11)))


def seeded():
    return torch.Generator().manual_seed(9)


SAMPLING = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "shuffled by a generator": {"shuffle": True, "make_generator": seeded},
    "with replacement": {"make_sampler": lambda: data.RandomSampler(NUMBERS, True, 30)},
    "by a generator of its own": {"make_sampler": lambda: data.RandomSampler(NUMBERS, generator=seeded())},
    "weighted": {"make_sampler": lambda: data.WeightedRandomSampler([1.0, 2, 3, 0, 5], 40)},
    "a subset": {"make_sampler": lambda: data.SubsetRandomSampler([3, 1, 4, 9])},
    "distributed": {"make_sampler": lambda: data.DistributedSampler(NUMBERS, 3, 1, seed=4)},
}


SIZES = [{"batch_size": 4, "drop_last": True}, {"batch_size": None}]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("how", SAMPLING)
def test_samples_come_in_torchs_order(make, how, num_workers):
    assert_as_torch(make, NUMBERS, **SAMPLING[how], batch_size=4, num_workers=num_workers, epochs=2)


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("batch", SIZES, ids=str)
def test_the_last_batch_and_single_samples_come_as_torchs(make, batch, num_workers):
    assert_as_torch(make, NUMBERS, shuffle=True, **batch, num_workers=num_workers, epochs=2)
    assert_as_torch(make, lambda: Stream(lengths=(7, 2)), **batch, num_workers=num_workers, epochs=2)


BATCHING = {
    "torch's batches": lambda: data.BatchSampler(data.RandomSampler(NUMBERS), 3, False),
    "torch's full batches": lambda: data.BatchSampler(data.RandomSampler(NUMBERS), 3, True),
    "lists, tuples and tensors": lambda: [[0, 1], [3, 3, 3], (5,), torch.tensor([0, 1])],
    "no batch": lambda: [],
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("how", BATCHING)
@pytest.mark.leaks_ok("once it is sent a tensor, torch's worker has a server for it that stays")
def test_a_batch_sampler_decides_which_samples_form_a_batch(make, how, num_workers):
    assert_as_torch(make, NUMBERS, make_batch_sampler=BATCHING[how], num_workers=num_workers, epochs=2)


KINDS = [list, tuple, set, lambda indices: range(indices[0], 5), np.array, torch.tensor]


class Asked(Values):
    """A sample is the type of a batch's indices, and one of them."""

    def __getitems__(self, indices):
        return [(type(indices).__name__, index) for index in indices]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.leaks_ok("once it is sent a tensor, torch's worker has a server for it that stays")
def test_getitems_gets_what_the_batch_sampler_yields(make, num_workers):
    batches = [kind(indices) for kind in KINDS for indices in ([3, 1], [2])]
    assert_as_torch(make, Asked([]), batch_sampler=batches, num_workers=num_workers)


class Finished(Values):
    """Its `__getitems__` returns a finished batch: a text, or a dict for every second one."""

    def __getitems__(self, indices):
        return {"x": torch.tensor(indices), "name": str(indices)} if indices[0] % 2 else str(indices)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_finished_batch_is_collated_as_torch_collates_it(make, num_workers):
    dataset = Finished([])
    assert_as_torch(make, dataset, batch_sampler=[[1, 3], [2]], num_workers=num_workers, collate_fn=lambda batch: batch)
    assert_as_torch(make, dataset, batch_sampler=[[2, 3], [4]], num_workers=num_workers)
    with pytest.raises(KeyError):
        list(make(dataset, batch_sampler=[[1, 3]], num_workers=num_workers))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_batch_sampler_that_yields_iterators_is_read_once(make, num_workers):
    assert_as_torch(make, NUMBERS, make_batch_sampler=lambda: [iter([3, 1]), iter([2])], num_workers=num_workers)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_sampler_of_batches_without_batching_gives_torchs_samples(make, num_workers):
    rows = data.TensorDataset(torch.arange(22).reshape(11, 2))
    sampler = [[0, 1], [5, 5, 5]]
    assert_as_torch(make, rows, sampler=sampler, batch_size=None, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_torchs_batch_sampler_without_batching_loads_in_bulk(make, num_workers):
    rows = data.TensorDataset(torch.arange(22).reshape(11, 2))
    batches = data.BatchSampler(data.RandomSampler(NUMBERS), 4, False)
    assert_as_torch(make, rows, sampler=batches, batch_size=None, num_workers=num_workers, epochs=2)


STREAMS = {
    "sharded": lambda: Stream(13),
    "the same in each worker": lambda: Stream(13, sharded=False),
    "one shorter": lambda: Stream(lengths=(7, 2)),
    "one empty": lambda: Stream(lengths=(4, 0)),
    "all empty": lambda: Stream(lengths=(0, 0)),
    "chained": lambda: data.ChainDataset([Stream(5), Stream(4)]),
    "data pipe": lambda: IterableWrapper(range(13)),
    "shuffled data pipe": lambda: IterableWrapper(range(13)).shuffle().sharding_filter(),
    "long data pipe": lambda: IterableWrapper(range(13)).shuffle().sharding_filter().batch(2).map(sum),
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("how", STREAMS)
def test_streams_come_as_torchs(make, how, num_workers):
    assert_as_torch(make, STREAMS[how], batch_size=4, num_workers=num_workers, epochs=2)


@pytest.mark.parametrize("how", ["one shorter", "shuffled data pipe"])
def test_persistent_workers_begin_a_stream_again_in_each_epoch(make, how):
    options = {"batch_size": 3, "num_workers": 2, "persistent_workers": True, "epochs": 3}
    assert_as_torch(make, STREAMS[how], **options)


@pytest.mark.parametrize(("shuffle", "num_workers"), [(False, 2), (True, 0)])
def test_shuffle_switches_a_data_pipes_own_shuffling(make, shuffle, num_workers):
    pipe = STREAMS["shuffled data pipe"]
    assert_as_torch(make, pipe, batch_size=3, shuffle=shuffle, num_workers=num_workers, epochs=2)


def test_map_data_pipes_are_map_datasets(make):
    def pipe():
        return SequenceWrapper(list(range(9))).map(str)

    assert_as_torch(make, pipe, batch_size=2, shuffle=True, num_workers=2, epochs=2)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_empty_dataset_has_no_batch(make, num_workers):
    assert batches(make, Values([]), num_workers=num_workers) == []
    assert batches(make, Values([]), batch_size=None, num_workers=num_workers) == []
    assert batches(make, Values([1]), batch_size=2, drop_last=True, num_workers=num_workers) == []


def test_out_of_order_a_stream_loses_nothing(make):
    dataset = Stream(lengths=(9, 4))
    ours = batches(make, dataset, batch_size=2, num_workers=2, in_order=False)
    theirs = batches(data.DataLoader, dataset, batch_size=2, num_workers=2)
    assert sorted(batch.tolist() for batch in ours) == sorted(batch.tolist() for batch in theirs)


def test_more_workers_than_batches_change_nothing(make):
    for dataset in (Values([1, 2, 3]), Stream(3)):
        assert_as_torch(make, dataset, batch_size=2, num_workers=2, prefetch_factor=7)


@pytest.mark.parametrize("prefetch_factor", [1, 3])
def test_the_sampler_is_read_as_far_ahead_as_by_torch(make, prefetch_factor):
    def asked_after_each_batch(cls):
        asked = 0

        def sampler():
            nonlocal asked
            for i in range(11):
                asked += 1
                yield i

        loader = cls(NUMBERS, sampler=sampler(), num_workers=2, prefetch_factor=prefetch_factor)
        return [asked for _ in loader]

    assert asked_after_each_batch(make) == asked_after_each_batch(data.DataLoader)
