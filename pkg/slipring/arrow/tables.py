"""Map datasets over tables in Arrow IPC and Parquet files."""

from __future__ import annotations

import datetime
import operator
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
import pyarrow as pa

from slipring._capabilities import read_in_order, threads
from slipring._core.codec.nulls import mask_name, null_options
from slipring._core.options.checks import function, integer, names, one_of
from slipring._core.ring import process
from slipring._files.storage import locate
from slipring.arrow.files import OpenedTables, open_table, remote_stamp
from slipring.arrow.nulls import fill, value_for
from slipring.arrow.rows import Rows, empty, one_batch, python_rows, take
from slipring.arrow.spans import Spans, has_spans
from slipring.errors import RemoteError
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from slipring._files.storage import Storage

RETURNS = ("rows", "record_batch")
OWN = ("_open_here", "_footers", "_asked")  # attributes that a process does not pass on
OPENED_AT_ONCE = 16  # remote files that are opened at once when the dataset is made


class TableDataset:
    """The rows of Arrow IPC or Parquet files, read a batch at a time.

    Each process opens the files for itself when it reads the first row, and keeps 64 of them open. A fork or pickle
    passes on only paths, row counts, and the size and time of each file. IPC files are mapped, and uncompressed ones
    read with no copy. A worker's `fetch_threads` read row groups of Parquet files, and remote files, in parallel.

    Parameters
    ----------
    paths : path, URL or sequence of them
        Parquet files, Arrow IPC files or IPC streams (Hugging Face datasets' ``.arrow``), distinguished by their
        first bytes. Rows are numbered across all files. The columns to read must have the same types in all files,
        in any order. The files must not change: a reader that finds another size or modification time raises
        ValueError. On another machine, a copy may have another time, but the size must match.
    columns : sequence of str, optional
        The columns to read, in this order: at least one, each named once. Default: all, in the order of the first
        file.
    decode : callable, optional
        Called with each row, a dict of Python values; it returns the sample. Times in nanoseconds are values of numpy,
        without a time zone: ``numpy.datetime64`` (in UTC), and ``numpy.timedelta64`` for durations and times of day.
    decode_batch : callable, optional
        Called with the rows of a batch as one ``pyarrow.RecordBatch``; it returns as many samples.
    returns : {'rows', 'record_batch'}
        'record_batch': rows do not become Python values. With ``collate_fn=slipring.arrow.collate`` a batch is a
        ``pyarrow.RecordBatch`` in its slot.
    cached_groups : int
        Row groups (compressed record batches) that each worker keeps decoded. Mapped record batches cost nothing and
        are always kept.
    storage : slipring.Storage, optional
        How URLs are read.
    fill_null, null_mask
        As in `slipring.stream`, for rows and record batches. Each row, and each argument of `decode` and
        `decode_batch`, has values in place of nulls, and the masks after the columns.

    Raises
    ------
    ValueError
        There is no file, or a file is of neither kind, lacks a column or has it with another type. `columns` is
        empty, or has a name twice. A column's type does not have its value of `fill_null`.
    TypeError
        `paths` is a table in memory, which would be pickled to each worker.
    OSError
        A file cannot be opened; for a URL, a `slipring.errors.RemoteError`.

    Examples
    --------
    >>> import slipring
    >>> from slipring.arrow import TableDataset
    >>> data = TableDataset("train.parquet", columns=["label"])
    >>> data[3]
    {'label': 1}
    >>> with slipring.Loader(data, batch_size=4) as loader:
    ...     print(next(iter(loader))["label"])
    [0 0 1 1]
    """

    paths: list[str]
    columns: list[str] | None
    decode: Callable[[dict[str, Any]], Any] | None
    decode_batch: Callable[[pa.RecordBatch], Iterable[Any]] | None
    returns: Literal["rows", "record_batch"]
    cached_groups: int
    fill_null: dict[str, Any]
    null_mask: list[str]
    schema: pa.Schema

    def __init__(
        self,
        paths: str | bytes | os.PathLike[str] | Iterable[str | bytes | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        decode: Callable[[dict[str, Any]], Any] | None = None,
        decode_batch: Callable[[pa.RecordBatch], Iterable[Any]] | None = None,
        returns: Literal["rows", "record_batch"] = "rows",
        cached_groups: int = 4,
        storage: Storage | None = None,
        fill_null: Mapping[str, Any] | None = None,
        null_mask: Sequence[str] | None = None,
    ) -> None:
        if isinstance(paths, (pa.Table, pa.RecordBatch)):
            raise TypeError(
                f"TableDataset reads files, not a {type(paths).__name__} in memory, which each worker would "
                "get a copy of: write it with pyarrow.ipc.new_file first"
            )
        self.paths, self._remote = locate("paths", paths, storage)
        self.columns = names("columns", columns)
        self.decode, self.decode_batch, self.returns = decode, decode_batch, returns
        self.cached_groups = integer("cached_groups", cached_groups, 1)
        self.fill_null, self.null_mask = null_options(self.columns, fill_null, null_mask)
        self._check()
        self._forget()
        self._survey()
        self._stored = self.schema  # the rows' schema as stored in the files
        self._check_nulls()
        self._check_spans()

    def _forget(self):
        """Forget everything opened, as in a dataset that was just sent to this process."""
        self._footers = {}  # number of a file -> its stamp and footer; all threads and forked workers share them
        self._asked = {}  # number of a remote file -> the process that has checked it for changes
        self._open_here = OpenedTables(self.cached_groups)

    def _check(self):
        if not self.paths:
            raise ValueError("TableDataset needs at least one file; paths is empty")
        one_of("returns", self.returns, RETURNS)
        for name in ("decode", "decode_batch"):
            function(name, getattr(self, name))
        if self.decode is not None and self.decode_batch is not None:
            raise ValueError("decode and decode_batch exclude each other: both make the samples")
        if self.returns == "record_batch" and (self.decode or self.decode_batch):
            raise ValueError("returns='record_batch' makes no samples: drop decode and decode_batch")

    def _survey(self):
        """Count rows and compare schemas; leave no file open."""
        groups, counts, self._stamps, self._waits, self.schema = [], [], [], [], None
        for number, (path, (file, rows)) in enumerate(zip(self.paths, self._counted())):
            self._stamps.append(file.stamp)
            self._waits.append(file.may_wait)
            if self._remote is not None and file.metadata is not None:
                self._footers[number] = file.stamp, file.metadata
            if self.schema is None:
                self.schema = file.schema
            for column, field in enumerate(self.schema):
                at = file.schema.get_field_index(field.name)
                if at < 0 or file.schema.field(at).type != field.type:
                    found = "lacks it" if at < 0 else f"has {file.schema.field(at).type}"
                    here, there = redacted(self.paths[0]), redacted(path)
                    raise ValueError(f"column {field.name!r} is {field.type} in {here}, but {there} {found}")
                if file.schema.field(at).nullable and not field.nullable:
                    self.schema = self.schema.set(column, field.with_nullable(True))
            if len(file.schema) != len(self.schema):
                raise ValueError(
                    f"{redacted(path)} has {len(file.schema)} columns, {redacted(self.paths[0])} has "
                    f"{len(self.schema)}: name those that are to be read in columns="
                )
            groups += [(number, group) for group in range(len(rows))]
            counts += rows
        self._groups = np.array(groups, np.int64).reshape(-1, 2)
        self._ends = np.cumsum(np.array(counts, np.int64))

    def _check_nulls(self):
        """Find the values that fill nulls, add the masks to the schema, and refuse types that Arrow cannot fill."""
        self._fills = {}  # column -> the value; None if nulls stay and only the mask is wanted
        path, stored = redacted(self.paths[0]), self._stored
        for name in dict.fromkeys([*self.fill_null, *self.null_mask]):
            if name not in stored.names:
                option = "fill_null" if name in self.fill_null else "null_mask"
                raise ValueError(f"{option} has column {name!r}, but {path} has {', '.join(map(repr, stored.names))}")
            kind = stored.field(name).type
            self._fills[name] = value_for(name, kind, self.fill_null)
            _, mask = fill(name, pa.nulls(1, kind), self._fills[name])
            if name not in self.null_mask:
                continue
            if mask_name(name) in stored.names:
                raise ValueError(
                    f"null_mask has column {name!r}, whose mask is {mask_name(name)!r}, but {path} has a column of "
                    "that name: leave it out with columns="
                )
            self.schema = self.schema.append(pa.field(mask_name(name), mask.type))

    def _check_spans(self):
        """Leave out `spans` if samples are not the rows themselves, or a column does not have lists of numbers."""
        made = self.decode or self.decode_batch or self.returns != "rows" or self._fills
        if made or not all(has_spans(field.type) for field in self.schema):
            self.spans = None

    def _counted(self):
        """Yield (file, the rows of its groups) of all files; remote files are counted in parallel."""

        def count(path):
            file = open_table(path, self.columns, self._remote)
            return file, file.counts()

        if self._remote is None:
            yield from map(count, self.paths)
        elif self.paths:
            with ThreadPoolExecutor(min(OPENED_AT_ONCE, len(self.paths))) as pool:
                yield from pool.map(count, self.paths)

    @property
    def _file_stamps(self):
        """The size of each file and its time, or the server's tag: they change when the file does."""
        return [stamp[:2] for stamp in self._stamps]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _check_same(self, number, file):
        """Raise ValueError if a file has changed since the dataset was made, or differs in size on this machine."""
        now, then = file.stamp, self._stamps[number]
        if not now.is_as(then):
            raise ValueError(
                f"{redacted(file.path)} has {now.size} bytes, changed {_time(now.changed)}; it had {then.size}, "
                f"changed {_time(then.changed)}, when the dataset was made: make a new TableDataset of it"
            )

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __repr__(self) -> str:
        return f"TableDataset({len(self)} rows, {len(self._ends)} row groups, {len(self.paths)} files)"

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> Any:
        """Return the samples at `indices`: a list, or a `Rows` for ``returns='record_batch'``.

        Raises
        ------
        IndexError
            An index is outside ``-len(self) .. len(self) - 1``.
        ValueError
            `decode_batch` returned another number of samples; a file has changed since the dataset was made.
        """
        if self.returns == "record_batch":
            return Rows(self.take(indices))
        if self.decode_batch is not None:
            samples = list(self.decode_batch(self.take(indices)))
            if len(samples) != len(indices):
                raise ValueError(f"decode_batch returned {len(samples)} samples for {len(indices)} rows")
            return samples
        samples = [None] * len(indices)
        for positions, table in self._pieces(indices):
            rows = python_rows(table)
            for position, row in zip(positions.tolist(), rows):
                samples[position] = row if self.decode is None else self.decode(row)
        return samples

    def take(self, indices: Sequence[SupportsIndex]) -> pa.RecordBatch:
        """Return rows as one ``pyarrow.RecordBatch``, in the order of `indices`; errors are those of `__getitems__`."""
        pieces = list(self._pieces(indices))
        if not pieces:
            return empty(self.schema)
        if len(pieces) == 1 and _is_run(pieces[0][0]):
            return one_batch(pieces[0][1])
        positions = np.concatenate([position for position, _ in pieces])
        order = np.empty(len(positions), np.int64)
        order[positions] = np.arange(len(positions))
        together = pa.concat_tables([table for _, table in pieces]).combine_chunks()
        return one_batch(together if _is_run(order) else take(together, order))

    def spans(self, indices: Sequence[SupportsIndex]) -> dict[str, tuple[list[NDArray[Any]], Any, Any]]:
        """Return where the lists of rows lie in memory: see `slipring.tokens.Flat`, which calls it.

        It is None if a column has no lists of numbers, or if an option changes the rows; then the collators read the
        rows as samples.

        Returns
        -------
        dict of str to tuple
            For each column: the arrays that have its values, and int64 arrays of the first value of each row's list,
            and of the value after its last one, numbered over all of these arrays.

        Raises
        ------
        ValueError
            A list is null or has nulls, or a file has changed since the dataset was made.
        IndexError
            As `__getitems__`.
        """
        found = {name: Spans(name, len(indices)) for name in self.schema.names}
        for positions, table, at in self._parts(indices):
            for name, spans in found.items():
                spans.add(positions, table.column(name), at)
        return {name: (spans.flat, spans.starts, spans.stops) for name, spans in found.items()}

    def _pieces(self, indices):
        """Yield (positions in the batch, table of their rows) for each row group that has some."""
        for positions, table, at in self._parts(indices):
            found = table.slice(int(at[0]), len(at)) if _is_run(at - at[0]) else take(table, at)
            yield positions, self._filled(found) if self._fills else found

    def _parts(self, indices):
        """Yield (positions in the batch, a row group's table, the numbers of their rows in it)."""
        rows = self._rows(indices)
        which = np.searchsorted(self._ends, rows, side="right")
        for group, table in self._tables(np.unique(which).tolist()):
            positions = np.flatnonzero(which == group)
            yield positions, table, rows[positions] - (self._ends[group - 1] if group else 0)

    def _filled(self, table):
        """Return rows with values in place of nulls, and with the masks."""
        columns = dict(zip(table.schema.names, table.columns))
        for name, value in self._fills.items():
            filled, masks = zip(*(fill(name, chunk, value) for chunk in columns[name].chunks))
            columns[name] = pa.chunked_array(filled)
            if name in self.null_mask:
                columns[mask_name(name)] = pa.chunked_array(masks)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _rows(self, indices):
        n = len(self)
        rows = [operator.index(i) for i in indices]
        for i in rows:
            if not -n <= i < n:
                raise IndexError(f"index {i} of a TableDataset of {n} rows")
        return np.array([i + n if i < 0 else i for i in rows], np.int64)

    def _path_of(self, index):
        """Return the path or URL of the file that has a row."""
        group = np.searchsorted(self._ends, self._rows([index])[0], side="right")
        return self.paths[self._groups[group, 0]]

    def _tables(self, groups):
        """Yield (group, its table); a worker reads as many at a time as it has threads."""
        missing = [group for group in groups if self._is_to_be_read(group)] if threads() > 1 else []
        ahead, missing = read_in_order(self._read_ahead, missing), set(missing)
        for group in groups:
            yield group, self._group(group, next(ahead) if group in missing else None)

    def _is_to_be_read(self, group):
        return self._waits[self._groups[group, 0]] and self._opened().table(group) is None

    def _group(self, group, read=None):
        """Return a row group's table: a kept one, `read` if another thread has read it, or else read it now."""
        opened = self._opened()
        table = opened.table(group)
        if table is None:
            if isinstance(read, RemoteError):
                raise read
            table, mapped = read or self._read(group)
            opened.keep(group, table, mapped)
        return table

    def _opened(self):
        """Return the open files and kept row groups of this process."""
        opened = self._open_here
        if not opened.owner.is_here:
            self._open_here = opened = OpenedTables(self.cached_groups)
        return opened

    def _read_ahead(self, group):
        """Return the result of `_read`, or its error, which is raised when the group has its turn."""
        try:
            return self._read(group)
        except RemoteError as error:
            return error

    def _read(self, group):
        """Return (a row group's table, whether it lies in a mapped file)."""
        number, inside = self._groups[group].tolist()
        opened = self._opened()
        file = opened.borrow(number)
        if file is None:
            file = self._open(number)
        table, mapped = file.read(inside)
        opened.put_back(number, file)
        # All rows get the schema of the first file, so that tables can be joined.
        return pa.Table.from_arrays([table[name] for name in self._stored.names], schema=self._stored), mapped

    def _open(self, number):
        """Open a file and check that it has not changed. The threads of a process share the footers."""
        known = self._footers.get(number)
        if self._remote is not None and self._asked.get(number) != process.pid():
            stamp = remote_stamp(self.paths[number], self._remote)
            known = stamp, known[1] if known is not None and known[0].is_as(stamp) else None
        file = open_table(self.paths[number], self.columns, self._remote, known)
        self._check_same(number, file)
        if file.metadata is not None:
            self._footers[number] = file.stamp, file.metadata
        self._asked[number] = process.pid()
        return file


def _time(changed):
    """Return a modification time as text, or the server's tag."""
    if isinstance(changed, str):
        return changed or "at a time that the server does not tell"
    nanoseconds = changed
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9).isoformat(" ")


def _is_run(numbers):
    """Return whether an array is 0, 1, 2 ..."""
    return bool((numbers == np.arange(len(numbers))).all())
