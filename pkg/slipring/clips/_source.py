"""The pixels of frames: from the cache of this machine, or decoded."""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from slipring._core.ring._slot import DECODE, part_begun, spent
from slipring.cache.cache import as_cache
from slipring.cache.dataset import bind
from slipring.clips._pyav import pyav
from slipring.clips._reader import OpenFiles
from slipring.errors import VideoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slipring.cache import Cache
    from slipring.clips._index import VideoIndex
    from slipring.clips._reader import Decoded
    from slipring.clips._table import IndexTable

_OPEN = 4  # files that a thread keeps open: each has a decoder, with the frames that it refers to
# Of a cache entry. A process that waits for an entry gives up after a second, and decodes the frames once more.
_PIECE_FRAMES = 16
_PIECE_BYTES = 32 << 20


class FrameSource:
    """The frames of many files.

    Parameters
    ----------
    table : IndexTable
    cache : int, str, Cache or None
        Each entry has a few consecutive frames of one group of pictures (from one key frame up to the next). If a frame
        is missing, its whole group is decoded, once on this machine.
    """

    def __init__(self, table: IndexTable, cache: int | str | Cache | None) -> None:
        self.table = table
        self.cache = None if cache is None else as_cache(cache)
        self._files = OpenFiles(_OPEN)
        if self.cache is not None:
            divided = [_Pieces(index) for index in _readable(table)]
            self._first_keys = np.cumsum([0, *(pieces.keys for pieces in divided)])
            form = f"RGB, FFmpeg {pyav().library_versions}"
            bind(
                self.cache, f"frames of {len(table)} videos", table.fingerprint(), int(self._first_keys[-1]), self, form
            )

    def frames(self, video: int, numbers: Iterable[int]) -> Iterator[Decoded]:
        """Yield (number, pixels, orientation) of a file's frames, whose numbers increase.

        Raises
        ------
        VideoError
            The file or the frame cannot be read.
        """
        index = self.table[video]
        if self.cache is None:
            yield from self._decoded(index, numbers)
            return
        pieces, first = _Pieces(index), int(self._first_keys[video])
        for piece, members in groupby(numbers, pieces.of):
            entry = self._entry(index, pieces, first, piece)
            if entry is None:
                yield from self._decoded(index, members)
                continue
            pixels, orientation = entry
            begin = pieces.range(piece).start
            for number in members:
                yield number, pixels[number - begin], orientation

    def _entry(self, index, pieces, first, piece):
        """Return the cache entry of a piece; None if the cache has no room for it, or its frames are not kept."""
        entry = self.cache._peek(first + piece, None)
        if entry is None:
            if self.cache._missed():
                return None
            if len(pieces.of_group(piece)) > 1:
                self._fill(index, pieces, first, piece)
            entry = self._piece(index, pieces, first, piece)
        return entry or None

    def _piece(self, index, pieces, first, piece):
        return self.cache.get_or_make(first + piece, lambda: self._made(index, pieces.range(piece)))

    def _fill(self, index, pieces, first, piece):
        """Let one process decode a group of pictures from its key frame on; wait as long as it makes progress.

        Processes that make pieces of one group by turns would each decode the frames before them.
        """
        group = [first + other for other in pieces.of_group(piece)]

        def fill():
            if self._stored(group) > stored:
                raise _Unfinished  # after a second of waiting: another process fills it
            for other in pieces.of_group(piece):
                self._piece(index, pieces, first, other)
            if self._stored(group) < len(group):
                raise _Unfinished
            return True

        while first + piece not in self.cache:
            stored = self._stored(group)
            with contextlib.suppress(_Unfinished):
                self.cache.get_or_make(first + pieces.lock_of(piece), fill)
            if self._stored(group) == stored:
                break

    def _stored(self, keys):
        return sum(key in self.cache for key in keys)

    def _made(self, index, numbers):
        """Return (pixels, orientation) of a piece; () if its frames have different sizes, or one is damaged."""
        try:
            frames = list(self._decoded(index, numbers))
        except VideoError as error:
            if error.frame is None:
                raise
            return ()  # the clips that need no damaged frame are decoded without the cache
        if len({(pixels.shape, orientation) for _, pixels, orientation in frames}) > 1:
            return ()
        return np.stack([pixels for _, pixels, _ in frames]), frames[0][2]

    def _decoded(self, index, numbers):
        begun = part_begun()
        for decoded in self._files.frames(index, numbers):
            spent(DECODE, begun)
            yield decoded
            begun = part_begun()

    def close(self) -> None:
        """Close the files of the calling thread."""
        self._files.close()


class _Unfinished(Exception):
    """A group of pictures is not complete in the cache, so that no process must take it for complete."""


def _readable(table):
    for number in range(len(table)):
        yield table[number] if table.can_be_read(number) else None


class _Pieces:
    """How the groups of pictures of a file are divided into cache entries.

    Attributes
    ----------
    keys : int
        Keys of the file in the cache: one for each piece, then one for each group, which says that it is complete. A
        group of one piece does not use its own.
    """

    def __init__(self, index: VideoIndex | None) -> None:
        self.keys = 0
        if index is None:
            return
        self._begins, self._ends = index.keys, np.append(index.keys[1:], len(index))
        self._most = max(1, min(_PIECE_FRAMES, _PIECE_BYTES // (index.height * index.width * 3)))
        counts = -(-(self._ends - self._begins) // self._most)
        self._firsts = np.cumsum([0, *counts])
        self._count = int(self._firsts[-1])
        self.keys = self._count + len(counts)

    def of(self, number: int) -> int:
        """Return the piece of a frame."""
        group = int(np.searchsorted(self._begins, number, "right")) - 1
        return int(self._firsts[group] + (number - self._begins[group]) // self._most)

    def _group(self, piece):
        return int(np.searchsorted(self._firsts, piece, "right")) - 1

    def range(self, piece: int) -> range:
        """Return the numbers of a piece's frames."""
        group = self._group(piece)
        begin = int(self._begins[group] + (piece - self._firsts[group]) * self._most)
        return range(begin, min(begin + self._most, int(self._ends[group])))

    def lock_of(self, piece: int) -> int:
        """Return the key that one process claims to decode a whole group."""
        return self._count + self._group(piece)

    def of_group(self, piece: int) -> range:
        """Return the pieces of the same group of pictures, in order."""
        group = self._group(piece)
        return range(int(self._firsts[group]), int(self._firsts[group + 1]))
