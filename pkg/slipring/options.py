"""The loader's arguments, validated once, at construction."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
import os
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from slipring import _machine
from slipring._core._ring import EPOCH_BITS, MAX_RANGES, MAX_SLOTS, MAX_WORKERS
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_Init = TypeVar("_Init", bound="Callable[..., None]")

START_METHODS = ("fork", "forkserver", "spawn", "thread")
MAX_FETCH_THREADS = (
    1024  # of one worker: more wait for their turn on a processor, not for a disk or a network
)
MAX_EPOCH = (1 << EPOCH_BITS) - 1
MAX_DRAWN = (1 << 60) - 1  # indices in one order, which is an array of 8 bytes for each
MAX_COUNT = (1 << 32) - 1  # of rows in a batch, and whatever else is counted: as csrc/layout.h

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_MOST_BYTES = 1 << 46


# ---- single arguments: what does not fit is refused with name, value and rule; TypeError or ValueError


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    optional: bool = False,
    hint: str = "",
) -> Any:
    """Return an int from `least` to `most` as Python's; `hint` follows the text for what is below `least`."""
    if value is None and optional:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # arrays have an __index__ that fails
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, not {shown(value)}")
    below = least is not None and number < least
    if below or (most is not None and number > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {rule}, not {shown(value)}{hint if below else ''}")
    return number


# name -> the least, the most, whether None is allowed, what follows the text for less
_INTEGERS = {
    "num_workers": (0, MAX_WORKERS, False, "; 0 loads in this process"),
    "min_workers": (1, MAX_WORKERS, True, ""),
    "max_workers": (1, MAX_WORKERS, True, ""),
    "prefetch_factor": (1, MAX_COUNT, False, ""),
    "max_restarts": (0, MAX_COUNT, False, ""),
    "batch_size": (1, (1 << 63) - 1, True, ""),
    "chunk_size": (1, MAX_COUNT, True, ""),
    "slots": (2, MAX_SLOTS, True, ""),
    "slot_bytes": (1, 1 << 46, True, ""),
    "seed": (None, None, True, ""),
    "fetch_threads": (1, MAX_FETCH_THREADS, True, ""),
    "snapshot_every_n_steps": (0, MAX_COUNT, True, ""),
    "rank": (0, MAX_COUNT, True, ""),
}


def epoch_number(value: SupportsIndex) -> int:
    """Return the number of an epoch, whatever kind of integer it is."""
    return integer("epoch", value, 0, MAX_EPOCH)


def default_start_method() -> str:
    """Return multiprocessing's start method, or the platform's default if a library installed its own (loky)."""
    import multiprocessing

    method = multiprocessing.get_start_method()
    return method if method in START_METHODS else multiprocessing.get_all_start_methods()[0]


def size_in_bytes(name: str, value: int | str) -> int:
    """Return a size given as a number of bytes, or in words such as "32GiB"."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ValueError(
                f"{name} must be a size such as '32GiB', '500 MB' or a number of bytes, not {shown(value)}"
            )
        power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
        nbytes = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    else:
        try:
            nbytes = integer(name, value)
        except TypeError:
            raise TypeError(
                f"{name} must be a size such as '32GiB' or a number of bytes, not {shown(value)}"
            ) from None
    if not 1 <= nbytes <= _MOST_BYTES:
        raise ValueError(f"{name} must be from 1 byte to 64 TiB, not {shown(value)}")
    return nbytes


def real(name: str, value: Any, what: str = "a number") -> float:
    """Return a number of any kind, numpy's too, as a float. NaN and infinity are some: they fail the caller's rule."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_shuffled(number: int) -> None:
    """Check how many samples are shuffled."""
    if number > MAX_DRAWN:
        raise ValueError(
            f"shuffle=True makes an order of all {number} samples; {MAX_DRAWN} are the most: give a sampler that "
            "draws indices"
        )


def seconds(name: str, value: Any) -> None:
    """Check a time to wait."""
    if not 0 <= real(name, value, "a number of seconds") < math.inf:
        raise ValueError(f"{name} must be 0 (wait for ever) or seconds, not {shown(value)}")


def flag(name: str, value: Any) -> None:
    """Check a bool; None counts as False."""
    if not isinstance(value, (bool, type(None))):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")


def one_of(name: str, value: Any, allowed: Iterable[str | None], hint: str = "") -> None:
    """Check a word; `hint` follows the text."""
    if not isinstance(value, (str, type(None))) or value not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"{name} must be one of {listed}, not {shown(value)}{hint}")


def function(name: str, value: Any) -> None:
    """Check what is called, if it is given."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {shown(value)}")


def iterable(name: str, value: Any, what: str) -> None:
    """Check what is iterated. Numpy's scalars, and arrays without a dimension, have its methods and are not."""
    iterates = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if not iterates or isinstance(value, type) or is_scalar(value):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")


def map_dataset(name: str, value: Any) -> None:
    """Check what has samples by number, and a length."""
    if not hasattr(value, "__getitem__") or not hasattr(value, "__len__") or is_scalar(value):
        raise TypeError(f"{name} must have __getitem__ and __len__; {type(value).__name__} has not")


def is_scalar(value: Any) -> bool:
    """Return whether it is one of numpy's scalars, or an array or tensor without a dimension."""
    return getattr(value, "ndim", 1) == 0


def names(name: str, value: Any, what: str = "column", none: str = "all of them") -> list[str] | None:
    """Return a sequence of names, each once, as a list; None, which means `none`, stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name} must be a sequence of names, not the one name {shown(value)}")
    iterable(name, value, "a sequence of names or None")
    listed = list(value)
    if not listed:
        raise ValueError(f"{name} must be None ({none}) or name at least one, not {shown(value)}")
    for one in listed:
        if not isinstance(one, str):
            raise TypeError(f"{name} must be names, and {shown(one)} is none")
        if (times := listed.count(one)) > 1:
            raise ValueError(f"{name} must name each {what} once, and {shown(one)} is there {times} times")
    return listed


def mask_name(column: str) -> str:
    """Return the name of the column that says which values of another one were null."""
    return f"{column}_mask"


def null_options(
    columns: Sequence[str] | None, fill_null: Mapping[str, Any] | None, null_mask: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the values for nulls and the columns that get a mask, of which `columns` has all if it is given."""
    if fill_null is not None and not isinstance(fill_null, Mapping):
        raise TypeError(f"fill_null must be a dict of column to value, or None, not {shown(fill_null)}")
    fill = dict(fill_null or {})
    for name, value in fill.items():
        if not isinstance(name, str):
            raise TypeError(f"fill_null must have names of columns, and {shown(name)} is none")
        if value is None:
            raise ValueError(f"fill_null has None for column {name!r}: give a value that is no null")
    masked = names("null_mask", null_mask, none="no masks") or []
    for option, named in (("fill_null", fill), ("null_mask", masked)):
        missing = next((name for name in named if columns is not None and name not in columns), None)
        if missing is not None:
            raise ValueError(f"{option} has column {missing!r}, which columns={shown(columns)} leaves out")
    for name in masked:
        if mask_name(name) in (columns or ()):
            raise ValueError(
                f"null_mask has column {name!r}, whose mask is {mask_name(name)!r}, but columns={shown(columns)} has "
                "a column of that name: leave it out"
            )
    return fill, masked


def file_path(name: str, value: Any) -> str:
    """Return a path or URL as a str."""
    try:
        text = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} must be a path, not {shown(value)}") from None
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name} must be a path that a file system can have, not {shown(value)}")


def memory_place(value: Any, kinds: Sequence[str] = ("auto", "shm", "memfd")) -> str | os.PathLike[str]:
    """Return `backing`: where the memory comes from."""
    if isinstance(value, str) and value in kinds:
        return value
    if not isinstance(value, (str, os.PathLike)) or not os.path.isabs(value):
        listed = ", ".join(map(repr, kinds))
        raise ValueError(
            f"backing must be {listed} or the absolute path of a directory on a tmpfs, not {shown(value)}"
        )
    if not os.path.isdir(value):
        raise ValueError(f"backing names {shown(value)}, which is not a directory")
    return value


# The names of tf.data, Keras and Grain -> ours, or what to do in their place.
_ELSEWHERE = {
    "worker_count": "num_workers",
    "workers": "num_workers",
    "num_parallel_calls": "num_workers",
    "use_multiprocessing": "start_method",
    "num_threads": "fetch_threads",
    "drop_remainder": "drop_last",
    "max_queue_size": "prefetch_factor",
    "worker_buffer_size": "prefetch_factor",
    "buffer_size": "shuffle_buffer",
    "shuffle": "shuffle_buffer",
    "deterministic": "in_order",
    "num_epochs": "Iterate the loader once for each epoch",
    "repeat": "Iterate the loader once for each epoch",
    "transforms": "Transform samples in the dataset, or batches in collate_fn",
    "operations": "Transform samples in the dataset, or batches in collate_fn",
    "shard_options": "Give batch_sampler=slipring.BatchSampler(..., rank=, world_size=)",
}


def advice(name: str, names: Iterable[str], known: Mapping[str, str]) -> str:
    """Return what to say of an argument that is none of `names`; `known` tells of the names of other loaders."""
    for meant in (known.get(name, ""), _ELSEWHERE.get(name, "")):
        if meant in names:
            return f". Did you mean {meant!r}?"
        if " " in meant:
            return f". {meant}"
    near = difflib.get_close_matches(name, names, 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def suggesting(**known: str) -> Callable[[_Init], _Init]:
    """Have a constructor name the argument that was meant by one that it does not have.

    Parameters
    ----------
    known : str
        Other loaders' name for an argument -> ours.
    """

    def decorate(init):
        names = inspect.signature(init).parameters

        @functools.wraps(init)
        def checked(*args, **kwargs):
            for name in kwargs:
                if name not in names:
                    raise TypeError(
                        f"{init.__qualname__}() got an unexpected keyword argument {name!r}"
                        f"{advice(name, names, known)}"
                    )
            init(*args, **kwargs)

        return checked

    return decorate


BEGIN_WITH = (
    4  # workers, where "auto" finds out how many are best; or as many as processors, if those are fewer
)
MOST_UNASKED = 64  # of such workers, if nobody says and there are not more processors
WORKERS_PER_CPU = 4  # more may wait for disks and networks, but hardly for processors


def warn_of_many_workers(num_workers: int) -> None:
    """Warn where a loader will have far more workers than there are processors for it."""
    cpus = len(os.sched_getaffinity(0))
    if num_workers > WORKERS_PER_CPU * cpus:
        warnings.warn(
            f"num_workers={num_workers} for {cpus} processors, which this process may use: more than "
            f"{WORKERS_PER_CPU} workers for each seldom make a loader faster, and each costs memory. Use "
            f"about {cpus}",
            stacklevel=4,
        )


def bounds(
    num_workers: Any, least: int | None, most: int | None, slots: int | None = None
) -> tuple[int, int, int]:
    """Return (workers to begin with, the fewest, the most) of a loader that finds out how many are best.

    It begins with no more than its slots serve, of which the consumer has one.

    Raises
    ------
    TypeError, ValueError
        Naming `num_workers`, `min_workers`, `max_workers` or `slots`, its value and the rule.
    """
    if num_workers != "auto":
        raise TypeError(f"num_workers must be an int or 'auto', not {shown(num_workers)}")
    for name, value in (("min_workers", least), ("max_workers", most)):
        integer(name, value, 1, MAX_WORKERS, optional=True)
    if least is not None and most is not None and most < least:
        raise ValueError(f"max_workers must be at least min_workers={least}, not {most}")
    integer("slots", slots, 2, MAX_SLOTS, optional=True)
    cpus = _machine.cpus()
    least = 1 if least is None else least
    if most is None:
        most = min(MAX_WORKERS, max(least, cpus, min(MOST_UNASKED, max(16, WORKERS_PER_CPU * cpus))))
    begin = min(cpus, BEGIN_WITH) if slots is None else min(cpus, BEGIN_WITH, slots - 1)
    return min(most, max(least, begin)), least, most


def check_bounds(num_workers: Any, **given: int | None) -> None:
    """Refuse `min_workers` and `max_workers` where the number of workers is fixed."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={shown(value)} bounds num_workers='auto'; num_workers={shown(num_workers)} is fixed"
            )


@dataclasses.dataclass(frozen=True)
class Options:
    """What `slipring.Loader` was asked for. See there for the meaning.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and the rule.
    """

    batch_size: int | None = 1
    shuffle: bool = False
    sampler: object = None
    batch_sampler: object = None
    num_workers: int = 0
    collate_fn: object = None
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: object = None
    seed: int | None = None
    prefetch_factor: int = 2
    persistent_workers: bool = True
    in_order: bool = True
    start_method: str | None = None
    context: object = None  # of multiprocessing; its Process starts workers by `start_method`
    chunk_size: int | None = None
    dispatch: str = "dynamic"
    rng: str = "batch"
    slots: int | None = None
    slot_bytes: int | None = None
    backing: str = "auto"
    copy: str = "auto"
    on_worker_death: str = "raise"
    max_restarts: int = 3
    snapshot_every_n_steps: int | None = 1
    min_workers: int | None = None
    max_workers: int | None = None
    fetch_threads: int | None = None
    rank: int | None = None
    auto: bool = False  # the number of workers is the one to begin with, or what was found since
    ahead: int = 0  # batches that an adapter has ready before they are asked for, each in a slot of its own

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, str):
            begin, least, most = bounds(self.num_workers, self.min_workers, self.max_workers, self.slots)
            for name, value in (
                ("num_workers", begin), ("min_workers", least), ("max_workers", most), ("auto", True),
            ):  # fmt: skip
                object.__setattr__(self, name, value)
        elif not self.auto:
            check_bounds(self.num_workers, min_workers=self.min_workers, max_workers=self.max_workers)
        self._numbers()
        self._choices()
        self._callables()
        self._exclusions()

    def _numbers(self):
        checked = {
            name: integer(name, getattr(self, name), least, most, optional=optional, hint=hint)
            for name, (least, most, optional, hint) in _INTEGERS.items()
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # numpy's become Python's
        seconds("timeout", self.timeout)
        for name in ("shuffle", "drop_last", "persistent_workers", "in_order"):
            flag(name, getattr(self, name))

    def _choices(self):
        one_of("start_method", self.start_method, (None, *START_METHODS))
        one_of("dispatch", self.dispatch, ("dynamic", "static"))
        one_of(
            "rng",
            self.rng,
            ("batch", "worker", "sample"),
            "; it says when generators are seeded: seed= sets what they give, and slipring.rng() is the one of a batch",
        )
        one_of("copy", self.copy, ("auto", "always", "never"))
        one_of("on_worker_death", self.on_worker_death, ("raise", "respawn"))
        memory_place(self.backing)

    def _callables(self):
        for name in ("collate_fn", "worker_init_fn"):
            function(name, getattr(self, name))
        for name in ("sampler", "batch_sampler"):
            if (value := getattr(self, name)) is not None:
                iterable(name, value, "an iterable of indices")

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
