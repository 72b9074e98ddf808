"""Read the samples of a map dataset by index: seeds, errors with index and path, and skipped files."""

from __future__ import annotations

import abc
import copy
import errno
import logging
import os
import random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._capabilities import read_ahead
from slipring._core.codec.samples import one_each
from slipring._core.options.checks import integer, one_of
from slipring._core.ring import sample_marks
from slipring._core.ring._check import from_handler
from slipring._core.ring._slot import READ, at_row, part_begun, spent
from slipring._core.ring.sample_marks import failed_among, failed_at
from slipring._core.workers import seeding
from slipring.cache.cache import as_cache
from slipring.cache.dataset import bind
from slipring.errors import ImageError, RemoteError
from slipring.images._render.backend import backend
from slipring.images._render.draws import Draws
from slipring.images._render.recipe import WrongResult
from slipring.images._sources.sized import renderer_for, renderers_of
from slipring.images._sources.step_times import StepTimes
from slipring.images._steps.batch import as_batch_transform
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from slipring.cache import Cache
    from slipring.images._sources.renderer import Renderer
    from slipring.images._steps.base import BatchTransform, Size
    from slipring.images._steps.combine import RandomChoice
    from slipring.images._steps.outputs import SizedTransforms

MAX_SEED = (1 << 64) - 1
_log = logging.getLogger("slipring")
# Errors of the system that concern a single file. All others (no descriptor, no memory, a failing disk) concern the
# machine, and would also occur for the next file.
OF_THE_FILE = {
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL,
    errno.ENAMETOOLONG, errno.ENXIO, errno.EOVERFLOW,
}  # fmt: skip


class OtherFailed(Exception):
    """Another sample than the one being made has failed; `error` names that sample."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class IndexedSamples(abc.ABC):
    """The base class of datasets that read encoded images by index; see `ImageDataset` for `on_error`."""

    on_error: Literal["raise", "skip"]
    transform: SizedTransforms
    layout: Literal["NHWC", "NCHW"]
    dtype: str
    _renderer: Renderer
    _renderers: dict[Size | None, Renderer]
    seeds_samples = True  # for each sample, `fetch_into` draws the same numbers as `__getitem__`

    def __init__(
        self,
        transform: Any,
        make: Callable[[Any], Renderer],
        *,
        on_error: Literal["raise", "skip"] = "raise",
        cache: int | str | Cache | None = None,
        what: Literal["pixels", "encoded"] = "pixels",
        batch_transform: BatchTransform | RandomChoice | None = None,
    ) -> None:
        one_of("on_error", on_error, ("raise", "skip"))
        one_of("what", what, ("pixels", "encoded"))
        self.on_error, self.transform = on_error, transform
        self.batch_transform: BatchTransform | RandomChoice | None = as_batch_transform(batch_transform)
        if self.batch_transform is None:
            self.finish_batch = None
        self._use(renderers_of(transform, make))
        if cache is not None and what == "pixels" and self._renderer.side is None and self._renderer.reading.gap:
            raise ValueError(
                "reducing_gap is for images that are decoded for each crop; those that are kept are decoded once, "
                "and as a whole: leave it out, or give side="
            )
        self.layout, self.dtype = self._renderer.layout, self._renderer.dtype
        self._what, self._bound = what, False
        self._token = os.urandom(16).hex()
        self.cache: Cache | None = None if cache is None else as_cache(cache)
        if self.batch_transform is not None and not all(one.is_single for one in self._renderers.values()):
            raise ValueError(f"batch_transform mixes one image per sample, which transform={transform} does not make")

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int) -> Any:
        """Return the sample at `index` as it is stored."""

    @abc.abstractmethod
    def _make(self, index: int, renderer: Renderer, out: Any, draws: Draws, sample: Any) -> Any:
        """Return the finished sample at `index`, its images in `out`; `sample` is the stored one, or None."""

    @abc.abstractmethod
    def _measure(self, index: int, times: StepTimes, in_memory: bool, seed: int) -> None:
        """Measure the steps for the sample at `index`."""

    @abc.abstractmethod
    def _parts_of(self, index: int, sample: Any) -> Any:
        """Return the parts of a sample that `read` has returned, as `_make` needs them."""

    @abc.abstractmethod
    def _entry(self, index: int, sample: Any) -> Any:
        """Return the cache entry of a sample; it is None if nothing has been read."""

    @abc.abstractmethod
    def _parts_of_entry(self, index: int, entry: Any) -> Any:
        """Return the parts of a cached sample, as `_make` needs them."""

    @abc.abstractmethod
    def finish_batch(self, batch: Any, seed: int | None) -> Any:
        """Return a batch after `batch_transform`, whose numbers are drawn from `seed`."""

    @property
    def is_random(self) -> bool:
        """Whether a transform draws random numbers, so that an image differs in each epoch."""
        return any(step.is_random for renderer in self._renderers.values() for step in renderer.steps)

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
        """Return the samples at `indices` that were read in one call; None for the others, and for cached ones."""
        missing = indices if self.cache is None else [index for index in indices if index not in self.cache]
        try:
            samples = self.read_many(missing) if missing else None
            read = {} if samples is None else dict(zip(missing, one_each(self, missing, samples)))
        except Exception as error:
            if self.cache is not None:
                failed_among([indices.index(index) for index in missing], error)
            raise
        return [read.get(index) for index in indices]

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

    def step_times(self, samples: int = 32, seed: int = 0) -> dict[str, float]:
        """Measure in this process how long each step takes.

        Parameters
        ----------
        samples : int
            Number of images to measure, spread over the dataset. Reading them does not count.
        seed : int
            Seed of the first image, from 0 to 2^64 - 1. Each further image uses the next number.

        Returns
        -------
        dict of str to float
            Name of the step -> CPU seconds per image, the mean over all images, also over those that the step leaves
            unchanged. "decode + crop" ("crop", if a cache keeps decoded images) includes the first crops, resizes and
            flips. "convert" is the time to write `dtype` and `layout` in place of uint8 and NHWC.

        Examples
        --------
        >>> from slipring import images
        >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.RandomGrayscale(p=1)])
        >>> list(data.step_times(samples=2))
        ['decode + crop', 'RandomGrayscale']
        """
        samples = min(integer("samples", samples, 1), len(self))
        integer("seed", seed, 0, MAX_SEED)
        if None not in self._renderers:
            raise ValueError("step_times() measures one size, and transform is a dict: give a dataset transform[size]")
        in_memory = self.cache is not None and self._what == "pixels"
        times = StepTimes(self._renderer, "crop" if in_memory else "decode + crop")
        for n in range(samples):
            index = n * len(self) // samples

            def measure(index=index, seed=(seed + n) & MAX_SEED):
                self._measure(index, times, in_memory, seed)

            self._attempted(index, measure)
        return times.seconds()

    # ---- the cache

    def _complete(self):
        """Declare the contents to the cache. Subclasses outside of slipring do so at their first sample."""
        if type(self).fingerprint.__module__.startswith("slipring."):
            self._bind_cache()

    def _bind_cache(self):
        if self.cache is None or self._bound:
            return
        reading, whole = self._renderer.reading, self._renderer.whole
        form = f"{self._what} {reading.max_pixels}"
        if self._what == "pixels":  # and how they were made
            form += f" {self._renderer.side} {reading.exif} {whole.fill} {whole.scale16} {backend()}"
            form += f" {whole.filter} {whole.gap}" if self._renderer.side is not None else ""
        what = f"{self._what} of {len(self)} images of {type(self).__name__}"
        if self._renderer.side is not None and self._what == "pixels":
            what += f", side={self._renderer.side}"
        fingerprint = self.fingerprint() if self._knows_its_images() else None
        source, part = self._source()
        if fingerprint is None and self.cache.name is None and source is self:
            fingerprint = self._token  # of this object and its copies in workers
        bind(self.cache, what, fingerprint, len(self), source, f"{form} {part}")
        self._bound = True

    def _knows_its_images(self):
        """Return whether the class that defines `read` (or a subclass of it) also defines `fingerprint`."""
        kinds = type(self).__mro__
        defines = [next(n for n, kind in enumerate(kinds) if name in vars(kind)) for name in _READ]
        return defines[0] <= min(defines[1:])

    def _source(self):
        """Return the object that the samples come from, and a text for the part of them that is used."""
        return self, ""

    def _stored(self, index, sample):
        """Return the parts of the sample at `index`, from the cache if there is one; a missing entry is made first."""
        if self.cache is not None:
            self._bind_cache()
            entry = self.cache._peek(index, None)
            if entry is None and not self.cache._missed():
                entry = self.cache.get_or_make(index, lambda: self._entry(index, sample))
            if entry is not None:
                return self._parts_of_entry(index, entry)
        return self._parts_of(index, self._read_one(index) if sample is None else sample)


_READ = "fingerprint", "read", "read_many"
