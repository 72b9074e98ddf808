"""A remote file as a Python file, read in ranges; a sequential reader fetches more and more ahead."""

import io

BLOCK, MOST = 1 << 18, 1 << 22  # bytes: read at least, and at most beyond what was asked for
GAP = 1 << 20  # between two ranges that are read as one: less than a request takes in time


class RangedFile(io.RawIOBase):
    """A file of `size` bytes, for one thread; ``read(start, stop)`` returns its bytes.

    A sequential reader finds more and more bytes read already. A reader that jumps by more than a block, from header
    to header of large members, reads no more than a block each time. What `range` reads begins and ends at multiples
    of `grid` bytes, so that all readers read the same blocks.
    """

    def __init__(self, read, size, grid=1):
        self._read, self._size, self._grid = read, size, grid
        # failed: the exception of the last read; pyarrow passes on no more than its text
        self._at, self.failed = 0, None
        self._begin, self._data, self._block = 0, b"", BLOCK
        self._ahead = []  # (begin, bytes) of what `ahead` has read

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._at

    def size(self):
        return self._size

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer):
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, n=-1):
        stop = self._size if n is None or n < 0 else min(self._size, self._at + n)
        data = self.range(self._at, max(self._at, stop))
        self._at += len(data)
        return data

    def range(self, start, stop):
        """Return the bytes [start, stop)."""
        for begin, data in (*self._ahead, (self._begin, self._data)):
            if begin <= start and stop <= begin + len(data):
                return data[start - begin : stop - begin]
        end = self._begin + len(self._data)
        near = self._data and self._begin <= start <= end + self._block
        self._block = min(MOST, 2 * self._block) if near else BLOCK
        begin = start - start % self._grid
        until = max(stop, start + self._block)
        until = min(self._size, until + -until % self._grid)
        self.failed = None
        try:
            data = self._read(begin, until)
        except Exception as error:
            self.failed = error
            raise
        self._begin, self._data = begin, data
        return data[start - begin : stop - begin]

    def has(self, start, stop):
        """Return whether `ahead` or `hold` has these bytes."""
        return any(begin <= start and stop <= begin + len(data) for begin, data in self._ahead)

    def hold(self, begin, data):
        """Keep these bytes, which another reader has read, until the next call of `ahead`."""
        self._ahead = [(begin, data)]

    def ahead(self, ranges):
        """Read these ranges, [start, stop), in few requests, and keep them until the next call."""
        self._ahead = []
        self._ahead = [(start, self._read(start, stop)) for start, stop in joined(ranges)]


def joined(ranges, gap=GAP):
    """Return sorted ranges; ranges with at most `gap` bytes between them are merged."""
    together = []
    for start, stop in sorted(ranges):
        if together and start - together[-1][1] <= gap:
            together[-1][1] = max(stop, together[-1][1])
        else:
            together.append([start, stop])
    return together
