"""Columns of encoded images, decoded directly into the batch."""

import copy
import logging
import zlib
from collections.abc import Mapping

from slipring._core.ring._ring import mix
from slipring._core.ring.sample_marks import skipped
from slipring.errors import ImageError, shown
from slipring.images._render.draws import Draws
from slipring.images._sources.dataset import ImageDataset
from slipring.ray._columns import bytes_of
from slipring.streams._blocks import Written

_log = logging.getLogger("slipring")


def image_columns_of(images, options):
    """Return the `ImageColumns` of a loader's arguments ``images=`` and ``image_options=``."""
    if images is None:
        raise ValueError("image_options without images: name the columns of images, and their transforms")
    if not isinstance(images, Mapping):
        raise TypeError(f"images must be a dict of column to transform, not {shown(images)}")
    return ImageColumns(images, dict(options or {}))


class ImageColumns:
    """The decoders of image columns, one per column of `transforms`. `options` are those of `ImageDataset`.

    Raise TypeError or ValueError for a wrong transform or option, or if a transform leaves images of different sizes.
    """

    seed = 0

    def __init__(self, transforms, options):
        self.transforms = {name: ColumnDecoder(name, transform, options) for name, transform in transforms.items()}

    def seeded(self, seed):
        """Return a copy for one worker's pass."""
        made = copy.copy(self)
        made.seed = seed
        return made

    def column(self, name, column, first):
        """Return a column to decode; `first` is the number of its first row in the stream."""
        return Encoded(name, self.transforms[name], column, self.seed, first)


class ColumnDecoder(ImageDataset):
    """The decoder of one column: its transform, with the options of `ImageDataset`."""

    def __init__(self, name, transform, options):
        super().__init__(transform, **options)
        if self.cache is not None:
            raise ValueError("image_options has cache=, but rows of Ray Data have no index to be kept by: leave it out")
        if self.target_transform is not None:
            raise ValueError("image_options has target_transform=, but a column of images has no targets: leave it out")
        if None not in self._renderers or self._renderer.shapes is None or not self._renderer.is_single:
            raise ValueError(
                f"images[{name!r}] = {transform!r} leaves images of different sizes, which fit no array: end with "
                "RandomResizedCrop, CenterCrop or Resize((height, width))"
            )
        if self.dtype == "bfloat16":
            raise ValueError("image_options has dtype='bfloat16', which numpy has not: convert on the device")

    def __len__(self):
        return 0

    def read(self, index):
        """Raise IndexError: images come from blocks, not by index."""
        raise IndexError(index)

    @property
    def shape(self):
        """tuple of int: the shape of a sample."""
        return self._renderer.shapes[0]

    def into(self, data, out, seed):
        """Decode encoded bytes into the array `out`."""
        self._renderer.render(self._renderer.image(data), [out], Draws(seed))


class Encoded(Written):
    """A column of encoded images. Raise BlockError if it holds something else, or nulls.

    `seed` and a row's number determine the transform's random numbers. `first` is the number of the first row in the
    stream.
    """

    def __init__(self, name, decoder, column, seed, first):
        super().__init__(len(column), decoder.shape, decoder.dtype)
        self._name, self._decoder, self._seed, self._first = (
            name,
            decoder,
            mix(seed, zlib.crc32(name.encode())),
            first,
        )
        self._column, self._bytes = column, bytes_of(name, column)  # the bytes are in the column's memory

    def write(self, out, first):
        for n, row in enumerate(out):
            number = self._first + first + n
            try:
                self._decoder.into(self._bytes(first + n), row, mix(self._seed, number))
            except ImageError as error:
                if self._decoder.on_error == "skip":
                    skipped()
                    _log.warning("skipped row %d, column %r: %s", number, self._name, str(error))
                    return n, None
                placed = ImageError(
                    f"column {self._name!r}, row {number} of the stream: {error}. The row is skipped: the next "
                    "request continues after it",
                    index=number,
                )
                placed.__cause__ = error
                return n, placed
        return len(out), None
