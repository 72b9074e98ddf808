"""Jobs of the run at every step that hit a process that shares a cache: see step_job.py.

In each round a filler and another process need the same entries, or two survivors need those of a dead one. One is
killed or stopped at the point; a stopped one continues when the others have done their part. Then each entry must
exist once, with the right bytes. The jobs call the C functions themselves: the cache's Python code writes no shared
words.
"""

import ctypes
import os
import signal
import sys

import numpy as np

from tests.fault.step_job import HANG_S, main
from tests.fault.step_parts import Child, shared
from tests.fault.step_queue import VICTIM, QueueJob
from tests.support.processes import until

LIB = ctypes.CDLL(sys.argv[3])
MEMFD = 2
CHUNK = 8192
BUDGET = 1 << 20
# Bytes of each entry; the second one's word lies in another chunk of the index.
SIZES = {0: 100, CHUNK: 5_000, 2: 70_000, 4: 64}
TOO_LARGE = 3
KEYS = list(SIZES)
FOREVER = 2**64 - 1
ENOENT, EAGAIN, EEXIST, ENOSPC, ETIMEDOUT = 2, 11, 17, 28, 110
HEADER_WAITERS, FILLERS, FILLER, N_FILLERS = 192, 8192, 64, 1024  # offsets of csrc/cache.h
GROWING = 32


class Fill(ctypes.Structure):
    """struct sr_fill."""

    _fields_ = (*((field, ctypes.c_uint64) for field in ("key", "word", "incarnation")), ("filler", ctypes.c_uint32))


class Cache:
    """A cache, used through its C functions; their results are returned."""

    def __init__(self):
        self.handle = ctypes.c_void_p()
        rc = LIB.sr_cache_create(ctypes.c_uint64(BUDGET), MEMFD, None, ctypes.byref(self.handle), None)
        if rc != 0:
            raise OSError(-rc, "sr_cache_create")
        self.base = ctypes.cast(self.handle, ctypes.POINTER(ctypes.c_uint64))[0]  # the handle's first field

    def close(self):
        LIB.sr_cache_destroy(self.handle)

    def word_at(self, offset, kind=ctypes.c_uint64):
        """A word of the shared bytes."""
        return kind.from_address(self.base + offset)

    def waiters(self):
        return self.word_at(HEADER_WAITERS, ctypes.c_uint32).value

    def numbers(self):
        """Return the number of fillers."""
        return sum(self.word_at(FILLERS + FILLER * i).value != 0 for i in range(N_FILLERS))

    def look(self, key):
        """Return the bytes of an entry, or -errno."""
        at, size, result = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(48)
        rc = LIB.sr_cache_lookup(self.handle, ctypes.c_uint64(key), ctypes.byref(at), ctypes.byref(size), result)
        return ctypes.string_at(at.value, size.value) if rc == 0 else rc

    def claim(self, key):
        fill = Fill()
        rc = LIB.sr_cache_claim(self.handle, ctypes.c_uint64(key), ctypes.byref(fill), None)
        return rc, fill

    def store(self, fill, content):
        result = ctypes.create_string_buffer(48)
        size = ctypes.c_uint64(len(content))
        return LIB.sr_cache_store(self.handle, ctypes.byref(fill), result, content, size, None)

    def abandon(self, fill):
        return LIB.sr_cache_abandon(self.handle, ctypes.byref(fill))

    def wait(self, key, patience_s=None):
        deadline = FOREVER if patience_s is None else LIB_NOW() + int(patience_s * 1e9)
        return LIB.sr_cache_wait(self.handle, ctypes.c_uint64(key), ctypes.c_uint64(deadline))


LIB_NOW = LIB.sr_now
LIB_NOW.restype = ctypes.c_uint64


def content(key):
    """Return the expected bytes of an entry."""
    return np.random.default_rng(key).bytes(SIZES[key])


class Account:
    """Shared counts of a round's processes: `step` of each, `go` to each, entries `stored`, `changed`."""

    def __init__(self):
        self.step, self.go, self.changed = shared(3), shared(3), shared(3)
        self.stored = shared(3, len(KEYS))


def ok(rc, *others):
    """Return a result that must be 0 or one of these errors."""
    if rc != 0 and -rc not in others:
        raise OSError(-rc, os.strerror(-rc))
    return rc


def finish(cache, fill, me, account):
    ok(cache.store(fill, content(fill.key)))
    account.stored[me, KEYS.index(fill.key)] += 1


def have(cache, key, me, account, patience_s=None):
    """Find an entry, or make it; return False if the process that makes it has stopped."""
    while True:
        found = cache.look(key)
        if isinstance(found, bytes):
            account.changed[me] += found != content(key)
            return True
        if found == -ENOENT:
            rc, fill = cache.claim(key)
            if ok(rc, EAGAIN, EEXIST) == 0:
                finish(cache, fill, me, account)
        elif ok(cache.wait(key, patience_s), ETIMEDOUT) == -ETIMEDOUT:
            return False


def come_to_the_ends_of_memory():
    """Use a second cache in which another process seems to take all the memory."""
    cache = Cache()
    LIB.sr_incarnation_of.restype = ctypes.c_uint64
    cache.word_at(FILLERS + FILLER * 5).value = LIB.sr_incarnation_of(os.getpid())
    cache.word_at(FILLERS + FILLER * 5 + GROWING).value = 1 << 60
    rc, _ = cache.claim(0)
    if rc != -ENOSPC:
        raise RuntimeError(f"a claim without memory gave {rc}")
    cache.close()


def fill(cache, me, account):
    """Make entries while another process waits for them; give one up; find one too large; wait for the other's."""
    come_to_the_ends_of_memory()
    label = ctypes.create_string_buffer(b"a cache of steps", 448)
    ok(LIB.sr_cache_bind(cache.handle, ctypes.c_uint64(4711), ctypes.c_uint64(5), label))
    LIB.sr_cache_may_report(cache.handle)
    LIB.sr_cache_count(cache.handle, 0, ctypes.c_uint64(1))
    rc, first = cache.claim(0)
    if ok(rc, EEXIST, EAGAIN) == 0:  # otherwise it was stopped so long that the other was first
        account.step[me] = 1
        until(lambda: account.go[me], "the other waits, too", HANG_S)
        finish(cache, first, me, account)
    rc, second = cache.claim(CHUNK)
    if ok(rc, EEXIST, EAGAIN) == 0:
        ok(cache.abandon(second))
    rc, third = cache.claim(TOO_LARGE)
    ok(rc)
    if cache.store(third, bytes(BUDGET)) != -ENOSPC:
        raise RuntimeError("the budget was exceeded")
    until(lambda: account.step[1 - me] >= 1, "the other makes one", HANG_S)
    for key in (4, CHUNK, 2):
        have(cache, key, me, account)


def want(cache, me, account, patience_s):
    """Read the entries that the victim makes, and make those that it reads."""
    have(cache, 0, me, account, patience_s)
    rc, mine = cache.claim(4)
    ok(rc)
    account.step[me] = 1
    until(lambda: cache.waiters() or account.go[me], "the victim waits", HANG_S)
    finish(cache, mine, me, account)
    for key in KEYS:
        have(cache, key, me, account, patience_s)


def survive(cache, me, account, patience_s=None):
    """Read the entries that a dead process had begun."""
    account.step[me] = 1
    for key in KEYS:
        have(cache, key, me, account, patience_s)


def begin_and_die(cache):
    for key in KEYS:
        ok(cache.claim(key)[0])
    os.kill(os.getpid(), signal.SIGKILL)


class CacheJob(QueueJob):
    """Processes share a cache."""

    def prepare(self):
        self.cache = Cache()
        if self.who == "survivor":
            child = Child(0, begin_and_die, self.cache)
            if child.wait() != -signal.SIGKILL or self.cache.numbers() != len(KEYS):
                raise RuntimeError("nothing was left behind")

    def one(self, orders):
        self.account, self.orders = Account(), orders
        {"filler": self.filler, "survivor": self.survivor}[self.who]()
        self.judge_entries()
        self.cache.close()

    def patience(self):
        """Return how long to wait for a process that may be stopped; None for a dead one, which is found."""
        return 0.1 if signal.SIGSTOP in self.hows else None

    def end_of(self, victim):
        self.go_on(victim)
        self.died_at(victim)

    def filler(self):
        """Hit one of two processes that need the same entries."""
        cache, account = self.cache, self.account
        victim = Child(VICTIM, fill, cache, 0, account)

        def has_ended():
            return victim.ended() or victim.stands_still()

        until(lambda: account.step[0] or has_ended(), "the victim's claim", HANG_S)
        other = Child(0, want, cache, 1, account, self.patience())
        until(lambda: cache.waiters() or account.step[1] or other.ended(), "the other waits", HANG_S)
        account.go[0] = 1
        until(lambda: has_ended() or other.ended(), "the victim's part", HANG_S)
        account.go[1] = 1
        self.expect(other)
        self.end_of(victim)

    def survivor(self):
        """Hit one of two survivors."""
        victim = Child(VICTIM, survive, self.cache, 0, self.account, self.patience())
        until(lambda: self.account.step[0] or victim.ended() or victim.stands_still(), "the victim", HANG_S)
        other = Child(0, survive, self.cache, 1, self.account, self.patience())
        self.expect(other)
        self.end_of(victim)

    def judge_entries(self):
        """Check that each entry exists, was made once and is right, and that no process has a number."""
        cache, account = self.cache, self.account
        there = [have(cache, key, 2, account, HANG_S) for key in KEYS]
        LIB.sr_cache_recover(cache.handle)  # the number of a process that died after its last entry
        found = {
            "lost": there.count(False),
            "doubled": int((account.stored.sum(axis=0) > 1).sum()),
            "changed": int(account.changed.sum()),
        }
        self.counts.update(found)
        self.counts["batches"] += len(KEYS)
        if any(found.values()):
            self.details.append(f"after {self.orders}: {found}")
        if numbers := cache.numbers():
            self.wrong(f"after {self.orders} {numbers} numbers are taken forever")


if __name__ == "__main__":
    main(CacheJob)
