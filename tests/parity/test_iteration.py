"""slipring.Loader gives the batches of torch's DataLoader for torch's datasets, in the same order."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

import slipring  # noqa: E402
from slipring import Loader  # noqa: E402


class Torches(data.Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((3,), float(i)), int(i)


class TorchStream(data.IterableDataset):
    """Each worker yields as many numbers as `lengths` says for it."""

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


DATASETS = {
    "tensors": lambda: data.TensorDataset(torch.arange(24).reshape(12, 2), torch.arange(12)),
    "a subset of a subset": lambda: data.Subset(data.Subset(Torches(), [5, 1, 7, 9]), [3, 2]),
    "two in a row": lambda: data.ConcatDataset([Torches(3), Torches(4)]),
    "side by side": lambda: data.StackDataset(a=Torches(5), b=Torches(5)),
    "a dict": lambda: {i: float(i) for i in range(7)},
    "an array": lambda: np.arange(12.0).reshape(6, 2),
    "a chain of streams": lambda: data.ChainDataset([TorchStream(3), TorchStream(4)]),
}


@pytest.mark.parametrize(("num_workers", "drop_last"), [(0, False), (1, True)])
@pytest.mark.parametrize("name", DATASETS)
def test_datasets_of_torch_and_python_give_the_same_batches(name, drop_last, num_workers):
    theirs = as_lists(data.DataLoader(DATASETS[name](), 3, drop_last=drop_last))
    with Loader(DATASETS[name](), 3, drop_last=drop_last, num_workers=num_workers) as loader:
        assert as_lists(loader) == theirs
        if name == "two in a row":
            rows, numbers = next(iter(loader))
            assert type(rows) is torch.Tensor and type(numbers) is np.ndarray


@pytest.mark.parametrize(("lengths", "batch_size"), [((9, 2), 2), ((0, 5), None)])
def test_streams_come_in_torchs_order(lengths, batch_size):
    theirs = as_lists(data.DataLoader(TorchStream(*lengths), batch_size, num_workers=2))
    with Loader(TorchStream(*lengths), batch_size, num_workers=2) as ours:
        for _ in range(2):
            assert as_lists(ours) == theirs
