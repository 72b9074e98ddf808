"""torch's DataLoader over slipring's ring."""

from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, overload, type_check_only

import torch
import torch.utils.data
from torch.utils.data.dataloader import _BaseDataLoaderIter
from typing_extensions import Self, TypeVar

from slipring._core.tuning import Tuning
from slipring.monitor.report import Report
from slipring.stats import Stats
from slipring.torch.drop_in.standin import StandIn
from slipring.typing import ListDataset, MapDataset

OF_THE_CORE: tuple[str, ...]

T_co = TypeVar("T_co", covariant=True, default=Any)
_Made = TypeVar("_Made")
_Sample = TypeVar("_Sample")
_Device = torch.device | str | int

# What the two iterators share, with workers and without.
@type_check_only
class _Iterator(_BaseDataLoaderIter, Generic[T_co]):
    def __iter__(self) -> Self: ...
    def __next__(self) -> T_co: ...
    def state_dict(self) -> dict[str, Any]: ...

# Torch's parameter is the sample, ours is the batch.
class DataLoader(torch.utils.data.DataLoader[Any], Generic[T_co], metaclass=StandIn):
    dataset: Any
    snapshot_every_n_steps: int | None
    chunk_size: int | None
    dispatch: Literal["static", "dynamic"]
    rng: Literal["worker", "batch", "sample"]
    copy: Literal["auto", "always", "never"]
    slots: int | None
    slot_bytes: int | None
    backing: str | PathLike[str]
    on_worker_death: Literal["raise", "respawn"]
    max_restarts: int
    device: torch.device | None
    devices: list[torch.device] | None
    preload: int | None
    non_blocking: bool
    memory_format: torch.memory_format | None
    transform_device: Callable[[Any], Any] | None
    min_workers: int | None
    max_workers: int | None
    fetch_threads: int | None
    rank: int | None
    @property
    def slipring_device(self) -> torch.device | None: ...
    # Without batching `collate_fn` is given a sample.
    @overload
    def __init__(
        self: DataLoader[_Made],
        dataset: MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample],
        batch_size: None,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        *,
        collate_fn: Callable[[_Sample], _Made],
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        chunk_size: int | None = None,
        dispatch: Literal["static", "dynamic"] = "static",
        rng: Literal["worker", "batch", "sample"] = "worker",
        copy: Literal["auto", "always", "never"] = "auto",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        device: _Device | None = None,
        devices: None = None,
        preload: int | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
        transform_device: None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # What `collate_fn` returns is the batch.
    @overload
    def __init__(
        self: DataLoader[_Made],
        dataset: MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample],
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        *,
        collate_fn: Callable[[list[_Sample]], _Made],
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        chunk_size: int | None = None,
        dispatch: Literal["static", "dynamic"] = "static",
        rng: Literal["worker", "batch", "sample"] = "worker",
        copy: Literal["auto", "always", "never"] = "auto",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        device: _Device | None = None,
        devices: None = None,
        preload: int | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
        transform_device: None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # Or what `transform_device` returns.
    @overload
    def __init__(
        self: DataLoader[_Made],
        dataset: MapDataset[Any] | Iterable[Any] | ListDataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        chunk_size: int | None = None,
        dispatch: Literal["static", "dynamic"] = "static",
        rng: Literal["worker", "batch", "sample"] = "worker",
        copy: Literal["auto", "always", "never"] = "auto",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        device: _Device,
        devices: None = None,
        preload: int | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
        transform_device: Callable[[Any], _Made],
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # One for each of `devices`.
    @overload
    def __init__(
        self: DataLoader[list[Any]],
        dataset: MapDataset[Any] | Iterable[Any] | ListDataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        chunk_size: int | None = None,
        dispatch: Literal["static", "dynamic"] = "static",
        rng: Literal["worker", "batch", "sample"] = "worker",
        copy: Literal["auto", "always", "never"] = "auto",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        device: None = None,
        devices: Sequence[_Device],
        preload: int | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
        transform_device: Callable[[Any], Any] | None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    # `default_collate` makes the batch: say what it is by DataLoader[...](...).
    @overload
    def __init__(
        self,
        dataset: MapDataset[Any] | Iterable[Any] | ListDataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        chunk_size: int | None = None,
        dispatch: Literal["static", "dynamic"] = "static",
        rng: Literal["worker", "batch", "sample"] = "worker",
        copy: Literal["auto", "always", "never"] = "auto",
        slots: int | None = None,
        slot_bytes: int | None = None,
        backing: str | PathLike[str] = "auto",
        on_worker_death: Literal["raise", "respawn"] = "raise",
        max_restarts: int = 3,
        device: _Device | None = None,
        devices: None = None,
        preload: int | None = None,
        non_blocking: bool = True,
        memory_format: torch.memory_format | None = None,
        transform_device: None = None,
        min_workers: int | None = None,
        max_workers: int | None = None,
        fetch_threads: int | None = None,
        rank: int | None = None,
    ) -> None: ...
    def __iter__(self) -> _Iterator[T_co]: ...
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
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any] | list[dict[str, Any]]) -> None: ...
    def resize(self, num_workers: int) -> None: ...
    @property
    def tuning(self) -> Tuning | None: ...
    def stats(self) -> Stats: ...
    def report(self, *, headroom: object = None, ranks: bool = False) -> Report: ...
    def close(self) -> None: ...
