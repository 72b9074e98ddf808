"""The base class of image datasets: it applies transforms, converts values, and decodes batches into their slots."""

from __future__ import annotations

import abc
import functools
import os
import random
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.codec._collate import default_collate
from slipring._core.options.arguments import function, integer, one_of
from slipring._core.ring._ring import mix
from slipring._core.ring.sample_marks import failed_among
from slipring.cache.cache import as_cache
from slipring.cache.dataset import bind
from slipring.errors import shown
from slipring.images._render.backend import backend
from slipring.images._render.decode import MAX_PIXELS, DecodedImage
from slipring.images._render.draws import Draws
from slipring.images._sources.indexed import IndexedSamples
from slipring.images._sources.options import suggests_options
from slipring.images._sources.patch_renderer import renderer_of
from slipring.images._sources.sized import renderers_of
from slipring.images._sources.step_times import StepTimes
from slipring.images._steps.batch import as_batch_transform, labels_of
from slipring.images._steps.batch_images import Images

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Buffer

    from slipring.cache import Cache
    from slipring.images._render.view import View
    from slipring.images._sources.sized import Sized
    from slipring.images._steps.base import BatchTransform
    from slipring.images._steps.combine import RandomChoice
    from slipring.images._steps.multicrop import SizedTransforms
    from slipring.typing import Empty

MAX_SEED = (1 << 64) - 1
_BATCH = 0x4241544348  # keeps the numbers of a batch apart from those of its samples


@suggests_options
class ImageDataset(IndexedSamples):
    """A map dataset of encoded images. Subclasses read the bytes and the targets.

    Parameters
    ----------
    transform : Transform, list of Transform, or dict of them, optional
        torchvision's, in the order of the list. None: the whole image, unchanged. A dict has those of each size, which
        is then a part of the index: see `Sized`.
    layout : {'NHWC', 'NCHW'}
        Channels last or first.
    dtype : {'uint8', 'float32', 'float16', 'bfloat16'}
        uint8 has the pixel values, 0 to 255; the others have (value / 255 - mean) / std. "bfloat16" gives torch tensors
        if torch is installed, otherwise arrays of ml_dtypes's dtype; ``dtype=ml_dtypes.bfloat16`` always gives arrays.
    mean, std : sequence of 3 floats, optional
        For red, green and blue, where pixel values are 0 to 1; so none is above 1. Only for floating-point dtypes.
    reducing_gap, exif, truncated, grey16, max_pixels
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

    transform: SizedTransforms
    layout: Literal["NHWC", "NCHW"]
    dtype: str
    on_error: Literal["raise", "skip"]
    cache: Cache | None
    target_transform: Callable[[Any], Any] | None
    batch_transform: BatchTransform | None

    def __init__(
        self,
        transform: SizedTransforms = None,
        *,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: DTypeLike | torch.dtype = "uint8",
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        reducing_gap: float | None = None,
        exif: bool = False,
        truncated: Literal["raise", "fill"] = "raise",
        grey16: Literal["clip", "scale"] = "clip",
        max_pixels: int = MAX_PIXELS,
        on_error: Literal["raise", "skip"] = "raise",
        side: int | None = None,
        cache: int | str | Cache | None = None,
        what: Literal["pixels", "encoded"] = "pixels",
        target_transform: Callable[[Any], Any] | None = None,
        batch_transform: BatchTransform | RandomChoice | None = None,
    ) -> None:
        super().__init__(on_error)
        function("target_transform", target_transform)
        self.batch_transform = as_batch_transform(batch_transform)
        if self.batch_transform is None:
            self.finish_batch = None
        self.transform, self.target_transform = transform, target_transform
        one_of("what", what, ("pixels", "encoded"))
        if cache is not None and what == "pixels" and side is None and reducing_gap is not None:
            raise ValueError(
                "reducing_gap is for pictures that are decoded for each crop; those that are kept are decoded once, "
                "and as a whole: leave it out, or give side="
            )
        make = functools.partial(
            renderer_of, layout=layout, dtype=dtype, mean=mean, std=std, reducing_gap=reducing_gap, exif=exif,
            truncated=truncated, grey16=grey16, max_pixels=max_pixels, side=side,
        )  # fmt: skip
        self._use(renderers_of(transform, make))
        self.layout, self.dtype = layout, self._renderer.dtype
        self._side, self._what, self._bound = side, what, False
        self._token = os.urandom(16).hex()
        self.cache = None if cache is None else as_cache(cache)
        if self._renderer.shapes is None:
            self.fetch_into = None  # samples of different sizes are not one array
        if self.batch_transform is not None and not all(one.is_single for one in self._renderers.values()):
            raise ValueError(f"batch_transform mixes one image per sample, which transform={transform} does not make")

    # ---- methods of subclasses

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int) -> tuple[Buffer, Any]:
        """Return (bytes of the image, target) at `index`."""

    def fingerprint(self) -> str | None:
        """Return a text that identifies these images and targets, for `cache`; None: there is none.

        A dataset without one cannot share a cache by its name.
        """
        return None

    @property
    def is_random(self) -> bool:
        """Whether a transform draws random numbers, so that an image differs in each epoch."""
        return any(step.is_random for renderer in self._renderers.values() for step in renderer.steps)

    # ---- samples

    def __getitem__(self, index: int | Sized) -> tuple[Any, Any]:
        """Return (image, target), as an ordinary dataset does.

        Outside of a slipring worker the transform's numbers come from Python's ``random``, which other loaders seed in
        each worker.
        """
        index, renderer = self._asked(index)
        image, target = self._made(index, renderer)
        return renderer.shown(image), target

    def fetch_into(self, indices: Sequence[int | Sized], empty: Empty) -> tuple[Any, Any]:
        """Return a batch of (images, targets), decoded into arrays that `empty` makes in the slot."""
        plain, renderer = self._asked_batch(indices)
        arrays = [empty((len(plain), *shape), dtype) for shape, dtype in zip(renderer.shapes, renderer.storages)]
        targets = [target for _, target in self._made_in(plain, renderer, arrays)]
        return renderer.shown(renderer.sample_of(arrays)), default_collate(targets)

    def finish_batch(self, batch: tuple[Any, Any], seed: int | None) -> tuple[Any, Any]:
        """Return a batch of (images, targets) after `batch_transform`, whose numbers are drawn from `seed`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                f"batch_transform needs batches of (images, targets), and collate_fn returned {shown(batch)}"
            )
        images, targets = batch
        draws = Draws(random.getrandbits(64) if seed is None else mix(seed, _BATCH))
        memory = Images(self._renderer.memory_of(images), self.layout, self.dtype)
        mixed = self.batch_transform.mix(memory, labels_of(targets, len(memory.memory)), draws)
        if isinstance(images, np.ndarray):
            return images, mixed
        import torch

        return images, torch.from_numpy(mixed)

    def try_sample(self, index: int | Sized, seed: int) -> tuple[Any, Any] | None:
        """Return (image, target) with the transform's numbers drawn from `seed`, or None to skip the image."""
        index, renderer = self._asked(index)
        made = self._tried(index, renderer, None, seed)
        return made and (renderer.shown(made[0]), made[1])

    def view(self, index: int | Sized, seed: int) -> View:
        """Return the values that the transforms draw from `seed` for the image at `index`.

        ``try_sample(index, seed)`` returns the corresponding image. Only the image's header is decoded here. With
        `side`, the box lies in the shrunk image.
        """
        index, renderer = self._asked(index)
        data, _ = self.read(index)
        return renderer.view(data, Draws(integer("seed", seed, 0, MAX_SEED)))

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
                self._renderer.measure(self.read(index)[0], times, in_memory, seed)

            self._attempted(index, measure)
        return times.seconds()

    def _read_ahead(self, indices):
        """Return the samples at `indices` that were read in one call; None for the others, and for cached ones."""
        if self.cache is None:
            return super()._read_ahead(indices)
        missing = [index for index in indices if index not in self.cache]
        try:
            read = dict(zip(missing, super()._read_ahead(missing))) if missing else {}
        except Exception as error:
            failed_among([indices.index(index) for index in missing], error)
            raise
        return [read.get(index) for index in indices]

    def _tried(self, index, renderer, out, seed, sample=None):
        made = super()._tried(index, renderer, out, seed, sample)
        if made is None or self.target_transform is None:
            return made
        return made[0], self.target_transform(made[1])

    def _make(self, index, renderer, out, draws, sample):
        return (self._fresh if self.cache is None else self._from_cache)(index, renderer, out, draws, sample)

    def _fresh(self, index, renderer, out, draws, sample):
        """Return (array, target) from the file."""
        data, target = self._read_one(index) if sample is None else sample
        return renderer.render(renderer.image(data), out, draws), target

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
            form += f" {self._side} {reading.exif} {whole.fill} {whole.scale16} {backend()}"
            form += f" {whole.filter} {whole.gap}" if self._side is not None else ""
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

    def _from_cache(self, index, renderer, out, draws, sample):
        """Return (array, target) from the cache; a missing entry is made first if there is room."""
        self._bind_cache()
        entry = self.cache._peek(index, None)
        if entry is None:
            if self.cache._missed():
                return self._fresh(index, renderer, out, draws, sample)
            entry = self.cache.get_or_make(index, lambda: self._entry(index, sample))
        image = DecodedImage(*entry[:2]) if self._what == "pixels" else renderer.image(entry[0])
        return renderer.render(image, out, draws), entry[2] if len(entry) == 3 else self._target(index)

    def _entry(self, index, sample):
        """Return the cache entry of an image."""
        if self._targets_apart:
            data, *target = (self._data(index),)
        else:
            data, *target = self._read_one(index) if sample is None else sample
        if self._what == "encoded":
            return np.frombuffer(data, np.uint8), 1, *target
        image = self._renderer.decode(data)
        return image.pixels, image.orientation, *target

    # If true, the methods `_data` and `_target` read by index, and targets need not be cached.
    _targets_apart = False


_READ = "fingerprint", "read", "read_many"
