"""What a question of the benchmark consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

EPOCH = 1 << 20
"""Samples in an epoch, about: so long that the ends of epochs do not show in a short window."""


@dataclass(frozen=True)
class Roles:
    """Which rivals, by key, stand for what in ratios and targets; of several the fastest counts."""

    ours: str = "slipring"
    drop_in: str = "slipring_torch"
    torch: tuple[str, ...] = ("torch_numpy", "torch_tensor")
    spdl: tuple[str, ...] = ("spdl",)
    roofline: tuple[str, ...] = ("roofline",)
    threads: str | None = None
    plain: str | None = None
    half: str | None = None
    mapped: str | None = None


EXACT = 2
"""Levels that an exact decoder may be off by."""


@dataclass(frozen=True)
class Target:
    """A figure that slipring wants to reach.

    Parameters
    ----------
    against
        ``"roofline"``, ``"torch"`` or ``"spdl"``: slipring's rate divided by theirs must be at least `bound`.
        ``"drop_in"``: the same for slipring.torch's rate and torch's.
        ``"exact"``: the same for slipring's rate and the best one's of those that are as exact as `EXACT` asks.
        ``"threads"``: the same for slipring's rate with thread workers and with processes.
        ``"plain"``: the same for slipring's rate with and without a cache; ``"half"``: for that with room for half of
        all; ``"mapped"``: for its rate with a cache and that from a mapped file of decoded pictures.
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
        A letter, a short name and the question itself. ``f-large`` belongs to ``f``.
    batch_size
        Samples per batch.
    dataset
        Makes the dataset; called with the user's data folder or None.
    prepare
        Makes the files, if they are not there; called likewise, once, before anything is measured.
    targets
        What slipring wants to reach here.
    decode_only
        The roofline makes samples and drops them, instead of also writing them to shared memory.
    window_scale
        The timed window is this many times the usual one (for slow batches).
    quick_batch_size
        Samples per batch with ``--quick``, where others.
    rivals
        The keys of those that it is asked of; None: of those that load any dataset.
    roles
        Which of them stand for what.
    crops
        Batches are random crops, different each time: they are checked by their form, and each rival's decoder is
        compared with Pillow's.
    epochs
        How many epochs pass before the clock starts, because the question is about later ones. The cached samples and
        their memory are reported, too.
    quick_rivals
        The keys of those that it is asked of with ``--quick``, where fewer.
    """

    key: str
    title: str
    asks: str
    batch_size: int
    dataset: Callable[[str | None], Dataset]
    prepare: Callable[[str | None], object] = lambda data: None
    targets: tuple[Target, ...] = ()
    decode_only: bool = False
    window_scale: float = 1.0
    quick_batch_size: int | None = None
    rivals: tuple[str, ...] | None = None
    roles: Roles = field(default_factory=Roles)
    crops: bool = False
    epochs: int = 0
    quick_rivals: tuple[str, ...] | None = None


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
        return type(self), (self.make,)


class New(Ready):
    """A dataset that makes a new array for each sample (array, label), as nearly all datasets do."""

    def __getitem__(self, index: int) -> Any:
        array, label = self.sources[index]
        return array.copy(), label
