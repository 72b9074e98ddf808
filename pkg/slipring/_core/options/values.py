"""The values of a loader's options, the checks of their combinations, and the values that follow from them."""

import dataclasses
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_args

from slipring._core.options.checks import function, integer
from slipring._core.options.rule import Rule, check, rules
from slipring._core.ring import process
from slipring._core.ring._ring import MAX_RANGES, MAX_SLOTS, MAX_WORKERS
from slipring.errors import shown
from slipring.options import LoaderOptions, StartMethod

START_METHODS = get_args(StartMethod)
# Workers at the beginning of "auto"; or as many as processors, if those are fewer.
BEGIN_WITH = 4
MOST_UNASKED = 64  # upper bound of "auto", if none is given and there are not more processors
WORKERS_PER_CPU = 4  # more may wait for disks and networks, but hardly for processors


class _Explicit(TypedDict, total=False):
    """Options in the signatures of loaders, because the type of a batch depends on them."""

    batch_size: Annotated[int | None, Rule(1, partial(integer, least=1, most=(1 << 63) - 1, optional=True))]
    collate_fn: Annotated[Callable[[Any], Any] | None, Rule(None, function)]


_ALL = {**rules(_Explicit), **rules(LoaderOptions)}


def _with_fields(made):
    """Return a frozen dataclass with a field for each option."""
    for name, (kind, rule) in _ALL.items():
        made.__annotations__[name] = kind
        setattr(made, name, rule.default)
    return dataclasses.dataclass(frozen=True)(made)


@_with_fields
class Options:
    """The options of one loader: an attribute for each option of `LoaderOptions`, ``batch_size`` and ``collate_fn``.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.
    """

    context: object = None  # of multiprocessing; its Process starts workers by `start_method`
    bounds: tuple[int, int] | None = None  # (least, most), if the loader finds the number of workers
    readers: int = 0  # other processes that read the same batches
    preload_depth: int = 0  # batches that an adapter has ready before they are requested, each in a slot of its own

    if TYPE_CHECKING:

        def __init__(self, **given: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        for name, (kind, rule) in _ALL.items():
            object.__setattr__(self, name, check(name, kind, rule, getattr(self, name)))
        if not isinstance(self.num_workers, int):
            begin, *found = bounds(self.num_workers, self.memory.slots)
            object.__setattr__(self, "num_workers", begin)
            object.__setattr__(self, "bounds", tuple(found))
        self._exclusions()

    # ---- options that exclude one another

    def _given(self, *names):
        # Not by their truth value: a sampler may be empty, or an array.
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
        chunk_size = self.workers.chunk_size
        if chunk_size is not None:
            if self.batch_size is None:
                raise ValueError(f"chunk_size={chunk_size} splits batches; batch_size=None makes none")
            self.check_ranges(self.batch_size)
        if self.workers.pool is not None:
            self._check_pool(self.workers)
        elif self.workers.memory is not None:
            raise ValueError(
                f"workers=Workers(memory={self.workers.memory}) limits the memory of a pool, and there is none: give "
                "pool= too, or leave memory= out. Memory(slots=...) limits the batches of one loader"
            )
        if self.n_slots > MAX_SLOTS:
            raise ValueError(
                f"prefetch_factor={self.prefetch_factor} for {self.num_workers} workers needs {self.n_slots} "
                f"slots; a segment has at most {MAX_SLOTS}: lower it, or give memory=Memory(slots=...)"
            )

    def _check_pool(self, workers):
        pool = f"workers=Workers(pool={workers.pool!r})"
        if self.rng == "worker":
            raise ValueError(
                f"{pool} and rng='worker' exclude each other: a worker's generators serve all loaders of the pool; use "
                "rng='batch'"
            )
        if self.auto:
            raise ValueError(f"{pool} needs a fixed num_workers=, which is the number of workers of all loaders")
        if workers.start_method is not None and self.num_workers:
            raise ValueError(
                f"{pool} and start_method={workers.start_method!r} exclude each other: the pool's own process forks "
                "the workers"
            )

    def check_ranges(self, rows: int) -> None:
        """Check that a batch of that many rows has no more ranges than a slot."""
        chunk_size = self.workers.chunk_size
        if chunk_size is not None and chunk_size * MAX_RANGES < rows:
            raise ValueError(
                f"chunk_size={chunk_size} splits a batch of {rows} into more than {MAX_RANGES} ranges; "
                f"use at least {-(-rows // MAX_RANGES)}"
            )

    def check_dataset(self, is_stream: bool, dataset: Any) -> None:
        """Check the options that depend on the kind of dataset."""
        if is_stream:
            self.check_stream(dataset)
        self._check_order(is_stream, dataset)
        name = type(dataset).__name__
        if is_stream and self.rank is not None:
            raise ValueError(
                f"rank={self.rank} selects the random numbers of a map dataset's batches; those of an iterable dataset "
                f"({name}) depend on the seed and the worker: give each rank another seed="
            )
        if self.batch_size is None and not is_stream and not hasattr(dataset, "__getitem__"):
            raise ValueError(f"batch_size=None reads samples one by one, but {name} has no __getitem__")
        samples = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
        if self.batch_size is not None and not is_stream and not samples:
            whole = f"but {name} has only fetch_into, which makes whole batches; give it __getitem__, or drop that"
            if self.workers.chunk_size is not None:
                raise ValueError(f"chunk_size={self.workers.chunk_size} splits a batch into samples, {whole}")
            if self.collate_fn is not None:
                raise ValueError(f"collate_fn puts samples together, {whole}")

    def check_stream(self, dataset: Any) -> None:
        """Raise ValueError for options that an iterable dataset cannot have."""
        given = self._given("shuffle", "sampler", "batch_sampler")
        for name in ("chunk_size", "fetch_threads", "pool"):
            if (value := getattr(self.workers, name)) is not None:
                given.append(f"{name}={value}")
        if given:
            raise ValueError(
                f"{', '.join(given)} cannot be used with an iterable dataset ({type(dataset).__name__}): "
                "it sets its own order, one sample after the other"
            )

    def _check_order(self, is_stream, dataset):
        """Check the options that determine the samples and their order."""
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
            rows = {array.shape[:1] for array in dataset if hasattr(array, "shape") and hasattr(array, "dtype")}
            if len(rows) == 1 and all(hasattr(array, "shape") for array in dataset) and (len(dataset),) < min(rows):
                warnings.warn(
                    f"dataset is a tuple of {len(dataset)} arrays of {min(rows)[0]} rows each, which are "
                    f"{len(dataset)} samples. If each row is a sample, give a dataset whose [i] returns the i-th row "
                    "of each; if not, give a list",
                    stacklevel=5,
                )

    # ---- derived

    @property
    def auto(self) -> bool:
        """bool: the loader finds the number of workers; `num_workers` is the initial or the latest one."""
        return self.bounds is not None

    @property
    def method(self) -> str:
        """str: how workers are started; multiprocessing's default if the option is None."""
        return self.workers.start_method or default_start_method()

    @property
    def _most(self):
        return max(1, self.num_workers, self.bounds[1] if self.bounds else 0)

    @property
    def n_slots(self) -> int:
        """int: slots of the segment."""
        return self.memory.slots or self.prefetch_factor * self._most + 16 + self.preload_depth

    @property
    def room(self) -> int:
        """int: workers for which the segment has participant numbers, which a later `resize` can use."""
        if self.num_workers == 0:
            return 1
        spare = WORKERS_PER_CPU * len(os.sched_getaffinity(0))
        return min(MAX_WORKERS, max(self._most, spare))

    @property
    def respawns(self) -> bool:
        """bool: whether dead workers are replaced."""
        return self.workers.on_death == "respawn" and self.num_workers > 0

    @property
    def snapshot_interval(self) -> int:
        """int: `Workers.snapshot_every_n_steps`; 0 for None."""
        return self.workers.snapshot_every_n_steps or 0

    def for_worker(self, **changes: Any) -> "Options":
        """Return the options that workers need: all but samplers, which stay in the consumer, and the context."""
        own = {"sampler": None, "batch_sampler": None, "shuffle": False, "context": None}
        return dataclasses.replace(self, **{**own, **changes})

    @property
    def prefetch_depth(self) -> int:
        """int: tasks that may be in flight at once."""
        return self.prefetch_factor * max(1, self.num_workers)


# ---- defaults for workers


def default_start_method() -> str:
    """Return multiprocessing's start method, or the platform's default if a library installed its own (loky)."""
    import multiprocessing

    method = multiprocessing.get_start_method()
    return method if method in START_METHODS else multiprocessing.get_all_start_methods()[0]


def warn_of_many_workers(num_workers: int) -> None:
    """Warn if a loader will have far more workers than there are processors for it."""
    cpus = len(os.sched_getaffinity(0))
    if num_workers > WORKERS_PER_CPU * cpus:
        warnings.warn(
            f"num_workers={num_workers} for {cpus} processors, which this process may use: more than "
            f"{WORKERS_PER_CPU} workers for each seldom make a loader faster, and each costs memory. Use "
            f"about {cpus}",
            stacklevel=4,
        )


def bounds(num_workers: Any, slots: int | None = None) -> tuple[int, int, int]:
    """Return (workers to begin with, the fewest, the most) for a loader that finds the best number.

    `num_workers` is 'auto' or a pair whose bounds may be None. The loader begins with no more workers than its slots
    serve, of which the consumer has one.
    """
    least, most = (None, None) if num_workers == "auto" else num_workers
    cpus = process.cpus()
    least = min(1 if least is None else least, MAX_WORKERS if most is None else most)
    if most is None:
        most = min(MAX_WORKERS, max(least, cpus, min(MOST_UNASKED, max(16, WORKERS_PER_CPU * cpus))))
    begin = min(cpus, BEGIN_WITH) if slots is None else min(cpus, BEGIN_WITH, slots - 1)
    return min(most, max(least, begin)), least, most
