"""The binding of the cache (csrc/cache.c)."""

import operator
import os

cimport cython
from libc.errno cimport EACCES, EAGAIN, EBADF, ECHILD, EEXIST, EINTR, ENOENT, ENOSPC, EPROTO, ERANGE, EXDEV
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset, strncpy

from slipring._core.codec cimport _ccache as c
from slipring._core.codec._codec cimport decode
from slipring._core.codec._encode cimport Packed, pack
from slipring._core.ring._check cimport check
from slipring._core.ring._slot cimport looked_up
from slipring._core.ring._cring cimport SR_BACKING_DIR, SR_LIMIT_NONE, sr_result, sr_alloc_error

cdef extern from "<errno.h>" nogil:
    enum:
        EMEDIUMTYPE
        EUSERS

from slipring.errors import CacheMismatch, Closed, CorruptBatch, shown
from slipring._core.ring._check import BACKINGS, LIMITS, from_handler
from slipring._core.ring.text import cache_refused, descriptor_closed, not_in_memory

# How long a process waits for an entry that another process makes. If this takes longer, that process may be stopped.
cdef uint64_t PATIENCE = 1_000_000_000
REASONS = {
    EUSERS: "1024 entries are being made at this moment",
    EXDEV: "it was made in another PID namespace, whose processes this one cannot watch",
}
NAMES = ("hits", "misses", "stored", "stored_bytes", "refused_budget", "refused_memory", "refused_other", "waits")


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
@cython.internal
cdef class Mapping:
    """The cache's memory in this process; every view on an entry keeps it."""

    cdef c.sr_cache *ptr

    def __dealloc__(self):
        if self.ptr != NULL:
            c.sr_cache_destroy(self.ptr)


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
@cython.internal
cdef class Claim:
    """An entry that the calling thread makes; if nothing is stored in it, the entry does not exist."""

    cdef Mapping mapping
    cdef c.sr_fill fill
    cdef bint is_open

    def __dealloc__(self):
        self.abandon()

    cdef void abandon(self) noexcept:
        if self.is_open:
            self.is_open = False
            c.sr_cache_abandon(self.mapping.ptr, &self.fill)  # does nothing to a claim of the parent process


cdef class CacheCore:
    """A cache; `slipring.Cache` is its public form."""

    cdef Mapping mapping
    cdef uint64_t typical  # bytes of an entry: a running mean, which one huge entry hardly changes

    def _create(self, uint64_t budget, backing, label):
        cdef sr_alloc_error why
        cdef Mapping mapping = Mapping.__new__(Mapping)
        directory = None if backing in BACKINGS else os.fsencode(backing)
        where = directory if label is None else label.encode()
        memset(&why, 0, sizeof(why))
        cdef int rc = c.sr_cache_create(budget, BACKINGS.get(backing, SR_BACKING_DIR),
                                        <const char *> where if where is not None else NULL, &mapping.ptr, &why)
        if rc == -EMEDIUMTYPE:
            raise not_in_memory("/dev/shm" if directory is None else os.fsdecode(directory))
        if rc < 0 and why.limit != SR_LIMIT_NONE:
            raise cache_refused(why.needed, why.free, LIMITS[why.limit])
        check(rc)
        self.mapping = mapping

    def _attach(self, int fd):
        cdef Mapping mapping = Mapping.__new__(Mapping)
        cdef int rc = c.sr_cache_attach(fd, &mapping.ptr)
        if rc == -EPROTO:
            raise CorruptBatch("the file descriptor is not a slipring cache of this version")
        if rc == -EACCES:
            raise PermissionError(f"the cache is another user's (uid {os.fstat(fd).st_uid}); this is uid "
                                  f"{os.geteuid()}: caches are not shared between users")
        check(rc)
        self.mapping = mapping

    cdef Mapping opened(self):
        cdef Mapping mapping
        with cython.critical_section(self):
            mapping = self.mapping
        if mapping is None:
            raise Closed("the cache has been closed")
        return mapping

    @property
    def _fd(self):
        cdef int fd = c.sr_cache_fd(self.opened().ptr)
        if fd == -EBADF:
            raise descriptor_closed("a cache")
        return fd

    def _info(self):
        """Return a dict of the cache's counters and sizes."""
        cdef c.sr_cache_info info
        c.sr_cache_describe(self.opened().ptr, &info)
        counts = {}
        for i in range(len(NAMES)):
            counts[NAMES[i]] = info.counters[i]
        return {
            **counts, "budget": info.budget, "wanted": info.wanted, "keys": info.n_keys, "used": info.used,
            "committed": info.committed, "entries": info.entries, "samples": info.samples,
            "recovered": info.recovered, "lost": info.lost, "full": info.full,
        }

    def _bind(self, uint64_t fingerprint, uint64_t samples, text):
        """Declare the contents of the cache; raise CacheMismatch if it has other contents."""
        cdef char label[448]
        cdef bytes words = text.encode(errors="replace")[:447]
        memset(label, 0, sizeof(label))
        strncpy(label, words, sizeof(label) - 1)
        if c.sr_cache_bind(self.opened().ptr, fingerprint, samples, label) == -EEXIST:
            there = (<bytes> label).decode(errors="replace") or "something else"
            here = f"{text}, but other ones or in another form" if there == text else text
            raise CacheMismatch(f"the cache holds {there}; this is {here}. Give each dataset a cache (and a name) of "
                                f"its own")

    @cython.critical_section
    def close(self):
        """Release the cache. Views on entries stay valid; the memory is freed when the last process releases it."""
        self.mapping = None

    @property
    def closed(self):
        """bool: whether `close` has been called."""
        return self.mapping is None

    # ---- finding

    cdef object found(self, Mapping mapping, uint64_t key, int *rc):
        cdef const char *payload = NULL
        cdef uint64_t nbytes = 0
        cdef sr_result result
        rc[0] = c.sr_cache_lookup(mapping.ptr, key, &payload, &nbytes, &result)
        if rc[0] == 0:
            return decode(<char *> payload, nbytes, &result, mapping, True)
        if rc[0] == -EPROTO:
            raise CorruptBatch(f"the record at key {key} of the cache is not its entry")
        return None

    def get(self, key, default=None):
        """Return the value under a key, as read-only views; `default` if there is none.

        Parameters
        ----------
        key : int
        default : object
        """
        cdef int rc = 0
        cdef Mapping mapping = self.opened()
        value = self.found(mapping, number_of(key), &rc)
        c.sr_cache_count(mapping.ptr, c.SR_HITS if rc == 0 else c.SR_MISSES, 1)
        looked_up(rc == 0)
        return value if rc == 0 else default

    def _peek(self, key, default):
        """Return the same as `get`, but count only a hit: after a miss the caller calls `get_or_make` or `_missed`."""
        cdef int rc = 0
        cdef Mapping mapping = self.opened()
        try:
            value = self.found(mapping, number_of(key), &rc)
        except CorruptBatch:  # get_or_make() reports it
            return default
        if rc:
            return default
        c.sr_cache_count(mapping.ptr, c.SR_HITS, 1)
        looked_up(True)
        return value

    def _missed(self):
        """Return whether the cache has no room for another entry; if so, count a miss and a refusal."""
        cdef Mapping mapping = self.opened()
        cdef int rc = c.sr_cache_memory_available(mapping.ptr, self.typical)
        if rc == 0:
            return False
        c.sr_cache_count(mapping.ptr, c.SR_MISSES, 1)
        looked_up(False)
        c.sr_cache_count(mapping.ptr, c.SR_REFUSED_BUDGET if rc == -ENOSPC else c.SR_REFUSED_MEMORY, 1)
        return True

    def __contains__(self, key):
        cdef int rc = 0
        cdef const char *payload = NULL
        cdef uint64_t nbytes = 0
        cdef sr_result result
        try:
            number = number_of(key)
        except (TypeError, ValueError):  # not a valid key
            return False
        rc = c.sr_cache_lookup(self.opened().ptr, number, &payload, &nbytes, &result)
        return rc == 0

    def __bool__(self):
        """Return whether the cache is open; an empty cache is true, too."""
        return self.mapping is not None

    def __len__(self):
        """Return the number of entries."""
        cdef c.sr_cache_info info
        c.sr_cache_describe(self.opened().ptr, &info)
        return info.entries

    # ---- making

    def get_or_make(self, key, make):
        """Return the value under a key; if there is none, store and return ``make()``.

        One process makes the value. Others that need it meanwhile wait: this takes no longer than making it a second
        time, and leaves the CPU to others. A process that has waited for a second makes a value of its own and does
        not store it, because the first process may be stopped. An exception of `make` is raised, and nothing is stored.

        Parameters
        ----------
        key : int
        make : callable
            Called without arguments. It may use the cache for other keys.

        Returns
        -------
        object
            Its arrays are read-only, even if the cache had no room. Its tensors are copies, because torch has no
            read-only tensors.
        """
        cdef Mapping mapping = self.opened()
        cdef uint64_t number = number_of(key), deadline = 0
        cdef int rc = 0
        cdef Claim claim = None
        while True:
            try:
                value = self.found(mapping, number, &rc)
            except CorruptBatch as error:  # usually it needs a class that this program lacks
                if from_handler(error):
                    raise
                self._say_unfit(shown(error))
                c.sr_cache_count(mapping.ptr, c.SR_MISSES, 1)
                looked_up(False)
                c.sr_cache_count(mapping.ptr, c.SR_REFUSED_OTHER, 1)
                return make()
            if rc == -ERANGE:  # memory limits have left no room in the index for this key
                c.sr_cache_count(mapping.ptr, c.SR_REFUSED_OTHER, 1)
                break
            if rc == 0:
                c.sr_cache_count(mapping.ptr, c.SR_HITS, 1)
                looked_up(True)
                return value
            if rc == -ENOENT:
                if c.sr_cache_memory_available(mapping.ptr, self.typical) != 0:
                    break  # no process should wait for an entry that will probably not be stored
                claim = self.claimed(mapping, number, &rc)
                if rc == 0:
                    break
            if rc != -EAGAIN and rc != -EEXIST:
                break
            if rc == -EAGAIN:
                if deadline == 0:
                    deadline = c.sr_now() + PATIENCE
                    c.sr_cache_count(mapping.ptr, c.SR_WAITS, 1)
                with nogil:
                    rc = c.sr_cache_wait(mapping.ptr, number, deadline)
                if rc == -EINTR:
                    check(rc)
                elif rc != 0:
                    c.sr_cache_count(mapping.ptr, c.SR_REFUSED_OTHER, 1)
                    break
        c.sr_cache_count(mapping.ptr, c.SR_MISSES, 1)
        looked_up(False)
        try:
            value = make()
            return self.kept(mapping, number, value, claim, rc == -ENOENT)
        finally:
            if claim is not None:
                claim.abandon()  # does nothing after a store

    def put(self, key, value):
        """Store a value under a key. If there is one already, it stays.

        Parameters
        ----------
        key : int
        value : object
            Anything that a batch may contain: arrays, tensors, numbers, strings, and containers of these. Other
            objects are pickled.

        Returns
        -------
        bool
            Whether there is an entry now. False: the budget or the memory does not suffice, or another process has
            been making the entry for more than a second.
        """
        self.get_or_make(key, lambda: value)
        return key in self

    cdef Claim claimed(self, Mapping mapping, uint64_t key, int *rc):
        cdef sr_alloc_error why
        cdef Claim claim = Claim.__new__(Claim)
        memset(&why, 0, sizeof(why))
        claim.mapping = mapping
        rc[0] = c.sr_cache_claim(mapping.ptr, key, &claim.fill, &why)
        claim.is_open = rc[0] == 0
        if rc[0] != 0 and rc[0] != -EAGAIN and rc[0] != -EEXIST:
            self.refused(mapping, rc[0], &why)
        return claim

    cdef object kept(self, Mapping mapping, uint64_t key, value, Claim claim, bint may_claim):
        """Store a value; return read-only views of its entry, or of a packed copy if it was not stored."""
        cdef sr_alloc_error why
        cdef Packed packed
        cdef int rc = 0
        try:
            packed = pack(value)
            if packed.result.pickled:
                packed.value()  # a value that cannot be unpickled is not stored
        except Exception as error:
            if from_handler(error):
                raise
            c.sr_cache_count(mapping.ptr, c.SR_REFUSED_OTHER, 1)
            self._say_unfit(shown(error))
            return value
        with cython.critical_section(self):
            self.typical += (<int64_t> packed.used - <int64_t> self.typical) // 16
        if claim is None and may_claim:  # there was no room for an entry of typical size; this one may be smaller
            rc = c.sr_cache_memory_available(mapping.ptr, packed.used)
            if rc == 0:
                claim = self.claimed(mapping, key, &rc)
            elif rc == -ENOSPC:
                memset(&why, 0, sizeof(why))
                self.refused(mapping, rc, &why)
            else:  # memory was refused a moment ago; that refusal has been reported
                c.sr_cache_count(mapping.ptr, c.SR_REFUSED_MEMORY, 1)
        if claim is None or not claim.is_open:
            return packed.value()
        memset(&why, 0, sizeof(why))
        with nogil:
            rc = c.sr_cache_store(mapping.ptr, &claim.fill, &packed.result, packed.payload, packed.used, &why)
        claim.is_open = False
        if rc != 0:
            if rc != -ECHILD:  # `make` forked: only the parent may make the entry
                self.refused(mapping, rc, &why)
            return packed.value()
        value = self.found(mapping, key, &rc)
        return value if rc == 0 else packed.value()

    cdef int refused(self, Mapping mapping, int rc, sr_alloc_error *why) except -1:
        """Count a refusal, and let one process report it once; raise DescriptorClosed for -EBADF."""
        cdef bint budget = rc == -ENOSPC and why.limit not in LIMITS
        if rc == -EBADF:
            raise descriptor_closed("a cache")
        if rc == -ENOSPC:
            c.sr_cache_count(mapping.ptr, c.SR_REFUSED_BUDGET if budget else c.SR_REFUSED_MEMORY, 1)
        else:
            c.sr_cache_count(mapping.ptr, c.SR_REFUSED_OTHER, 1)
        if budget and why.needed > self._info()["budget"]:
            self._say_too_large(why.needed)
        elif c.sr_cache_may_report(mapping.ptr):
            self._say_refused(None if rc == -ENOSPC else REASONS.get(-rc) or os.strerror(-rc),
                              None if budget else LIMITS.get(why.limit), why.needed, why.free)
        return 0


cdef uint64_t number_of(key) except? 0xFFFFFFFFFFFFFFFE:
    """Return a key as the index stores it; raise TypeError or ValueError if it is not valid."""
    if isinstance(key, bool):
        raise TypeError(f"key must be an int, not {shown(key)}")
    value = operator.index(key)
    if value < 0 or value >= 1 << 30:
        raise ValueError(f"key must be from 0 to {(1 << 30) - 1}, not {value}")
    return value
