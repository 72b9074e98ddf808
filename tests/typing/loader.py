"""The types of a loader's batches, for type checkers. (This code never runs.)"""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import slipring
from slipring import Memory
from slipring._core.passes._pass import Pass
from slipring.typing import Empty

Floats = NDArray[np.float32]


class Images:
    """A map dataset."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Floats, int]:
        return np.zeros((3, 4), np.float32), index


class Named:
    """A map dataset whose sampler yields names."""

    def __getitem__(self, name: str) -> Floats:
        return np.full(3, len(name), np.float32)


class Lines:
    """A stream."""

    def __iter__(self) -> Iterator[str]:
        yield "a line"


class Whole:
    """A map dataset that makes its batches."""

    def __len__(self) -> int:
        return 8

    def fetch_into(self, indices: list[int], empty: Empty) -> dict[str, NDArray[Any]]:
        return {"x": empty((len(indices), 3), np.float32)}


def together(samples: list[tuple[Floats, int]]) -> dict[str, Floats]:
    return {"x": np.stack([x for x, _ in samples])}


def longest(lines: list[str]) -> str:
    return max(lines, key=len)


def one(sample: tuple[Floats, int]) -> Floats:
    return sample[0]


# ---- the batch is what collate_fn returns

assert_type(slipring.Loader(Images(), 4, collate_fn=together), slipring.Loader[dict[str, Floats]])
assert_type(slipring.Loader(Lines(), 4, collate_fn=longest), slipring.Loader[str])
assert_type(slipring.Loader(Images(), batch_size=None, collate_fn=one), slipring.Loader[Floats])
assert_type(slipring.Loader(["a", "b"], 2, collate_fn=longest), slipring.Loader[str])
assert_type(slipring.Loader(Images(), collate_fn=lambda samples: len(samples)), slipring.Loader[int])
slipring.Loader(Images(), 4, collate_fn=longest)  # type: ignore[arg-type]
slipring.Loader(Images(), None, collate_fn=together)  # type: ignore[arg-type]

# ---- or a sample, or the dataset's own batch

assert_type(slipring.Loader(Images(), None), slipring.Loader[tuple[Floats, int]])
assert_type(slipring.Loader(Lines(), batch_size=None), slipring.Loader[str])
assert_type(slipring.Loader(Whole(), 4), slipring.Loader[dict[str, NDArray[Any]]])
slipring.Loader(Whole(), None)  # type: ignore[call-overload]

# ---- or the type that the user declares

Pair = tuple[Floats, NDArray[np.int64]]
assert_type(slipring.Loader[Pair](Images(), 4, num_workers=2), slipring.Loader[Pair])
loader: slipring.Loader[Pair] = slipring.Loader(Images(), 4, shuffle=True, seed=0, rng="worker")
assert_type(slipring.Loader(Images(), 4), slipring.Loader[Any])
slipring.Loader(Named(), sampler=["a", "bc"])
slipring.Loader(Named(), batch_sampler=[["a"], ["bc"]])
slipring.Loader(Images(), batch_sampler=slipring.BatchSampler(8, 4, shuffle=True))
wider: slipring.Loader[object] = loader
narrower: slipring.Loader[str] = loader  # type: ignore[assignment]

for images, labels in loader:
    assert_type(images, Floats)
    assert_type(labels, NDArray[np.int64])
for a, b, c in loader:  # type: ignore[misc]
    pass
assert_type(iter(loader), Pass[Pair])
assert_type(next(iter(loader)), Pair)
iter(loader).close()

# ---- arguments

slipring.Loader()  # type: ignore[call-overload]
slipring.Loader(5)  # type: ignore[call-overload]
slipring.Loader(Images(), 4, num_worker=2)  # type: ignore[call-overload]
slipring.Loader(Images(), "4")  # type: ignore[call-overload]
slipring.Loader(Images(), 4, memory=Memory(copy="seldom"))  # type: ignore[arg-type]
slipring.Loader(Images(), 4, False, None, None, 0, None, False, 0, None, None, 2)  # type: ignore[call-overload]


class Mine(slipring.Loader[Pair]):
    """A loader of one type."""


assert_type(next(iter(Mine(Images(), 4))), Pair)

with slipring.Loader(Images(), 4) as entered:
    assert_type(entered, slipring.Loader[Any])
    assert_type(len(entered), int)
    assert_type(entered.stats(), slipring.Stats)
    assert_type(entered.stats().worker_private_bytes, tuple[int | None, ...])
    entered.stats().batches = 3  # type: ignore[misc]
    assert_type(entered.state_dict(), dict[str, Any])
