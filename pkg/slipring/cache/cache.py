"""The public class of the cache: its budget, its name, and its figures."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from slipring._core.codec._cache import CacheCore
from slipring._core.options.checks import checked_backing, integer, size_in_bytes
from slipring._core.ring._segment import memory_available
from slipring.errors import shown

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger("slipring")


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """The figures of a cache, over all processes that share it.

    Attributes
    ----------
    hits, misses : int
        Lookups that found their entry, and that did not.
    waits : int
        Lookups that waited while another process made the entry. Counted as hits or misses, too.
    entries, bytes : int
        Entries, and the bytes that they take.
    budget : int
        Bytes that entries may take.
    committed : int
        Bytes of memory that the cache takes, its index included: 8 bytes for each key, in pieces of 64 KiB.
    refused_budget, refused_memory, refused_other : int
        Values that were made and not stored: because the budget had no room for them; because too little memory is left
        on the machine or in the container; for another reason. The other reasons: they cannot be unpickled, memory
        limits left no room in the index for their keys, another process had been making the entry for a second, 1024
        entries are being made at the same time, or another PID namespace made the cache.
    recovered, lost_bytes : int
        Entries that a process had begun when it died, and that another process made; the bytes that the dead process
        had taken for them.
    samples : int
        How many samples the dataset has; 0: unknown.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Cache("1MiB") as cache:
    ...     value = cache.get_or_make(7, lambda: [1, 2])
    ...     value = cache.get_or_make(7, lambda: [1, 2])
    ...     stats = cache.stats()
    >>> stats.hits, stats.misses, stats.entries
    (1, 1, 1)
    """

    hits: int
    misses: int
    waits: int
    entries: int
    bytes: int
    budget: int
    committed: int
    refused_budget: int
    refused_memory: int
    refused_other: int
    recovered: int
    lost_bytes: int
    samples: int

    @property
    def refused(self) -> int:
        """int: values that were made and not kept, for any reason."""
        return self.refused_budget + self.refused_memory + self.refused_other

    @property
    def bytes_for_all(self) -> int | None:
        """int or None: the bytes of all samples, estimated from the mean of the stored ones; None: unknown."""
        return round(self.bytes / self.entries * self.samples) if self.entries and self.samples else None


class Cache(CacheCore):
    """Values by number, in memory that workers, loaders and ranks of one machine share. Nothing is ever evicted.

    For epochs in random order, no cache is better than one that keeps the first entries (J. Mohan and others,
    "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021: CoorDL). Forked workers and thread workers share
    their parent's cache. With `spawn` and `forkserver`, pass it as an argument, or as part of a dataset. The memory is
    freed when the last process has ended, in whatever way.

    Parameters
    ----------
    budget : int or str
        Bytes that entries may take: a number, or "32GiB", "500 MB". Memory is committed as entries are stored. A
        sixteenth of the machine's (or the container's) memory and 64 MiB stay free in any case.
    name : str, optional
        Processes of one user on one machine that open a cache with the same name share it: a second loader, a second
        training, the ranks that torchrun starts. The budget of the first process counts. Containers do not share it.
    backing : {'memfd', 'shm'} or str
        Where the memory comes from, if there is no name: a memfd, /dev/shm, or a directory on a tmpfs. The size of
        /dev/shm does not limit a memfd.

    Raises
    ------
    ValueError
        The size or the name is not valid.
    SegmentFull
        There is no memory for the cache's first pages.
    PermissionError
        Another user holds the name.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> cache = slipring.Cache("64MiB")
    >>> image = cache.get_or_make(3, lambda: np.full((2, 2), 7, np.uint8))  # made
    >>> image = cache.get_or_make(3, lambda: np.full((2, 2), 7, np.uint8))  # found
    >>> image.tolist(), image.flags.writeable
    ([[7, 7], [7, 7]], False)
    >>> cache.get(4) is None
    True
    >>> cache.close()
    """

    name: str | None
    _held: Any = None  # (a dataset without a fingerprint, a random one for it): see `dataset.bind`

    def __init__(self, budget: int | str, *, name: str | None = None, backing: str = "memfd") -> None:
        nbytes = size_in_bytes("budget", budget)
        checked_backing(backing, ("memfd", "shm"))
        if name is not None and backing != "memfd":
            raise ValueError("a cache with a name is found by its memfd: leave backing out")
        self.name = name
        if name is None:
            self._create(nbytes, backing, "slipring-cache" if backing == "memfd" else None)
            self._say_what_fits(nbytes)
            return
        from slipring._core.codec.cache_names import (  # uses sockets, which only a named cache needs
            label_of,
            open_named,
        )

        label = label_of(name)
        if open_named(name, self._attach, lambda: self._create(nbytes, "memfd", label)):
            there = self._info()["budget"]
            if there != nbytes:
                _log.info("the cache %r is there already, with a budget of %s", name, in_words(there))
        else:
            self._say_what_fits(nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            return _reopen, (type(self), None, self.name)
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None:  # sent to a pool, or to another program
            if self.name is None:
                raise RuntimeError(
                    "a cache without a name can be handed on only to a process that is being started: give it a name, "
                    "or hand it to the pool's initializer"
                )
            return _open, (type(self), self._info()["budget"], self.name)
        return _reopen, (type(self), DupFd(self._fd), self.name)

    def __copy__(self) -> Self:
        return self  # a copy of a dataset shares its cache

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        if self.closed:
            return f"<{type(self).__name__}{named} closed>"
        info = self._info()
        size = f"{in_words(info['used'])} of {in_words(info['budget'])}"
        return f"<{type(self).__name__}{named} {_count(info['entries'], 'entry', 'entries')}, {size}>"

    def stats(self) -> CacheStats:
        """Return `CacheStats`, summed over all processes that share the cache."""
        info = self._info()
        info.update(bytes=info["stored_bytes"], lost_bytes=info["lost"])
        return CacheStats(**{field.name: info[field.name] for field in dataclasses.fields(CacheStats)})

    def report(self) -> str:
        """Return a text with the number of entries, their hits, and the budget that all samples need.

        Examples
        --------
        >>> import slipring
        >>> cache = slipring.Cache("1MiB")
        >>> value = cache.get_or_make(0, lambda: "one")
        >>> print(cache.report())
        1 entry, 320 B of 1 MiB; 0 hits, 1 miss
        >>> cache.close()
        """
        stats = self.stats()
        parts = [
            f"{_count(stats.entries, 'entry', 'entries')}, {in_words(stats.bytes)} of {in_words(stats.budget)}",
            f"{_count(stats.hits, 'hit', 'hits')}, {_count(stats.misses, 'miss', 'misses')}",
        ]
        if stats.refused:
            why = {
                "no room in the budget": stats.refused_budget,
                "too little memory left": stats.refused_memory,
                "cannot be kept": stats.refused_other,
            }
            said = ", ".join(f"{n:,} {reason}" for reason, n in why.items() if n)
            parts.append(f"{stats.refused:,} refused ({said})")
        needed = stats.bytes_for_all
        if needed is not None:
            share = min(1.0, stats.entries / stats.samples)
            words = f"{share:.0%} of {stats.samples:,} samples are kept"
            if stats.entries < stats.samples:
                words += f"; all of them would take about {in_words(needed)}"
            parts.append(words)
        return "; ".join(parts)

    def bind(self, what: str, fingerprint: bytes | str, samples: int = 0) -> None:
        """Declare the contents of the cache. Another declaration afterwards, in any process, raises an exception.

        Parameters
        ----------
        what : str
            A description, for messages.
        fingerprint : bytes or str
            A value that only these contents have.
        samples : int
            How many samples there are in all, for `report`; 0: unknown.

        Raises
        ------
        CacheMismatch
            The cache holds something else.
        """
        import hashlib  # it loads a cryptographic library

        if not isinstance(what, str):
            raise TypeError(f"what must be a str, in words what the cache holds, not {shown(what)}")
        if not isinstance(fingerprint, (bytes, str)):
            raise TypeError(
                f"fingerprint must be a str or bytes, not {shown(fingerprint)}: of an array take a digest of its bytes"
            )
        samples = integer("samples", samples, 0, (1 << 63) - 1)
        data = fingerprint.encode("utf-8", "surrogatepass") if isinstance(fingerprint, str) else fingerprint
        number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        self._bind(number or 1, samples, what)

    # ---- messages that are logged once in the life of a cache

    def _say_what_fits(self, asked):
        free, size, limit, where = memory_available()
        keep = size // 16 + (64 << 20)
        if asked + keep > free:
            _log.warning(
                "the cache may take %s, but %s (%s) leaves %s of it: entries are kept as long as there is room",
                in_words(asked),
                limit or "the machine",
                where,
                in_words(max(0, free - keep)),
            )
        there = self._info()["budget"]
        if there < asked:
            _log.warning(
                "the cache has %s in place of %s: the limits on file size and address space allow no more",
                in_words(there),
                in_words(asked),
            )

    def _say_refused(self, error, limit, needed, free):
        if error is not None:
            why = error
        elif limit is None:
            why = "its budget is used up"
        else:
            why = f"{limit} leaves {in_words(free)} to caches, {in_words(needed)} are needed"
        report = "" if self.closed else self.report()
        _log.warning("the cache keeps no more for now: %s. %s", why, report)

    def _say_unfit(self, why):
        if not self._warned_unfit:
            self._warned_unfit = True
            _log.warning("a value cannot be cached, and is made each time: %s", why)

    def _say_too_large(self, needed):
        if not self._warned_large:
            self._warned_large = True
            _log.warning("a value of %s is larger than the cache, and is made each time", in_words(needed))

    _warned_unfit = _warned_large = False


def _open(cls, budget, name):
    return cls(budget, name=name)


def _reopen(cls, descriptor, name):
    cache = cls.__new__(cls)
    cache.name = name
    if descriptor is not None:
        fd = descriptor.detach()
        try:
            cache._attach(fd)
        finally:
            os.close(fd)
    return cache


def as_cache(value: int | str | Cache) -> Cache:
    """Return the cache for an argument: itself, or a new one of that budget."""
    return value if isinstance(value, Cache) else Cache(size_in_bytes("cache", value))


def in_words(nbytes: int) -> str:
    """Return a number of bytes in readable form."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _count(n, one, many):
    return f"{n:,} {one if n == 1 else many}"
