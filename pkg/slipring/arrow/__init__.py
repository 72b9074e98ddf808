"""Arrow data as leaves: an Arrow IPC stream in the slot, read back with no copy. Also tables as datasets.

Imported only when a batch has Arrow data, so that slipring itself never imports pyarrow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise ModuleNotFoundError("slipring.arrow needs pyarrow: pip install 'slipring[arrow]'", name="pyarrow") from None

from slipring._public import publish
from slipring.arrow.rows import Rows, collate
from slipring.arrow.tables import TableDataset
from slipring.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Rows", "TableDataset", "collate"]

publish(__name__)

_KIND = b"slipring.kind"  # key in the stream's schema: the kind of value that was packed
_COLUMN = "slipring.array"  # name of the only column for a bare array
_THOROUGH = os.environ.get("SLIPRING_DEBUG", "0") not in ("", "0")


def pack(value: object, empty: Callable[..., NDArray[Any]]) -> NDArray[np.uint8] | None:
    """Return `value` as an IPC stream in a uint8 array from `empty`; None if the value must be pickled.

    Parameters
    ----------
    value : pyarrow.RecordBatch, pyarrow.Table, pyarrow.Array or pyarrow.ChunkedArray
    empty : callable
        ``empty(shape, dtype)`` returns an array; in a worker it lies in the slot.
    """
    if isinstance(value, pa.RecordBatch):
        kind, batches, schema = b"batch", [value], value.schema
    elif isinstance(value, pa.Table):
        kind, batches, schema = b"table", value.to_batches(), value.schema
    elif isinstance(value, (pa.Array, pa.ChunkedArray)):
        kind = b"array" if isinstance(value, pa.Array) else b"chunked"
        schema = pa.schema([pa.field(_COLUMN, value.type)])
        chunks = [value] if kind == b"array" else value.chunks
        batches = [pa.RecordBatch.from_arrays([chunk], schema=schema) for chunk in chunks]
    else:
        return None
    schema = schema.with_metadata({**(schema.metadata or {}), _KIND: kind})
    batches = [batch.replace_schema_metadata(schema.metadata) for batch in batches]
    size = pa.MockOutputStream()
    _write(batches, schema, size)
    room = empty((size.size(),), np.uint8)
    _write(batches, schema, pa.FixedSizeBufferWriter(pa.py_buffer(room)))
    return room


def _write(batches, schema, sink):
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def restore(memory: memoryview) -> Any:
    """Return the value that `pack` packed; its buffers lie in `memory`."""
    try:
        return _restore(pa.ipc.open_stream(pa.py_buffer(memory)))
    except (pa.ArrowException, OSError, LookupError, ValueError) as error:
        raise CorruptBatch(f"a worker sent an Arrow stream that cannot be read: {error}") from None


def _restore(stream):
    metadata = dict(stream.schema.metadata or {})
    kind = metadata.pop(_KIND, b"table")
    schema = stream.schema.with_metadata(metadata or None)
    # Sizes are always checked. Offsets and UTF-8 are checked only in debug mode, because that reads all the data.
    batches = []
    for batch in stream:
        batch.validate(full=_THOROUGH)
        batches.append(batch.replace_schema_metadata(metadata or None))
    if kind == b"batch":
        return batches[0]
    if kind == b"array":
        return batches[0].column(0)
    if kind == b"chunked":
        return pa.chunked_array([batch.column(0) for batch in batches], schema.field(0).type)
    return pa.Table.from_batches(batches, schema)
