"""The base class of image datasets: it applies transforms, converts values, and decodes batches into their slots."""

from __future__ import annotations

import abc
import functools
import inspect
import random
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import numpy as np

from slipring._core.codec._collate import default_collate
from slipring._core.options.checks import function, integer
from slipring._core.options.rule import suggesting
from slipring.errors import shown
from slipring.images._render.decode import MAX_PIXELS, DecodedImage
from slipring.images._render.draws import Draws
from slipring.images._sources.indexed import MAX_SEED, IndexedSamples
from slipring.images._sources.renderer import Renderer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Buffer

    from slipring.cache import Cache
    from slipring.images._render.view import CropSpec
    from slipring.images._sources.sized import Sized
    from slipring.images._steps.base import BatchTransform
    from slipring.images._steps.combine import RandomChoice
    from slipring.images._steps.outputs import SizedTransforms
    from slipring.typing import Empty

_Made = TypeVar("_Made", bound=type)


class ImageOptions(TypedDict, total=False):
    """The keyword options of all image datasets; see `ImageDataset`."""

    layout: Literal["NHWC", "NCHW"]
    dtype: DTypeLike | torch.dtype
    mean: ArrayLike | None
    std: ArrayLike | None
    reducing_gap: float | None
    exif: bool
    truncated: Literal["raise", "fill"]
    grey16: Literal["clip", "scale"]
    max_pixels: int
    on_error: Literal["raise", "skip"]
    side: int | None
    cache: int | str | Cache | None
    what: Literal["pixels", "encoded"]
    target_transform: Callable[[Any], Any] | None
    batch_transform: BatchTransform | RandomChoice | None


def suggests_options(made: _Made) -> _Made:
    """Make the constructor of a class with ``**options`` suggest a known option for an unknown one."""
    init = made.__init__
    own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {p.name for p in own}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in ImageOptions.__annotations__
        if name not in named
    ]
    made.__init__ = suggesting(inspect.Signature([*own, *options]))(init)
    return made


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
        function("target_transform", target_transform)
        self.target_transform: Callable[[Any], Any] | None = target_transform
        make = functools.partial(
            Renderer, layout=layout, dtype=dtype, mean=mean, std=std, reducing_gap=reducing_gap, exif=exif,
            truncated=truncated, grey16=grey16, max_pixels=max_pixels, side=side,
        )  # fmt: skip
        super().__init__(transform, make, on_error=on_error, cache=cache, what=what, batch_transform=batch_transform)
        if self._renderer.shapes is None:
            self.fetch_into = None  # samples of different sizes are not one array

    # ---- methods of subclasses

    @abc.abstractmethod
    def read(self, index: int) -> tuple[Buffer, Any]:
        """Return (bytes of the image, target) at `index`."""

    def fingerprint(self) -> str | None:
        """Return a text that identifies these images and targets, for `cache`; None: there is none.

        A dataset without one cannot share a cache by its name.
        """
        return None

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
        seed = random.getrandbits(64) if seed is None else seed
        return batch[0], self._renderer.mixed(self.batch_transform, *batch, seed)

    def try_sample(self, index: int | Sized, seed: int) -> tuple[Any, Any] | None:
        """Return (image, target) with the transform's numbers drawn from `seed`, or None to skip the image."""
        index, renderer = self._asked(index)
        made = self._tried(index, renderer, None, seed)
        return made and (renderer.shown(made[0]), made[1])

    def crop_spec(self, index: int | Sized, seed: int) -> CropSpec:
        """Return the values that the transforms draw from `seed` for the image at `index`.

        ``try_sample(index, seed)`` returns the corresponding image. Only the image's header is decoded here. With
        `side`, the box lies in the shrunk image.
        """
        index, renderer = self._asked(index)
        data, _ = self.read(index)
        return renderer.crop_spec(data, Draws(integer("seed", seed, 0, MAX_SEED)))

    def _tried(self, index, renderer, out, seed, sample=None):
        made = super()._tried(index, renderer, out, seed, sample)
        if made is None or self.target_transform is None:
            return made
        return made[0], self.target_transform(made[1])

    def _make(self, index, renderer, out, draws, sample):
        image, target = self._stored(index, sample)
        return renderer.render(image, out, draws), target

    def _parts_of(self, index, sample):
        data, target = sample
        return self._renderer.image(data), target

    def _entry(self, index, sample):
        if self._targets_apart:
            data, *target = (self._data(index),)
        else:
            data, *target = self._read_one(index) if sample is None else sample
        if self._what == "encoded":
            return np.frombuffer(data, np.uint8), 1, *target
        image = self._renderer.decode(data)
        return image.pixels, image.orientation, *target

    def _parts_of_entry(self, index, entry):
        image = DecodedImage(*entry[:2]) if self._what == "pixels" else self._renderer.image(entry[0])
        return image, entry[2] if len(entry) == 3 else self._target(index)

    def _measure(self, index, times, in_memory, seed):
        self._renderer.measure(self.read(index)[0], times, in_memory, seed)

    # If true, the methods `_data` and `_target` read by index, and targets need not be cached.
    _targets_apart = False
