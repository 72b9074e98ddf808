"""Nulls of an Arrow column: the values that replace them, and a mask of their rows."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slipring.errors import shown


class Unfit(ValueError):
    """An error for values that cannot be a column, because numpy or Arrow has no type for them."""


def is_number(kind):
    """Return whether numpy has the type, in the same number of bytes per value."""
    of = pa.types
    return of.is_integer(kind) or of.is_floating(kind) or of.is_boolean(kind) or _is_time(kind)


def _is_time(kind):
    return pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind)


def _value_type(kind):
    """Return the type of a column's single values, which may lie within tensors and lists of a fixed size."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.value_type
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def mask_type(kind):
    """Return the type of the mask for a column of this type: a bool for each value."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.fixed_shape_tensor(pa.bool_(), kind.shape, kind.dim_names, kind.permutation)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(mask_type(kind.value_type), kind.list_size)
    return pa.bool_()


def value_for(name, kind, fill_null):
    """Return the value that replaces a column's nulls, as an Arrow scalar: from `fill_null`, or zero.

    Return None if nulls stay because the batch can hold them. Raise Unfit if the column's type, `kind`, does not have
    the value.
    """
    kind = _value_type(kind)
    if name not in fill_null:
        zero = False if pa.types.is_boolean(kind) else 0.0 if pa.types.is_floating(kind) else 0
        return pa.scalar(zero, kind) if is_number(kind) else None
    value = fill_null[name]
    try:
        found = _exactly(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        found = None
    if found is None or not found.is_valid:
        raise Unfit(
            f"fill_null has {shown(value)} ({type(value).__name__}) for column {name!r}, whose values are {kind}: give "
            "one that this type has"
        )
    return found


def _exactly(value, kind):
    """Return a value as an Arrow scalar of a type; None if Arrow would change the value."""
    of = pa.types
    if of.is_integer(kind) or of.is_floating(kind):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return None
        made = pa.scalar(value, kind)
        back = made.as_py()
        return made if (back == value if of.is_integer(kind) else math.isinf(back) == math.isinf(value)) else None
    if _is_time(kind):
        given = pa.array(np.asarray([value]))[0]  # pa.scalar does not take all of numpy's times
        made = given.cast(kind) if _is_time(given.type) else None
        return made if made is not None and made.cast(given.type) == given else None
    return pa.scalar(value, kind)


def fill(name, column, value):
    """Return (the column with `value` in place of its nulls, its mask), both as Arrow arrays.

    Nulls within tensors and lists of a fixed size count too, and the mask is true at each null. `value` comes from
    `value_for`. Raise Unfit if Arrow cannot fill columns of this type.
    """
    try:
        filled, mask = _filled(column, value, np.zeros(len(column), bool))
    except pa.ArrowNotImplementedError as error:
        raise Unfit(f"column {name!r} is {column.type}, which Arrow cannot fill: {error}") from None
    return (column if value is None else filled), mask


def _filled(column, value, null):
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        filled, mask = _filled(column.storage, value, null)
        made = pa.ExtensionArray.from_storage
        return made(kind, filled), made(mask_type(kind), mask)
    null = null | column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        if size == 0:  # Arrow divides by it
            raise pa.ArrowNotImplementedError("lists of 0 values")
        within = column.values.slice(column.offset * size, len(column) * size)
        filled, mask = _filled(within, value, np.repeat(null, size))
        made = pa.FixedSizeListArray.from_arrays
        return made(filled, type=kind), made(mask, type=mask_type(kind))
    mask = pa.array(null)
    return column if value is None or not null.any() else pc.if_else(mask, value, column), mask
