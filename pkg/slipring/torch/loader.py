"""torch's DataLoader over slipring's ring."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, overload

import torch
import torch.utils.data

from slipring._core.options.arguments import function, instance, iterable
from slipring._core.options.declare import check, refuse, rules
from slipring._core.options.option_values import Options
from slipring._core.options.worker_count import bounds, worker_count
from slipring._core.passes.engine import EngineCache
from slipring._core.passes.loader import LoaderMethods
from slipring._core.passes.reshard import begin_source
from slipring._core.passes.state import ENDED_BY_LOAD, workers_of
from slipring._core.passes.tuning import Tuner
from slipring._core.ring.weak_registry import register
from slipring._core.workers import process_pool as _process_pool  # noqa: F401 - torch has imported its slow parts
from slipring._core.workers.concurrency import Concurrency
from slipring._core.workers.fetch import log_lost_fast_path
from slipring._core.workers.shards import IterableSource
from slipring.options import OF_WORKERS, Device, LoaderOptions, TorchOptions, Workers, declares
from slipring.torch import private
from slipring.torch.contexts import check_threads, start_of
from slipring.torch.device import cuda as _device
from slipring.torch.device.target import DeviceMethods
from slipring.torch.drop_in.standin import StandIn
from slipring.torch.iteration import TorchDeviceIteration, TorchIteration, TorchPasses
from slipring.torch.order import share, source_of
from slipring.torch.states import checked, initial

DEFAULTS = {"rng": "worker"}  # as in torch's loader
REFUSED = {"workers.start_method": "torch has multiprocessing_context= for it"}
OF_THE_CORE = [name for name in TorchOptions.__annotations__ if name in LoaderOptions.__annotations__]

# A torch loader recognizes an iterable dataset by its class.
torch.utils.data.IterableDataset.register(IterableSource)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.context import BaseContext
    from typing import Literal, TypeAlias

    from typing_extensions import Self, TypeVar, Unpack

    from slipring.loader import Samples
    from slipring.options import Memory, OneDeviceOptions

    T_co = TypeVar("T_co", covariant=True, default=Any)
    _Place: TypeAlias = torch.device | str | int
    _Workers: TypeAlias = int | Literal["auto"] | tuple[int | None, int | None]
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")

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
class DataLoader(LoaderMethods, DeviceMethods, torch.utils.data.DataLoader[Any], Generic[T_co], metaclass=StandIn):
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

    _bounds = None  # (least, most), if the loader tunes the number of workers
    _skips_empty_rest = True  # a pass that resumes after the last batch continues with the next epoch

    # The batch has the return type of `collate_fn`, which without batching is called with a sample.
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: Samples[_Sample], batch_size: None, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: _Workers = 0, *, collate_fn: Callable[[_Sample], _Made],
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _Place | None = None, **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: Samples[_Sample], batch_size: int = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: _Workers = 0, *, collate_fn: Callable[[list[_Sample]], _Made],
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _Place | None = None, **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    # The batch has the return type of the device's `transform`.
    @overload
    def __init__(
        self: DataLoader[_Made], dataset: Samples[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
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
        self: DataLoader[list[Any]], dataset: Samples[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: _Workers = 0, collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: list[_Place] | tuple[_Place, ...], **options: Unpack[OneDeviceOptions],
    ) -> None: ...  # fmt: skip
    # `default_collate` makes the batch: declare its type by DataLoader[...](...).
    @overload
    def __init__(
        self, dataset: Samples[Any], batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: _Workers = 0, collate_fn: None = None,
        pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None, generator: torch.Generator | None = None, *,
        prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
        in_order: bool = True, device: _Place | None = None, **options: Unpack[OneDeviceOptions],
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
        self._begin()
        # Wrong options raise now, not at the first batch. (The check for an accelerator is later: it may initialize a
        # driver, which must not happen before a process forks.)
        core = self._core_options(0 if self.device is None else self.device.preload or 0)
        self.rank = core.rank
        share(self)
        if self._dataset_kind == private.DatasetKind.Iterable:
            check_threads(core.method, num_workers, multiprocessing_context, dataset)
            core.check_stream(dataset)
        elif self.batch_sampler is not None and self.num_workers:
            log_lost_fast_path(dataset, None if collate_fn is torch.utils.data.default_collate else collate_fn)

    def _begin(self):
        self._engines = EngineCache()
        self._concurrency = Concurrency(self.workers.fetch_threads)  # for iterations without workers
        self._newest = None  # a `TorchPass`, or an exception to raise when its state is requested
        self._epochs = 0  # number of epochs begun
        self._resume = None  # a loaded state for the next iterator
        self._tuner = Tuner(self.num_workers, *self._bounds) if self._bounds else None
        register(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own workers and figures.
        own = {"_engines", "_concurrency", "_newest", "_epochs", "_iterator", "_tuner"}
        return {**{k: v for k, v in self.__dict__.items() if k not in own}, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        resume = state.get("_resume")
        self.__dict__.update(state)
        self._begin()
        self._resume = resume

    def _core_options(self, ahead=None):
        instance("workers", self.workers, Workers, OF_WORKERS)  # users may set it between epochs
        refuse({"workers": self.workers}, REFUSED, "slipring.torch.DataLoader")
        method, context = start_of(self.multiprocessing_context)
        return Options(
            batch_size=(self.batch_size or 1) if self._auto_collation else None,
            batch_sampler=self.batch_sampler if self._auto_collation and self.batch_size is None else None,
            num_workers=max(1, self.num_workers),
            timeout=self.timeout,
            prefetch_factor=max(1, self.prefetch_factor or 1),
            persistent_workers=bool(self.persistent_workers),
            in_order=bool(self.in_order),
            context=context,
            worker_init_fn=self.worker_init_fn,
            ahead=(self._ahead if ahead is None else ahead) * max(1, len(self._places)),
            bounds=self._bounds,
            **{
                **{name: getattr(self, name) for name in OF_THE_CORE},
                "workers": dataclasses.replace(self.workers, start_method=method),
            },
        )

    # ---- iteration

    def _get_iterator(self):
        if self.num_workers:
            if not self._bounds:
                self.check_worker_number_rationality()
            if self.prefetch_factor == 0:
                raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        moves = self._target is not None or (self.num_workers and self._ahead)
        return TorchDeviceIteration(self) if moves else TorchIteration(self)

    def __iter__(self) -> _Iterator[T_co]:
        if isinstance(self._iterator, TorchPasses) and self._iterator.foreign:
            self._iterator = None  # a forked child starts its own workers
        resume = self._resume
        try:
            iterator = super().__iter__()
        except BaseException:
            if self._resume is None:
                self._resume = resume  # the epoch has not begun: the loaded state is still to be resumed
            raise
        return iterator if isinstance(iterator, TorchPasses) else self._of_a_subclass(iterator)

    def _of_a_subclass(self, iterator):
        """Handle an iterator of another class that a subclass's ``_get_iterator`` has returned."""
        made = f"{type(self).__name__}._get_iterator() returns a {type(iterator).__name__}"
        self._newest = RuntimeError(f"{made}, so this loader does not know where it is")
        if self._resume is not None:
            raise RuntimeError(f"{made}, which cannot resume from a state: call load_state_dict({{}}) first")
        return iterator

    def _release_order(self):
        if self._newest is not None and not isinstance(self._newest, Exception):
            self._newest.release()

    # ---- used by `LoaderMethods`

    @property
    def _options_now(self):
        return self._core_options()

    @property
    def _makes_batches_itself(self):
        return self.num_workers == 0 and any(one.is_live for one in self._engines.iterators)

    def _put_num_workers(self, num_workers):
        self.num_workers = num_workers
        if self.prefetch_factor is None:
            self.prefetch_factor = 2  # torch's default with workers

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iterator, even if it has been dropped.

        A state has constant size for map datasets, however much was read. Streams add each worker's position, and the
        state of each ``Stateful`` dataset or sampler.

        Returns
        -------
        dict
            It has plain values: numbers, text, lists, tuples and dicts (and the states of Stateful objects). Its keys
            are always the same, so that torch.distributed.checkpoint can load it.
        """
        if self._resume is not None:
            return self._resume.dict()
        if isinstance(self._newest, Exception):
            raise self._newest
        return (initial(self) if self._newest is None else self._newest.state()).dict()

    def load_state_dict(self, state_dict: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Resume from a state in the next iterator; ``{}`` starts from the beginning.

        Current iterators end: their `next` raises `slipring.errors.Closed`. If no batch of the epoch is left,
        the next iterator continues with the epoch after it. Ranks and batch size may differ from the state's.
        The argument may be the state of any rank, or a list of all ranks' states, which streams require.
        ``docs/randomness.md`` has the cases.

        Raises
        ------
        AssertionError
            The number of workers for an iterable dataset differs from the state's.
        TypeError
            The argument is neither a dict nor a list of dicts.
        ValueError
            The state is of another kind of dataset, or of a division that cannot be continued.
        """
        state = checked(self, state_dict) if state_dict or isinstance(state_dict, list) else None
        if state is not None and state.finished:
            begin_source(source_of(self)[0], state)
        self._engines.end_iterations(ENDED_BY_LOAD)
        if self._tuner is not None and state is not None and (workers := workers_of(state)):
            self._tuner.begin_with(workers, "the state that was loaded is of as many")
            self.num_workers = workers
        self._resume, self._newest = state, None
        if self._iterator is not None:
            self._iterator = None
            self._engines.forget_workers()

    # ---- the end

    def close(self) -> None:
        """End workers and iterations. Batches that are still held stay valid. The loader can be used again."""
        self._iterator = None
        self._engines.close()
        self._concurrency.close()

    _rest = close  # for `slipring.replay`


for _name, (_, _rule) in rules(TorchOptions).items():  # also for torch loaders that are unpickled as slipring's
    setattr(DataLoader, _name, DEFAULTS.get(_name, _rule.default))
