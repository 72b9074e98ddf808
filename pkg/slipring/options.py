"""The loader's arguments, validated once, at construction."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import re
import reprlib
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from slipring import _machine
from slipring.ring._ring import MAX_RANGES, MAX_SLOTS, MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

_Init = TypeVar("_Init", bound="Callable[..., None]")

START_METHODS = ("fork", "forkserver", "spawn", "thread")
MAX_FETCH_THREADS = (
    1024  # of one worker: more wait for their turn on a processor, not for a disk or a network
)
MAX_COUNT = (1 << 32) - 1  # of rows in a batch, and whatever else is counted: as csrc/layout.h

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_MOST_BYTES = 1 << 46


# ---- single arguments: what does not fit is refused with name, value and rule; TypeError or ValueError


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200


def _shown(value: object) -> str:
    """A short repr, also of what has none: a refusal is to say what is wrong, whatever it was given."""
    try:
        return _repr.repr(value)
    except Exception as error:
        return f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    optional: bool = False,
    hint: str = "",
) -> None:
    """Check an int from `least` to `most`; `hint` follows the text for what is below `least`."""
    if value is None and optional:
        return
    try:
        fits = not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:  # arrays have an __index__ that fails
        fits = False
    if not fits:
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, not {_shown(value)}")
    below = least is not None and value < least
    if below or (most is not None and value > most):
        rule = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {rule}, not {_shown(value)}{hint if below else ''}")


def size_in_bytes(name: str, value: int | str) -> int:
    """Return a size given as a number of bytes, or in words such as "32GiB"."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ValueError(
                f"{name} must be a size such as '32GiB', '500 MB' or a number of bytes, not {_shown(value)}"
            )
        power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
        nbytes = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    elif isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be a size such as '32GiB' or a number of bytes, not {_shown(value)}")
    else:
        nbytes = value.__index__()
    if not 1 <= nbytes <= _MOST_BYTES:
        raise ValueError(f"{name} must be from 1 byte to 64 TiB, not {_shown(value)}")
    return nbytes


def seconds(name: str, value: Any) -> None:
    """Check a time to wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {_shown(value)}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be 0 (wait for ever) or seconds, not {_shown(value)}")


def flag(name: str, value: Any) -> None:
    """Check a bool; None counts as False."""
    if not isinstance(value, (bool, type(None))):
        raise TypeError(f"{name} must be True or False, not {_shown(value)}")


def function(name: str, value: Any) -> None:
    """Check what is called, if it is given."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable or None, not {_shown(value)}")


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
                    import difflib

                    near = [known[name]] if name in known else difflib.get_close_matches(name, names, 1)
                    hint = f". Did you mean {near[0]!r}?" if near else ""
                    raise TypeError(
                        f"{init.__qualname__}() got an unexpected keyword argument {name!r}{hint}"
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
        raise TypeError(f"num_workers must be an int or 'auto', not {_shown(num_workers)}")
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
                f"{name}={_shown(value)} bounds num_workers='auto'; num_workers={_shown(num_workers)} is fixed"
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
        integer("num_workers", self.num_workers, 0, MAX_WORKERS, hint="; 0 loads in this process")
        for name, least in (("prefetch_factor", 1), ("max_restarts", 0)):
            integer(name, getattr(self, name), least, MAX_COUNT)
        for name, least, most in (
            ("batch_size", 1, (1 << 63) - 1),
            ("chunk_size", 1, MAX_COUNT),
            ("slots", 2, MAX_SLOTS),
            ("slot_bytes", 1, 1 << 46),
            ("seed", None, None),
            ("fetch_threads", 1, MAX_FETCH_THREADS),
            ("snapshot_every_n_steps", 0, MAX_COUNT),
        ):
            integer(name, getattr(self, name), least, most, optional=True)
        seconds("timeout", self.timeout)
        for name in ("shuffle", "drop_last", "persistent_workers", "in_order"):
            flag(name, getattr(self, name))

    def _choices(self):
        self._one_of("start_method", (None, *START_METHODS))
        self._one_of("dispatch", ("dynamic", "static"))
        self._one_of(
            "rng",
            ("batch", "worker", "sample"),
            "; it says when generators are seeded: seed= sets what they give, and slipring.rng() is the one of a batch",
        )
        self._one_of("copy", ("auto", "always", "never"))
        self._one_of("on_worker_death", ("raise", "respawn"))
        if self.backing not in ("auto", "shm", "memfd"):
            if not isinstance(self.backing, (str, os.PathLike)) or not os.path.isabs(self.backing):
                raise ValueError(
                    f"backing must be 'auto', 'shm', 'memfd' or the absolute path of a directory on a tmpfs, "
                    f"not {_shown(self.backing)}"
                )
            if not os.path.isdir(self.backing):
                raise ValueError(f"backing names {_shown(self.backing)}, which is not a directory")

    def _one_of(self, name, allowed, hint=""):
        if getattr(self, name) not in allowed:
            listed = ", ".join(repr(a) for a in allowed)
            raise ValueError(f"{name} must be one of {listed}, not {_shown(getattr(self, name))}{hint}")

    def _callables(self):
        for name in ("collate_fn", "worker_init_fn"):
            function(name, getattr(self, name))
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if value is not None and not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
                raise TypeError(f"{name} must be an iterable of indices, not {_shown(value)}")

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
        name = type(dataset).__name__
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

    # ---- derived

    @property
    def method(self) -> str:
        """str: how workers are started, multiprocessing's own default filled in."""
        if self.start_method is None:
            import multiprocessing

            return multiprocessing.get_start_method()
        return self.start_method

    @property
    def n_slots(self) -> int:
        """int: slots of the segment."""
        most = max(1, self.num_workers, self.max_workers or 0)
        return self.slots or self.prefetch_factor * most + 16 + self.ahead

    @property
    def room(self) -> int:
        """int: workers that the segment has party numbers for: there may come to be more of them."""
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
