"""The parts of a workload of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

EPOCH = 1 << 20
"""Approximate number of samples in an epoch: the ends of epochs must not show in a short window."""


@dataclass(frozen=True)
class Roles:
    """The baselines, by key, that represent each role in ratios and targets; the fastest of several counts."""

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
"""The differences in pixel values that an exact decoder may have."""


@dataclass(frozen=True)
class Target:
    """A figure that slipring should reach.

    Parameters
    ----------
    against
        ``"roofline"``, ``"torch"`` or ``"spdl"``: slipring's rate divided by theirs must be at least `bound`.
        ``"drop_in"``: the same for slipring.torch's rate and torch's.
        ``"exact"``: the same for slipring's rate and the best rate of decoders within `EXACT`.
        ``"threads"``: the same for slipring's rate with thread workers and with processes.
        ``"plain"``: the same for slipring's rate with and without a cache; ``"half"``: with a cache for half of
        the samples; ``"mapped"``: for its rate with a cache and from a mapped file of decoded images.
        ``"cpu"``: the consumer's CPU time per batch, in microseconds, must be at most `bound`.
    bound
        The figure.
    """

    against: str
    bound: float


@dataclass(frozen=True)
class Workload:
    """One workload for every baseline.

    Parameters
    ----------
    key, title, purpose
        A letter, a short name, and what the workload shows. ``f-large`` belongs to ``f``.
    batch_size
        Samples per batch.
    dataset
        Makes the dataset; called with the user's data folder or None.
    prepare
        Makes missing files; called with the same argument, once, before all measurements.
    targets
        The figures that slipring should reach.
    decode_only
        The roofline makes samples and drops them, instead of also writing them to shared memory.
    window_scale
        The timed window is this many times the usual one (for slow batches).
    quick_batch_size
        Samples per batch with ``--quick``, if different.
    baselines
        The keys of the baselines; None: all that load any dataset.
    roles
        The roles of the baselines.
    crops
        Batches are random crops, different each time: they are checked by their form, and each baseline's decoder is
        compared with Pillow's.
    epochs
        How many epochs pass before the clock starts, because the workload is about later ones. The cached samples and
        their memory are reported, too.
    quick_baselines
        The keys of the baselines with ``--quick``, if fewer.
    """

    key: str
    title: str
    purpose: str
    batch_size: int
    dataset: Callable[[str | None], Dataset]
    prepare: Callable[[str | None], object] = lambda data: None
    targets: tuple[Target, ...] = ()
    decode_only: bool = False
    window_scale: float = 1.0
    quick_batch_size: int | None = None
    baselines: tuple[str, ...] | None = None
    roles: Roles = field(default_factory=Roles)
    crops: bool = False
    epochs: int = 0
    quick_baselines: tuple[str, ...] | None = None


class Dataset:
    """A map dataset that cycles through a pool of `sources`; ``distinct`` of them differ.

    A plain Python class, because users write such classes. `load` turns a source into a sample.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self.distinct = len(sources)
        self.sources = list(sources) * max(1, EPOCH // len(sources))

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Any:
        return self.sources[index]


class Ready(Dataset):
    """A dataset of ready samples in memory.

    It is pickled as the recipe `make`, so that the pool is not sent to spawned workers through a pipe.
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
