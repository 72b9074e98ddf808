"""A list of strings in two blocks of memory."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, overload

if TYPE_CHECKING:
    import pyarrow as pa


class StringList(Sequence[str]):
    """Strings (file names, captions, labels) that forked workers can read without copying them.

    A Python list has an object for each string, and reading an object writes its reference count: page by page, each
    forked worker copies all of them. Here the strings lie in an Arrow array, whose memory is never written.

    Parameters
    ----------
    strings : iterable of str, or pyarrow array of strings
        An Arrow array, a column of a table for example, is taken as it is, without a copy if it is of
        ``large_string``.

    Raises
    ------
    TypeError
        An element is not a string.
    ImportError
        pyarrow is not installed.

    Notes
    -----
    Each access makes a new str; a slice with a step of 1 copies nothing. A StringList cannot be changed, and equals any
    list or StringList of the same strings.

    Examples
    --------
    >>> import slipring
    >>> names = slipring.StringList(f"{i}.jpg" for i in range(1000))
    >>> len(names), names[-1]
    (1000, '999.jpg')
    """

    __slots__ = ("_array", "_ends", "_text")

    def __init__(self, strings: Iterable[str] | pa.StringArray | pa.LargeStringArray | pa.ChunkedArray) -> None:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError("StringList needs pyarrow: pip install pyarrow") from error
        kind = pa.large_string()
        if isinstance(strings, StringList):
            strings = strings._array
        elif not isinstance(strings, (pa.Array, pa.ChunkedArray)):
            if not isinstance(strings, Iterable) or getattr(strings, "ndim", 1) == 0:
                raise TypeError(
                    f"strings must be an iterable of str or an Arrow array, not of type {type(strings).__name__}"
                )
            strings = _array(_checked(list(strings)))
        if isinstance(strings, pa.ChunkedArray):
            strings = strings.combine_chunks()
        if strings.type != kind:
            if strings.type not in (pa.string(), getattr(pa, "string_view", pa.string)()):
                raise TypeError(f"StringList takes Arrow arrays of strings, not of {strings.type}")
            strings = strings.cast(kind)
        if strings.null_count:
            nulls = f"{strings.null_count} of {len(strings)}"
            raise TypeError(f"StringList cannot hold None, but {nulls} elements are null")
        self._over(strings)

    def _over(self, array):
        _, ends, text = array.buffers()
        self._array = array
        # Reading Arrow's scalars takes several times as long.
        self._ends = memoryview(ends if ends is not None else bytes(8)).cast("B").cast("q")[array.offset :]
        self._text = memoryview(text if text is not None else b"")

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | StringList:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            made = object.__new__(StringList)
            if step == 1:
                made._over(self._array.slice(start, max(0, stop - start)))
            else:
                made._over(self._array.take(list(range(start, stop, step))))
            return made
        position = operator.index(index)
        if position < 0:
            position += len(self._array)
        if not 0 <= position < len(self._array):
            raise IndexError(f"index {index} of a StringList of {len(self._array)}")
        return str(self._text[self._ends[position] : self._ends[position + 1]], "utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringList):
            return self._array.equals(other._array)
        return len(self) == len(other) and list(self) == other if isinstance(other, list) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        # Only its own strings: the array may be a slice of a large one.
        import pyarrow as pa

        return StringList, (pa.concat_arrays([self._array]) if self._array.offset else self._array,)

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[i]) for i in range(min(3, len(self))))
        return f"StringList([{shown}{', ...' if len(self) > 3 else ''}]: {len(self)} strings)"

    @property
    def nbytes(self) -> int:
        """int: bytes of memory that the strings take."""
        return self._array.nbytes


def _array(strings):
    """Return an Arrow array of strings. Names that are not UTF-8 have surrogates, which Arrow takes only as bytes."""
    import pyarrow as pa

    try:
        return pa.array(strings, pa.large_string())
    except UnicodeEncodeError:
        encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
        return pa.array(encoded, pa.large_binary()).view(pa.large_string())


def _checked(strings):
    for number, value in enumerate(strings):
        if not isinstance(value, str):
            raise TypeError(
                f"strings must be str: element {number} of a StringList is no string, but of type "
                f"{type(value).__name__}"
            )
    return strings
