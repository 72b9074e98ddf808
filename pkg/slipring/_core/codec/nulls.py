"""Options for the nulls of columns: the values that replace them, and masks, which are columns of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import names
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


def mask_name(column: str) -> str:
    """Return the name of the column that marks the null values of another column."""
    return f"{column}_mask"


def null_options(
    columns: Sequence[str] | None, fill_null: Mapping[str, Any] | None, null_mask: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the values for nulls, and the columns that get a mask. If `columns` is given, it must have them all."""
    if fill_null is not None and not isinstance(fill_null, Mapping):
        raise TypeError(f"fill_null must be a dict of column to value, or None, not {shown(fill_null)}")
    fill = dict(fill_null or {})
    for name, value in fill.items():
        if not isinstance(name, str):
            raise TypeError(f"fill_null must have names of columns, and {shown(name)} is not a name")
        if value is None:
            raise ValueError(f"fill_null has None for column {name!r}: give a value that is not null")
    masked = names("null_mask", null_mask, none="no masks") or []
    for option, named in (("fill_null", fill), ("null_mask", masked)):
        missing = next((name for name in named if columns is not None and name not in columns), None)
        if missing is not None:
            raise ValueError(f"{option} has column {missing!r}, which columns={shown(columns)} leaves out")
    for name in masked:
        if mask_name(name) in (columns or ()):
            raise ValueError(
                f"null_mask has column {name!r}, whose mask is {mask_name(name)!r}, but columns={shown(columns)} has "
                "a column of that name: leave it out"
            )
    return fill, masked
