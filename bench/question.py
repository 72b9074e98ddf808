"""What a question of the benchmark consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

EPOCH = 1 << 20
"""Samples in an epoch, about: so long that the ends of epochs do not show in a short window."""


@dataclass(frozen=True)
class Target:
    """A figure that slipring wants to reach.

    Parameters
    ----------
    against
        ``"roofline"``, ``"torch"`` or ``"spdl"``: slipring's rate divided by theirs must be at least `bound`.
        ``"drop_in"``: the same for slipring.torch's rate and torch's.
        ``"cpu"``: the consumer's CPU time per batch, in microseconds, must be at most `bound`.
    bound
        The figure.
    """

    against: str
    bound: float


@dataclass(frozen=True)
class Question:
    """One workload, asked of every rival.

    Parameters
    ----------
    key, title, asks
        A letter, a short name and the question itself.
    batch_size
        Samples per batch.
    dataset
        Makes the dataset; called with the user's data folder or None.
    targets
        What slipring wants to reach here.
    decode_only
        The roofline makes samples and drops them, instead of also writing them to shared memory.
    window_scale
        The timed window is this many times the usual one (for slow batches).
    """

    key: str
    title: str
    asks: str
    batch_size: int
    dataset: Callable[[str | None], Dataset]
    targets: tuple[Target, ...] = ()
    decode_only: bool = False
    window_scale: float = 1.0


class Dataset:
    """A map dataset that goes round a pool of `sources`; ``distinct`` of them differ.

    The plainest of Python classes, because that is what people write. `load` turns a source into a sample.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self.distinct = len(sources)
        self.sources = list(sources) * max(1, EPOCH // len(sources))

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Any:
        return self.sources[index]


class Ready(Dataset):
    """A dataset whose samples lie ready in memory.

    Pickles as the recipe `make`, so that where workers are spawned the pool does not go through a pipe.
    """

    def __init__(self, make: Callable[[], Sequence[Any]]) -> None:
        super().__init__(make())
        self.make = make

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Ready, (self.make,)
