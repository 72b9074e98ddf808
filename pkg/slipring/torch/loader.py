"""torch's DataLoader over slipring's ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, overload

import torch
import torch.utils.data

from slipring._core.options.checks import function, iterable, worker_count
from slipring._core.options.rule import check, rules
from slipring._core.options.values import bounds
from slipring._core.passes.loader import LoaderCore
from slipring._core.workers import process_pool as _process_pool  # noqa: F401 - torch has imported its slow parts
from slipring._core.workers.fetch import log_lost_fast_path
from slipring._core.workers.shards import IterableSource
from slipring.options import Device, TorchOptions, declares
from slipring.torch import private
from slipring.torch.contexts import check_threads
from slipring.torch.device import cuda as _device
from slipring.torch.device.target import DeviceMethods
from slipring.torch.drop_in.replacement import ReplacementMeta
from slipring.torch.frontend import TorchFrontend
from slipring.torch.iterators import TorchPass, read_again
from slipring.torch.share import joining

DEFAULTS = {"rng": "worker"}  # as in torch's loader

# A torch loader recognizes an iterable dataset by its class.
torch.utils.data.IterableDataset.register(IterableSource)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.context import BaseContext
    from typing import Literal, Self, TypeAlias

    from typing_extensions import TypeVar, Unpack

    from slipring.loader import Samples
    from slipring.options import Memory, OneDeviceOptions, Workers

    T_co = TypeVar("T_co", covariant=True, default=Any)
    _DeviceLike: TypeAlias = torch.device | str | int
    _Workers: TypeAlias = int | Literal["auto"] | tuple[int | None, int | None]
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")
    # With share=, also functions that make them.
    _Dataset: TypeAlias = Samples[_Sample] | Callable[[], Samples[_Sample]]
    _Sampler: TypeAlias = Iterable[Any] | Callable[[Any], Iterable[Any]]
    _BatchSampler: TypeAlias = Iterable[Sequence[Any]] | Callable[[Any], Iterable[Sequence[Any]]]

    class _Iterator(private.BaseIterator, Generic[T_co]):  # common to both iterators, with and without devices
        def __iter__(self) -> Self: ...
        def __next__(self) -> T_co: ...
        def state_dict(self) -> dict[str, Any]: ...
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


@declares(
    TorchOptions, defaults=DEFAULTS, start_method="multiprocessing_context", seed="generator",
    mp_context="multiprocessing_context",
)  # fmt: skip
# The type parameter of torch's class is the sample; slipring's is the batch.
class DataLoader(
    TorchFrontend, LoaderCore, DeviceMethods, torch.utils.data.DataLoader[Any], Generic[T_co], metaclass=ReplacementMeta
):
    """`torch.utils.data.DataLoader`, faster, with `torchdata.stateful_dataloader`'s state.

    Every argument of torch's loader has its meaning and default; batches have torch's types. They are views on shared
    memory: writable, and valid while anything refers to them. Each argument is an attribute of the same name. A state
    is exact after every batch. `state_dict` reads the states of samplers and, without workers, of datasets when it is
    called. States name the `rank`, also those of an iterable dataset.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last
    timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers
    pin_memory_device, in_order
        As torch's. ``num_workers='auto'`` or ``(least, most)`` finds the best number while batches are delivered, as in
        `slipring.Loader`. It implies ``rng='batch'``, so that batches do not depend on the number of workers.
    {options}

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Raised at construction; for torch's arguments with torch's text.

    Examples
    --------
    >>> import torch
    >>> from slipring.torch import DataLoader
    >>> data = torch.utils.data.TensorDataset(torch.arange(10))
    >>> with DataLoader(data, batch_size=4, num_workers=2) as loader:
    ...     for (batch,) in loader:
    ...         print(batch)
    tensor([0, 1, 2, 3])
    tensor([4, 5, 6, 7])
    tensor([8, 9])
    """

    if TYPE_CHECKING:
        num_workers: int
        prefetch_factor: int | None
        rng: str
        workers: Workers
        memory: Memory
        device: Device | None
        rank: int | None

        def __getattr__(self, name: str) -> Any: ...  # the other options

    # The batch has the return type of `collate_fn`, which without batching is called with a sample.
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: _Dataset[_Sample], batch_size: None, shuffle: bool | None = None,
        sampler: _Sampler | None = None, batch_sampler: _BatchSampler | None = None,
        num_workers: _Workers = 0, *, collate_fn: Callable[[_Sample], _Made],
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _DeviceLike | None = None, **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: _Dataset[_Sample], batch_size: int = 1, shuffle: bool | None = None,
        sampler: _Sampler | None = None, batch_sampler: _BatchSampler | None = None,
        num_workers: _Workers = 0, *, collate_fn: Callable[[list[_Sample]], _Made],
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _DeviceLike | None = None, **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    # The batch has the return type of the device's `transform`.
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: _Dataset[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: _Sampler | None = None, batch_sampler: _BatchSampler | None = None,
        num_workers: _Workers = 0, collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: Device[_Made], **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    # A step is a list with one batch for each device.
    @overload
    def __init__(
        self: DataLoader[list[Any]], dataset: _Dataset[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: _Sampler | None = None, batch_sampler: _BatchSampler | None = None,
        num_workers: _Workers = 0, collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: list[_DeviceLike] | tuple[_DeviceLike, ...], **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    # `default_collate` makes the batch: declare its type by DataLoader[...](...).
    @overload
    def __init__(
        self, dataset: _Dataset[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: _Sampler | None = None, batch_sampler: _BatchSampler | None = None,
        num_workers: _Workers = 0, collate_fn: None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _DeviceLike | None = None, **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    def __init__(
        self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0, collate_fn=None,
        pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None, multiprocessing_context=None,
        generator=None, *, prefetch_factor=None, persistent_workers=False, pin_memory_device="", in_order=True,
        **options,
    ):  # fmt: skip
        for name, (kind, rule) in rules(TorchOptions).items():
            setattr(self, name, check(name, kind, rule, options.get(name, getattr(DataLoader, name))))
        self.device = _device.checked_device(self.device)
        # torch itself refuses other texts, with its own message.
        if isinstance(num_workers, (tuple, list)) or (isinstance(num_workers, str) and num_workers == "auto"):
            num_workers, *found = bounds(worker_count("num_workers", num_workers), self.memory.slots)
            self._bounds = tuple(found)
            self.rng = "sample" if self.rng == "sample" else "batch"  # batches must not depend on the number of workers
        if self.workers.pool is not None:
            self.rng = "sample" if self.rng == "sample" else "batch"  # the workers' generators serve other loaders too
        with joining(self, dataset, sampler, batch_sampler) as (dataset, sampler, batch_sampler):
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last,
                timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers, pin_memory_device=pin_memory_device, in_order=in_order,
            )  # fmt: skip
            # torch would find these errors only at the first batch.
            function("collate_fn", collate_fn)
            function("worker_init_fn", worker_init_fn)
            for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
                if given is not None:
                    iterable(name, given, "an iterable of indices")
            self._prepare()
            # Wrong options raise now, not at the first batch. (The check for an accelerator is later: it may initialize
            # a driver, which must not happen before a process forks.)
            core = self._options(0 if self.device is None else self.device.preload or 0)
            self.rank = core.rank
            _ = self._rank_stride  # raises the errors of a sampler now
            if self._dataset_kind == private.DatasetKind.Iterable:
                check_threads(core.method, num_workers, multiprocessing_context, dataset)
                core.check_stream(dataset)
            elif self.batch_sampler is not None and self.num_workers:
                log_lost_fast_path(dataset, None if collate_fn is torch.utils.data.default_collate else collate_fn)

    # ---- iteration

    def _get_iterator(self):
        if self.num_workers:
            if not self._bounds:
                self.check_worker_number_rationality()
            if self.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        loaded = self._loaded
        iterator = self.begin_pass()
        if loaded is not None and not loaded.finished:
            try:
                read_again(iterator, loaded.dropped)
            except BaseException:
                self._loaded = loaded  # the epoch has not begun: the state is still to be resumed
                raise
        return iterator

    def __iter__(self) -> _Iterator[T_co]:
        if isinstance(self._iterator, TorchPass) and self._iterator.inherited:
            self._iterator = None  # a forked child starts its own workers
        iterator = super().__iter__()
        return iterator if isinstance(iterator, TorchPass) else self._of_a_subclass(iterator)

    def _of_a_subclass(self, iterator):
        """Handle an iterator of another class that a subclass's ``_get_iterator`` has returned."""
        made = f"{type(self).__name__}._get_iterator() returns a {type(iterator).__name__}"
        self._newest = RuntimeError(f"{made}, so this loader does not know where it is")
        if self._loaded is not None:
            raise RuntimeError(f"{made}, which cannot resume from a state: call load_state_dict({{}}) first")
        return iterator


for _name, (_, _rule) in rules(TorchOptions).items():  # also for torch loaders that are unpickled as slipring's
    setattr(DataLoader, _name, DEFAULTS.get(_name, _rule.default))
