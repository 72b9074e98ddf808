"""The same for torch's drop-in."""

import torch

from tests.soak import samples


class Stream(samples.Stream, torch.utils.data.IterableDataset):
    def worker(self):
        info = torch.utils.data.get_worker_info()
        return 0 if info is None else info.id
