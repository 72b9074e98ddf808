"""Collation of documents: each field is written into the slot, in an array of its final shape."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.codec._codec import empty
from slipring._core.codec.nulls import mask_name
from slipring._core.codec.samples import listed_samples
from slipring._core.options.checks import flag, integer, names
from slipring.errors import shown
from slipring.tokens._documents import are_numbers, from_samples, from_spans, longest, starts_of
from slipring.tokens._planned import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

_log = logging.getLogger("slipring")

IDS, LABELS, MASK = "input_ids", "labels", "attention_mask"
_OF_TOKENS = "q", "k", "attention"  # cu_seqlens_q, cu_seqlens_k, attention_mask
_INT32_MAX = (1 << 31) - 1
IGNORED = -100  # a label without loss, in torch, transformers and TRL


class Collation:
    """Base class: finds the fields of documents in samples or spans, and checks their lengths.

    The first of `fields`, or else "input_ids" or a sample's first field, has the tokens.
    """

    fields: list[str] | None
    length_names: dict[str, str]
    pad_values: dict[str, float]
    lengths: NDArray[Any] | None
    tensors: bool
    shorter: int

    def __init__(
        self,
        fields: Sequence[str] | None,
        length_names: Mapping[str, str] | None,
        lengths: ArrayLike | None,
        pad_values: Mapping[str, float] | None,
        tensors: bool,
    ) -> None:
        self.fields = names("fields", fields, "field", "all of them")
        self.length_names = _mapping("length_names", length_names)
        for name, of in self.length_names.items():
            if not isinstance(of, str):
                raise TypeError(f"length_names[{name!r}] must be a name, such as 'patches', not {shown(of)}")
            if of in _OF_TOKENS:
                raise ValueError(f"length_names[{name!r}] must not be {of!r}: the lengths of tokens have that name")
        self.pad_values = {LABELS: IGNORED, **_mapping("pad_values", pad_values)}
        for name, value in self.pad_values.items():
            if not isinstance(value, (Real, np.bool_)):
                raise TypeError(f"pad_values[{name!r}] must be a number, not {shown(value)}")
        self.lengths = None if lengths is None else np.asanyarray(lengths)
        if self.lengths is not None and (self.lengths.ndim != 1 or self.lengths.dtype.kind not in "iu"):
            raise TypeError(f"lengths must be a one-dimensional array of ints, not {shown(lengths)}")
        flag("tensors", tensors)
        self.tensors = tensors
        self.shorter = 0

    def __call__(self, samples: Iterable[Any], indices: Sequence[Any] | None = None) -> Any:
        """Return the batch of samples.

        Parameters
        ----------
        samples : list
            Dicts of fields, or arrays, which are the field "input_ids".
        indices : sequence, optional
            The samples' indices, for errors and the check of `lengths`. slipring's loaders give them.
        """
        samples = listed_samples(samples)
        if indices is not None and len(indices) != len(samples):  # a stream, or samples were left out
            indices = None

        def where(i):
            return f"document {i}" if indices is None else f"index {shown(indices[i])}"

        if samples and type(samples[0]) is list and samples[0] and isinstance(samples[0][0], Mapping):
            raise TypeError("a sample is a list of documents: load a stream of packs with batch_size=None")
        if samples and not isinstance(samples[0], Mapping):
            samples = [{IDS: sample} for sample in samples]
        documents = {}
        for name in self._names(samples[0] if samples else ()):
            documents[name] = from_samples(samples, name, where)
        return self._checked(documents, indices, where)

    def gather_spans(self, spans: Callable[[list[Any]], Mapping[str, Any]], indices: Sequence[Any]) -> Any:
        """Return the batch of documents in flat memory.

        Parameters
        ----------
        spans : callable
            The dataset's method. Of a `Piece` it gets the index, and the collator takes the part.
        indices : sequence
        """
        pieces = {}
        if are_numbers(indices):
            found = spans(indices)
        else:
            pieces = {i: index for i, index in enumerate(indices) if isinstance(index, Piece)}
            found = spans([index.index if i in pieces else index for i, index in enumerate(indices)])
        documents = {}
        for name in self._names(found):
            if name not in found:
                raise ValueError(
                    f"the dataset's spans have no field {name!r}; they have {', '.join(map(shown, found))}"
                )
            flat, starts, stops = found[name]
            if pieces:
                starts, stops = self._cut(pieces, name, starts, stops)
            documents[name] = from_spans(flat, starts, stops, name, len(indices))
        return self._checked(documents, indices, lambda i: f"index {shown(indices[i])}")

    def _cut(self, pieces, name, starts, stops):
        """Return the spans of a field with the parts that pieces say."""
        if self._length_name(name) is not None:
            raise ValueError(
                f"{shown(next(iter(pieces.values())))} is a number of tokens, and the rows of field {name!r} are not "
                "tokens: return the parts of this field from __getitem__, or use overflow='drop'"
            )
        starts, stops = np.array(starts, np.int64), np.array(stops, np.int64)
        for i, (_, start, stop) in pieces.items():
            stops[i] = min(stops[i], starts[i] + stop)
            starts[i] = min(stops[i], starts[i] + start)
        return starts, stops

    def with_tensors(self) -> Self:
        """Return a collator like this one that returns torch tensors."""
        made = copy.copy(self)
        made.tensors = True
        return made

    def _names(self, sample):
        """Return the fields to collate. The given mask of a document is all ones."""
        return self.fields or [name for name in sample if name != MASK]

    def _checked(self, documents, indices, where):
        """Check the lengths of all fields; return the batch."""
        if not documents or not len(next(iter(documents.values())).lengths):
            raise ValueError("there are no documents to collate: the batch or the samples are empty")
        main = IDS if IDS in documents and self.fields is None else next(iter(documents))
        if main in self.length_names:
            raise ValueError(
                f"length_names names the rows of field {main!r}, and these are the tokens: leave it out, or name the "
                "field that has the tokens first in fields="
            )
        found = documents[main].lengths
        if indices is not None:
            self._check_lengths(found, indices, main)
        first = {None: main}  # name of a length -> the first field of it
        for name, field in documents.items():
            like = first.setdefault(self._length_name(name), name)
            if like != name and (i := field.differs(documents[like])) is not None:
                raise ValueError(
                    f"{where(i)} has {documents[like].lengths[i]} rows in field {like!r} and {field.lengths[i]} in "
                    f"{name!r}. If they count something else, name it: length_names={{{name!r}: 'patches'}}"
                )
        made = self._made(documents, main)
        return as_tensors(made, {}) if self.tensors else made

    def _check_lengths(self, found, indices, main):
        """Raise ValueError if a document is longer than `lengths` or a `Piece` says; count those that are shorter."""
        if self.lengths is None and are_numbers(indices):
            return
        for index, tokens in zip(indices, found.tolist()):
            if isinstance(index, Piece):
                said, by = index.stop - index.start, "the piece"
            elif self.lengths is not None:
                said, by = self._planned(index), "lengths"
            else:
                continue
            if tokens < said:
                self._count_shorter(index, tokens, said)
            elif tokens > said:
                raise ValueError(
                    f"index {shown(index)} has {tokens} tokens in field {main!r}, and {by} says {said}: batches may "
                    "exceed their budget. Make lengths from the dataset that is loaded, and let it return what a "
                    "slipring.tokens.Piece says"
                )

    def _planned(self, index):
        try:
            return int(self.lengths[index])
        except (IndexError, TypeError):
            raise ValueError(
                f"lengths= has {len(self.lengths)} entries, and none for index {shown(index)}: it needs one for each "
                "document of the dataset, numbered as by the sampler"
            ) from None

    def _count_shorter(self, index, tokens, said):
        """Count a document that is shorter than planned; log the first one, the second, the fourth, ..."""
        self.shorter += 1
        if self.shorter & (self.shorter - 1) == 0:
            _log.warning(
                "documents shorter than planned, which leaves a part of their batches empty: %d in this process; the "
                "newest is index %s with %d tokens in place of %d", self.shorter, shown(index), tokens, said,
            )  # fmt: skip

    def _length_name(self, name):
        """Return what the rows of a field are; None for tokens."""
        return self.length_names.get(name)

    def _pad(self, name, dtype):
        """Return the padding of a field of that dtype; raise ValueError if integers cannot have the value."""
        value = self.pad_values.get(name, 0)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            if not info.min <= value <= info.max or value != int(value):
                raise ValueError(
                    f"field {name!r} is {dtype}, which does not have the padding {value}: give another one, as "
                    f"pad_values={{{name!r}: ...}}, or convert the field in the dataset"
                )
        return value

    def _own_lengths(self, documents):
        """Return {name of a length: lengths} of the fields whose rows are not tokens."""
        found = {}
        for name, field in documents.items():
            if (of := self._length_name(name)) is not None:
                found.setdefault(of, field.lengths)
        return found

    def _made(self, documents, main):
        raise NotImplementedError


class Padded(Collation):
    """Stack documents, each padded to the longest of the batch: fields of shape [documents, longest, ...].

    For ``collate_fn=``, with samples and datasets as for `Flat`. The batch is a dict of the fields, in their own dtypes
    and in this order, and of "attention_mask" (int64: 1 for tokens, 0 for padding).

    Parameters
    ----------
    fields, length_names, lengths, tensors
        As of `Flat`. Each other length has its own longest document, and a mask such as `patches_mask`.
    pad_values : dict of str to number, optional
        The padding of a field: by default 0, and -100 for "labels".
    pad_to_multiple_of : int
        Pad to a multiple of this number.

    Raises
    ------
    ValueError
        From a call: fields differ in length or shape, or a sample is longer than its entry in `lengths`.

    Examples
    --------
    >>> from slipring import tokens
    >>> batch = tokens.Padded(pad_values={"input_ids": 9})([{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist()
    ([[5, 6, 7], [8, 9, 9]], [[1, 1, 1], [1, 0, 0]])
    """

    pad_to_multiple_of: int

    def __init__(
        self,
        *,
        fields: Sequence[str] | None = None,
        length_names: Mapping[str, str] | None = None,
        lengths: ArrayLike | None = None,
        pad_values: Mapping[str, float] | None = None,
        pad_to_multiple_of: int = 1,
        tensors: bool = False,
    ) -> None:
        super().__init__(fields, length_names, lengths, pad_values, tensors)
        self.pad_to_multiple_of = integer("pad_to_multiple_of", pad_to_multiple_of, 1)

    def _made(self, documents, main):
        made = {}
        for name, field in documents.items():
            width = self._width(field.lengths)
            made[name] = empty((len(field.lengths), width, *field.shape), field.dtype)
            field.write(made[name], np.arange(len(field.lengths) + 1) * width, self._pad(name, field.dtype))
        made[MASK] = self._mask(documents[main].lengths)
        for of, lengths in self._own_lengths(documents).items():
            made[mask_name(of)] = self._mask(lengths)
        return made

    def _width(self, lengths):
        return rounded_up(int(lengths.max()), self.pad_to_multiple_of)

    def _mask(self, lengths):
        width = self._width(lengths)
        return np.less(np.arange(width), lengths[:, None], out=empty((len(lengths), width), np.int64))


class Jagged(Collation):
    """Join the documents of each field, which has its own lengths: values and offsets of nested tensors.

    For ``collate_fn=``, with samples and datasets as for `Flat`. The batch is a dict of dicts: the arguments of
    ``torch.nested.nested_tensor_from_jagged`` for each field, which makes a nested tensor of the slot's bytes.
    `values` are [rows, ...] in the field's dtype, `offsets` int64 [documents + 1], `min_seqlen` and `max_seqlen` ints.

    Parameters
    ----------
    fields, lengths, tensors
        As of `Flat`.

    Raises
    ------
    ValueError
        From a call: a field's rows differ in shape, or a sample is longer than its entry in `lengths`.

    Examples
    --------
    >>> import torch
    >>> from slipring import tokens
    >>> batch = tokens.Jagged(tensors=True)([{"notes": [1, 2], "bars": [7]}, {"notes": [3], "bars": []}])
    >>> batch["bars"]["offsets"].tolist()
    [0, 1, 1]
    >>> [part.tolist() for part in torch.nested.nested_tensor_from_jagged(**batch["notes"]).unbind()]
    [[1, 2], [3]]
    """

    def __init__(
        self, *, fields: Sequence[str] | None = None, lengths: ArrayLike | None = None, tensors: bool = False
    ) -> None:
        super().__init__(fields, None, lengths, None, tensors)

    def _length_name(self, name):
        return name

    def _made(self, documents, main):
        offsets = {}  # one array for all fields of the same lengths
        made = {}
        for name, field in documents.items():
            if (key := field.lengths.tobytes()) not in offsets:
                offsets[key] = jagged_offsets(in_slot(starts_of(field.lengths), np.int64))
            made[name] = {"values": joined(field, offsets[key]["offsets"]), **offsets[key]}
        return made


# ---- parts of batches


def joined(field, at, dtype=None, pad=0, shift=False):
    """Return the rows of a field's documents in one array; document *i* begins at row ``at[i]``."""
    out = empty((int(at[-1]), *field.shape), dtype or field.dtype)
    field.write(out, at, pad, shift)
    return out


def jagged_offsets(offsets):
    """Return the arguments of torch's nested_tensor_from_jagged besides the values."""
    shortest = int(np.diff(offsets).min())
    return {"offsets": offsets, "min_seqlen": shortest, "max_seqlen": longest(offsets)}


def rounded_up(n, multiple):
    return -(-n // multiple) * multiple


def in_slot(values, dtype):
    """Return a copy of increasing numbers, in the slot if there is one; raise ValueError if they exceed an int32."""
    if dtype is np.int32 and values[-1] > _INT32_MAX:
        raise ValueError(f"a batch has {values[-1]} rows, and cumulative lengths are int32: make smaller batches")
    out = empty(values.shape, dtype)
    out[...] = values
    return out


def as_tensors(value, known):
    """Return a batch with tensors over its arrays; an array that occurs twice is one tensor."""
    import torch

    if isinstance(value, np.ndarray):
        if id(value) not in known:
            known[id(value)] = torch.from_numpy(value)
        return known[id(value)]
    if isinstance(value, dict):
        return {key: as_tensors(part, known) for key, part in value.items()}
    return tuple([as_tensors(part, known) for part in value]) if isinstance(value, tuple) else value


def _mapping(name, value):
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict with names of fields as keys, or None, not {shown(value)}")
    return dict(value or {})
