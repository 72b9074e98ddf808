"""Encoded images in rows: of another dataset, or of Parquet and Arrow files."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from slipring._capabilities import read_ahead
from slipring._core.codec.samples import one_each
from slipring._core.options.checks import map_dataset
from slipring._files.storage import Storage, linked, locate
from slipring.cache.dataset import known_fingerprint
from slipring.errors import ImageError, shown
from slipring.images._sources.dataset import ImageDataset, suggests_options
from slipring.images._sources.folder import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer, Unpack

    from slipring.images._sources.dataset import ImageOptions
    from slipring.images._steps.outputs import SizedTransforms
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
        self.dataset: Any = dataset
        self.image: int | str = image
        self.target: int | str = target
        self._dataset_fingerprint = known_fingerprint(dataset) if fingerprint is None else fingerprint
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
        return (
            None if self._dataset_fingerprint is None else f"{self._dataset_fingerprint} {self.image!r} {self.target!r}"
        )

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


@suggests_options
class Parquet(ImageDataset):
    """The rows of Parquet or Arrow IPC files with an encoded image in each: (image, target).

    Parameters
    ----------
    paths : path, URL or sequence of them
        As in `slipring.arrow.TableDataset`.
    transform : Transform or list of Transform, optional
    image : str
        A column of bytes, or of structs with fields "bytes" and "path", as in Hugging Face's datasets. If the bytes are
        null, the file at the path is read; a relative path begins in the folder of the table. Paths may be URLs.
    target : str or sequence of str
        A column, whose values become the target; several columns become a dict.
    storage : slipring.Storage, optional
        How URLs are read, of tables and of images.
    layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error, side, cache, what,
    target_transform
        As in `ImageDataset`.

    Raises
    ------
    ImportError
        pyarrow is not installed.
    TypeError
        The column has values other than bytes.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Parquet("train.parquet", images.CenterCrop(24), image="image", target="label")
    >>> pixels, label = data[3]
    >>> pixels.shape, label
    ((24, 24, 3), 1)
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: SizedTransforms = None,
        *,
        image: str = "image",
        target: str | Sequence[str] = "label",
        storage: Storage | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(transform, **options)
        try:
            from slipring.arrow import TableDataset
        except ImportError as error:
            raise ImportError("images.Parquet needs pyarrow: pip install 'slipring[images]'") from error
        self.image: str = image
        self.target: str | Sequence[str] = target
        columns = [target] if isinstance(target, str) else list(target)
        split = _Split(image, target)
        self._rows = TableDataset(paths, columns=[image, *columns], decode_batch=split, storage=storage)
        self._storage = storage or self._rows._remote or Storage()
        self._complete()

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> tuple[Buffer, Any]:
        return self._with_bytes(index, self._rows[index])

    def read_many(self, indices: list[int]) -> list[tuple[Buffer, Any] | None]:
        samples = self._rows.__getitems__(indices)
        apart = [n for n, (data, _) in enumerate(samples) if data is None or isinstance(data, str)]
        read = read_ahead(lambda n: self._with_bytes(indices[n], samples[n]), apart) or [None] * len(apart)
        for n, sample in zip(apart, read):
            samples[n] = sample  # `read` reads those that are None, and raises their errors
        return samples

    def _with_bytes(self, index, row):
        data, target = row
        if data is None:
            raise ImageError(f"column {self.image!r} is null: it has neither bytes nor a path")
        if not isinstance(data, str):
            return row
        try:
            path = linked(data, self._rows._path_of(index), self._rows._remote)
            (path,), remote = locate("path", path, self._storage)
        except ValueError as error:
            raise ImageError(f"column {self.image!r} has the path {shown(data)}: {error}") from error
        return (read_file(path) if remote is None else remote._read_all(path)), target

    def fingerprint(self) -> str:
        return repr((list(zip(self._rows.paths, self._rows._file_stamps)), self.image, self.target))

    def name(self, index: int) -> str:
        return f"row {index} of {self._rows.paths[0]}" + (" ..." if len(self._rows.paths) > 1 else "")

    def __repr__(self) -> str:
        return f"Parquet({len(self._rows.paths)} files, {self.transform}): {len(self)} images"


class _Split:
    """Convert a record batch to a list of (bytes, target); the bytes are Arrow's own, not copied.

    In place of the bytes, there is a path (a str) if the row has only that, or None if it is null.

    It does not refer to the dataset, so that the dataset and its connections end with the last reference to it.
    """

    def __init__(self, image, target):
        self.image, self.target = image, target

    def __call__(self, batch):
        import pyarrow as pa
        import pyarrow.compute as pc

        from slipring.arrow.rows import python_rows, python_values

        column, of = batch.column(0), pa.types
        paths = itertools.repeat(None)
        if of.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            # Not column.field(): a null struct may have values in its fields.
            if column.type.get_field_index("path") >= 0:
                paths = pc.struct_field(column, "path").to_pylist()
            column = pc.struct_field(column, "bytes")
        kinds = of.is_binary, of.is_large_binary, of.is_binary_view, of.is_null
        if not any(is_kind(column.type) for is_kind in kinds):
            raise TypeError(f"column {self.image!r} must hold encoded images as bytes, not {column.type}")
        images = [value.as_buffer() if value.is_valid else path for value, path in zip(column, paths)]
        if isinstance(self.target, str):
            targets = python_values(batch.column(1))
        else:
            targets = python_rows(batch.select(range(1, batch.num_columns)))
        return list(zip(images, targets))
