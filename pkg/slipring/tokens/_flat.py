"""Documents joined end to end, in the forms that training programs take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slipring._core.codec._codec import empty
from slipring._core.options.checks import integer, one_of
from slipring.tokens._collation import IDS, IGNORED, LABELS, Collation, in_slot, jagged_offsets, joined
from slipring.tokens._documents import count, longest, number, set_first, starts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from numpy.typing import ArrayLike, NDArray

FORMATS = ("flash", "transformers", "torchtitan", "megatron", "nested")


class Layout(NamedTuple):
    """Where documents lie among the rows of a batch."""

    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]  # of the documents, and the end of the last one
    at: NDArray[np.int64]  # likewise, with the end of all rows
    bounds: NDArray[np.int64]  # starts, with the padding as the last document, and empty ones
    longest: int


class Flat(Collation):
    """Join documents end to end, without padding, for attention with cumulative lengths.

    For ``collate_fn=``. The arrays of a batch lie in its slot, in their final shape. Samples are dicts of fields, which
    have a row for each token: arrays with any number of dimensions, tensors or lists. A sample that is an array is the
    field "input_ids".

    A dataset over flat memory may have a method ``spans(indices)``. It returns for each field ``(flat, starts,
    stops)``: an array, or a list of arrays whose rows are numbered on, and two arrays of the first row of each document
    and the row after its last one. Then no Python object is made per document. `slipring.arrow.TableDataset` has it.

    Parameters
    ----------
    format : {'flash', 'transformers', 'torchtitan', 'megatron', 'nested'}
        What a batch of n documents with T tokens is:

        'flash'
            The fields, [T, ...], in their own dtypes; `cu_seqlens_q` and `cu_seqlens_k`, int32 [n + 1];
            `max_seqlen_q` and `max_seqlen_k`, ints. FlashAttention's functions and ``torch.nn.attention.varlen`` take
            them.
        'transformers'
            As transformers' ``DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)``:
            `input_ids`, `labels`, `position_ids`, int64 [1, T]; `seq_idx`, int32 [1, T]; `cu_seq_lens_q`,
            `cu_seq_lens_k`, int32; `max_length_q`, `max_length_k`, ints. The first label of each document is -100.
        'torchtitan'
            ``({"input", "positions"}, labels)``, int64 [1, T]. A label is the next token; the last one of each document
            is -100.
        'megatron'
            `tokens`, `labels` (of the next token), `position_ids`, int64 [1, T]; `loss_mask`, float32 [1, T];
            `packed_seq_params`: the arguments of Megatron's ``PackedSeqParams``.
        'nested'
            For each field the arguments of ``torch.nested.nested_tensor_from_jagged``, as `Jagged` has them.

        Labels are made from the field "labels", or else from "input_ids". Further fields are added, as [1, T, ...],
        unless the format has an entry of that name.
    fields : sequence of str, optional
        The fields to collate, of which the first one has the tokens. Default: all but "attention_mask".
    length_names : dict of str to str, optional
        What the rows of a field are, if not tokens, such as ``{"pixel_values": "patches"}``. The batch then also has
        `cu_seqlens_patches` and `max_seqlen_patches`.
    lengths : array of int, optional
        The number of tokens of each sample that the sampler knows. A longer sample is an error, a shorter one is
        counted: each process logs the count at 1, 2, 4, 8, ... documents.
    max_tokens : int, optional
        Pad each batch to so many tokens; a longer one is an error. The padding is one more document, because attention
        kernels leave rows outside of all documents uninitialised. Megatron clears them: there it is outside.
    max_documents : int, optional
        Fill cumulative lengths up to so many documents, and one for the padding, with empty ones. With `max_tokens`
        all shapes are then static, for CUDA graphs, except for fields of `length_names`, and the longest length is
        given as `max_tokens`.
    document_multiple_of : int
        Pad each document to a multiple of this number, as the sampler does. Only 'megatron' has both lengths.
    pad_values : dict of str to number, optional
        The padding of a field: by default 0, and -100 for "labels".
    tensors : bool
        Return torch tensors. In `slipring.torch.DataLoader` batches always have tensors.

    Raises
    ------
    ValueError
        From a call: fields differ in length or shape, a sample is longer than its entry in `lengths`, or a batch
        exceeds `max_tokens` or `max_documents`.

    Examples
    --------
    >>> from slipring import tokens
    >>> batch = tokens.Flat()([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    >>> batch["input_ids"], batch["cu_seqlens_q"], batch["max_seqlen_q"]
    (array([5, 6, 7, 8, 9]), array([0, 3, 5], dtype=int32), 3)
    """

    format: Literal["flash", "transformers", "torchtitan", "megatron", "nested"]
    max_tokens: int | None
    max_documents: int | None
    document_multiple_of: int

    def __init__(
        self,
        format: Literal["flash", "transformers", "torchtitan", "megatron", "nested"] = "flash",
        *,
        fields: Sequence[str] | None = None,
        length_names: Mapping[str, str] | None = None,
        lengths: ArrayLike | None = None,
        max_tokens: int | None = None,
        max_documents: int | None = None,
        document_multiple_of: int = 1,
        pad_values: Mapping[str, float] | None = None,
        tensors: bool = False,
    ) -> None:
        super().__init__(fields, length_names, lengths, pad_values, tensors)
        one_of("format", format, FORMATS)
        self.format = format
        self.max_tokens = integer("max_tokens", max_tokens, 1, optional=True)
        self.max_documents = integer("max_documents", max_documents, 1, optional=True)
        self.document_multiple_of = integer("document_multiple_of", document_multiple_of, 1)
        if self.max_documents is not None and self.max_tokens is None:
            raise ValueError(f"max_documents={max_documents} makes shapes static, for which max_tokens= is needed too")

    def _made(self, documents, main):
        layout = self._layout(documents[main].lengths)
        if self.format == "nested":
            return self._nested(documents, layout)
        if self.format == "flash":
            return self._fields(documents, layout) | _ends(layout, "cu_seqlens_{}", "max_seqlen_{}")
        if IDS not in documents:
            raise ValueError(f"format={self.format!r} needs a field {IDS!r}; there are {', '.join(documents)}")
        extra = {name: field for name, field in documents.items() if name not in (IDS, LABELS)}
        extra = self._fields(extra, layout, batched=True)
        if self.format == "transformers":
            made = self._transformers(documents, layout)
        elif self.format == "megatron":
            made = self._megatron(documents, layout)
        else:
            made = {"input": self._ids(documents, layout), "positions": _positions(layout)}
        made |= {name: value for name, value in extra.items() if name not in made}
        return (made, self._labels(documents, layout)) if self.format == "torchtitan" else made

    def _layout(self, lengths):
        starts = starts_of(lengths, self.document_multiple_of)
        n, end = len(lengths), int(starts[-1])
        at = bounds = starts
        if self.max_tokens is not None:
            if end > self.max_tokens:
                raise ValueError(
                    f"{n} documents have {end} tokens, more than max_tokens={self.max_tokens}: give the sampler the "
                    "same budget, or a larger one to the collator"
                )
            at = starts.copy()
            at[-1] = self.max_tokens
            if end < self.max_tokens:
                bounds = np.append(starts, self.max_tokens)
        most = longest(starts if self.format == "megatron" else bounds)
        if self.max_documents is not None:
            if n > self.max_documents:
                raise ValueError(f"a batch has {n} documents, more than max_documents={self.max_documents}")
            bounds, most = _filled(bounds, self.max_documents + 2), self.max_tokens
        return Layout(lengths, starts, at, bounds, most)

    def _fields(self, documents, layout, batched=False):
        """Return the fields joined, and the bounds of those whose rows are not tokens."""
        made = {}
        for name, field in documents.items():
            if name in self.length_names:
                made[name] = joined(field, starts_of(field.lengths))
            else:
                array = joined(field, layout.at, None, self._pad(name, field.dtype))
                made[name] = array[None] if batched else array
        for of, lengths in self._own_lengths(documents).items():
            made[f"cu_seqlens_{of}"] = in_slot(starts_of(lengths), np.int32)
            made[f"max_seqlen_{of}"] = int(lengths.max())
        return made

    def _ids(self, documents, layout):
        return joined(documents[IDS], layout.at, np.int64, self._pad(IDS, np.dtype(np.int64)))[None]

    def _labels(self, documents, layout, shift=True):
        return joined(documents.get(LABELS, documents[IDS]), layout.at, np.int64, IGNORED, shift)[None]

    def _transformers(self, documents, layout):
        labels = self._labels(documents, layout, shift=False)
        set_first(labels[0], layout.starts, IGNORED)
        numbers = empty(labels.shape[:2], np.int32)
        number(numbers[0], layout.bounds)
        made = {IDS: self._ids(documents, layout), LABELS: labels, "position_ids": _positions(layout)}
        return made | {"seq_idx": numbers} | _ends(layout, "cu_seq_lens_{}", "max_length_{}")

    def _megatron(self, documents, layout):
        labels = self._labels(documents, layout)
        size = len(layout.starts) if self.max_documents is None else self.max_documents + 1
        padded = in_slot(_filled(layout.starts, size), np.int32)
        ends = padded
        if self.document_multiple_of > 1:
            ends = in_slot(_filled(starts_of(layout.lengths), size), np.int32)
        return {
            "tokens": self._ids(documents, layout),
            LABELS: labels,
            "loss_mask": np.not_equal(labels, IGNORED, out=empty(labels.shape, np.float32)),
            "position_ids": _positions(layout),
            "packed_seq_params": {
                "qkv_format": "thd",
                "cu_seqlens_q": ends,
                "cu_seqlens_kv": ends,
                "cu_seqlens_q_padded": padded,
                "cu_seqlens_kv_padded": padded,
                "max_seqlen_q": layout.longest,
                "max_seqlen_kv": layout.longest,
            },
        }

    def _pad(self, name, dtype):
        pads = self.max_tokens is not None or self.document_multiple_of > 1
        return super()._pad(name, dtype) if pads else 0

    def _nested(self, documents, layout):
        found = {None: jagged_offsets(in_slot(layout.bounds, np.int64))}
        if self.max_documents is not None:
            found[None] |= {"min_seqlen": 0, "max_seqlen": layout.longest}
        for of, lengths in self._own_lengths(documents).items():
            found[of] = jagged_offsets(in_slot(starts_of(lengths), np.int64))
        made = {}
        for name, field in documents.items():
            of = self._length_name(name)
            at = layout.at if of is None else found[of]["offsets"]
            pad = self._pad(name, field.dtype) if of is None else 0
            made[name] = {"values": joined(field, at, None, pad), **found[of]}
        return made


def _positions(layout):
    out = empty((1, int(layout.at[-1])), np.int64)
    count(out[0], layout.bounds)
    return out


def _ends(layout, ends, most):
    """Return the cumulative lengths and the longest one, for queries and for keys."""
    bounds = in_slot(layout.bounds, np.int32)
    made: dict[str, Any] = {ends.format(of): bounds for of in "qk"}
    return made | {most.format(of): layout.longest for of in "qk"}


def _filled(bounds, size):
    """Return bounds with empty documents at the end."""
    return np.append(bounds, np.full(size - len(bounds), bounds[-1]))
