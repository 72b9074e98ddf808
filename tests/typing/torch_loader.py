"""The types of `slipring.torch.DataLoader`'s batches, for type checkers. (This code never runs.)"""

from collections.abc import Iterator
from typing import Any, assert_type

import torch
import torch.utils.data
from torch import Tensor

import slipring
from slipring.torch import DataLoader, Device

Pair = tuple[Tensor, Tensor]


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A map dataset."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3), index


class Lines(torch.utils.data.IterableDataset[str]):
    """A stream; torch's class has a ``__getitem__``, which only raises."""

    def __iter__(self) -> Iterator[str]:
        yield "a line"


def together(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    return {"x": torch.stack([x for x, _ in samples])}


def longest(lines: list[str]) -> str:
    return max(lines, key=len)


def one(sample: tuple[Tensor, int]) -> Tensor:
    return sample[0]


def halved(batch: Pair) -> Tensor:
    return batch[0].half()


# ---- the batch is what collate_fn or a device's transform returns

assert_type(DataLoader(Images(), 4, collate_fn=together), DataLoader[dict[str, Tensor]])
assert_type(DataLoader(Lines(), 4, collate_fn=longest), DataLoader[str])
assert_type(DataLoader(Images(), batch_size=None, collate_fn=one), DataLoader[Tensor])
assert_type(DataLoader(Images(), 4, device=Device("cuda:0", transform=halved)), DataLoader[Tensor])
assert_type(DataLoader(Images(), 4, device=["cuda:0", "cuda:1"]), DataLoader[list[Any]])
pair = Device(["cuda:0", "cuda:1"], transform=halved)
assert_type(DataLoader(Images(), 4, device=pair), DataLoader[list[Tensor]])


def sequential(data: torch.utils.data.Dataset[Any]) -> list[int]:
    return [0, 1]


assert_type(DataLoader(Images, 4, sampler=sequential, collate_fn=together), DataLoader[dict[str, Tensor]])
assert_type(DataLoader(lambda: Lines(), 4, collate_fn=longest), DataLoader[str])
DataLoader(Images(), 4, collate_fn=longest)  # type: ignore[misc]
DataLoader(Images(), None, collate_fn=together)  # type: ignore[misc]

# ---- or the type that the user declares

assert_type(DataLoader[Pair](Images(), 4, num_workers=2), DataLoader[Pair])
loader: DataLoader[Pair] = DataLoader(Images(), 4, shuffle=True, rng="batch")
assert_type(DataLoader(Images(), 4), DataLoader[Any])
for images, labels in loader:
    assert_type(images, Tensor)
for a, b, c in loader:  # type: ignore[misc]
    pass
assert_type(next(iter(loader)), Pair)
assert_type(iter(loader).state_dict(), dict[str, Any])

# ---- it can replace torch's loader

theirs: torch.utils.data.DataLoader[Any] = loader
assert_type(loader.num_workers, int)
subset = torch.utils.data.Subset(Images(), [1, 2])
assert_type(DataLoader(subset, collate_fn=together), DataLoader[dict[str, Tensor]])
DataLoader(Images(), sampler=torch.utils.data.RandomSampler(Images()), generator=torch.Generator())

DataLoader()  # type: ignore[call-overload]
DataLoader(5)  # type: ignore[call-overload]
DataLoader(Images(), 4, seed=3)  # type: ignore[call-overload]
DataLoader(Images(), 4, device=Device("cpu", memory_format="channels_last"))  # type: ignore[call-overload]
DataLoader(Images(), 4, rng="none")  # type: ignore[call-overload]

with DataLoader(Images(), 4) as entered:
    assert_type(entered.stats(), slipring.Stats)
    entered.load_state_dict(entered.state_dict())
