"""Columns of encoded images in Parquet and Arrow files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slipring.images.dataset import ImageDataset
from slipring.images.options import suggests_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer, Unpack

    from slipring._files.storage import Storage
    from slipring.images._multicrop import Transforms
    from slipring.images.options import ImageOptions


@suggests_options
class Parquet(ImageDataset):
    """The rows of Parquet or Arrow IPC files with an encoded image in each: (image, target).

    Parameters
    ----------
    paths : path, URL or sequence of them
        As in `slipring.arrow.TableDataset`.
    transform : Transform or list of Transform, optional
    image : str
        A column of bytes, or of structs with a field "bytes", as in Hugging Face's datasets.
    target : str or sequence of str
        A column, whose values become the target; several columns become a dict.
    storage : slipring.Storage, optional
        How URLs are read.
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

    image: str
    target: str | Sequence[str]

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Transforms = None,
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
        self.image = image
        self.target = target
        columns = [target] if isinstance(target, str) else list(target)
        split = _Split(image, target)
        self._rows = TableDataset(paths, columns=[image, *columns], decode_batch=split, storage=storage)
        self._complete()

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> tuple[Buffer, Any]:
        return self._rows[index]

    def read_many(self, indices: list[int]) -> list[tuple[Buffer, Any]]:
        return self._rows.__getitems__(indices)

    def fingerprint(self) -> str:
        return repr((list(zip(self._rows.paths, self._rows._told)), self.image, self.target))

    def name(self, index: int) -> str:
        return f"row {index} of {self._rows.paths[0]}" + (" ..." if len(self._rows.paths) > 1 else "")

    def __repr__(self) -> str:
        return f"Parquet({len(self._rows.paths)} files, {self.transform}): {len(self)} images"


class _Split:
    """Convert a record batch to a list of (bytes, target); the bytes are Arrow's own, not copied.

    It does not refer to the dataset, so that the dataset and its connections end with the last reference to it.
    """

    def __init__(self, image, target):
        self.image, self.target = image, target

    def __call__(self, batch):
        import pyarrow as pa

        column = batch.column(0)
        if pa.types.is_struct(column.type):
            column = column.field("bytes")
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise TypeError(f"column {self.image!r} must hold encoded images as bytes, not {column.type}")
        images = [b"" if (data := value.as_buffer()) is None else data for value in column]
        if isinstance(self.target, str):
            targets = batch.column(1).to_pylist()
        else:
            targets = batch.select(range(1, batch.num_columns)).to_pylist()
        return list(zip(images, targets))
