"""Keep a worker process's heap between batches.

A `collate_fn` gets a list of samples. After each batch the samples and the results of `collate_fn` are freed. glibc
returns so much memory to the kernel, and the next batch takes a page fault for every 4 KiB of it, which can cost more
than making the batch. This module raises glibc's thresholds as far as the batches need.

It changes nothing for other C libraries, or if the environment configures glibc's allocator. If another allocator is
preloaded, glibc's thresholds have no effect.
"""

import ctypes
import os
import resource

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of malloc.h
EVERY = 8  # batches between two checks
FAULTS = 50  # page faults per batch that are tolerated
LEAST, MOST = 1 << 20, 1 << 30  # bytes of free memory to keep
LARGEST_THRESHOLD = 32 << 20  # the largest M_MMAP_THRESHOLD that glibc accepts
MMAP_MAX = 65536  # glibc's default M_MMAP_MAX
PAGE = resource.getpagesize()


class Heap:
    """The thresholds of glibc's allocator, which follow the page faults per batch. For worker processes only."""

    def __init__(self):
        self.glibc = glibc()
        # `kept`: bytes of free memory that glibc may keep; 0: glibc's defaults.
        self.kept, self.batches, self.faults = 0, 0, _faults()
        # Bytes of the largest recent batch: now, and when `kept` was set.
        self.largest = self.largest_then = 0

    def record_batch(self, nbytes):
        """Record that a batch of `nbytes` was published and its samples were freed."""
        self.batches += 1
        self.largest = max(self.largest, nbytes)
        if self.batches % EVERY or self.glibc is None:
            return
        faults, before = _faults(), self.faults
        largest, self.largest = self.largest, 0
        # Faults on slots and mapped files are counted too: the threshold is then higher than necessary.
        wanted = min(MOST, 2 * PAGE * (faults - before) // EVERY)
        if self.kept > LEAST and 4 * largest < self.largest_then:
            self._keep(LEAST)
            self.glibc.malloc_trim(0)
        elif wanted > max(self.kept, FAULTS * PAGE):
            self._keep(max(LEAST, wanted))
            self.largest_then = largest
        self.faults = _faults()

    def _keep(self, nbytes):
        self.kept = nbytes
        self.glibc.mallopt(M_TRIM_THRESHOLD, nbytes)
        self.glibc.mallopt(M_MMAP_THRESHOLD, min(nbytes, LARGEST_THRESHOLD))
        self.glibc.mallopt(M_MMAP_MAX, MMAP_MAX if nbytes <= LARGEST_THRESHOLD else 0)


def _faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def glibc():
    """Return the C library if it is glibc, and the environment does not configure its allocator."""
    configured = any(name.startswith("MALLOC_") for name in os.environ)
    if configured or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    library = ctypes.CDLL(None)
    names = ("gnu_get_libc_version", "mallopt", "malloc_trim")
    return library if all(hasattr(library, name) for name in names) else None
