"""Datasets with a state for the tests of torchdata's adapter, and a function that makes their loaders."""

import torch
from torch.utils import data

from tests.support.datasets import as_is
from tests.support.stateful import OwnIterator


class Drawing(data.Dataset):
    """Sample i is (i, what torch's generator draws); its state is that generator's."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return i, torch.rand(()).item()

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


class Own(OwnIterator, data.IterableDataset):
    """Its own iterator, which exists only while it is iterated."""

    def __init__(self, n=24):
        self.n = n

    def items(self):
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return range(worker, self.n, workers)


class CountsEpochs(data.IterableDataset):
    """Yields (number of the pass, number)."""

    def __init__(self, n=6):
        self.n, self.epoch, self.at = n, 0, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            yield self.epoch, self.at
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


def made(cls, dataset, setting=(0, False), seed=None, **options):
    if seed is not None:
        torch.manual_seed(seed)
    options.setdefault("collate_fn", as_is)
    return cls(dataset, num_workers=setting[0], persistent_workers=setting[1], **options)
