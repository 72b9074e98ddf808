"""A remote file as fsspec's buffered file, with a cache that a sequential reader fills more and more in advance."""

from fsspec.caching import BaseCache
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import merge_offset_ranges

from slipring._files.attempts import BLOCK
from slipring.redaction import redacted

MOST = 1 << 22  # bytes that are read at most beyond the request
GAP = 1 << 20  # bytes between two ranges that are read as one: reading them takes less time than a request


class GrowingReadAhead(BaseCache):
    """The last block that was read, and `parts` that were read in advance.

    fsspec's own caches read blocks of one size: a sequential reader would need more requests, and a reader that jumps
    from header to header would read more bytes. A block begins and ends at multiples of `grid` bytes, so that all
    readers read the same blocks.
    """

    def __init__(self, fetcher, size, grid):
        super().__init__(BLOCK, fetcher, size)
        self._grid, self._block = grid, BLOCK
        self.parts, self._begin, self._data = [], 0, b""  # parts: [(begin, bytes)]
        self.failed = None  # the exception of the last read; pyarrow passes on no more than its text

    def _fetch(self, start, stop):
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        for begin, data in (*self.parts, (self._begin, self._data)):
            if begin <= start and stop <= begin + len(data):
                return data[start - begin : stop - begin]
        near = self._data and self._begin <= start <= self._begin + len(self._data) + self._block
        self._block = min(MOST, 2 * self._block) if near else BLOCK
        begin = start - start % self._grid
        until = max(stop, start + self._block)
        until = min(self.size, until + -until % self._grid)
        self.failed = None
        try:
            data = self.fetcher(begin, until)
        except Exception as error:
            self.failed = error
            raise
        self._begin, self._data = begin, data
        return data[start - begin : stop - begin]


class RangedFile(AbstractBufferedFile):
    """A file of `size` bytes, for one thread; ``read(start, stop)`` returns its bytes."""

    def __init__(self, url, size, read, grid=1):
        super().__init__(None, redacted(url), cache_type="none", size=size)  # fsspec's log lines have the URL
        self._read = read
        self.cache = GrowingReadAhead(read, size, grid)  # not a method of this object, which would be a cycle

    def range(self, start, stop):
        """Return the bytes [start, stop)."""
        return self.cache._fetch(start, stop)

    def has(self, start, stop):
        """Return whether `ahead` or `hold` has these bytes."""
        return any(begin <= start and stop <= begin + len(data) for begin, data in self.cache.parts)

    def hold(self, begin, data):
        """Keep these bytes, which another reader has read, until the next call of `ahead`."""
        self.cache.parts = [(begin, data)]

    def ahead(self, ranges):
        """Read these ranges, [start, stop), in few requests, and keep them until the next call."""
        self.cache.parts = []
        self.cache.parts = [(start, self._read(start, stop)) for start, stop in joined(ranges, GAP)]


def joined(ranges, gap):
    """Return sorted ranges; ranges with at most `gap` bytes between them are merged."""
    starts, stops = map(list, zip(*ranges)) if (ranges := list(ranges)) else ([], [])
    return list(zip(*merge_offset_ranges([""] * len(starts), starts, stops, max_gap=gap)[1:]))
