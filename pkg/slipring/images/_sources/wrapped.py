"""Encoded images from another dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring._core.codec.samples import one_each
from slipring._core.options.checks import map_dataset
from slipring.cache.dataset import known_fingerprint
from slipring.errors import shown
from slipring.images._sources.dataset import ImageDataset
from slipring.images._sources.options import suggests_options

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from slipring.images._sources.options import ImageOptions
    from slipring.images._steps.multicrop import SizedTransforms
    from slipring.typing import MapDataset


@suggests_options
class Bytes(ImageDataset):
    """A map dataset over another one whose samples have encoded images: (image, target).

    Parameters
    ----------
    dataset : map dataset
        Its samples are sequences or mappings. The encoded image in a sample is bytes-like, or a mapping with the bytes
        under "bytes" and perhaps a file name under "path", as in Hugging Face's datasets.
    transform : Transform or list of Transform, optional
    image, target : int or str
        Index or key of image and target in a sample. The default is a sequence's first two items.
    fingerprint : str, optional
        A text that identifies these samples if `cache` has a name. Hugging Face's datasets have their own.
    layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error, side, cache, what,
    target_transform
        As in `ImageDataset`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from slipring import images
    >>> rows = [{"image": Path("train/cat/0.jpg").read_bytes(), "label": 0}]
    >>> data = images.Bytes(rows, images.CenterCrop(24), image="image", target="label")
    >>> pixels, label = data[0]
    >>> pixels.shape, label
    ((24, 24, 3), 0)
    """

    dataset: Any
    image: int | str
    target: int | str

    def __init__(
        self,
        dataset: MapDataset[Any],
        transform: SizedTransforms = None,
        *,
        image: int | str = 0,
        target: int | str = 1,
        fingerprint: str | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(transform, **options)
        map_dataset("dataset", dataset)
        self.dataset = dataset
        self.image = image
        self.target = target
        self._told = known_fingerprint(dataset) if fingerprint is None else fingerprint
        self._complete()

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> tuple[Buffer, Any]:
        return self._parts(index, self.dataset[index])

    def read_many(self, indices: list[int]) -> list[tuple[Buffer, Any]] | None:
        read = getattr(self.dataset, "__getitems__", None)
        if read is None:
            return None
        return [self._parts(i, sample) for i, sample in zip(indices, one_each(self.dataset, indices, read(indices)))]

    def fingerprint(self) -> str | None:
        return None if self._told is None else f"{self._told} {self.image!r} {self.target!r}"

    def _source(self):
        return self.dataset, f"{self.image!r} {self.target!r}"

    def _parts(self, index, sample):
        try:
            image, target = sample[self.image], sample[self.target]
        except (KeyError, IndexError, TypeError) as error:
            has = (
                f"the keys {', '.join(k if type(k) is str else shown(k) for k in sample)}"
                if isinstance(sample, dict)
                else f"{type(sample).__name__}"
            )
            raise TypeError(
                f"sample {index} has no {shown(self.image)} or no {shown(self.target)}: it has {has}; say where "
                f"they are by image= and target="
            ) from error
        return encoded_bytes(image, index), target

    def __repr__(self) -> str:
        return f"Bytes({type(self.dataset).__name__}, {self.transform}): {len(self)} images"


def encoded_bytes(image: object, index: int) -> Buffer:
    """Return the encoded bytes of an image that a sample or a table contains."""
    if isinstance(image, dict):
        data = image.get("bytes")
        if data is None and image.get("path"):
            from slipring.images._sources.folder import read_file

            return read_file(image["path"])
        image = data
    try:
        memoryview(image)
    except TypeError:
        raise TypeError(
            f"the image of sample {index} must be encoded bytes, not {type(image).__name__}; a Hugging Face "
            f"dataset gives them after cast_column(..., Image(decode=False))"
        ) from None
    return image
