"""The loader."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, SupportsIndex, overload

from typing_extensions import Self, TypeVar

from slipring._core._iteration import LoaderIterator
from slipring._core.tuning import Tuning
from slipring.monitor.report import Report
from slipring.options import Options
from slipring.stats import Stats
from slipring.typing import BatchDataset, ListDataset, MapDataset

MASK_62: int

_Batch = TypeVar("_Batch", covariant=True, default=Any)
_Made = TypeVar("_Made")
_Sample = TypeVar("_Sample")

class Loader(Generic[_Batch]):
    dataset: Any
    options: Options
    is_stream: bool
    seed: int
    @property
    def epoch(self) -> int: ...
    @epoch.setter
    def epoch(self, value: SupportsIndex) -> None: ...
    # Without batching `collate_fn` is given a sample.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample],
        batch_size: None,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        *,
        collate_fn: Callable[[_Sample], _Made],
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        seed: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        start_method: Literal["fork", "forkserver", "spawn", "thread"] | None = None,
        chunk_size: int | None = None,
        dispatch: Literal["dynamic", "static"] = "dynamic",
        rng: Literal["batch", "worker", "sample"] = "batch",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        copy: Literal["auto", "always", "never"] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        snapshot_every_n_steps: int | None = 1,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # Without batching and `collate_fn` a sample is delivered as it is.
    @overload
    def __init__(
        self: Loader[_Sample],
        dataset: MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample],
        batch_size: None,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        seed: int | None = None,
        *,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        start_method: Literal["fork", "forkserver", "spawn", "thread"] | None = None,
        chunk_size: int | None = None,
        dispatch: Literal["dynamic", "static"] = "dynamic",
        rng: Literal["batch", "worker", "sample"] = "batch",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        copy: Literal["auto", "always", "never"] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        snapshot_every_n_steps: int | None = 1,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # What `collate_fn` returns is the batch.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample],
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        *,
        collate_fn: Callable[[list[_Sample]], _Made],
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        seed: int | None = None,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        start_method: Literal["fork", "forkserver", "spawn", "thread"] | None = None,
        chunk_size: int | None = None,
        dispatch: Literal["dynamic", "static"] = "dynamic",
        rng: Literal["batch", "worker", "sample"] = "batch",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        copy: Literal["auto", "always", "never"] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        snapshot_every_n_steps: int | None = 1,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # The dataset makes its batches; not in parts.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: BatchDataset[_Made],
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        seed: int | None = None,
        *,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        start_method: Literal["fork", "forkserver", "spawn", "thread"] | None = None,
        chunk_size: None = None,
        dispatch: Literal["dynamic", "static"] = "dynamic",
        rng: Literal["batch", "worker", "sample"] = "batch",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        copy: Literal["auto", "always", "never"] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        snapshot_every_n_steps: int | None = 1,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # `default_collate` makes the batch: say what it is by Loader[...](...).
    @overload
    def __init__(
        self,
        dataset: MapDataset[Any] | Iterable[Any] | ListDataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        seed: int | None = None,
        *,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        in_order: bool = True,
        start_method: Literal["fork", "forkserver", "spawn", "thread"] | None = None,
        chunk_size: int | None = None,
        dispatch: Literal["dynamic", "static"] = "dynamic",
        rng: Literal["batch", "worker", "sample"] = "batch",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        copy: Literal["auto", "always", "never"] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        snapshot_every_n_steps: int | None = 1,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    def __iter__(self) -> LoaderIterator[_Batch]: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, state: dict[str, Any]) -> None: ...
    def resize(self, num_workers: int) -> None: ...
    @property
    def tuning(self) -> Tuning | None: ...
    def stats(self) -> Stats: ...
    def report(self, *, headroom: object = None, ranks: bool = False) -> Report: ...
    def close(self) -> None: ...
