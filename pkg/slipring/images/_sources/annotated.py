"""Images with masks, boxes and keypoints."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.codec._codec import empty as new_array
from slipring._core.codec._collate import default_collate
from slipring._core.codec.samples import one_each
from slipring._core.options.checks import integer, map_dataset, names, one_of
from slipring._core.ring._check import from_handler
from slipring.cache.dataset import known_fingerprint
from slipring.errors import ImageError, shown
from slipring.images._render.decode import MAX_PIXELS, decode
from slipring.images._sources.indexed import IndexedSamples, OtherFailed
from slipring.images._sources.renderer import Renderer
from slipring.images._sources.sample_renderer import SampleRenderer
from slipring.images._sources.stored_parts import FORMATS, check_keys, contents, from_xyxy, order_of, sample_of
from slipring.images._steps.checks import not_negative
from slipring.images._steps.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike

    from slipring.cache import Cache
    from slipring.images._render.draws import Draws
    from slipring.images._sources.sized import Sized
    from slipring.images._sources.stored_parts import BoxFormat
    from slipring.images._steps.base import BatchTransform
    from slipring.images._steps.combine import RandomChoice
    from slipring.images._steps.outputs import SizedTransforms
    from slipring.typing import Empty, MapDataset

_ADDED = "sizes", "padding"  # the keys of a padded batch that no sample has


class Annotated(IndexedSamples):
    """A map dataset of images with masks, boxes, keypoints or further images, which share one geometry.

    It wraps a map dataset whose samples are mappings, and returns mappings with the same keys. Masks are moved by
    nearest interpolation. Boxes are clamped to the image after each step; at the end, boxes that have become too small
    are removed with their labels, masks and keypoints. Values under other keys stay as they are.

    A batch has the images in one array, if their sizes are equal or with ``batch="pad"``. Boxes, labels, keypoints and
    masks per box are lists with one array per sample. Other loaders need ``collate_fn=dataset.collate_samples``.

    Parameters
    ----------
    dataset : map dataset
        An image in a sample is encoded (bytes-like), the path of a file, or a height × width × 3 array of uint8. A mask
        is encoded (a PNG's palette numbers and 16 bits are kept), a path, or an array of integers or bools: height ×
        width, or boxes × height × width.
    transform : Transform, callable, list of these, or dict of lists, optional
        torchvision's, in the order of the list. A callable gets the image only and must not move its pixels. A dict has
        the transforms of each size, which is then a part of the index: see `Sized`.
    images : str or sequence of str
        Keys of the images. They have one size and get the same random numbers.
    masks : str or sequence of str
        Keys of the masks.
    boxes : str, optional
        Key of the boxes: boxes × 4 numbers, in pixels. The result is float32, in the same format.
    box_format : {'xyxy', 'xywh', 'cxcywh'}
        Corners; top left corner and size; centre and size.
    rows : str or sequence of str
        Keys of values with one row per box, such as labels.
    keypoints : str, optional
        Key of the keypoints: (..., 2) numbers, in pixels, or (..., 3) with a visibility, which becomes 0 if the point
        lies outside of the image after a step. If there are boxes, the first axis is that of the boxes. The result is
        float32.
    flip_order : sequence of int, optional
        The order of an object's keypoints after a flip, which exchanges left and right hands.
    invalid_boxes : {'raise', 'drop'}
        How to handle boxes that are not finite, have no area or lie outside of the image.
    min_box_size : float
        Boxes that end with a smaller width or height, in pixels, or without an area, are removed.
    mask_fill : int
        Value of a height × width mask for pixels outside of the image, such as 255 for pixels that a loss ignores.
        Masks per box are 0 there.
    batch : {'pad', 'list'}
        How to batch images of different sizes. 'pad': one array, black at the bottom and the right. The batch then has
        the keys "sizes" (int64, batch × 2: height and width) and "padding" (bool, batch × height × width), and masks
        are padded with `mask_fill`. 'list': images and masks are lists of arrays.
    multiple_of : int
        Round the height and width of a padded batch up to a multiple of this.
    layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error
        As in `ImageDataset`. Masks and boxes are those of the image after `exif`.
    cache, what
        As in `ImageDataset`. Whole samples are cached: files that they name are read, and decoded for 'pixels'.
    fingerprint : str, optional
        A text that identifies these samples if `cache` has a name. Hugging Face's datasets have their own.
    batch_transform : MixUp, CutMix or RandomChoice of them, optional
        As in `ImageDataset`, for images of one size without masks, boxes and keypoints. All images of a sample are
        mixed in the same way.
    target : str, optional
        Key of the labels that `batch_transform` mixes.

    Raises
    ------
    ValueError
        A mask has another size than its image, boxes or keypoints have the wrong shape or are invalid, or rows do not
        match them. The message names the index, and the image's path if there is one.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring import Loader, images
    >>> samples = [{"image": f"train/cat/{n}.jpg", "boxes": [[2, 3, 30, 20]], "labels": [n]} for n in range(2)]
    >>> data = images.Annotated(samples, [images.Resize((48, 48)), images.RandomHorizontalFlip(p=1)],
    ...                         boxes="boxes", rows="labels")
    >>> with Loader(data, batch_size=2) as loader:
    ...     batch = next(iter(loader))
    ...     print(batch["image"].shape, [boxes.shape for boxes in batch["boxes"]], batch["labels"])
    (2, 48, 48, 3) [(1, 4), (1, 4)] [array([0]), array([1])]
    """

    dataset: MapDataset[Mapping[str, Any]]
    images: tuple[str, ...]
    masks: tuple[str, ...]
    rows: tuple[str, ...]
    boxes: str | None
    keypoints: str | None
    box_format: BoxFormat
    batch: Literal["pad", "list"]
    multiple_of: int
    mask_fill: int

    def __init__(
        self,
        dataset: MapDataset[Mapping[str, Any]],
        transform: SizedTransforms = None,
        *,
        images: str | Sequence[str] = "image",
        masks: str | Sequence[str] = (),
        boxes: str | None = None,
        box_format: BoxFormat = "xyxy",
        rows: str | Sequence[str] = (),
        keypoints: str | None = None,
        flip_order: Sequence[int] | None = None,
        invalid_boxes: Literal["raise", "drop"] = "raise",
        min_box_size: float = 1.0,
        mask_fill: int = 0,
        batch: Literal["pad", "list"] = "pad",
        multiple_of: int = 32,
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
        cache: int | str | Cache | None = None,
        what: Literal["pixels", "encoded"] = "pixels",
        fingerprint: str | None = None,
        batch_transform: BatchTransform | RandomChoice | None = None,
        target: str | None = None,
    ) -> None:
        map_dataset("dataset", dataset)
        one_of("box_format", box_format, FORMATS)
        one_of("invalid_boxes", invalid_boxes, ("raise", "drop"))
        one_of("batch", batch, ("pad", "list"))
        self.dataset, self.batch = dataset, batch
        self.images, self.masks, self.rows = _keys("images", images), _keys("masks", masks), _keys("rows", rows)
        if not self.images:
            raise ValueError("images must be the key of an image, or several, not an empty list")
        self.boxes, self.box_format, self.keypoints = boxes, box_format, keypoints
        if self.rows and boxes is None:
            raise ValueError(f"rows={shown(rows)} have one row per box: give boxes=, the key of the boxes")
        self.multiple_of: int = integer("multiple_of", multiple_of, 1, 1 << 20)
        self.mask_fill: int = integer("mask_fill", mask_fill, -(1 << 63), (1 << 63) - 1)
        self._followers = [*self.masks, *filter(None, (boxes, keypoints))]
        self._flip_order, least = order_of(flip_order), not_negative("min_box_size", min_box_size)
        self._samples = SampleRenderer(self.mask_fill, self._flip_order, least, invalid_boxes)
        make = functools.partial(
            Renderer, followers=self._followers, layout=layout, dtype=dtype, mean=mean, std=std,
            reducing_gap=reducing_gap, exif=exif, truncated=truncated, grey16=grey16, max_pixels=max_pixels,
        )  # fmt: skip
        super().__init__(transform, make, on_error=on_error, cache=cache, what=what, batch_transform=batch_transform)
        self._size = self._renderer.size
        if self._size is None or batch == "list":
            self.fetch_into = None  # `collate_samples` makes the batch
        self.target: str | None = target
        if (batch_transform is None) != (target is None):
            raise ValueError("batch_transform and target, the key of the labels that it mixes, must be given together")
        if batch_transform is not None and (self._followers or self.fetch_into is None):
            parts = f"followed by {', '.join(map(shown, self._followers))}" if self._followers else "of different sizes"
            raise ValueError(
                f"batch_transform mixes whole images of one size in one array, and these are {parts}: leave it out, or "
                "end with a transform that gives one size"
            )
        self._dataset_fingerprint = known_fingerprint(dataset) if fingerprint is None else fingerprint
        self._complete()

    def __len__(self) -> int:
        return len(self.dataset)

    # ---- stored samples

    def read(self, index: int) -> Mapping[str, Any]:
        """Return the sample at `index` of the wrapped dataset."""
        return self.dataset[index]

    def read_many(self, indices: list[int]) -> Sequence[Mapping[str, Any] | None] | None:
        read = getattr(self.dataset, "__getitems__", None)
        return None if read is None else one_each(self.dataset, indices, read(indices))

    def name(self, index: int) -> str | None:
        try:
            image = self.read(index)[self.images[0]]
            image = image.get("path") if isinstance(image, dict) else image
            return os.fspath(image) if isinstance(image, (str, os.PathLike)) else None
        except Exception as error:  # the name is for the message of another error
            if from_handler(error):
                raise
            return None

    def fingerprint(self) -> str | None:
        """Return a text that identifies these samples, for `cache`; None: there is none."""
        return None if self._dataset_fingerprint is None else f"{self._dataset_fingerprint} {self._source()[1]}"

    def _source(self):
        return self.dataset, f"{self.images} {self.masks}"

    def _parts_of(self, index, sample):
        """Return a stored sample, and its parts as a `Sample`; raise if they do not match."""
        check_keys(self, index, sample)
        with self._naming(index):
            return sample, sample_of(self, self._renderer, index, sample, {})

    def _entry(self, index, sample):
        """Return a stored sample with the contents of its files, and EXIF's orientations of its decoded images."""
        sample, turned = self._read_one(index) if sample is None else sample, {}
        check_keys(self, index, sample)
        kept = dict(sample)
        with self._naming(index):
            for key in (*self.images, *self.masks):
                kept[key] = data = contents(kept[key], index)
                if isinstance(data, np.ndarray) and data.ndim != 1:
                    continue
                if self._what == "encoded":
                    kept[key] = np.frombuffer(data, np.uint8)
                elif key in self.masks:
                    kept[key] = decode(data, mode="unchanged")
                else:
                    image = self._renderer.decode(data)
                    kept[key], turned[key] = image.pixels, image.orientation
        return kept, turned

    def _parts_of_entry(self, index, entry):
        kept, turned = entry
        own = {*self.images, *self.masks, self.boxes, self.keypoints}
        # The cache is read-only: other values are copied for the user.
        stored = {key: value if key in own else copy.deepcopy(value) for key, value in kept.items()}
        with self._naming(index):
            return stored, sample_of(self, self._renderer, index, stored, turned)

    # ---- finished samples

    def __getitem__(self, index: int | Sized) -> dict[str, Any]:
        """Return a sample, as an ordinary dataset does; see `ImageDataset.__getitem__` for its random numbers."""
        return self._made(*self._asked(index))

    def try_sample(self, index: int | Sized, seed: int) -> dict[str, Any] | None:
        """Return the sample at `index` with random numbers drawn from `seed`, or None if it is skipped."""
        return self._tried(*self._asked(index), None, seed)

    def _make(self, index, renderer, out, draws, sample):
        stored, parsed = self._stored(index, sample)
        with self._naming(index):
            made = self._samples.finish(renderer, parsed, out, draws, self._another)
        result = dict(stored)
        result.update({key: self._renderer.shown(image) for key, image in made.images.items()})
        result.update(made.masks)
        result.update(made.rows)
        if self.boxes is not None:
            result[self.boxes] = from_xyxy(made.boxes, self.box_format)
        if self.keypoints is not None:
            result[self.keypoints] = made.keypoints.astype(np.float32)
        return result

    @contextlib.contextmanager
    def _naming(self, index):
        """Let errors about a sample's parts and steps name the sample."""
        try:
            yield
        except ValueError as error:
            if type(error) is not ValueError or from_handler(error):
                raise
            raise ValueError(f"{self._where(index)}: {error}") from error

    def _measure(self, index, times, in_memory, seed):
        if in_memory:
            _, parsed = self._parts_of_entry(index, self._entry(index, None))
        else:
            _, parsed = self._parts_of(index, self.read(index))
        with self._naming(index):
            self._samples.measure(self._renderer, parsed, times, seed, self._another)

    def _another(self, draws: Draws, finish: Callable[[Sample], Sample]) -> Sample:
        """Return ``finish(sample)`` for another sample: a random one, or the next that can be read."""

        def finish_of(index):
            _, parsed = self._stored(index, None)
            with self._naming(index):
                return finish(parsed)

        first, count = draws.below(len(self)), len(self)
        for index in (n % count for n in range(first, first + count)):
            try:
                made = self._attempted(index, lambda at=index: finish_of(at))
            except (ValueError, OSError) as error:  # an ImageError is a ValueError, a RemoteError an OSError
                raise OtherFailed(error) from error
            if made is not None:
                return made
        raise OtherFailed(ImageError(f"none of the {count} images can be read", index=first))

    # ---- batches

    def fetch_into(self, indices: Sequence[int | Sized], empty: Empty) -> dict[str, Any]:
        """Return a batch whose images are decoded into arrays that `empty` makes in the slot."""
        plain, renderer = self._asked_batch(indices)
        arrays = [empty((len(plain), *renderer.shapes[0]), renderer.storage) for _ in self.images]
        samples = list(self._made_in(plain, renderer, arrays))
        return self._collated(samples, dict(zip(self.images, map(self._renderer.shown, arrays))))

    def finish_batch(self, batch: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
        """Return a batch after `batch_transform`, whose numbers are drawn from `seed`."""
        if not isinstance(batch, Mapping) or any(key not in batch for key in (self.target, *self.images)):
            raise ValueError(
                f"batch_transform needs batches with {shown(self.target)} and the images, and collate_fn returned "
                f"{shown(batch)}"
            )
        seed = random.getrandbits(64) if seed is None else seed
        transform, labels = self.batch_transform, batch[self.target]
        mixed = [self._renderer.mixed(transform, batch[key], labels, seed) for key in self.images]
        return {**batch, self.target: mixed[0]}

    def collate_samples(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of some samples of this dataset, for a loader's ``collate_fn=``."""
        return self._collated(samples, {})

    def _collated(self, samples, images):
        """Return a batch; `images` are the arrays of images that have been made already."""
        if not samples:
            return default_collate(samples)  # raises the error of an empty batch
        batch = {}
        for key in samples[0]:
            values = [sample[key] for sample in samples]
            if key in images:
                batch[key] = images[key]
            elif key in self.images:
                batch[key] = self._batched(values, 0, self._size is None)
            elif key in self.masks:
                batch[key] = self._batched_masks(values)
            elif key in self.rows or key in (self.boxes, self.keypoints):
                batch[key] = values
            else:
                batch[key] = default_collate(values)
        if self.batch == "pad" and self._size is None:
            if extra := [key for key in _ADDED if key in batch]:
                raise ValueError(f"a padded batch has the keys {', '.join(_ADDED)}, and a sample has {extra[0]!r}, too")
            sizes = np.array([self._image_size(sample[self.images[0]]) for sample in samples])
            height, width = self._image_size(batch[self.images[0]])
            rows, columns = np.arange(height)[:, None], np.arange(width)
            batch["sizes"] = sizes
            batch["padding"] = (rows >= sizes[:, 0, None, None]) | (columns >= sizes[:, 1, None, None])
        return batch

    def _image_size(self, image):
        """Return the (height, width) of an image, or of a batch of them."""
        return image.shape[-3:-1] if self.layout == "NHWC" else image.shape[-2:]

    def _batched_masks(self, masks):
        """Return the masks of a batch: an array, or a list for masks per box."""
        if masks[0].ndim == 2:
            return self._batched(masks, self.mask_fill, self._size is None, (0, 1))
        if self.batch == "list" or self._size is not None:
            return masks
        height, width = self._padded_size(mask.shape[-2:] for mask in masks)
        return [_padded(mask, np.empty((len(mask), height, width), mask.dtype), 0, (1, 2)) for mask in masks]

    def _batched(self, arrays, fill, is_padded, axes=None):
        """Return arrays of height × width (their `axes`) as one array, or as the list."""
        if self.batch == "list":
            return arrays
        stored = [self._renderer.stored(array) for array in arrays]
        axes = ((0, 1) if self.layout == "NHWC" else (1, 2)) if axes is None else axes
        shape = list(stored[0].shape)
        if is_padded:
            size = self._padded_size(tuple(array.shape[axis] for axis in axes) for array in stored)
            for axis, length in zip(axes, size):
                shape[axis] = length
        result = new_array((len(arrays), *shape), np.result_type(*stored))
        for row, array in zip(result, stored):
            _padded(array, row, fill, axes)
        return self._renderer.shown(result) if arrays[0] is not stored[0] else result

    def _padded_size(self, sizes):
        """Return the height and width of a padded batch."""
        return tuple(-(-max(lengths) // self.multiple_of) * self.multiple_of for lengths in zip(*sizes))

    def __repr__(self) -> str:
        return f"Annotated({type(self.dataset).__name__}, {self.transform}): {len(self)} samples"


def _keys(name, value):
    keys = (value,) if isinstance(value, str) else tuple(value)
    return tuple(names(name, keys, "key") or ()) if keys else ()


def _padded(array, out, fill, axes):
    """Copy an array to the beginning of a larger one, and fill the rest; return the larger one."""
    region = [slice(None)] * array.ndim
    for axis in axes:
        beyond = [*region[:axis], slice(array.shape[axis], None), *region[axis + 1 :]]
        out[tuple(beyond)] = fill
        region[axis] = slice(array.shape[axis])
    out[tuple(region)] = array
    return out
