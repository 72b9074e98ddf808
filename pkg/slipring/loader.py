"""The loader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from slipring._core.options.checks import epoch_number
from slipring._core.options.values import Options, warn_of_many_workers
from slipring._core.passes.loader import LoaderCore
from slipring._core.workers import fetch
from slipring._core.workers.seeding import MASK_63
from slipring._core.workers.shards import IterableSource
from slipring.options import LoaderOptions, declares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import SupportsIndex, TypeAlias

    from typing_extensions import TypeVar, Unpack

    from slipring._core.passes._pass import Pass
    from slipring.typing import BatchDataset, ListDataset, MapDataset

    _Batch = TypeVar("_Batch", covariant=True, default=Any)
    _Made = TypeVar("_Made")
    _Sample = TypeVar("_Sample")
    Samples: TypeAlias = MapDataset[_Sample] | Iterable[_Sample] | ListDataset[_Sample]
else:
    _Batch = TypeVar("_Batch", covariant=True)


@declares(LoaderOptions)
class Loader(LoaderCore, Generic[_Batch]):
    """Batches of a dataset, made by workers and delivered as numpy views on shared memory.

    Parameters
    ----------
    dataset
        A map dataset (``__getitem__`` and ``__len__``; also ``__getitems__(indices)``, which returns a list
        of samples, or ``fetch_into(indices, empty)``, which returns a whole batch with arrays from
        ``empty(shape, dtype)``), or an iterable one (``__iter__``; each worker iterates its own copy).
    batch_size : int or None
        Samples per batch; None: no batching, each sample is delivered unchanged.
    collate_fn : callable, optional
        Makes a batch of a list of samples; default: the dataset's ``collate_samples``, if it has this method, or
        `slipring.default_collate`.
    {options}

    Attributes
    ----------
    epoch : int
        The number of the next iteration, which sets its random numbers and its order; may be set.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

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

    # The batch is the result of `collate_fn`, which gets a sample if there is no batching.
    @overload
    def __init__(
        self: Loader[_Made], dataset: Samples[_Sample], batch_size: None, *,
        collate_fn: Callable[[_Sample], _Made], **options: Unpack[LoaderOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Loader[_Sample], dataset: Samples[_Sample], batch_size: None, *,
        collate_fn: None = None, **options: Unpack[LoaderOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Loader[_Made], dataset: Samples[_Sample], batch_size: int = 1, *,
        collate_fn: Callable[[list[_Sample]], _Made], **options: Unpack[LoaderOptions],
    ) -> None: ...  # fmt: skip
    # The dataset makes its batches.
    @overload
    def __init__(
        self: Loader[_Made], dataset: BatchDataset[_Made], batch_size: int = 1, *,
        collate_fn: None = None, **options: Unpack[LoaderOptions],
    ) -> None: ...  # fmt: skip
    # `default_collate` makes the batch: give its type by Loader[...](...).
    @overload
    def __init__(
        self, dataset: Samples[Any], batch_size: int | None = 1, *,
        collate_fn: None = None, **options: Unpack[LoaderOptions],
    ) -> None: ...  # fmt: skip
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
        if not self.is_stream and batch_size is not None:
            fetch.log_lost_fast_path(dataset, collate_fn)
        _ = self._rank_stride  # raises the errors of a sampler now
        self.seed = (int.from_bytes(os.urandom(8), "little") if o.seed is None else o.seed) & MASK_63
        self.epoch = 0
        self._prepare()

    def __iter__(self) -> Pass[_Batch]:
        return self.begin_pass()

    @property
    def epoch(self) -> int:
        """int: the number of the next pass."""
        return self.__dict__["epoch"]

    @epoch.setter
    def epoch(self, value: SupportsIndex) -> None:
        self.__dict__["epoch"] = epoch_number(value)

    def _check_length(self):
        try:
            len(self.dataset)
        except TypeError as error:
            raise TypeError(
                f"dataset ({type(self.dataset).__name__}) has __getitem__ but no __len__: give it one, or "
                "give a sampler or batch_sampler that says which indices to read"
            ) from error

    def __len__(self) -> int:
        """Return the number of batches per epoch.

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

    def __repr__(self) -> str:
        given = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        if (bounds := given.pop("bounds")) is not None:
            given["num_workers"] = bounds
        defaults = {name: field.default for name, field in self.options.__dataclass_fields__.items()}
        changed = [f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(defaults[name])]
        name = repr(self.dataset) if isinstance(self.dataset, IterableSource) else type(self.dataset).__name__
        return f"Loader({', '.join([name, *changed])})"
