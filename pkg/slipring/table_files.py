"""Parquet and Arrow IPC files as tables that are read one row group at a time."""

import os

import pyarrow as pa
import pyarrow.parquet as pq


def open_table(path, columns):
    """Open a file of either kind, of which `columns` (None: all) are to be read.

    Raises
    ------
    ValueError
        It is of neither kind, cannot be read, or lacks a column.
    """
    with open(path, "rb") as file:
        magic, stat = file.read(8), os.fstat(file.fileno())
    size, stamp = stat.st_size, (stat.st_size, stat.st_mtime_ns)
    try:
        if magic[:4] == b"PAR1":
            return Parquet(path, columns, stamp)
        if magic[:6] == b"ARROW1" or magic[:4] == b"\xff\xff\xff\xff":
            return Ipc(path, columns, stamp, stream=magic[:6] != b"ARROW1")
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} ({size} bytes) cannot be read as a table: {error}") from error
    raise ValueError(f"{path} ({size} bytes) is neither Parquet nor Arrow IPC: it begins with {magic!r}")


class Parquet:
    def __init__(self, path, columns, stamp):
        self.path, self.stamp = path, stamp
        self.file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        self.schema = _project(self.file.schema_arrow, columns, path)

    def counts(self):
        metadata = self.file.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def read(self, group):
        """Return (the row group's table, False)."""
        table = self.file.read_row_group(group, columns=self.schema.names, use_threads=False)
        return table.combine_chunks(), False


class Ipc:
    def __init__(self, path, columns, stamp, stream):
        self.path, self.stamp = path, stamp
        with pa.memory_map(path) as file:
            self.memory = file.read_buffer()
        read = pa.ipc.open_stream if stream else pa.ipc.open_file
        options = pa.ipc.IpcReadOptions(use_threads=False)
        self.file = read(self.memory, options=options)
        whole = self.file.schema
        self.schema = _project(whole, columns, path)
        if stream or (self.file.num_record_batches and not self.is_mapped(self.file.get_batch(0))):
            # What is not asked for is not decompressed. Of a mapped file this would make copies.
            options.included_fields = [whole.get_field_index(name) for name in self.schema.names]
            self.file = read(self.memory, options=options)
        # A stream has no index: its batches' headers are read once, from front to end.
        self.batches = list(self.file) if stream else None

    def batch(self, group):
        return self.file.get_batch(group) if self.batches is None else self.batches[group]

    def counts(self):
        n = self.file.num_record_batches if self.batches is None else len(self.batches)
        return [self.batch(i).num_rows for i in range(n)]

    def read(self, group):
        """Return (the record batch as a table, whether all of it lies in the mapped file)."""
        batch = self.batch(group).select(self.schema.names)
        return pa.Table.from_batches([batch]), self.is_mapped(batch)

    def is_mapped(self, batch):
        begin, end = self.memory.address, self.memory.address + self.memory.size
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
        return all(begin <= buffer.address < end or buffer.size == 0 for buffer in buffers)


def _project(schema, columns, path):
    names = schema.names if columns is None else columns
    for name in names:
        if schema.names.count(name) != 1:
            raise ValueError(
                f"{path} has {schema.names.count(name)} columns named {name!r}, one is needed; its columns "
                f"are {', '.join(map(repr, schema.names))}"
            )
    return pa.schema([schema.field(name) for name in names], schema.metadata)
