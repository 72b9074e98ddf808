"""Parquet and Arrow IPC files as tables that are read by row groups."""

import collections
import contextlib
import functools
import os
import threading
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slipring._core.ring.process import Owner
from slipring.errors import RemoteError
from slipring.redaction import redacted

END = 1 << 16  # bytes at the end of a remote file that the first request reads
FILES = 64  # files of a dataset that a process keeps open


class Stamp(NamedTuple):
    """The size and time of a file, which change when the file does."""

    size: int
    changed: int | str  # a time, or the server's tag
    machine: str | None = None  # None: `changed` is the same on every machine

    @classmethod
    def of(cls, fd):
        """Return the stamp of an open file."""
        stat = os.fstat(fd)
        return cls(stat.st_size, stat.st_mtime_ns, machine())

    def is_as(self, other):
        """Return whether the file looks unchanged. On another machine a copy may have another time."""
        return self.size == other.size and (self.changed == other.changed or self.machine != other.machine)


@functools.cache
def machine():
    """Return an ID of this machine since its boot; None if /proc does not have one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


def remote_stamp(url, storage):
    """Return the stamp of a file at a URL."""
    return Stamp(*storage._info(url))


def open_table(path, columns, storage=None, known=None):
    """Open a file of either kind, to read `columns` (None: all).

    `path` may be a URL, which `storage` reads. `known` is (stamp, metadata) from another reader of the same file, which
    saves the requests for them. Raise ValueError if the file is of neither kind, cannot be read, or lacks a column.
    """
    stamp, footer = known or (None, None)
    remote = None
    if storage is not None:
        stamp = stamp or remote_stamp(path, storage)
        remote = storage._open(path, *stamp[:2])
        if isinstance(footer, bytes):
            remote.hold(stamp.size - len(footer), footer)
        magic = b"PAR1" if isinstance(footer, pq.FileMetaData) else _magic_by_the_end(remote, stamp.size)
    else:
        with open(path, "rb") as file:
            magic, stamp = file.read(8), Stamp.of(file.fileno())
    size = stamp.size
    try:
        if magic[:4] == b"PAR1":
            return Parquet(path, columns, stamp, remote, footer)
        if magic[:6] == b"ARROW1" or magic[:4] == b"\xff\xff\xff\xff":
            return Ipc(path, columns, stamp, magic[:6] != b"ARROW1", remote)
    except RemoteError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{redacted(path)} ({size} bytes) cannot be read as a table: {error}") from error
    raise ValueError(f"{redacted(path)} ({size} bytes) is neither Parquet nor Arrow IPC: it begins with {magic!r}")


def _magic_by_the_end(remote, size):
    """Return the first bytes. Parquet and IPC repeat them at the end, which must be read anyway for the footer."""
    if not remote.has(max(0, size - 6), size):
        remote.ahead([(max(0, size - END), size)])
    tail = remote.range(max(0, size - 6), size)
    if tail[-4:] == b"PAR1":
        return tail[-4:]
    return tail if tail == b"ARROW1" else remote.range(0, min(8, size))


class OpenedTables:
    """The open files and decoded row groups of a dataset, for all threads of this process.

    One thread at a time uses a file. At most `most` decoded row groups are kept. A forked child opens the files
    for itself.
    """

    def __init__(self, most):
        self.owner, self._most = Owner(), most
        self._lock = threading.Lock()
        self._files = collections.OrderedDict()  # an open file that no thread uses -> its number
        self._kept, self._mapped = collections.OrderedDict(), {}  # row group -> table

    def table(self, group):
        """Return the table of a row group, or None."""
        with self._lock:
            if group in self._kept:
                self._kept.move_to_end(group)
                return self._kept[group]
            return self._mapped.get(group)

    def keep(self, group, table, mapped):
        """Store a row group's table: permanently if it is mapped, else until `most` others have come."""
        with self._lock:
            if mapped:
                self._mapped[group] = table
                return
            self._kept[group] = table
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def borrow(self, number):
        """Return an open file of that number, or None."""
        with self._lock:
            file = next((file for file in reversed(self._files) if self._files[file] == number), None)
            if file is not None:
                del self._files[file]
            return file

    def put_back(self, number, file):
        """Make the file available to the next reader; close the least recently used file if there are too many."""
        with self._lock:
            self._files[file] = number
            while len(self._files) > FILES:
                self._files.popitem(last=False)


class Parquet:
    """A Parquet file; see `open_table`."""

    may_wait = True  # for reading and decoding a row group

    def __init__(self, path, columns, stamp, remote=None, footer=None):
        self.path, self.stamp, self._remote = path, stamp, remote
        if remote is None:
            self.file = pq.ParquetFile(path, memory_map=True, pre_buffer=False, metadata=footer)
        else:
            self.file = pq.ParquetFile(remote, pre_buffer=False, metadata=footer)
        self.metadata = self.file.metadata
        self.schema = _project(self.file.schema_arrow, columns, path)

    def counts(self):
        metadata = self.file.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def read(self, group):
        """Return (the row group's table, False)."""
        if self._remote is not None:
            self._remote.ahead(self._chunks(group))
        table = self.file.read_row_group(group, columns=self.schema.names, use_threads=False)
        if self._remote is not None:
            self._remote.ahead([])
        return table.combine_chunks(), False

    def _chunks(self, group):
        """Yield the [begin, end) in the file of each column to read."""
        of_group = self.metadata.row_group(group)
        for number in range(of_group.num_columns):
            column = of_group.column(number)
            name = column.path_in_schema
            if any(name == wanted or name.startswith(f"{wanted}.") for wanted in self.schema.names):
                begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
                yield begin, begin + column.total_compressed_size


class Ipc:
    """An Arrow IPC file or stream, mapped; see `open_table`.

    A remote file's record batches are read on request. A remote stream has no index, so it is read as a
    whole.
    """

    metadata = None  # the footer's bytes, for a file at a URL

    def __init__(self, path, columns, stamp, stream, remote=None):
        self.path, self.stamp = path, stamp
        self.may_wait = remote is not None
        if remote is None:
            with pa.memory_map(path) as file:
                self.memory = file.read_buffer()
        elif stream:
            self.memory = pa.py_buffer(remote.range(0, stamp.size))
        else:
            self.memory = remote
        read = pa.ipc.open_stream if stream else pa.ipc.open_file
        options = pa.ipc.IpcReadOptions(use_threads=False)
        self.file = read(self.memory, options=options)
        whole = self.file.schema
        self.types, self.schema = whole.types, _project(whole, columns, path)
        if remote is not None and not stream:
            length = int.from_bytes(remote.range(max(0, stamp.size - 10), stamp.size)[:4], "little") + 10
            self.metadata = bytes(remote.range(stamp.size - length, stamp.size))
        if (
            (remote is not None)
            or stream
            or (self.file.num_record_batches and not self.is_mapped(self.file.get_batch(0)))
        ):
            # This decompresses only the columns to read. For a mapped file it would make copies.
            options.included_fields = [whole.get_field_index(name) for name in self.schema.names]
            self.file = read(self.memory, options=options)
        # A stream has no index, so all headers of its batches are read once.
        self.batches = list(self.file) if stream else None

    def batch(self, group):
        if self.batches is not None:
            return self.batches[group]
        with _as_raised(self.memory):
            return self.file.get_batch(group)

    def __len__(self):
        return self.file.num_record_batches if self.batches is None else len(self.batches)

    def counts(self):
        if self.metadata is None:
            return [self.batch(i).num_rows for i in range(len(self))]
        # A footer has no row counts. They are in the batches, of which only the narrowest column is read.
        options = pa.ipc.IpcReadOptions(use_threads=False)
        options.included_fields = [min(range(len(self.types)), key=lambda at: _width(self.types[at]))]
        with _as_raised(self.memory):
            file = pa.ipc.open_file(self.memory, options=options)
            return [file.get_batch(i).num_rows for i in range(file.num_record_batches)]

    def read(self, group):
        """Return (the record batch as a table, whether all of it lies in the mapped file)."""
        batch = self.batch(group).select(self.schema.names)
        return pa.Table.from_batches([batch]), self.is_mapped(batch)

    def is_mapped(self, batch):
        if not isinstance(self.memory, pa.Buffer):
            return False
        begin, end = self.memory.address, self.memory.address + self.memory.size
        # A buffer may be None or empty; its address then means nothing.
        return all(begin <= buffer.address < end for column in batch.columns for buffer in column.buffers() if buffer)


@contextlib.contextmanager
def _as_raised(remote):
    """Raise the exception of a remote read itself: pyarrow's IPC reader turns it into an OSError."""
    try:
        yield
    except OSError:
        failed = getattr(getattr(remote, "cache", None), "failed", None)
        if failed is None:
            raise
        remote.cache.failed = None  # it refers to the file, in a cycle
        raise failed from failed.__cause__


def _width(kind):
    """Return the bits of a value; a large number for types without a fixed width."""
    try:
        return kind.bit_width
    except ValueError:
        return 1 << 30


def _project(schema, columns, path):
    names = schema.names if columns is None else columns
    for name in names:
        if schema.names.count(name) != 1:
            raise ValueError(
                f"{redacted(path)} has {schema.names.count(name)} columns named {name!r}, one is needed; its columns "
                f"are {', '.join(map(repr, schema.names))}"
            )
    return pa.schema([schema.field(name) for name in names], schema.metadata)
