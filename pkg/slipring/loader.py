"""The loader."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from slipring._core import error_record, fetch
from slipring._core._iteration import LoaderIterator
from slipring._core._ring import mix
from slipring._core.arguments import epoch_number
from slipring._core.engine_cache import EngineCache
from slipring._core.loader import LoaderMethods
from slipring._core.option_values import Options
from slipring._core.seeding import MASK_63, Share
from slipring._core.source import StreamPlan, map_plan
from slipring._core.tuning import Tuner
from slipring._core.worker import Job
from slipring._core.worker_count import warn_of_many_workers
from slipring.monitor.registry import register
from slipring.options import LoaderOptions, declares
from slipring.sampler import place_of, rank_that_draws, read_in_order, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import SupportsIndex, TypeAlias

    from typing_extensions import TypeVar, Unpack

    from slipring.typing import BatchDataset, ListDataset, MapDataset

    _Batch = TypeVar("_Batch", covariant=True, default=Any)
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")
    Samples: TypeAlias = MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample]
else:
    _Batch = TypeVar("_Batch", covariant=True)

MASK_62 = (1 << 62) - 1  # room for the workers' numbers within an int64


@declares(LoaderOptions)
class Loader(LoaderMethods, Generic[_Batch]):
    """Batches of a dataset, made by workers and handed out as numpy views on shared memory.

    Parameters
    ----------
    dataset
        A map dataset (``__getitem__`` and ``__len__``; also ``__getitems__(indices)``, which returns a list
        of samples, or ``fetch_into(indices, empty)``, which returns a whole batch with arrays from
        ``empty(shape, dtype)``), or an iterable one (``__iter__``; each worker iterates its own copy).
    batch_size : int or None
        Samples per batch; None: no batching, each sample is delivered as it is.
    collate_fn : callable, optional
        Samples to batch; default `slipring.default_collate`.
    {options}

    Attributes
    ----------
    epoch : int
        The number of the next iteration, which sets its random numbers and its order; may be set.

    Raises
    ------
    TypeError, ValueError
        At construction, naming argument, value and rule.

    Examples
    --------
    >>> import slipring
    >>> class Squares:
    ...     def __len__(self):
    ...         return 10
    ...     def __getitem__(self, i):
    ...         return {"number": i, "square": i * i}
    >>> with slipring.Loader(Squares(), batch_size=4, num_workers=2) as loader:
    ...     for batch in loader:
    ...         print(batch["square"])
    [0 1 4 9]
    [16 25 36 49]
    [64 81]
    """

    dataset: Any
    options: Options
    is_stream: bool
    seed: int

    # An adapter's own worker, and what makes an exception of a worker's record: see `Job`, `LoaderIterator`.
    _worker_class, _rebuild = None, staticmethod(error_record.rebuild)

    # What `collate_fn` returns is the batch. Without batching it is given a sample.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: Samples[_Sample],
        batch_size: None,
        *,
        collate_fn: Callable[[_Sample], _Made],
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[_Sample],
        dataset: Samples[_Sample],
        batch_size: None,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: Samples[_Sample],
        batch_size: int = 1,
        *,
        collate_fn: Callable[[list[_Sample]], _Made],
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    # The dataset makes its batches.
    @overload
    def __init__(
        self: Loader[_Made],
        dataset: BatchDataset[_Made],
        batch_size: int = 1,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    # `default_collate` makes the batch: say what it is by Loader[...](...).
    @overload
    def __init__(
        self,
        dataset: Samples[Any],
        batch_size: int | None = 1,
        *,
        collate_fn: None = None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.options = Options(batch_size=batch_size, collate_fn=collate_fn, **options)
        if not self.options.auto:
            warn_of_many_workers(self.options.num_workers)
        self.dataset = dataset
        self.is_stream = fetch.is_stream(dataset)
        self.options.check_dataset(self.is_stream, dataset)
        o = self.options
        if not self.is_stream and o.sampler is None and o.batch_sampler is None:
            self._check_length()
        _ = self._share  # what is wrong with it is wrong now
        self.seed = (int.from_bytes(os.urandom(8), "little") if o.seed is None else o.seed) & MASK_63
        self.epoch = 0
        self._prepare()

    @property
    def epoch(self) -> int:
        """int: the number of the next pass."""
        return self.__dict__["epoch"]

    @epoch.setter
    def epoch(self, value: SupportsIndex) -> None:
        self.__dict__["epoch"] = epoch_number(value)

    def _prepare(self):
        self._engines = EngineCache()
        o = self.options
        self._tuner = Tuner(o.num_workers, *o.bounds) if o.auto else None
        self._closed = False
        register(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, here or in another process, has workers and figures of its own.
        return {name: getattr(self, name) for name in ("options", "dataset", "is_stream", "seed", "epoch")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    # ---- iteration

    def __iter__(self) -> LoaderIterator[_Batch]:
        with self._engines.locked():
            self._check_open()
            tuner = None if self._engines.lent else self._tuner
            if tuner is not None and tuner.workers != self.options.num_workers:
                self.options = dataclasses.replace(self.options, num_workers=tuner.workers)
            o, seed = self.options, mix(self.seed, self.epoch) & MASK_62
            engine, on_end = self._engines.lend(o, self._job())
            if self.is_stream:
                plan = self._stream_plan()
            else:
                plan = map_plan(o, self.dataset, seed)
            read_in_order(o.batch_sampler, o.in_order)
            first, origin = place_of(o.batch_sampler)  # of a resumed epoch the batches that it has had count
            iterator = LoaderIterator(
                *(o, engine, seed, self.epoch if o.rng != "sample" else Share.epoch(self.epoch, origin)),
                *(plan, on_end),
                rebuild=self._rebuild,
                first_seq=first,
                tuner=tuner,
            )
            self._engines.iterators.add(iterator)
            self.epoch += 1
            return iterator

    def _stream_plan(self):
        return StreamPlan(max(1, self.options.num_workers), self.options.in_order)

    @property
    def _engine(self):
        return self._engines.engine

    def _job(self):
        o = self.options
        rank = rank_that_draws(o.rank, o.batch_sampler, o.sampler)
        return Job(self.dataset, self.is_stream, o.for_worker(), rank, self._worker_class, self._share)

    @property
    def _share(self):
        o = self.options
        if o.rng != "sample" or self.is_stream:
            return None
        return share_of(o.batch_sampler, o.sampler, o.batch_size, o.rank)

    def _check_length(self):
        try:
            len(self.dataset)
        except TypeError as error:
            raise TypeError(
                f"dataset ({type(self.dataset).__name__}) has __getitem__ but no __len__: give it one, or "
                "give a sampler or batch_sampler that says which indices to read"
            ) from error

    def __len__(self) -> int:
        """Batches per epoch.

        Raises
        ------
        TypeError
            The dataset or sampler has no length.
        """
        o = self.options
        if o.batch_sampler is not None:
            return len(o.batch_sampler)
        n = len(self.dataset if o.sampler is None else o.sampler)
        if o.batch_size is None:
            return n
        return n // o.batch_size if o.drop_last else -(-n // o.batch_size)

    # ---- what `LoaderMethods` asks for

    @property
    def _options_now(self):
        return self.options

    @property
    def _makes_batches_itself(self):
        return self.options.num_workers == 0 and any(one.is_live for one in self._engines.iterators)

    def _put_num_workers(self, num_workers):
        self.options = dataclasses.replace(self.options, num_workers=num_workers)

    # ---- the end

    def close(self) -> None:
        """End workers and iterations. Batches that are still held stay valid. Safe to call twice."""
        with self._engines.locked():
            self._closed = True
            self._engines.close()

    def _rest(self):
        """End workers and iterations; the next pass starts others."""
        with self._engines.locked():
            self._engines.close()

    def __repr__(self) -> str:
        given = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        if (bounds := given.pop("bounds")) is not None:
            given["num_workers"] = bounds
        defaults = {name: field.default for name, field in self.options.__dataclass_fields__.items()}
        changed = [
            f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(defaults[name])
        ]
        return f"Loader({', '.join([type(self.dataset).__name__, *changed])})"
