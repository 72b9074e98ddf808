"""The indices of many files, in a few arrays: workers map them, and a pickle has no object per file."""

from __future__ import annotations

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.clips._index import VideoIndex, index_of
from slipring.clips._pyav import concerns_the_file, no_audio
from slipring.errors import VideoError
from slipring.redaction import redacted
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring._files.storage import Storage

_log = logging.getLogger("slipring")
_SCANS = 16  # files that are read concurrently: FFmpeg releases the GIL
_FIELDS = (
    "size", "mtime", "end", "numerator", "denominator", "height", "width", "orientation", "audio", "frames", "keys",
)  # fmt: skip


class IndexTable:
    """The `VideoIndex` of each of many files.

    Parameters
    ----------
    paths : sequence of str
    index : {'memory', 'sidecar'} or path
    skip : bool
        Log files that cannot be read; asking for their index raises the error.
    needs_audio : bool
        A file without audio counts as one that cannot be read.
    storage : Storage or None
        How URLs are read.

    Attributes
    ----------
    paths : sequence of str
    size : (int, int) or None
        Height and width of the first frames of all files, upright; None: they differ.
    """

    size: tuple[int, int] | None

    def __init__(
        self, paths: Sequence[str], index: Any, skip: bool, needs_audio: bool, storage: Storage | None
    ) -> None:
        self._errors: dict[int, str] = {}
        self._storage = storage

        def made(path):
            try:
                found = index_of(path, index, storage)
                if needs_audio and not found.has_audio:
                    raise VideoError(no_audio(path), path=path)
                return found
            except (VideoError, OSError) as error:
                if not skip or not concerns_the_file(error):
                    raise
                return error

        rows = np.zeros(len(paths), [(name, np.int64) for name in _FIELDS])
        pts, keys, dts, sizes, tags = [], [], [], set(), [""] * len(paths)
        with ThreadPoolExecutor(min(_SCANS, len(paths))) as scans:
            for number, one in enumerate(scans.map(made, paths)):
                if isinstance(one, Exception):
                    self._say_skipped(number, one)
                    continue
                base, frame = one.time_base, (one.height, one.width, one.orientation, one.has_audio)
                lengths, (size, changed) = (len(one.pts), len(one.keys)), one.stamp
                if storage is not None:
                    tags[number], changed = changed, 0
                rows[number] = (size, changed, one.end, base.numerator, base.denominator, *frame, *lengths)
                sizes.add(one.size)
                pts.append(one.pts)
                keys.append(one.keys)
                dts.append(one.dts)
        self.paths, self._rows = StringList(paths), rows
        self._tags = None if storage is None else StringList(tags)
        none = np.zeros(0, np.int64)
        self._pts, self._keys, self._dts = (np.concatenate([none, *parts]) for parts in (pts, keys, dts))
        self._frame_ends, self._key_ends = np.cumsum(rows["frames"]), np.cumsum(rows["keys"])
        self.size = sizes.pop() if len(sizes) == 1 else None
        if len(self._errors) == len(paths):
            raise VideoError(f"none of the {len(paths)} videos can be read; the first error: {self._errors[0]}")

    def _say_skipped(self, number, error):
        self._errors[number] = str(error)
        _log.warning("skipped %s", redacted(str(error)))

    def __len__(self) -> int:
        return len(self._rows)

    def can_be_read(self, number: int) -> bool:
        """Return whether there is an index of a file."""
        return number not in self._errors

    def __getitem__(self, number: int) -> VideoIndex:
        if number in self._errors:
            raise VideoError(self._errors[number], path=self.paths[number])
        size, changed, end, numerator, denominator, *frame, audio, frames, keys = self._rows[number].item()
        at, key_at = int(self._frame_ends[number]) - frames, int(self._key_ends[number]) - keys
        parts = self._pts[at : at + frames], self._keys[key_at : key_at + keys], self._dts[key_at : key_at + keys]
        base = Fraction(numerator, denominator)
        stamp = size, changed if self._tags is None else self._tags[number]
        return VideoIndex(self.paths[number], stamp, *parts, end, base, *frame, bool(audio), self._storage)

    def fingerprint(self) -> str:
        """Return a text that changes when a file does."""
        digest = hashlib.blake2b(self._rows.tobytes())
        for text in (*self.paths, *(self._tags or ())):
            digest.update(os.fsencode(text) + b"\0")
        return digest.hexdigest()
