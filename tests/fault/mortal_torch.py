"""The streams of `mortal` for torch's drop-in."""

import torch

from tests.fault import mortal


class Stream(mortal.Stream, torch.utils.data.IterableDataset):
    def worker(self):
        return torch.utils.data.get_worker_info().id


class Stateful(mortal.Stateful, torch.utils.data.IterableDataset):
    def worker(self):
        return torch.utils.data.get_worker_info().id
