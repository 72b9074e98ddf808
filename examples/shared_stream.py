"""Tensor-parallel ranks read one stream: only one process of each group reads and decodes the samples.

Run it with `python -m torch.distributed.run --nproc-per-node 4 examples/shared_stream.py`.
"""

import os

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from slipring.torch import DataLoader

TENSOR_PARALLEL = 2


class Samples(Dataset):
    """Samples that know the process that made them."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"x": torch.full((1024,), i), "made_by": os.getpid()}


def main():
    dist.init_process_group("gloo")
    shape = dist.get_world_size() // TENSOR_PARALLEL, TENSOR_PARALLEL
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    makers, total = set(), 0
    # The data-parallel ranks divide the samples; the ranks of a tensor-parallel group get the same ones. One rank of
    # each group makes the dataset, so the loader gets functions.
    with DataLoader(
        Samples,
        batch_size=8,
        sampler=lambda data: DistributedSampler(data, dp.size(), dp.get_local_rank(), seed=1),
        num_workers=2,
        share=tp,
    ) as loader:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                total += batch["x"][:, 0].sum().item()
                makers |= set(batch["made_by"].tolist())
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (total, makers))
    if dist.get_rank() == 0:
        groups = [found[first : first + TENSOR_PARALLEL] for first in range(0, len(found), TENSOR_PARALLEL)]
        print("ranks of a group got the same:", all(each == group[0] for group in groups for each in group))
        print("sum of all samples:", sum(group[0][0] for group in groups))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
