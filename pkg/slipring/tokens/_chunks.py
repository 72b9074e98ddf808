"""Chunks of concatenated documents, for pretraining: their sampler and their collation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from slipring._core.codec._codec import empty
from slipring._core.codec.samples import listed_samples
from slipring._core.options.checks import integer, one_of
from slipring._core.workers.seeding import MASK_63
from slipring.errors import shown
from slipring.sampler import BatchSampler
from slipring.tokens._arguments import check_increase, numbers
from slipring.tokens._collation import IDS, IGNORED, LABELS, Collation, as_tensors, in_slot, joined
from slipring.tokens._documents import count, from_samples, from_spans, longest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, NDArray

FORMATS = ("transformers", "torchtitan", "megatron")


class Chunk(NamedTuple):
    """The index of a chunk: tokens from `start` to `stop` of all documents, one after the other."""

    start: int
    stop: int


class ChunkSampler(BatchSampler):
    """Chunks of a fixed number of tokens of concatenated documents, for ``DataLoader(batch_sampler=...)``.

    A batch is a list of `batch_size` indices of class `Chunk`. A dataset over flat memory returns ``flat[chunk.start :
    chunk.stop]`` for each, as `Corpus` does. Chunks are computed when they are read, so the sampler takes no memory,
    and begins and continues at once for any number of tokens.

    The sampler is a `slipring.BatchSampler` of chunks, and has its ranks, states and elasticity: each rank takes every
    `world_size`-th chunk of the same order, all ranks have the same number of batches, and other ranks can finish an
    epoch with another `batch_size`. (Megatron's GPTDataset cuts chunks in the same way, by indices that it makes for
    all epochs before training.)

    Parameters
    ----------
    num_tokens : int
        The number of tokens of all documents, such as ``corpus.num_tokens`` of a `Corpus`.
    chunk_tokens : int
        Tokens from the beginning of a chunk to that of the next one.
    batch_size : int
        Chunks per batch of this rank.
    overlap : int
        Each chunk also has so many of the tokens after it. Labels of next tokens need one.
    remainder : {'keep', 'drop'}
        What to do with the tokens at the end that do not fill a chunk: they are one shorter chunk, which `Chunks` pads,
        or they are left out.
    shuffle : bool
        A new order of the chunks in every epoch.
    drop_last : bool
        Drop the last step, of all ranks, if the chunks do not fill it. Otherwise the first chunks are used again.
    rank, world_size : int
        The rank, and the number of ranks. Under torchrun: ``RANK`` and ``WORLD_SIZE`` of the environment.
    seed : int, optional
        Must be the same in all ranks. None: 0 if there are several ranks, otherwise a new seed from the system.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set.
    num_samples : int
        The number of chunks.
    left_out : int
        The number of tokens that ``remainder="drop"`` leaves out.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Examples
    --------
    >>> from slipring import tokens
    >>> sampler = tokens.ChunkSampler(10, chunk_tokens=4, batch_size=2, shuffle=False)
    >>> list(sampler)
    [[Chunk(start=0, stop=5), Chunk(start=4, stop=9)], [Chunk(start=8, stop=10)]]
    """

    num_tokens: int
    chunk_tokens: int
    overlap: int
    remainder: str
    left_out: int

    def __init__(
        self,
        num_tokens: int,
        chunk_tokens: int,
        batch_size: int = 1,
        *,
        overlap: int = 1,
        remainder: Literal["keep", "drop"] = "keep",
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
    ) -> None:
        self.num_tokens = integer("num_tokens", num_tokens, 0, MASK_63)
        self.chunk_tokens = integer("chunk_tokens", chunk_tokens, 1, MASK_63)
        self.overlap = integer("overlap", overlap, 0, self.chunk_tokens)
        one_of("remainder", remainder, ("keep", "drop"))
        self.remainder = remainder
        full, rest = divmod(max(0, self.num_tokens - self.overlap), self.chunk_tokens)
        kept = bool(rest) and remainder == "keep"
        self.left_out = 0 if kept else rest
        chunks = _Cuts(self.num_tokens, self.chunk_tokens, self.overlap, full + kept)
        super().__init__(
            chunks, batch_size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=world_size, seed=seed
        )


class _Cuts(Sequence):
    """The chunks in the order of their tokens."""

    def __init__(self, tokens, stride, overlap, n):
        self._tokens, self._stride, self._overlap, self._n = tokens, stride, overlap, n

    def __len__(self):
        return self._n

    def __getitem__(self, at):
        start = at * self._stride
        return Chunk(start, min(start + self._stride + self._overlap, self._tokens))

    def fingerprint(self):
        """Return what a state has in common with the sampler that loads it."""
        return f"chunks of {self._stride} + {self._overlap} of {self._tokens} tokens"


class Chunks(Collation):
    """Stack chunks of tokens as rows of a model's inputs and labels: int64 [chunks, chunk_tokens].

    For ``collate_fn=``, with the indices of a `ChunkSampler`. Inputs and labels are written to the slot, each chunk in
    one piece if the dataset has `spans` (see `Flat`). Otherwise samples are the tokens of chunks, or dicts with them as
    "input_ids".

    Parameters
    ----------
    chunk_tokens : int
        The width of the rows, as of the sampler. A shorter chunk is padded. A chunk may have one token more, which is
        the last label.
    format : {'transformers', 'torchtitan', 'megatron'}
        What a batch is:

        'transformers'
            `input_ids`, `labels`. Labels are the inputs: models of transformers shift them.
        'torchtitan'
            ``({"input"}, labels)``. A label is the next token, also in the other format:
        'megatron'
            `tokens`, `labels`, `loss_mask` (float32), `position_ids`.

        The label of a padded token, and of the last one if the sampler has ``overlap=0``, is -100.
    bounds : array_like of int, optional
        Where documents begin, and where the last one ends, among all tokens: such as `Corpus.bounds`. A chunk is then
        several documents. Positions begin at 0 in each, and no label is of another document. The batch also has:
        for transformers `position_ids`, `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k`; for
        torchtitan ``"positions"`` of the inputs; for Megatron `packed_seq_params`. Cumulative lengths are those of
        the rows joined end to end.
    pad_value : int
        The input in place of tokens that a short chunk lacks.
    tensors : bool
        Return torch tensors. In `slipring.torch.DataLoader` batches always have tensors.

    Raises
    ------
    ValueError
        From a call: a chunk has more tokens than one above `chunk_tokens`, or a batch has no chunks.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring import tokens
    >>> inputs, labels = tokens.Chunks(4, "torchtitan")([np.arange(5), np.arange(4, 7)])
    >>> inputs["input"].tolist(), labels.tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 0]], [[1, 2, 3, 4], [5, 6, -100, -100]])
    """

    chunk_tokens: int
    format: Literal["transformers", "torchtitan", "megatron"]
    bounds: NDArray[Any] | None

    def __init__(
        self,
        chunk_tokens: int,
        format: Literal["transformers", "torchtitan", "megatron"] = "transformers",
        *,
        bounds: ArrayLike | None = None,
        pad_value: int = 0,
        tensors: bool = False,
    ) -> None:
        super().__init__(None, None, None, {IDS: integer("pad_value", pad_value, -MASK_63 - 1, MASK_63)}, tensors)
        self.chunk_tokens = integer("chunk_tokens", chunk_tokens, 1)
        one_of("format", format, FORMATS)
        self.format = format
        self.bounds = None
        if bounds is not None:
            self.bounds = numbers("bounds", bounds)
            check_increase(self.bounds, "the array")

    def __call__(self, samples: Iterable[Any], indices: Sequence[Any] | None = None) -> Any:
        rows = [_ids_of(sample) if isinstance(sample, Mapping) else sample for sample in listed_samples(samples)]
        if indices is not None and len(indices) != len(rows):  # samples were left out
            indices = None

        def where(i):
            return f"chunk {i if indices is None else shown(indices[i])}"

        for i, row in enumerate(rows):
            if not hasattr(row, "__len__") or getattr(row, "ndim", 1) != 1:
                shape = f" of shape {tuple(row.shape)}" if hasattr(row, "shape") else ""
                raise TypeError(
                    f"{where(i)} is a {type(row).__name__}{shape}: samples must be the token ids of chunks, as lists "
                    f"or arrays of one dimension, or dicts with them as {IDS!r}"
                )
        self._check(np.array([*map(len, rows)]), indices)

        def part(first):
            cut = [{IDS: row[first : first + self.chunk_tokens]} for row in rows]
            return from_samples(cut, IDS, where)

        return self._batch(part, indices)

    def gather_spans(self, spans: Callable[[list[Any]], Mapping[str, Any]], indices: Sequence[Any]) -> Any:
        flat, starts, stops = _ids_of(spans(list(indices)))
        starts, stops = np.asarray(starts), np.asarray(stops)
        self._check(stops - starts, indices)

        def part(first):
            begin = np.minimum(starts + first, stops)
            return from_spans(flat, begin, np.minimum(begin + self.chunk_tokens, stops), IDS, len(indices))

        return self._batch(part, indices)

    def _check(self, lengths, indices):
        if not len(lengths):
            raise ValueError("there are no chunks to collate: the batch or the samples are empty")
        if (most := int(lengths.max())) > self.chunk_tokens + 1:
            raise ValueError(
                f"a chunk has {most} tokens, more than chunk_tokens={self.chunk_tokens} and one for the last label: "
                "give the sampler the same chunk_tokens, and overlap=1"
            )
        for index, found in zip(() if indices is None else indices, lengths.tolist()):
            if isinstance(index, Chunk) and found != index.stop - index.start:
                raise ValueError(f"the dataset has {found} tokens for {index}: it must return as many as this says")

    def _batch(self, part, indices):
        """Return the batch; ``part(first)`` has the tokens of each chunk from that one on, at most a row of them."""
        inputs, shifted = part(0), self.format != "transformers"
        if inputs.shape:
            raise ValueError(f"a token of a chunk must be one number, and field {IDS!r} has rows of {inputs.shape}")
        n = len(inputs.lengths)
        rows = np.arange(n + 1) * self.chunk_tokens
        ids = joined(inputs, rows, np.int64, self.pad_values[IDS])
        labels = joined(part(1) if shifted else inputs, rows, np.int64, IGNORED)
        bounds, positions, cumulative = rows, None, None
        if self.bounds is not None:
            bounds, positions = self._documents_in(rows, inputs.lengths, indices, shifted)
            labels[positions] = IGNORED
            cumulative = in_slot(bounds, np.int32), longest(bounds)
        if cumulative or self.format == "megatron":
            positions = empty(ids.shape, np.int64)
            count(positions, bounds)
            positions = positions.reshape(n, -1)
        made = getattr(self, f"_{self.format}")(ids.reshape(n, -1), labels.reshape(n, -1), positions, cumulative)
        return as_tensors(made, {}) if self.tensors else made

    def _documents_in(self, rows, lengths, indices, shifted):
        """Return where documents begin in the joined rows, with their end; and the labels of no or another document."""
        if indices is None or not all(isinstance(index, Chunk) for index in indices):
            raise ValueError(
                "bounds= needs the position of each chunk among all tokens: use slipring's loaders, the indices of a "
                "slipring.tokens.ChunkSampler, and a dataset that has tokens for each of them"
            )
        most = max(indices, key=attrgetter("stop"))
        if most.stop > (end := int(self.bounds[-1]) if len(self.bounds) else 0):
            raise ValueError(f"{most} ends after the documents, which end at {end}: bounds= must be of the same corpus")
        kind = self.bounds.dtype  # of another one, numpy would convert all bounds
        starts = np.array([chunk.start for chunk in indices], np.int64)
        first = self.bounds.searchsorted(starts.astype(kind))
        last = self.bounds.searchsorted((starts + lengths).astype(kind), "right")
        found, positions = [rows, rows[:-1] + lengths], []
        for row, length, start, a, b in zip(*(x.tolist() for x in (rows[:-1], lengths, starts, first, last))):
            at = self.bounds[a:b].astype(np.int64) + (row - start)
            found.append(at)
            positions.append(at[at > row] - 1 if shifted else at[at < row + length])
        return np.unique(np.concatenate(found)), np.concatenate(positions)

    def _transformers(self, ids, labels, positions, cumulative):
        made = {IDS: ids, LABELS: labels}
        if cumulative:
            ends, most = cumulative
            made |= {"position_ids": positions, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
            made |= {"max_length_q": most, "max_length_k": most}
        return made

    def _torchtitan(self, ids, labels, positions, cumulative):
        return {"input": ids} | ({"positions": positions} if cumulative else {}), labels

    def _megatron(self, ids, labels, positions, cumulative):
        mask = np.not_equal(labels, IGNORED, out=empty(labels.shape, np.float32))
        made = {"tokens": ids, LABELS: labels, "loss_mask": mask, "position_ids": positions}
        if cumulative:
            ends, most = cumulative
            packed = {"qkv_format": "thd", "cu_seqlens_q": ends, "cu_seqlens_kv": ends}
            made["packed_seq_params"] = packed | {"max_seqlen_q": most, "max_seqlen_kv": most}
        return made


def _ids_of(fields):
    if IDS not in fields:
        raise ValueError(f"chunks need the field {IDS!r}; there are {', '.join(map(shown, fields))}")
    return fields[IDS]
