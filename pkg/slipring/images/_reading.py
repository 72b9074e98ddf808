"""Read the samples of a map dataset by index: seeds, errors with index and path, and skipped files."""

from __future__ import annotations

import abc
import errno
import logging
import random
from typing import TYPE_CHECKING, Any, Literal

from slipring._core import seeding, skipping
from slipring._core._ring import READ, at_row, from_handler, part_begun, spent
from slipring._core.arguments import one_each, one_of
from slipring._core.culprit import failed_at
from slipring._offered import read_ahead
from slipring.errors import ImageError, RemoteError
from slipring.images._draws import Draws
from slipring.images._recipe import WrongResult
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("slipring")
# Errors of the system that concern a single file. All others (no descriptor, no memory, a failing disk) concern the
# machine, and would also occur for the next file.
_OF_THE_FILE = {
    None,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.EINVAL,
    errno.ENAMETOOLONG,
    errno.ENXIO,
    errno.EOVERFLOW,
}


class IndexedSamples(abc.ABC):
    """The base class of datasets that read encoded images by index; see `ImageDataset` for `on_error`."""

    on_error: Literal["raise", "skip"]
    seeds_samples = True  # for each sample, `fetch_into` draws the same numbers as `__getitem__`

    def __init__(self, on_error: Literal["raise", "skip"]) -> None:
        one_of("on_error", on_error, ("raise", "skip"))
        self.on_error = on_error

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int) -> Any:
        """Return the sample at `index` as it is stored."""

    @abc.abstractmethod
    def _make(self, index: int, out: Any, draws: Draws, sample: Any) -> Any:
        """Return the finished sample at `index`, its images in `out`; `sample` is the stored one, or None."""

    def read_many(self, indices: list[int]) -> Sequence[Any] | None:
        """Return several samples, read by the worker's threads; None for those that `read` must read."""
        return read_ahead(self._read_or_fail, indices)

    def _read_or_fail(self, index):
        """Return the result of `read`, or the error of a URL after the last attempt, to be raised at its sample."""
        try:
            return self.read(index)
        except RemoteError as error:
            return error

    def name(self, index: int) -> str | None:
        """Return the image's origin for messages, such as its path."""
        return None

    def _made(self, index, out=None, sample=None):
        """Return the finished sample at a checked index, or at the next one that can be read."""
        seed = seeding.sample_seed()
        seed = random.getrandbits(64) if seed is None else seed
        for used in range(index, index + len(self)):
            made = self._tried(used % len(self), out, seed, sample)
            if made is not None:
                return made
            sample = None
        raise ImageError(f"none of the {len(self)} images can be read, from index {index} on", index=index)

    def _made_in(self, indices, arrays):
        """Make the samples of a batch, each in its row of `arrays`; yield what `_made` returns."""
        indices = [self._checked(index) for index in indices]
        begun = part_begun()
        ahead = self._read_ahead(indices)
        spent(READ, begun)
        for n, (index, sample) in enumerate(zip(indices, ahead)):
            at_row(n, index)
            try:
                yield self._made(index, [array[n] for array in arrays], sample)
            except Exception as error:
                failed_at(n, error)
                raise
        at_row(0, None)

    def _read_ahead(self, indices):
        """Return the samples at `indices` that were read in one call; None for the others."""
        samples = self.read_many(indices)
        return [None] * len(indices) if samples is None else one_each(self, indices, samples)

    def _read_one(self, index):
        begun = part_begun()
        sample = self.read(index)
        spent(READ, begun)
        return sample

    def _tried(self, index, out, seed, sample=None):
        """Return the finished sample at `index`, or None if it cannot be decoded and must be skipped."""
        try:
            if isinstance(sample, RemoteError):
                raise sample
            return self._make(index, out, Draws(seed), sample)
        except WrongResult as error:
            raise ValueError(f"{self._where(index)}: {error}") from error
        except (ImageError, OSError) as error:
            if from_handler(error):
                raise
            path, where = self.name(index), self._where(index)
            afar = isinstance(error, RemoteError)
            of_the_file = error.missing if afar else isinstance(error, ImageError) or error.errno in _OF_THE_FILE
            if self.on_error == "raise" or not of_the_file:
                if afar:
                    raise RemoteError(f"{where}: {error}", **{**error.__dict__, "index": index}) from error
                raise ImageError(f"{where}: {error}", path=path, index=index) from error
            skipping.skipped()
            _log.warning("skipped %s", redacted(f"{where}: {error}"))  # a handler may keep its records
            return None

    def _where(self, index):
        path = self.name(index)
        return f"{path} (index {index})" if path else f"index {index}"

    def _checked(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range: the dataset has {n} images")
        return index + n if index < 0 else index
