"""Arrow data as leaves: an Arrow IPC stream in the slot, read back with no copy.

Imported only when Arrow data is met, so that slipring itself never imports pyarrow.
"""

import numpy as np
import pyarrow as pa

_COLUMN = "slipring.array"  # the one column that stands for a bare array


def pack(value, empty):
    """Return a uint8 array from `empty` with `value` as an IPC stream; None for what must be pickled.

    Parameters
    ----------
    value : pyarrow.RecordBatch, pyarrow.Table, pyarrow.Array or pyarrow.ChunkedArray
    empty : callable
        ``empty(shape, dtype)`` returns an array, inside the slot in a worker.
    """
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        kind = b"array" if isinstance(value, pa.Array) else b"chunked"
        table = pa.table({_COLUMN: value})
    elif isinstance(value, (pa.RecordBatch, pa.Table)):
        kind = b"batch" if isinstance(value, pa.RecordBatch) else b"table"
        table = pa.Table.from_batches([value]) if kind == b"batch" else value
    else:
        return None
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), b"slipring.kind": kind})
    table = table.cast(schema) if table.schema.metadata != schema.metadata else table
    size = pa.MockOutputStream()
    _write(table, schema, size)
    room = empty((size.size(),), np.uint8)
    _write(table, schema, pa.FixedSizeBufferWriter(pa.py_buffer(room)))
    return room


def _write(table, schema, sink):
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(table.replace_schema_metadata(schema.metadata))


def restore(memory):
    """Return the value that `pack` packed; its buffers lie in `memory` (a memoryview of bytes)."""
    from slipring.errors import CorruptBatch

    try:
        table = pa.ipc.open_stream(pa.py_buffer(memory)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatch(f"a worker sent an Arrow stream that cannot be read: {error}") from None
    metadata = dict(table.schema.metadata or {})
    kind = metadata.pop(b"slipring.kind", b"table")
    if kind == b"array":
        column = table.column(_COLUMN)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if kind == b"chunked":
        return table.column(_COLUMN)
    table = table.replace_schema_metadata(metadata or None)
    if kind == b"batch":
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    return table
