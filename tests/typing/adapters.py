"""slipring as a replacement of other loaders, for type checkers. (This code never runs.)"""

from collections.abc import Callable, Iterator
from typing import Any, assert_type

import torch.utils.data
from torch import Tensor

import slipring.torch
from slipring.adapters import di_engine, megengine, paddle, torchdata, webdataset

rows = [1, 2, 3]


def together(samples: list[int]) -> Tensor:
    return torch.tensor(samples)


def as_slices(batch_size: int) -> list[Callable[[], dict[str, Tensor]]]:
    return [lambda: {"x": torch.zeros(3)}] * batch_size


loader = torchdata.StatefulDataLoader(rows, 4, collate_fn=together, snapshot_every_n_steps=2)
assert_type(loader, torchdata.StatefulDataLoader[Tensor])
assert_type(next(iter(loader)), Tensor)
theirs: torch.utils.data.DataLoader[Any] = loader
ours: slipring.torch.DataLoader[Tensor] = loader
stateful: torchdata.Stateful = loader
assert_type(iter(torchdata.RandomSampler(rows)), Iterator[int])
torchdata.StatefulDataLoader(rows, 4, snapshot_every="2")  # type: ignore[call-overload]
not_stateful: torchdata.Stateful = rows  # type: ignore[assignment]

with slipring.torch.install():
    pass
slipring.torch.install(True)  # type: ignore[call-arg]
torch.utils.data.DataLoader(rows, collate_fn=slipring.torch.RingCollate(together, slots=8))  # type: ignore[arg-type]

samples = webdataset.MultiLoader(iter(rows), workers=2, worker_options=slipring.Workers(on_death="respawn"))
assert_type(iter(samples), Iterator[Any])
samples.kill()
webdataset.MultiLoader(iter(rows), "2")  # type: ignore[arg-type]

batches = di_engine.AsyncDataLoader(as_slices, 8, "cpu", chunk_size=4, num_workers=2)
assert_type(next(batches), Any)
assert_type(batches.stats(), slipring.Stats)
di_engine.AsyncDataLoader(as_slices, 8)  # type: ignore[call-arg]

sampler = megengine.RandomSampler(rows, batch_size=4, drop_last=True)
assert_type(len(megengine.DataLoader(rows, sampler, num_workers=2)), int)
for batch in megengine.DataLoader(megengine.ArrayDataset(rows, rows), preload=False):
    assert_type(batch, Any)
megengine.DataLoader(rows, batch_size=4)  # type: ignore[call-arg]
assert_type(megengine.get_worker_info(), megengine.WorkerInfo | None)

pairs = paddle.DataLoader(rows, batch_size=4, shuffle=True, return_list=True)
assert_type(iter(pairs), Iterator[Any])
assert_type(pairs.reader_cost, float)
paddle.DataLoader(rows, batch_sampler=paddle.BatchSampler(rows, batch_size=4))
paddle.DataLoader(rows, shuffles=True)  # type: ignore[call-arg]
