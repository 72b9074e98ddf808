"""Rows of record batches: joined, selected, and as samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

# An array of such a type keeps alive all the bytes of the array that it was taken from.
_VIEWS = ((pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary()))


class Rows:
    """Rows of a record batch as a sequence of record batches of one row, made on access.

    Parameters
    ----------
    batch : pyarrow.RecordBatch

    Attributes
    ----------
    batch : pyarrow.RecordBatch

    Examples
    --------
    >>> from slipring.arrow import TableDataset
    >>> data = TableDataset("train.parquet", columns=["label"], returns="record_batch")
    >>> rows = data.__getitems__([0, 3])
    >>> len(rows), rows[1].to_pydict()
    (2, {'label': [1]})
    """

    batch: pa.RecordBatch

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return self.batch.num_rows

    def __getitem__(self, index: int) -> pa.RecordBatch:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} rows")
        return self.batch.slice(index % len(self), 1)


def collate(rows: Rows | Iterable[pa.RecordBatch] | pa.RecordBatch) -> pa.RecordBatch:
    """Join the rows of a `TableDataset` into one ``pyarrow.RecordBatch``; usable as a ``collate_fn``.

    Parameters
    ----------
    rows : Rows, or list of pyarrow.RecordBatch
        A list comes from a batch that several workers share (``chunk_size``).

    Raises
    ------
    TypeError
        A sample is not a record batch: the dataset was not made with ``returns='record_batch'``.
    """
    if isinstance(rows, pa.RecordBatch):  # batch_size=None
        return rows
    if isinstance(rows, Rows):
        return rows.batch
    rows = list(rows)
    for row in rows:
        if not isinstance(row, pa.RecordBatch):
            raise TypeError(
                f"slipring.arrow.collate puts record batches together, not {type(row).__name__}; make the "
                "TableDataset with returns='record_batch'"
            )
    return one_batch(pa.Table.from_batches(rows))


def take(table, numbers):
    """Return the rows of a table with these numbers, for columns of any type."""
    if not len(numbers):
        return table.slice(0, 0)
    try:
        return table.take(pa.array(numbers))
    except pa.ArrowNotImplementedError:  # take() lacks views and run-end encodings
        return pa.concat_tables([table.slice(number, 1) for number in numbers.tolist()])


def python_rows(table):
    """Return the rows as dicts of Python values, as ``table.to_pylist()`` does.

    Times of day, time stamps and durations in nanoseconds become values of numpy, because ``datetime`` has only
    microseconds, and pyarrow needs pandas for them. A time stamp with a time zone is in UTC.
    """
    if not any(_has_nanoseconds(field.type) for field in table.schema):
        return table.to_pylist()
    columns = [
        [_python_value(value) for value in column] if _has_nanoseconds(column.type) else column.to_pylist()
        for column in table.columns
    ]
    names = table.schema.names
    return [dict(zip(names, row)) for row in zip(*columns)]


def python_values(column):
    """Return the values of one column, as `python_rows`."""
    return [row[""] for row in python_rows(pa.table({"": column}))]


def _has_nanoseconds(kind):
    """Return whether a type has times in nanoseconds, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nanoseconds(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _has_nanoseconds(kind.value_type)
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return getattr(kind, "unit", None) == "ns" or any(map(_has_nanoseconds, inner))


def _python_value(value):
    """Return an Arrow scalar as a Python value, with numpy's times in place of times in nanoseconds."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.MapScalar):
        return [tuple(map(_python_value, pair.values())) for pair in value.values]
    if isinstance(value, pa.ListScalar):  # the lists of all types
        return [_python_value(inner) for inner in value.values]
    if isinstance(value, pa.StructScalar):
        return {name: _python_value(inner) for name, inner in value.items()}
    if isinstance(value, (pa.DictionaryScalar, pa.RunEndEncodedScalar, pa.UnionScalar, pa.ExtensionScalar)):
        return _python_value(value.value)
    if getattr(value.type, "unit", None) != "ns":
        return value.as_py()
    return (np.datetime64 if pa.types.is_timestamp(value.type) else np.timedelta64)(value.value, "ns")


def empty(schema):
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def one_batch(table):
    """Return the rows of a table as one record batch that keeps no other rows alive."""
    for at, field in enumerate(table.schema):
        for view, plain in _VIEWS:
            if field.type == view:
                own = table.column(at).cast(plain).combine_chunks().cast(view)
                table = table.set_column(at, field, own)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(
            f"{table.num_rows} rows of {table.nbytes} bytes have a column beyond the 2 GiB that a record "
            "batch can hold: ask for fewer rows, or store large_binary"
        )
    return batches[0] if batches else empty(table.schema)
