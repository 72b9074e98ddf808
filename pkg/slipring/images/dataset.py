"""The base class of image datasets: it applies transforms, converts values, and decodes batches into their slots."""

from __future__ import annotations

import abc
import errno
import logging
import os
import random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core import seeding, skipping
from slipring._core._collate import default_collate
from slipring._core._ring import DECODE, READ, RESIZE, at_row, from_handler, mix, part_begun, spent
from slipring._core.arguments import function, integer, one_each, one_of
from slipring._core.culprit import failed_among, failed_at
from slipring._offered import read_ahead
from slipring.cache.cache import as_cache
from slipring.cache.dataset import bind
from slipring.errors import ImageError, RemoteError, shown
from slipring.images._backend import backend
from slipring.images._batch import Images, as_batch_transform
from slipring.images._draws import Draws
from slipring.images._recipe import Recipe
from slipring.images._render import MAX_PIXELS, ImageReading, crop, look, render, too_large
from slipring.images._transform import chain, final_size
from slipring.images.options import suggests_options
from slipring.images.values import bfloat16_of_numpy, dtype_name, table_of
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Buffer

    from slipring.cache import Cache
    from slipring.images._batch import BatchTransform
    from slipring.images._transform import Transform
    from slipring.images._view import View
    from slipring.typing import Empty

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
}
_OF_THE_FILE |= {errno.ENAMETOOLONG, errno.ENXIO, errno.EOVERFLOW}
_LAYOUTS = ("NHWC", "NCHW")
MAX_SEED = (1 << 64) - 1
_BATCH = 0x4241544348  # keeps the numbers of a batch apart from those of its samples


@suggests_options
class ImageDataset(abc.ABC):
    """A map dataset of encoded images. Subclasses read the bytes and the targets.

    Parameters
    ----------
    transform : Transform or list of Transform, optional
        torchvision's, in the order of the list. None: the whole image, unchanged.
    layout : {'NHWC', 'NCHW'}
        Channels last or first.
    dtype : {'uint8', 'float32', 'float16', 'bfloat16'}
        uint8 has the pixel values, 0 to 255; the others have (value / 255 - mean) / std. "bfloat16" gives torch tensors
        if torch is installed, otherwise arrays of ml_dtypes's dtype; ``dtype=ml_dtypes.bfloat16`` always gives arrays.
    mean, std : sequence of 3 floats, optional
        For red, green and blue, where pixel values are 0 to 1; so none is above 1. Only for floating-point dtypes.
    reducing_gap, exif, truncated, max_pixels
        As in `decode_into`.
    on_error : {'raise', 'skip'}
        How to handle an image that cannot be read: raise an `~slipring.errors.ImageError` with its path and index, or
        use the next readable image, by index, in its place. A warning of the logger "slipring" names each skipped
        image, and ``stats().skipped_samples`` counts them. Errors of the machine, not the file (no descriptor or memory
        left, a failing disk), are always raised.
    side : int, optional
        First shrink an image whose shorter side is longer than that, antialiased, as most recipes do; the transform
        follows. Values are the same with and without `cache`.
    cache : int, str or slipring.Cache, optional
        Keep the images that were read, once per machine: a budget such as "32GiB", or a cache that other loaders and
        ranks share.
    what : {'pixels', 'encoded'}
        The form to cache: images that are decoded (and shrunk), or the encoded bytes, which take far less memory and
        are decoded each time. Targets are cached, too, except those of `Folder`.
    target_transform : callable, optional
        Called with each target, also with one from the cache; its result takes the target's place.
    batch_transform : MixUp, CutMix or RandomChoice of them, optional
        Mixes the images of a batch in the slot; the targets become float32, batch × classes. slipring's loaders apply
        it after `collate_fn`, which must leave (images, targets); an image that is read by its index is not mixed.

    Raises
    ------
    CacheMismatch
        The cache has the images of another dataset, or these images in another form.

    Examples
    --------
    >>> from pathlib import Path
    >>> from slipring import images
    >>> class Files(images.ImageDataset):
    ...     def __init__(self, paths, transform=None, **options):
    ...         super().__init__(transform, **options)
    ...         self.paths = paths
    ...     def __len__(self):
    ...         return len(self.paths)
    ...     def read(self, index):
    ...         return Path(self.paths[index]).read_bytes(), self.paths[index]
    ...     def name(self, index):
    ...         return self.paths[index]
    >>> image, path = Files(["train/cat/0.jpg"], images.CenterCrop(24))[0]
    >>> image.shape
    (24, 24, 3)
    """

    transform: Transform | Sequence[Transform] | None
    layout: Literal["NHWC", "NCHW"]
    dtype: str
    on_error: Literal["raise", "skip"]
    cache: Cache | None
    target_transform: Callable[[Any], Any] | None
    batch_transform: BatchTransform | None

    def __init__(
        self,
        transform: Transform | Sequence[Transform] | None = None,
        *,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: DTypeLike | torch.dtype = "uint8",
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        reducing_gap: float | None = None,
        exif: bool = False,
        truncated: Literal["raise", "fill"] = "raise",
        max_pixels: int = MAX_PIXELS,
        on_error: Literal["raise", "skip"] = "raise",
        side: int | None = None,
        cache: int | str | Cache | None = None,
        what: Literal["pixels", "encoded"] = "pixels",
        target_transform: Callable[[Any], Any] | None = None,
        batch_transform: BatchTransform | None = None,
    ) -> None:
        function("target_transform", target_transform)
        self.batch_transform = as_batch_transform(batch_transform)
        if self.batch_transform is None:
            self.finish_batch = None
        self.transform, self.target_transform = transform, target_transform
        self._steps = chain(transform)
        self._reading = ImageReading("bilinear", reducing_gap, exif, truncated, max_pixels)
        way = next((step.interpolation for step in self._steps if step.resizes), "bilinear")
        # For an image that is decoded as a whole, as it is stored: its crops are rotated.
        self._whole = ImageReading(way, reducing_gap, False, truncated, max_pixels)
        side = integer("side", side, 1, 1 << 24, optional=True)
        one_of("what", what, ("pixels", "encoded"))
        one_of("layout", layout, _LAYOUTS)
        one_of("on_error", on_error, ("raise", "skip"))
        if cache is not None and what == "pixels" and side is None and reducing_gap is not None:
            raise ValueError(
                "reducing_gap is for pictures that are decoded for each crop; those that are kept are decoded once, "
                "and as a whole: leave it out, or give side="
            )
        self._side, self._what, self._bound = side, what, False
        self._token = os.urandom(16).hex()
        self.cache = None if cache is None else as_cache(cache)
        self.layout = layout
        self.dtype = dtype_name(dtype)
        self._extension = bfloat16_of_numpy(dtype) if self.dtype == "bfloat16" else None
        self.on_error = on_error
        self._table = table_of(self.dtype, mean, std)
        self._size = final_size(self._steps)
        if self._size is None:
            self.fetch_into = None  # samples of different sizes are not one array

    # ---- methods of subclasses

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int) -> tuple[Buffer, Any]:
        """Return (bytes of the image, target) at `index`."""

    def read_many(self, indices: list[int]) -> Sequence[tuple[Buffer, Any] | None] | None:
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

    def fingerprint(self) -> str | None:
        """Return a text that identifies these images and targets, for `cache`; None: there is none.

        A dataset without one cannot share a cache by its name.
        """
        return None

    @property
    def is_random(self) -> bool:
        """Whether a transform draws random numbers, so that an image differs in each epoch."""
        return any(step.is_random for step in self._steps)

    # ---- samples

    seeds_samples = True  # for each sample, `fetch_into` draws the same numbers as `__getitem__`

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return (image, target), as an ordinary dataset does.

        Outside of a slipring worker the transform's numbers come from Python's ``random``, which other loaders seed in
        each worker.
        """
        index = self._checked(index)
        seed = seeding.sample_seed()
        image, target = self._one(index, None, random.getrandbits(64) if seed is None else seed)
        return self._shown(image), target

    def fetch_into(self, indices: Sequence[int], empty: Empty) -> tuple[Any, Any]:
        """Return a batch of (images, targets), decoded into arrays that `empty` makes in the slot."""
        height, width = self._size
        shape = (height, width, 3) if self.layout == "NHWC" else (3, height, width)
        images = empty((len(indices), *shape), self._storage)
        indices = [self._checked(index) for index in indices]
        targets = []
        begun = part_begun()
        ahead = self._read_ahead(indices)
        spent(READ, begun)
        for n, (row, index, sample) in enumerate(zip(images, indices, ahead)):
            at_row(n, index)
            seed = seeding.sample_seed()
            try:
                _, target = self._one(index, row, random.getrandbits(64) if seed is None else seed, sample)
            except Exception as error:
                failed_at(n, error)
                raise
            targets.append(target)
        at_row(0, None)
        return self._shown(images), default_collate(targets)

    def finish_batch(self, batch: tuple[Any, Any], seed: int | None) -> tuple[Any, Any]:
        """Return a batch of (images, targets) after `batch_transform`, whose numbers are drawn from `seed`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                f"batch_transform needs batches of (images, targets), and collate_fn returned {shown(batch)}"
            )
        images, targets = batch
        draws = Draws(random.getrandbits(64) if seed is None else mix(seed, _BATCH))
        mixed = self.batch_transform.mix(self._memory_of(images), np.asarray(targets), draws)
        if isinstance(images, np.ndarray):
            return images, mixed
        import torch

        return images, torch.from_numpy(mixed)

    def _memory_of(self, images):
        """Return a batch of arrays or of tensors as `Images` that share their memory."""
        memory = images
        if type(images).__module__ == "torch":
            import torch

            memory = (images.view(torch.uint16) if images.dtype == torch.bfloat16 else images).numpy()
        elif isinstance(images, np.ndarray) and self.dtype == "bfloat16":
            memory = images.view(np.uint16)
        if not isinstance(memory, np.ndarray) or memory.dtype != self._storage or memory.ndim != 4:
            raise ValueError(
                "batch_transform needs one array of all images of a batch: the images have different sizes, or "
                f"collate_fn changed them, to {shown(images)}"
            )
        return Images(memory, self.layout, self.dtype)

    def try_sample(self, index: int, seed: int) -> tuple[Any, Any] | None:
        """Return (image, target) with the transform's numbers drawn from `seed`, or None to skip the image."""
        made = self._tried(index, None, seed)
        return made and (self._shown(made[0]), made[1])

    def view(self, index: int, seed: int) -> View:
        """Return the numbers that the transforms draw from `seed` for the image at `index`: box, size, window and flip.

        ``try_sample(index, seed)`` returns the corresponding image. Only the image's header is decoded here. With
        `side`, the box lies in the shrunk image.
        """
        data, _ = self.read(self._checked(index))
        width, height, orientation = self._looked(data)
        if self._side is not None:
            height, width = self._shrunk(height, width)
        return self._drawn(width, height, orientation, Draws(integer("seed", seed, 0, MAX_SEED))).view

    def _one(self, index, out, seed, sample=None):
        """Decode the image at `index`, or the next readable one; return (array, target)."""
        for used in range(index, index + len(self)):
            made = self._tried(used % len(self), out, seed, sample)
            if made is not None:
                return made
            sample = None
        raise ImageError(f"none of the {len(self)} images can be read, from index {index} on", index=index)

    def _read_ahead(self, indices):
        """Return the samples at `indices` that were read in one call; None for the others, and for cached ones."""
        if self.cache is None:
            return self._read_many(indices)
        missing = [index for index in indices if index not in self.cache]
        try:
            read = dict(zip(missing, self._read_many(missing))) if missing else {}
        except Exception as error:
            failed_among([indices.index(index) for index in missing], error)
            raise
        return [read.get(index) for index in indices]

    def _read_many(self, indices):
        samples = self.read_many(indices)
        return [None] * len(indices) if samples is None else one_each(self, indices, samples)

    def _tried(self, index, out, seed, sample=None):
        """Decode the image at `index`; return (array, target), or None if it cannot be decoded and must be skipped."""
        try:
            if isinstance(sample, RemoteError):
                raise sample
            get = self._fresh if self.cache is None else self._from_cache
            image, target = get(index, out, Draws(seed), sample)
        except (ImageError, OSError) as error:
            if from_handler(error):
                raise
            path = self.name(index)
            where = f"{path} (index {index})" if path else f"index {index}"
            afar = isinstance(error, RemoteError)
            of_the_file = error.missing if afar else isinstance(error, ImageError) or error.errno in _OF_THE_FILE
            if self.on_error == "raise" or not of_the_file:
                if afar:
                    raise RemoteError(f"{where}: {error}", **{**error.__dict__, "index": index}) from error
                raise ImageError(f"{where}: {error}", path=path, index=index) from error
            skipping.skipped()
            _log.warning("skipped %s", redacted(f"{where}: {error}"))  # a handler may keep its records
            return None
        return image, target if self.target_transform is None else self.target_transform(target)

    def _fresh(self, index, out, draws, sample):
        """Return (array, target) from the file."""
        data, target = self._read_one(index) if sample is None else sample
        return self._rendered(data, out, draws), target

    def _read_one(self, index):
        begun = part_begun()
        sample = self.read(index)
        spent(READ, begun)
        return sample

    def _rendered(self, data, out, draws):
        """Return the array of an encoded image."""
        if self._side is not None:
            return self._cropped(*self._decoded(data), out, draws)
        width, height, orientation = self._looked(data)
        recipe = self._drawn(width, height, orientation, draws)
        out = self._array(recipe) if out is None else out
        begun = part_begun()
        recipe.run(
            self._upright(out), self._table, lambda *where: render(data, *where[:-2], self._reading, *where[-2:])
        )
        spent(DECODE, begun)
        return out

    def _looked(self, data):
        """Return (width, height, orientation to apply) of an image that is not too large for an array."""
        width, height, orientation = look(data, self._reading.exif)
        if width * height > self._reading.max_pixels:
            raise too_large(width, height, self._reading.max_pixels)
        return width, height, orientation if self._reading.exif else 1

    def _array(self, recipe):
        """Return memory for a sample."""
        height, width = recipe.height, recipe.width
        return np.empty((height, width, 3) if self.layout == "NHWC" else (3, height, width), self._storage)

    def _upright(self, array):
        """Return an array of the dataset's layout as height × width × 3."""
        return array if self.layout == "NHWC" else array.transpose(1, 2, 0)

    def _drawn(self, width, height, orientation, draws):
        """Return the `Recipe` that the transforms draw for an image of that stored size."""
        recipe = Recipe(*((width, height) if orientation >= 5 else (height, width)), self.dtype)
        for step in self._steps:
            step.apply(recipe, draws)
        return recipe

    # ---- images that are decoded as a whole, and cached

    def _decoded(self, data):
        """Return (pixels, orientation) of a whole image as it is stored, shrunk to `side`."""
        width, height, orientation = self._looked(data)
        height, width = self._shrunk(height, width)
        pixels = np.empty((height, width, 3), np.uint8)
        begun = part_begun()
        render(data, pixels, None, None, (height, width), (0, 0), False, self._whole)
        spent(DECODE, begun)
        return pixels, orientation

    def _shrunk(self, height, width):
        """Return the size of an image after `side`, as torchvision's Resize computes it."""
        shorter = min(width, height)
        if self._side is None or shorter <= self._side:
            return height, width
        return tuple(max(1, self._side * n // shorter) for n in (height, width))

    def _cropped(self, pixels, orientation, out, draws):
        """Return the array of an image in memory."""
        height, width = pixels.shape[:2]
        recipe = self._drawn(width, height, orientation, draws)
        out = self._array(recipe) if out is None else out
        begun = part_begun()
        recipe.run(
            self._upright(out),
            self._table,
            lambda *where: crop(pixels, *where[:-2], orientation, self._reading, *where[-2:]),
        )
        spent(RESIZE, begun)
        return out

    def _complete(self):
        """Declare the contents to the cache. Subclasses outside of slipring do so at their first sample."""
        if type(self).fingerprint.__module__.startswith("slipring."):
            self._bind_cache()

    def _bind_cache(self):
        if self.cache is None or self._bound:
            return
        form = f"{self._what} {self._reading.max_pixels}"
        if self._what == "pixels":  # and how they were made
            reading = self._whole
            form += f" {self._side} {self._reading.exif} {reading.fill} {backend()}"
            form += f" {reading.filter} {reading.gap}" if self._side is not None else ""
        what = f"{self._what} of {len(self)} images of {type(self).__name__}"
        if self._side is not None and self._what == "pixels":
            what += f", side={self._side}"
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

    def _from_cache(self, index, out, draws, sample):
        """Return (array, target) from the cache; a missing entry is made first if there is room."""
        self._bind_cache()
        entry = self.cache._peek(index, None)
        if entry is None:
            if self.cache._missed():
                return self._fresh(index, out, draws, sample)
            entry = self.cache.get_or_make(index, lambda: self._entry(index, sample))
        if self._what == "pixels":
            array = self._cropped(entry[0], entry[1], out, draws)
        else:
            array = self._rendered(entry[0], out, draws)
        return array, entry[2] if len(entry) == 3 else self._target(index)

    def _entry(self, index, sample):
        """Return the cache entry of an image."""
        if self._targets_apart:
            data, *target = (self._data(index),)
        else:
            data, *target = self._read_one(index) if sample is None else sample
        first = self._decoded(data) if self._what == "pixels" else (np.frombuffer(data, np.uint8), 1)
        return (*first, *target)

    # If true, the methods `_data` and `_target` read by index, and targets need not be cached.
    _targets_apart = False

    def _checked(self, index):
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range: the dataset has {n} images")
        return index + n if index < 0 else index

    # ---- values

    @property
    def _storage(self):
        """The dtype of the memory: numpy itself has no bfloat16."""
        return "uint16" if self.dtype == "bfloat16" else self.dtype

    def _shown(self, array):
        if self.dtype != "bfloat16":
            return array
        if self._extension is not None:
            return array.view(self._extension)
        import torch

        return torch.from_numpy(array).view(torch.bfloat16)


_READ = "fingerprint", "read", "read_many"
