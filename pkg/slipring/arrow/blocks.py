"""Arrow data as columns of a stream: as arrays if rows have a fixed size, else as Arrow data.

Imported only when a stream has a block of Arrow data, or of text.
"""

import numpy as np
import pyarrow as pa

from slipring.arrow.nulls import Unfit, fill, is_number, value_for
from slipring.arrow.rows import one_batch, take
from slipring.errors import shown


def batches_of(block):
    """Return the record batches of Arrow data, or of a block with Arrow's C interface; None for another block."""
    if isinstance(block, pa.RecordBatch):
        return [block]
    if not isinstance(block, pa.Table):
        if hasattr(block, "__arrow_c_stream__"):
            block = pa.RecordBatchReader.from_stream(block).read_all()
        elif hasattr(block, "__arrow_c_array__"):
            return [pa.record_batch(block)]
        else:
            return None
    return block.to_batches()


def reader(source):
    """Return a reader of the batches of an object that has Arrow's stream interface."""
    return pa.RecordBatchReader.from_stream(source)


def as_column(values):
    """Return one Arrow array of Arrow data, or of text and other values for which numpy has no type.

    Raise Unfit if Arrow has no type for them either.
    """
    if isinstance(values, pa.Array):
        return values
    try:
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values).combine_chunks()
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise Unfit(error) from error


def filled(column, name, fill_null):
    """Return (the column with its nulls replaced, an array that is true at each null).

    Masked values of a masked array are its nulls. Raise Unfit if the column's type does not have the value, or Arrow
    cannot fill the column.
    """
    if not isinstance(column, np.ndarray):
        column, mask = fill(name, column, value_for(name, column.type, fill_null))
        return column, as_numpy(mask)
    values, null = np.ma.getdata(column), np.ma.getmaskarray(column)
    value = _value_like(values.dtype, name, fill_null)
    return np.where(null, value, values) if null.any() else values, null


def _value_like(dtype, name, fill_null):
    """Return `value_for` a numpy array, as an array of its dtype."""
    plain = dtype.newbyteorder("=")
    if dtype.kind in "mM":  # Arrow has no multiples of a unit
        plain = np.dtype(f"{dtype.kind}8[{np.datetime_data(dtype)[0]}]")
    try:
        value = value_for(name, pa.from_numpy_dtype(plain), fill_null)
        found = pa.array([value]).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError as error:
        raise Unfit(f"column {name!r} is {dtype}, which Arrow cannot fill: {error}") from None
    made = found.astype(dtype)
    if dtype.kind in "mM" and (made.astype(found.dtype) != found).any():
        raise Unfit(f"fill_null has {shown(fill_null[name])} for column {name!r}, whose values are {dtype}")
    return made


def as_numpy(column):
    """Return an Arrow array as a numpy array with the same rows; None if rows have no fixed size.

    Only bools and dates are copied. Raise Unfit if there are nulls at any depth.
    """
    shape, kind, order = [len(column)], column.type, None
    if isinstance(kind, pa.FixedShapeTensorType):
        if not is_number(kind.value_type):
            return None
        shape += kind.shape
        order, column = kind.permutation, _no_nulls(column).storage
        column = _no_nulls(column).flatten()
    else:
        inner = kind
        while pa.types.is_fixed_size_list(inner):
            inner = inner.value_type
        if not is_number(inner):
            return None
        while pa.types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
            column = _no_nulls(column).flatten()
    values = _no_nulls(column).to_numpy(zero_copy_only=False).reshape(shape)
    return values if order is None else values.transpose(0, *(axis + 1 for axis in order))


def first_of(column):
    """Return the first row of an Arrow array: numbers of a list as a numpy array, anything else as Python's value.

    Raise Unfit if some of the numbers are null.
    """
    row = column[0]
    if row.is_valid and isinstance(row, pa.ListScalar):
        values = as_numpy(row.values)
        if values is not None:
            return values
    return row.as_py()


def _no_nulls(column):
    if column.null_count:
        raise Unfit(f"{column.null_count} of {len(column)} values are null")
    return column


# ---- rows without a fixed size: record batches


def rest_of(columns):
    """Return a record batch of {name: Arrow array}."""
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def own(batch):
    """Return a copy of the rows, dictionaries included, that refers to no other memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return next(iter(pa.ipc.open_stream(sink.getvalue())))


def joined(batches):
    """Return the rows of several batches as one."""
    if len(batches) == 1:
        return batches[0]
    return one_batch(_unified(pa.Table.from_batches(batches)))


def _unified(table):
    """Return a table with one dictionary per column of dictionaries, with wider indices if there are too many."""
    try:
        return table.unify_dictionaries()
    except pa.ArrowInvalid:
        return _wide(table).unify_dictionaries()


def _wide(table):
    for at, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            kind = pa.dictionary(pa.int32(), field.type.value_type, field.type.ordered)
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary, ordered=kind.ordered)
                for chunk in table.column(at).chunks
            ]
            table = table.set_column(at, field.with_type(kind), pa.chunked_array(chunks, kind))
    return table


class Pool:
    """A copy of some rows, each at its position in a buffer of `size` positions."""

    def __init__(self, size):
        self._size = size
        # (the rows, the row in each position): one attribute, so that a signal handler never sees only one of them new.
        self._kept = None, np.empty(size, np.int64)

    def put(self, positions, batch, taken):
        """Store the rows in these positions; `taken` are the positions of all other rows."""
        table, numbers = pa.Table.from_batches([own(batch)]), self._kept[1].copy()
        before = self._kept[0]
        if before is not None:
            if before.num_rows > 2 * self._size:  # most of the rows have been drawn
                before = pa.Table.from_batches([self.take(taken)])
                numbers[taken] = np.arange(len(taken))
            if before.schema != table.schema:  # one schema has wider dictionaries
                before, table = _wide(before), _wide(table)
            table = pa.concat_tables([before, table])
        numbers[positions] = np.arange(table.num_rows - len(positions), table.num_rows)
        self._kept = table, numbers

    def take(self, positions):
        """Return the rows of these positions, as one batch."""
        table, numbers = self._kept
        return one_batch(take(_unified(table), numbers[positions]))
