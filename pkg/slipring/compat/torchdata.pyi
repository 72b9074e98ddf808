"""torchdata.stateful_dataloader's names."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from multiprocessing.context import BaseContext
from os import PathLike
from typing import Any, Literal, Protocol, overload, runtime_checkable

import torch
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import TypeVar

from slipring.torch import DataLoader
from slipring.typing import ListDataset, MapDataset

__all__ = ["RandomSampler", "Stateful", "StatefulDataLoader", "StatefulDistributedSampler", "torchdata_state"]

T_co = TypeVar("T_co", covariant=True, default=Any)
_Made = TypeVar("_Made")
_Sample = TypeVar("_Sample")
_Device = torch.device | str | int

@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

class RandomSampler(torch.utils.data.RandomSampler):
    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None: ...
    def __iter__(self) -> Iterator[int]: ...

class StatefulDistributedSampler(DistributedSampler[Any]):
    yielded: int
    next_yielded: int | None
    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, int]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

# Its arguments are those of slipring.torch.DataLoader.
class StatefulDataLoader(DataLoader[T_co]):
    # Without batching `collate_fn` is given a sample.
    @overload
    def __init__(
        self: StatefulDataLoader[_Made],
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
        self: StatefulDataLoader[_Made],
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
        self: StatefulDataLoader[_Made],
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
        self: StatefulDataLoader[list[Any]],
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

def torchdata_state(loader: DataLoader[Any]) -> dict[str, Any]: ...
