"""The same batches, in the same order, as torch's DataLoader and webdataset's MultiLoader give."""

import numpy as np
import pytest

from slipring import Workers

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

import slipring  # noqa: E402
from slipring import Loader  # noqa: E402
from tests.support.datasets import Shards, Stream  # noqa: E402


class Torches(data.Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((3,), float(i)), int(i)


class TorchStream(data.IterableDataset):
    """Yields the samples of `tests.support.datasets.Stream`, in both kinds of worker."""

    def __init__(self, *lengths):
        self.lengths = lengths

    def __iter__(self):
        info = slipring.get_worker_info() or data.get_worker_info()
        worker = 0 if info is None else info.id
        for i in range(self.lengths[worker]):
            yield worker, i


def as_lists(loader):
    """Return batches as nested lists; torch's own are lists of tensors."""

    def plain(value):
        if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
            return value.tolist()
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    return [plain(batch) for batch in loader]


SAMPLERS = {
    "sequential": lambda ds: {"sampler": data.SequentialSampler(ds)},
    "random": lambda ds: {"sampler": data.RandomSampler(ds, generator=torch.Generator().manual_seed(1))},
    "random with replacement": lambda ds: {
        "sampler": data.RandomSampler(ds, True, 30, generator=torch.Generator().manual_seed(1))
    },
    "subset": lambda ds: {"sampler": data.SubsetRandomSampler([3, 1, 4], torch.Generator().manual_seed(1))},
    "weighted": lambda ds: {
        "sampler": data.WeightedRandomSampler(torch.ones(5), 9, generator=torch.Generator().manual_seed(1))
    },
    "batches": lambda ds: {"batch_sampler": data.BatchSampler(data.SequentialSampler(ds), 4, True)},
    "a rank's share": lambda ds: {"sampler": data.DistributedSampler(ds, num_replicas=3, rank=1, seed=2)},
    "reversed": lambda ds: {"sampler": list(range(len(ds)))[::-1]},
    "none": lambda ds: {},
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_torch_give_the_same_batches(name, num_workers):
    kwargs = {"batch_size": 4} if name != "batches" else {}
    dataset = Torches()
    theirs = data.DataLoader(dataset, **kwargs, **SAMPLERS[name](dataset))
    with Loader(dataset, num_workers=num_workers, **kwargs, **SAMPLERS[name](dataset)) as ours:
        assert len(ours) == len(theirs)
        for _ in range(2):
            assert as_lists(ours) == as_lists(theirs)


DATASETS = {
    "tensors": lambda: data.TensorDataset(torch.arange(24).reshape(12, 2), torch.arange(12)),
    "a subset": lambda: data.Subset(Torches(), [5, 1, 7, 7]),
    "a subset of a subset": lambda: data.Subset(data.Subset(Torches(), [5, 1, 7, 9]), [3, 2]),
    "two in a row": lambda: data.ConcatDataset([Torches(3), Torches(4)]),
    "side by side": lambda: data.StackDataset(a=Torches(5), b=Torches(5)),
    "a split": lambda: data.random_split(Torches(), [10, 13], torch.Generator().manual_seed(3))[0],
    "a list": lambda: [(i, str(i)) for i in range(7)],
    "a dict": lambda: {i: float(i) for i in range(7)},
    "a string": lambda: "slipring",
    "a range": lambda: range(9),
    "an array": lambda: np.arange(12.0).reshape(6, 2),
    "a chain of streams": lambda: data.ChainDataset([TorchStream(3), TorchStream(4)]),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", DATASETS)
def test_datasets_of_torch_and_python_give_the_same_batches(name, drop_last, num_workers):
    theirs = as_lists(data.DataLoader(DATASETS[name](), 3, drop_last=drop_last))
    with Loader(DATASETS[name](), 3, drop_last=drop_last, num_workers=num_workers) as loader:
        assert as_lists(loader) == theirs


@pytest.mark.parametrize("lengths", [(7, 7), (2, 9), (9, 2), (0, 5), (4, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("batch_size", [2, None])
def test_streams_come_in_torchs_order(lengths, batch_size):
    theirs = as_lists(data.DataLoader(TorchStream(*lengths), batch_size, num_workers=2))
    for dataset in (TorchStream(*lengths), Stream(*lengths)):
        with Loader(dataset, batch_size, num_workers=2) as ours:
            for _ in range(2):
                assert as_lists(ours) == theirs


def test_tensors_come_as_tensors():
    with Loader(Torches(4), 2, num_workers=1) as loader:
        for rows, numbers in loader:
            assert type(rows) is torch.Tensor and type(numbers) is np.ndarray
            rows += 1  # the memory is writable


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_of_torchs_type_and_come_at_the_same_time(num_workers):
    def until_error(loader):
        got = []
        try:
            for batch in loader:
                got.append(as_lists([batch]))
        except Exception as error:
            return got, type(error)
        raise AssertionError("no error")

    dataset = {i: i for i in range(10) if i != 5}
    with Loader(dataset, 2, sampler=range(10), num_workers=num_workers) as ours:
        theirs = data.DataLoader(dataset, 2, sampler=range(10))
        assert until_error(ours) == until_error(theirs) == ([[[0, 1]], [[2, 3]]], KeyError)


# ---- webdataset's MultiLoader: any iterable, arrival order, until every worker has ended ----


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_shards_are_split_by_the_environment(start_method):
    with Loader(Shards(9), None, num_workers=3, in_order=False, workers=Workers(start_method=start_method)) as loader:
        for _ in range(2):
            keys = [sample["__key__"] for sample in loader]
            assert sorted(keys) == sorted(f"{shard}/{i}" for shard in range(9) for i in range(shard + 1))
