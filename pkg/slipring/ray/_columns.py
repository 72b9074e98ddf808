"""A block of Ray Data as columns: tensors as arrays without a copy, images to decode, the rest as Arrow."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.extensions import ArrowPythonObjectType, ArrowTensorType, ArrowTensorTypeV2, ArrowVariableShapedTensorType

from slipring.errors import BlockError


def batches_of(block, rows):
    """Return the record batches of a block; Arrow data is not copied. `rows` is (first, end), or None for all."""
    if not isinstance(block, pa.Table):
        block = BlockAccessor.for_block(block).to_arrow()
    if rows is not None:
        block = block.slice(rows[0], rows[1] - rows[0])
    return [batch for batch in block.to_batches() if batch.num_rows]


class Columns(Mapping):
    """A record batch as the dict that `slipring.streams._blocks.BlockReader` reads.

    `number` is the number of its block, and `first` that of its first row in the stream. `image_columns` decodes some
    columns; None: there are no columns to decode.
    """

    def __init__(self, batch, number, image_columns, first):
        self.batch, self.number, self.image_columns, self.first = batch, number, image_columns, first

    def __iter__(self):
        return iter(self.batch.schema.names)

    def __len__(self):
        return self.batch.num_columns

    def __contains__(self, name):
        return name in self.batch.schema.names  # without making an array of it

    def __getitem__(self, name):
        """Return a column; raise BlockError if it has nulls or a type that a batch cannot hold."""
        column = self.batch.column(name)
        if self.image_columns is not None and name in self.image_columns.transforms:
            return self.image_columns.column(name, column, self.first)
        kind = column.type
        if isinstance(kind, (ArrowTensorType, ArrowTensorTypeV2)):
            nulls = column.storage.null_count
            if nulls or column.storage.flatten().null_count:
                which = f"{nulls} of {len(column)} are null" if nulls else "there are nulls within them"
                raise refused(
                    name, f"holds tensors of shape {tuple(kind.shape)}, but {which}: fill or filter them before"
                )
            return column.to_numpy()
        if isinstance(kind, ArrowVariableShapedTensorType):
            shapes = sorted({tuple(shape) for shape in column.storage.field("shape").to_pylist() if shape})
            raise refused(
                name,
                f"has tensors of {len(shapes)} shapes, {', '.join(map(str, shapes[:3]))}"
                f"{', ...' if len(shapes) > 3 else ''}, but tensors of one shape are expected: resize or pad them "
                "before",
            )
        if isinstance(kind, ArrowPythonObjectType):
            raise refused(name, "holds Python objects, but numbers, tensors or what Arrow has a type for is expected")
        return column


def refused(column, why):
    """Return the error for a column."""
    return BlockError(f"column {column!r} {why}", column=column)


def bytes_of(name, column):
    """Return a function from a row's number to the row's bytes, uncopied, for a column of encoded images.

    Raise BlockError if the column holds something else, or nulls.
    """
    nulls = column.null_count
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:  # a Hugging Face image
        column = column.field("bytes")  # a null struct still has bytes here
        nulls = max(nulls, column.null_count)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise refused(name, f"is {column.type}, but the bytes of images are expected")
    if nulls:
        raise refused(name, f"has the bytes of images, but {nulls} of {len(column)} are null")
    _, ends, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    ends = np.frombuffer(ends, kind)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(b"" if data is None else data)
    return lambda row: view[ends[row] : ends[row + 1]]
