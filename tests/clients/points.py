"""A dataset and a model that every client can train, and a record of the samples that arrive."""

import torch

from slipring import Memory, Workers
from slipring.torch import Device


class Points(torch.utils.data.Dataset):
    """Sample i is (four numbers, their sum, i)."""

    def __init__(self, n=24):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x = torch.full((4,), float(i)) / self.n
        return {"x": x, "y": x.sum(), "i": i}


class Line(torch.nn.Module):
    """A layer that returns its loss, and records the sample numbers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def forward(self, x, y, i):
        self.seen += i.tolist()
        return {"loss": ((self.layer(x)[:, 0] - y) ** 2).mean()}


# Arguments of ours that a client must keep when it makes a new loader; none of them is the default.
EXTRAS = {
    "workers": Workers(chunk_size=2, on_death="respawn", max_restarts=7),
    "memory": Memory(copy="always", slots=9),
    "device": Device(torch.device("cpu"), preload=2),
}


# What the monitors of training libraries log.
SCALARS = {"slipring/batches_per_s", "slipring/mb_per_s", "slipring/wait_share", "slipring/workers_busy_share"}


def extras(loader):
    return {name: getattr(loader, name) for name in EXTRAS}


def epochs(seen, n=24):
    """Return the order of each epoch, after a check that each has every sample once."""
    orders = [seen[at : at + n] for at in range(0, len(seen), n)]
    assert all(sorted(order) == list(range(n)) for order in orders), orders
    return orders
