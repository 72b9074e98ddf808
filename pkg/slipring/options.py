"""Every option of the loaders, declared once: its type, its default, its check and its documentation.

A new option that all loaders have is one field of `CommonOptions`. It reaches their signatures, ``help()``, type
checkers, documentation and `Options`, which carries the values to where they act.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

from slipring._core import declare
from slipring._core._ring import MAX_RANGES, MAX_SLOTS, MAX_WORKERS
from slipring._core.arguments import MAX_COUNT, function, integer, iterable, memory_place, seconds
from slipring._core.declare import Rule
from slipring._core.worker_count import WORKERS_PER_CPU, bounds, check_bounds, default_start_method
from slipring.errors import shown

if TYPE_CHECKING:
    import torch

_Made = TypeVar("_Made", bound=Callable[..., Any])

MAX_FETCH_THREADS = 1024  # of one worker; more would wait for a processor, not for a disk or a network


# ---- the declarations


def _indices(name, value):
    if value is not None:
        iterable(name, value, "an iterable of indices")


def _count(least=1, most=MAX_COUNT, optional=False, hint=""):
    return partial(integer, least=least, most=most, optional=optional, hint=hint)


class CommonOptions(TypedDict, total=False):
    """What all loaders have."""

    rng: Annotated[
        Literal["batch", "worker", "sample"],
        Rule(
            "batch",
            """When generators are seeded, that of `slipring.rng` among them. 'batch': per batch, so that results do not
            depend on the workers. 'worker': once per worker and epoch; for torch's loader with torch's seeds, one per
            worker's life, so that the same script gives the same bytes as with torch's. 'sample': before each sample
            too, from its position in the order of all ranks: then random numbers depend neither on `batch_size` and
            `chunk_size` nor on how many ranks there are. 'sample' gives other numbers than 'batch', reads samples by
            ``__getitem__``, costs microseconds for each, and needs the same `seed` in all ranks. What ``collate_fn``
            draws is the batch's.""",
            hint="; it says when generators are seeded: seed= sets what they give, and slipring.rng() is the one of a "
            "batch",
        ),
    ]
    dispatch: Annotated[
        Literal["dynamic", "static"],
        Rule(
            "dynamic",
            """Any free worker takes the next batch, or each its turn (always so for iterable datasets); with
            ``in_order=False`` the turn is of who has least to do. With torch's loader 'dynamic' needs
            ``rng='batch'``.""",
        ),
    ]
    chunk_size: Annotated[
        int | None,
        Rule(
            None,
            "Rows per range: several workers fill one batch together, so the first is there sooner.",
            _count(optional=True),
        ),
    ]
    fetch_threads: Annotated[
        int | None,
        Rule(
            None,
            """Threads in each worker that read samples of a batch beside one another, for datasets that wait for a disk
            or a network; of a dataset with ``async def __getitem__``, how many are read at once in the worker's event
            loop. Default: no thread, and all coroutines of a batch. What makes a batch in one call (``__getitems__``,
            ``fetch_into``) stays one call. `slipring.rng` begins anew with each sample then.""",
            _count(most=MAX_FETCH_THREADS, optional=True),
        ),
    ]
    on_worker_death: Annotated[
        Literal["raise", "respawn"],
        Rule(
            "raise",
            """'respawn': another worker takes a dead one's place and does again what it had in flight. A stream goes
            on by its ``state_dict``, if the dataset or its iterator has one, else what was read is read again.""",
        ),
    ]
    max_restarts: Annotated[
        int, Rule(3, "With 'respawn': how often the same batch may kill its worker.", _count(0))
    ]
    snapshot_every_n_steps: Annotated[
        int | None,
        Rule(
            1,
            """What is Stateful among the dataset and its iterator is asked for its state by each worker once in so many
            of the loader's batches, and the state is pickled to come along; what came behind it is read again by a new
            worker (with 'respawn') or after a resume (torch's loader). 0: with a worker's first batch and at its
            stream's end only.""",
            _count(0, optional=True),
        ),
    ]
    slots: Annotated[
        int | None,
        Rule(
            None,
            """Slots of the segment; default ``prefetch_factor * num_workers + 16``. So many batches, less two, may be
            held without a copy.""",
            _count(2, MAX_SLOTS, optional=True),
        ),
    ]
    slot_bytes: Annotated[
        int | None,
        Rule(
            None,
            """Payload bytes to reserve per slot: the largest batch. Memory is committed as needed. Default 16 GiB, or
            what fits.""",
            _count(1, 1 << 46, optional=True),
        ),
    ]
    backing: Annotated[
        str | PathLike[str],
        Rule(
            "auto",
            "Where the memory comes from: 'auto', 'shm', 'memfd', or the absolute path of a directory on a tmpfs.",
            lambda name, value: memory_place(value),
        ),
    ]
    copy: Annotated[
        Literal["auto", "always", "never"],
        Rule(
            "auto",
            "Copy batches out of their slots: when fewer than two slots would be left, always, or never.",
        ),
    ]


class FlowOptions(CommonOptions, total=False):
    """What all loaders have but torch's, whose own parameters these are."""

    num_workers: Annotated[
        int | Literal["auto"],
        Rule(
            0,
            """0: batches are made by this process, when they are asked for. 'auto': as many as make the loop fastest,
            found out while batches flow; see `tuning`. With random numbers or streams that depend on the workers
            (``rng='worker'``, ``dispatch='static'``, iterable datasets) it changes between epochs only.""",
            _count(0, MAX_WORKERS, hint="; 0 loads in this process"),
        ),
    ]
    drop_last: Annotated[bool, Rule(False, "Drop a last batch that is not full; of a stream each worker's.")]
    timeout: Annotated[float, Rule(0, "Seconds to wait for a batch; 0 waits for ever.", seconds)]
    worker_init_fn: Annotated[
        Callable[[int], object] | None,
        Rule(
            None,
            """Called with the worker's number in each worker. Seeds that it sets stay in effect with ``rng="worker"``
            only.""",
            function,
        ),
    ]
    seed: Annotated[
        int | None,
        Rule(
            None,
            """The same seed gives the same epochs. None: a new one, from the system. Each `rank` draws random numbers
            of its own.""",
            partial(integer, optional=True),
        ),
    ]
    prefetch_factor: Annotated[int, Rule(2, "Batches in flight per worker.", _count())]
    persistent_workers: Annotated[bool, Rule(True, "Keep the workers between epochs.")]
    in_order: Annotated[bool, Rule(True, "Deliver by sequence number; False: as they are completed.")]
    start_method: Annotated[
        Literal["fork", "forkserver", "spawn", "thread"] | None,
        Rule(
            None,
            "None: multiprocessing's default. 'thread': for datasets whose work releases the GIL.",
        ),
    ]


_RANK = Rule(
    None,
    """The rank whose random numbers are drawn. Default: the sampler's `rank` (`slipring.BatchSampler`, torch's
    DistributedSampler), else torch.distributed's, else 0. Ranks that load the same samples, as in a tensor-parallel
    group, need the same. Random numbers of iterable datasets depend on `seed` and worker: give each rank another
    `seed`.""",
    _count(0, optional=True),
)
_MIN_WORKERS = Rule(
    None, "Lower bound of ``num_workers='auto'``. Default: 1.", _count(1, MAX_WORKERS, optional=True)
)
_MAX_WORKERS = Rule(
    None,
    """Upper bound of ``num_workers='auto'``. Default: 4 for each processor, but 16 to 64, or as many as processors if
    those are more.""",
    _count(1, MAX_WORKERS, optional=True),
)


class LoaderOptions(FlowOptions, total=False):
    """What `slipring.Loader` has besides ``dataset``, ``batch_size`` and ``collate_fn``."""

    shuffle: Annotated[bool, Rule(False, "A new order in every epoch.")]
    sampler: Annotated[
        Iterable[Any] | None,
        Rule(None, "Of indices, which reach the dataset as the very type they are.", _indices),
    ]
    batch_sampler: Annotated[
        Iterable[Sequence[Any]] | None,
        Rule(
            None,
            """Of lists of indices. The iterator of one that must wait for its batches may say so by a method
            ``would_wait()``: it is then asked for more only when it has some, or when there is nothing else to wait
            for. Its method ``close()``, if it has one, is called at the iteration's end.""",
            _indices,
        ),
    ]
    rank: Annotated[int | None, _RANK]
    min_workers: Annotated[int | None, _MIN_WORKERS]
    max_workers: Annotated[int | None, _MAX_WORKERS]


class StreamOptions(FlowOptions, total=False):
    """What `slipring.stream` has besides what it says of blocks."""


class RayOptions(FlowOptions, total=False):
    """What `slipring.ray.Loader` has besides what it says of blocks and pictures."""


class OneDeviceOptions(CommonOptions, total=False):
    """What `slipring.torch.DataLoader` has besides torch's parameters, and what does not change a batch's type."""

    rank: Annotated[int | None, _RANK]
    min_workers: Annotated[int | None, _MIN_WORKERS]
    max_workers: Annotated[int | None, _MAX_WORKERS]
    device: Annotated[
        "torch.device | str | int | None",
        Rule(
            None,
            """Where batches' tensors are to be: copied from the slots themselves, which are pinned, on a stream of the
            loader's. ``pin_memory`` adds nothing to it. Strings and other objects pass through.""",
        ),
    ]
    preload: Annotated[
        int | None,
        Rule(
            None,
            """How many steps a thread has ready before they are asked for. Default: 1 with a device, else 0. Without
            workers batches are made and copied when they are asked for.""",
            _count(0, 64, optional=True),
        ),
    ]
    non_blocking: Annotated[
        bool,
        Rule(
            True,
            """A batch is handed out when the caller's current stream is ordered after the copy. False: when the copy is
            done.""",
        ),
    ]
    memory_format: Annotated[
        "torch.memory_format | None",
        Rule(
            None,
            """Of leaves with 4 dimensions (``torch.channels_last``) or 5 (``channels_last_3d``), on the device.""",
        ),
    ]


class TorchOptions(OneDeviceOptions, total=False):
    """What `slipring.torch.DataLoader` has besides torch's parameters."""

    devices: Annotated[
        "Sequence[torch.device | str | int] | None",
        Rule(
            None,
            "In place of `device`: a step is a list of batches, one for each. Too few at the end are dropped.",
        ),
    ]
    transform_device: Annotated[
        Callable[[Any], Any] | None,
        Rule(
            None,
            """Of a batch on the device; works on the loader's stream, in the thread that preloads, and returns what is
            handed out. Slots can so carry uint8 and training see bfloat16.""",
            function,
        ),
    ]


def declares(
    declared: type, *, defaults: Mapping[str, Any] | None = None, **known: str
) -> Callable[[_Made], _Made]:
    """Give a loader the options of a TypedDict above: see `slipring._core.declare.declares`."""
    last = (FlowOptions, CommonOptions)
    return declare.declares(declare.rules(declared, last), defaults=defaults, **known)


class _Explicit(TypedDict, total=False):
    """What loaders spell out in their signatures, because the type of a batch depends on it."""

    batch_size: Annotated[int | None, Rule(1, "", _count(1, (1 << 63) - 1, optional=True))]
    collate_fn: Annotated[Callable[[Any], Any] | None, Rule(None, "", function)]


_ALL = {**declare.rules(_Explicit), **declare.rules(LoaderOptions, (FlowOptions, CommonOptions))}


def _with_fields(made):
    """A frozen dataclass with a field for each option."""
    for name, (kind, rule) in _ALL.items():
        made.__annotations__[name] = kind
        setattr(made, name, rule.default)
    return dataclasses.dataclass(frozen=True)(made)


@_with_fields
class Options:
    """What a loader was asked for: an attribute for each option of `LoaderOptions`, ``batch_size`` and ``collate_fn``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """

    context: object = None  # of multiprocessing; its Process starts workers by `start_method`
    auto: bool = False  # the number of workers is the one to begin with, or what was found since
    ahead: int = 0  # batches that an adapter has ready before they are asked for, each in a slot of its own

    if TYPE_CHECKING:

        def __init__(self, **given: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, str):
            begin, least, most = bounds(self.num_workers, self.min_workers, self.max_workers, self.slots)
            for name, value in (
                ("num_workers", begin), ("min_workers", least), ("max_workers", most), ("auto", True),
            ):  # fmt: skip
                object.__setattr__(self, name, value)
        elif not self.auto:
            check_bounds(self.num_workers, min_workers=self.min_workers, max_workers=self.max_workers)
        for name, (kind, rule) in _ALL.items():
            object.__setattr__(self, name, declare.check(name, kind, rule, getattr(self, name)))
        self._exclusions()

    # ---- what excludes what

    def _given(self, *names):
        # Not by truth: a sampler may be empty, or an array.
        return [n for n in names if getattr(self, n) is not None and getattr(self, n) is not False]

    def _exclusions(self):
        if self.sampler is not None and self.shuffle:
            raise ValueError("sampler and shuffle=True exclude each other: the sampler sets the order")
        if self.batch_sampler is not None:
            given = self._given("shuffle", "sampler", "drop_last")
            given += ["batch_size"] if self.batch_size != 1 else []
            if given:
                raise ValueError(f"batch_sampler makes the batches by itself and excludes {', '.join(given)}")
        if self.batch_size is None and self.drop_last:
            raise ValueError("batch_size=None turns batching off: drop_last=True has nothing to drop")
        if self.chunk_size is not None:
            if self.batch_size is None:
                raise ValueError(f"chunk_size={self.chunk_size} splits batches; batch_size=None makes none")
            self.check_ranges(self.batch_size)
        if self.n_slots > MAX_SLOTS:
            raise ValueError(
                f"prefetch_factor={self.prefetch_factor} for {self.num_workers} workers needs {self.n_slots} "
                f"slots; a segment has at most {MAX_SLOTS}: lower it, or give slots="
            )

    def check_ranges(self, rows: int) -> None:
        """Check that a batch of that many rows has no more ranges than a slot."""
        if self.chunk_size is not None and self.chunk_size * MAX_RANGES < rows:
            raise ValueError(
                f"chunk_size={self.chunk_size} splits a batch of {rows} into more than {MAX_RANGES} ranges; "
                f"use at least {-(-rows // MAX_RANGES)}"
            )

    def check_dataset(self, is_stream: bool, dataset: Any) -> None:
        """Check what depends on the kind of dataset."""
        if is_stream:
            given = self._given("shuffle", "sampler", "batch_sampler", "chunk_size", "fetch_threads")
            if given:
                raise ValueError(
                    f"{', '.join(given)} cannot be used with an iterable dataset ({type(dataset).__name__}): "
                    "it sets its own order, one sample after the other"
                )
        self._check_order(is_stream, dataset)
        name = type(dataset).__name__
        if is_stream and self.rank is not None:
            raise ValueError(
                f"rank={self.rank} selects the random numbers of a map dataset's batches; those of an iterable dataset "
                f"({name}) depend on the seed and the worker: give each rank another seed="
            )
        if self.batch_size is None and not is_stream and not hasattr(dataset, "__getitem__"):
            raise ValueError(f"batch_size=None reads samples one by one, but {name} has no __getitem__")
        if self.rng == "sample" and (is_stream or not hasattr(dataset, "__getitem__")):
            has = "is iterated, and its samples have no position" if is_stream else "has no __getitem__"
            raise ValueError(
                f"rng='sample' reads samples one by one, each with random numbers of its position, but {name} "
                f"{has}: use rng='batch'"
            )
        samples = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
        if self.batch_size is not None and not is_stream and not samples:
            whole = f"but {name} has only fetch_into, which makes whole batches; give it __getitem__, or drop that"
            if self.chunk_size is not None:
                raise ValueError(f"chunk_size={self.chunk_size} splits a batch into samples, {whole}")
            if self.collate_fn is not None:
                raise ValueError(f"collate_fn puts samples together, {whole}")

    def _check_order(self, is_stream, dataset):
        """Check what says which samples there are, and in which order."""
        kinds = [kind.__name__ for kind in type(self.sampler).__mro__]
        if "BatchSampler" in kinds and self.batch_size is not None:
            raise TypeError(
                f"sampler ({type(self.sampler).__name__}) gives lists of indices, which make batches: give it as "
                "batch_sampler=, or batch_size=None if dataset[list] returns a whole batch"
            )
        if is_stream or self.sampler is not None or self.batch_sampler is not None:
            return
        if type(dataset) is dict and dataset and 0 not in dataset:
            raise TypeError(
                f"dataset is a dict of {shown(list(dataset))}, and has no sample 0: for a dict of arrays, with a row "
                "for each sample, use slipring.stream([dataset], batch_size), or give a sampler of its keys"
            )
        if type(dataset) is tuple:
            rows = {
                array.shape[:1] for array in dataset if hasattr(array, "shape") and hasattr(array, "dtype")
            }
            if (
                len(rows) == 1
                and all(hasattr(array, "shape") for array in dataset)
                and (len(dataset),) < min(rows)
            ):
                warnings.warn(
                    f"dataset is a tuple of {len(dataset)} arrays of {min(rows)[0]} rows each, which are "
                    f"{len(dataset)} samples. If each row is a sample, give a dataset whose [i] returns the i-th row "
                    "of each; if not, give a list",
                    stacklevel=5,
                )

    # ---- derived

    @property
    def method(self) -> str:
        """str: how workers are started, multiprocessing's own default filled in."""
        return default_start_method() if self.start_method is None else self.start_method

    @property
    def n_slots(self) -> int:
        """int: slots of the segment."""
        most = max(1, self.num_workers, self.max_workers or 0)
        return self.slots or self.prefetch_factor * most + 16 + self.ahead

    @property
    def room(self) -> int:
        """int: workers that the segment has participant numbers for: there may come to be more of them."""
        if self.num_workers == 0:
            return 1
        spare = WORKERS_PER_CPU * len(os.sched_getaffinity(0))
        return min(MAX_WORKERS, max(self.num_workers, self.max_workers or 0, spare))

    @property
    def respawns(self) -> bool:
        """bool: whether dead workers are replaced."""
        return self.on_worker_death == "respawn" and self.num_workers > 0

    @property
    def look_ahead(self) -> int:
        """int: tasks that may be in flight at once."""
        return self.prefetch_factor * max(1, self.num_workers)
