"""Read the samples of a map dataset by index: seeds, errors with index and path, and skipped files."""

from __future__ import annotations

import abc
import copy
import errno
import logging
import random
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.codec.samples import one_each
from slipring._core.options.checks import one_of
from slipring._core.ring import sample_marks
from slipring._core.ring._check import from_handler
from slipring._core.ring._slot import READ, at_row, part_begun, spent
from slipring._core.ring.sample_marks import failed_at
from slipring._core.workers import seeding
from slipring._offered import read_ahead
from slipring.errors import ImageError, RemoteError
from slipring.images._render.draws import Draws
from slipring.images._render.recipe import WrongResult
from slipring.images._sources.sized import renderer_for
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

    from slipring.images._sources.renderer import Renderer
    from slipring.images._steps.base import Size

_log = logging.getLogger("slipring")
# Errors of the system that concern a single file. All others (no descriptor, no memory, a failing disk) concern the
# machine, and would also occur for the next file.
OF_THE_FILE = {
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


class OtherFailed(Exception):
    """Another sample than the one being made has failed; `error` names that sample."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class IndexedSamples(abc.ABC):
    """The base class of datasets that read encoded images by index; see `ImageDataset` for `on_error`."""

    on_error: Literal["raise", "skip"]
    transform: Any
    _renderer: Renderer
    _renderers: dict[Size | None, Renderer]
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
    def _make(self, index: int, renderer: Renderer, out: Any, draws: Draws, sample: Any) -> Any:
        """Return the finished sample at `index`, its images in `out`; `sample` is the stored one, or None."""

    def map(self, function: Callable[[NDArray[np.uint8]], Any]) -> Self:
        """Return a copy of the dataset with one more step at the end of its transforms.

        Parameters
        ----------
        function : callable
            It gets the image, a writable height × width × 3 array of uint8, before its values are converted, and
            returns None or an array of the same shape and dtype. A transform of Albumentations is called as
            ``function(image=image)["image"]``.

        Examples
        --------
        >>> from slipring import images
        >>> def without_red(image):
        ...     image[..., 0] = 0
        >>> pixels, label = images.Folder("train/", images.Resize((24, 24))).map(without_red)[0]
        >>> int(pixels[..., 0].max())
        0
        """
        made, renderers = copy.copy(self), self._renderers
        if not all(renderer.is_single for renderer in renderers.values()):
            raise ValueError("map() adds a step to a list of transforms: add it to those of MultiCrop or Patches")
        lists = {size: [*renderer.steps, function] for size, renderer in renderers.items()}
        made.transform = lists.get(None, lists)
        made._use({size: renderer.with_steps(lists[size]) for size, renderer in renderers.items()})
        return made

    def _use(self, renderers):
        """Use the renderers of all sizes. What they share is read from the first one, `_renderer`."""
        self._renderers = renderers
        self._renderer = next(iter(renderers.values()))

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

    def _made(self, index, renderer, out=None, sample=None):
        """Return the finished sample at a checked index, or at the next one that can be read."""
        seed = seeding.sample_seed()
        seed = random.getrandbits(64) if seed is None else seed
        for used in range(index, index + len(self)):
            made = self._tried(used % len(self), renderer, out, seed, sample)
            if made is not None:
                return made
            sample = None
        raise ImageError(f"none of the {len(self)} images can be read, from index {index} on", index=index)

    def _made_in(self, indices, renderer, arrays):
        """Make the samples of a batch, each in its row of `arrays`; yield the results of `_made`."""
        begun = part_begun()
        ahead = self._read_ahead(indices)
        spent(READ, begun)
        for n, (index, sample) in enumerate(zip(indices, ahead)):
            at_row(n, index)
            try:
                yield self._made(index, renderer, [array[n] for array in arrays], sample)
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

    def _tried(self, index, renderer, out, seed, sample=None):
        """Return the finished sample at `index`, or None if it cannot be decoded and must be skipped."""

        def make():
            if isinstance(sample, RemoteError):
                raise sample
            return self._make(index, renderer, out, Draws(seed), sample)

        return self._attempted(index, make)

    def _attempted(self, index, make):
        """Return the result of `make`, which reads the sample at `index`, or None if that sample must be skipped."""
        try:
            return make()
        except OtherFailed as failed:
            raise failed.error from failed.error.__cause__
        except WrongResult as error:
            raise ValueError(f"{self._where(index)}: {error}") from error
        except (ImageError, OSError) as error:
            if from_handler(error):
                raise
            path, where = self.name(index), self._where(index)
            is_remote = isinstance(error, RemoteError)
            of_the_file = error.missing if is_remote else isinstance(error, ImageError) or error.errno in OF_THE_FILE
            if self.on_error == "raise" or not of_the_file:
                if is_remote:
                    raise RemoteError(f"{where}: {error}", **{**error.__dict__, "index": index}) from error
                raise ImageError(f"{where}: {error}", path=path, index=index) from error
            sample_marks.skipped()
            _log.warning("skipped %s", redacted(f"{where}: {error}"))  # a handler may keep its records
            return None

    def _where(self, index):
        path = self.name(index)
        return f"{path} (index {index})" if path else f"index {index}"

    def _asked(self, index):
        """Return (checked index, renderer) for an index, which may be a `Sized`."""
        index, renderer = renderer_for(self._renderers, index, self.transform)
        return self._checked(index), renderer

    def _asked_batch(self, indices):
        """Return (checked indices, renderer) for the indices of a batch, which must have one size."""
        asked = [self._asked(index) for index in indices]
        renderer = asked[0][1] if asked else self._renderer
        for index, (_, other) in zip(indices, asked):
            if other is not renderer:
                raise ValueError(f"a batch has the indices {indices[0]} and {index}: its images must have one size")
        return [index for index, _ in asked], renderer

    def _checked(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range: the dataset has {n} images")
        return index + n if index < 0 else index
