"""Lists in Arrow columns as parts of flat arrays, for the collators of slipring.tokens."""

import numpy as np
import pyarrow as pa


def has_spans(kind):
    """Return whether a column of this type has lists of numbers, or of lists of numbers of a fixed size."""
    if not (_is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    kind = kind.value_type
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


class Spans:
    """The spans of one column, of which the `n` rows of a batch lie in several row groups.

    `starts` and `stops` count the rows of all arrays in `flat`, one after the other.
    """

    def __init__(self, name, n):
        self.name, self.flat, self.rows = name, [], 0
        self.starts, self.stops = np.empty(n, np.int64), np.empty(n, np.int64)

    def add(self, positions, column, at):
        """Add the rows `at` of a row group's column, which have these positions in the batch."""
        ends = np.cumsum([len(chunk) for chunk in column.chunks])
        which = np.searchsorted(ends, at, side="right")
        for number in np.unique(which).tolist():
            chunk, here = column.chunk(number), which == number
            rows = at[here] - (ends[number] - len(chunk))
            if pa.types.is_fixed_size_list(chunk.type):
                size = chunk.type.list_size
                values, starts = chunk.flatten() if not chunk.null_count else chunk, rows * size
                stops = starts + size
            else:
                values, offsets = chunk.values, chunk.offsets.to_numpy()
                starts, stops = offsets[rows].astype(np.int64), offsets[rows + 1]
            self.flat.append(self._array(chunk, values))
            self.starts[positions[here]], self.stops[positions[here]] = starts + self.rows, stops + self.rows
            self.rows += len(self.flat[-1])

    def _array(self, chunk, values):
        """Return the values of a chunk's lists as an array over Arrow's memory."""
        shape, nulls = [], chunk.null_count + values.null_count
        while not nulls and pa.types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
            values = values.flatten()
            nulls = values.null_count
        if nulls:
            raise ValueError(
                f"column {self.name!r} has nulls, in lists or in place of lists, and documents cannot have them: "
                "leave them out of the files"
            )
        return values.to_numpy().reshape(-1, *shape)


def _is_list(kind):
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
