"""The blocks of a stream's source: record batches, tables or dicts of arrays, checked and seen as columns."""

from collections.abc import Mapping

import numpy as np

from slipring._core.codec.nulls import mask_name
from slipring._core.passes._rebatch import Block
from slipring.errors import BlockError, shown

_OBJECTS = "OUST"  # kinds of dtypes without numbers: text, bytes, Python objects


class Written:
    """A column whose rows are made directly in the batch: a value of a block's dict, in place of an array.

    `shape` is the shape of one row.
    """

    def __init__(self, rows, shape, dtype):
        self.shape, self.dtype = (rows, *shape), np.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(f"rows of {self.dtype} have Python objects, which cannot be in shared memory")

    def __len__(self):
        return self.shape[0]

    def write(self, out, first):
        """Make the rows from `first` on, as many as the array `out` has.

        Return (number of rows made, error). If that is fewer than requested, the next row is skipped: because of
        `error`, an exception, or silently if it is None.
        """
        raise NotImplementedError


class BlockReader:
    """The view of a stream's blocks as columns; each block must match the first.

    Only `columns` are read, in this order; None: all columns of the first block. `fill_null` is {column: the value that
    replaces its nulls}. `null_mask` names the columns that get a mask, which is true at each null. Their nulls become 0
    unless `fill_null` has a value for them.
    """

    within = "the stream"  # where the next block is, for errors

    def __init__(self, stream):
        self._columns = stream.columns
        self._batch_size = stream.batch_size
        self._fill_null, self._null_mask = stream.fill_null, stream.null_mask
        self._skip_none = stream.skip_none
        self._nullable = tuple(dict.fromkeys([*stream.fill_null, *stream.null_mask]))
        self._read_names = None  # the columns to read of every block: `columns`, or all that it has
        self._kinds = None  # name -> every block's (dtype, shape of a row), or Arrow type
        self._names = ()  # columns that are arrays
        self._schema = None  # the schema of a record batch that had all of them

    def read(self, given, number, batch):
        """Return the `Block` of an item of the source, None if it has no rows, or a list of blocks to read instead.

        Raise BlockError if it is not a block, or does not match the blocks before. The error names the block's
        `number`, and the `batch` that needs it.
        """
        if given is None and self._skip_none:
            return None
        try:
            return self._read(given)
        except BlockError as error:
            text = f"block {number} of {self.within}, for batch {batch} of batch_size={self._batch_size}: {error}. The "
            text += "block is skipped: the next request continues after it"
            raise BlockError(text, column=error.column, block=number, batch=batch) from error.__cause__

    def _read(self, given):
        if isinstance(given, Mapping):
            return self._of_columns({name: _column(given[name], name) for name in self._wanted(given)})
        arrow = _arrow(given)
        batches = None if arrow is None else arrow.batches_of(given)
        if batches is None:
            raise BlockError(
                "expected a pyarrow.RecordBatch, a pyarrow.Table or a dict of arrays, but came "
                f"{shown(given)} ({type(given).__name__})"
            )
        if len(batches) != 1 or batches[0] is not given:
            return batches
        return self._of_batch(given) if given.num_rows else None

    def _wanted(self, found):
        """Return the names of the columns to read from a block."""
        wanted = self._read_names if self._columns is None else self._columns
        if wanted is None:  # the first block
            return list(found)
        for name in wanted:
            if name not in found:
                raise _error(name, f"column {name!r} is missing: the block has {', '.join(map(repr, found))}")
        for name in found if self._columns is None else ():
            if name not in wanted:
                raise _error(
                    name, f"column {name!r} is one that the first block does not have: name those that are wanted "
                    "in columns="
                )  # fmt: skip
        return wanted

    def _of_batch(self, batch):
        names = batch.schema.names
        if self._schema is None or not batch.schema.equals(self._schema):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise _error(twice, f"column {twice!r} is there {names.count(twice)} times")
            names = self._wanted(names)
        else:
            names = self._read_names
        made = self._of_columns({name: batch.column(name) for name in names})
        self._schema = batch.schema
        return made

    def _of_columns(self, columns):
        """Return the Block of {name: array, masked array or Arrow array}, or None if it has no rows."""
        if not columns:
            raise BlockError("the block has no column")
        rows, first = -1, None
        for name, column in columns.items():
            if rows < 0:
                rows, first = len(column), name
            elif len(column) != rows:
                raise _error(
                    name, f"column {name!r} has {len(column)} rows, but {first!r} of the same block has {rows}"
                )
        if rows == 0:
            return None
        read_names = list(columns)
        masks = self._fill(columns) if self._nullable else {}
        columns = {**{name: _seen(column, name) for name, column in columns.items()}, **masks}
        kinds = {name: _kind(column) for name, column in columns.items()}
        if self._kinds is None:
            self._read_names, self._kinds = read_names, kinds
            self._names = tuple(name for name, kind in kinds.items() if isinstance(kind, tuple))
        elif kinds != self._kinds:
            name = next(name for name in kinds if kinds[name] != self._kinds[name])
            raise _error(
                name, f"column {name!r} is {_said(kinds[name])}, but {_said(self._kinds[name])} in the first block"
            )
        rest = {name: column for name, column in columns.items() if not isinstance(kinds[name], tuple)}
        arrays = [columns[name] for name in self._names]
        return Block(
            arrays,
            _arrow_blocks().rest_of(rest) if rest else None,
            rows,
            any(isinstance(array, Written) for array in arrays),
        )

    def _fill(self, columns):
        """Replace the nulls of the columns in `fill_null` and `null_mask`; return the masks, {name: array}."""
        arrow, masks = _arrow_blocks(), {}
        for name in self._nullable:
            if name not in columns:
                option = "fill_null" if name in self._fill_null else "null_mask"
                raise _error(
                    name, f"column {name!r} of {option} is missing: the block has {', '.join(map(repr, columns))}"
                )
            if isinstance(columns[name], Written):
                raise _error(name, f"column {name!r} is made where it will be read: it has no nulls to fill")
            try:
                columns[name], mask = arrow.filled(columns[name], name, self._fill_null)
            except arrow.Unfit as error:
                raise _error(name, str(error)) from None
            if name in self._null_mask:
                masks[mask_name(name)] = mask
        taken = next((name for name in masks if name in columns), None)
        if taken is not None:
            raise _error(
                taken, f"column {taken!r} has the name of a mask that null_mask asks for: leave it out with columns="
            )
        return masks

    # ---- for the rebatcher

    def own(self, rest):
        """Return a copy of a record batch's rows that refers to no other memory."""
        return _arrow_blocks().own(rest)

    def joined(self, rests):
        """Return the rows of several record batches as one."""
        return _arrow_blocks().joined(rests)

    def pool(self, size):
        """Return a store for rows of record batches, each at its position in a buffer."""
        return _arrow_blocks().Pool(size)

    def named(self, arrays, rest):
        """Return the batch: a dict, in the columns' order."""
        if rest is None:
            return dict(zip(self._names, arrays))
        found = dict(zip(self._names, arrays))
        return {name: found[name] if name in found else rest.column(name) for name in self._kinds}


def _column(values, name):
    """Return a dict's value as an array, masked array or Arrow array; a `Written` is returned unchanged."""
    if isinstance(values, Written):
        return values
    if isinstance(values, Mapping):
        raise _error(
            name, f"column {name!r} is a dict ({shown(list(values))}): give each of its parts as a column of its own"
        )
    arrow = _arrow(values)
    if arrow is None:
        try:
            array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
        except (ValueError, TypeError, RuntimeError) as error:
            raise _error(name, f"column {name!r} cannot be made an array: {error}") from error
        if array.ndim == 0 and array.dtype.kind != "O":
            raise _error(name, f"column {name!r} is {shown(values)}, but an array with a row for each is expected")
        if array.dtype.kind not in _OBJECTS:
            if array.dtype.hasobject:
                raise _error(
                    name, f"column {name!r} has Python objects in the fields of its rows: give each field as a column"
                )
            native = array.dtype.newbyteorder("=")
            return array if native == array.dtype else array.astype(native)
        arrow = _arrow_blocks()
    try:
        return arrow.as_column(values)
    except arrow.Unfit as error:
        raise _error(name, f"column {name!r} is neither numbers nor what Arrow has a type for: {error}") from error


def _seen(column, name):
    """Return a masked array, or Arrow array of rows of fixed size, as a plain array. Nulls are an error."""
    if isinstance(column, np.ma.MaskedArray):
        if np.ma.is_masked(column):
            raise _error(
                name,
                f"column {name!r} has {np.ma.count_masked(column)} masked values: name it in fill_null= or null_mask=, "
                "or fill them before (filled())",
            )
        return np.asarray(column)
    if isinstance(column, (np.ndarray, Written)):
        return column
    arrow = _arrow_blocks()
    try:
        array = arrow.as_numpy(column)
    except arrow.Unfit as error:
        raise _error(
            name, f"column {name!r} has numbers or tensors in each row, but {error}: name it in fill_null= or "
            "null_mask=, or filter them before"
        ) from None  # fmt: skip
    return column if array is None else array


def first_of(column, name):
    """Return the first row of a batch's column as a value of its own: an array, a number, text."""
    if isinstance(column, np.ndarray):
        return column[0]
    arrow = _arrow_blocks()
    try:
        return arrow.first_of(column)
    except arrow.Unfit as error:
        raise _error(name, f"column {name!r} has lists of numbers, but {error}") from None


def _kind(column):
    if isinstance(column, (np.ndarray, Written)):
        return column.dtype, column.shape[1:]
    return column.type


def _said(kind):
    if isinstance(kind, tuple):
        return f"{kind[0]} of shape {kind[1]} per row"
    return str(kind)


def _error(column, text):
    return BlockError(text, column=column)


def _arrow(value):
    """Return `slipring.arrow.blocks` if the value offers Arrow data, else None: then pyarrow is not needed."""
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        return _arrow_blocks()
    return None


_found = None


def _arrow_blocks():
    global _found
    if _found is None:  # an import statement would take a lock each time
        import slipring.arrow.blocks as found

        _found = found
    return _found
