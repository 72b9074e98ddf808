"""A corpus: the documents of token files, as a dataset over flat memory."""

from __future__ import annotations

import bisect
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.options.checks import file_path, integer, one_of
from slipring.errors import shown
from slipring.tokens._arguments import numbers
from slipring.tokens._chunks import Chunk
from slipring.tokens._collation import IDS
from slipring.tokens._corpus_files import TOKENS, divided, read_arrow, read_flat, read_megatron
from slipring.tokens._planned import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex, TypeAlias

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Source: TypeAlias = "str | os.PathLike[str] | NDArray[Any] | Corpus"


class Corpus:
    """Documents of tokens in flat memory: arrays, and files that are mapped and not read into memory.

    A map-style dataset. ``corpus[i]`` is a view of document i, ``corpus[piece]`` of a part of it (see `Piece`), and
    ``corpus[chunk]`` has tokens of all documents, one after the other (see `ChunkSampler`). The collators of this
    package read it by `spans`. A pickle has the paths, so worker processes map the same files, without a copy. A
    process keeps a descriptor of each file, but none of Arrow files.

    Parameters
    ----------
    sources : array, path, Corpus, or a list of them
        One-dimensional integers, or files. Documents are numbered across all of them.

        ``.npy``
            As an array: one document, unless `bounds`, `lengths` or `end_token` divide it.
        ``.bin``
            Tokens and nothing else, as nanoGPT writes them, of the given `dtype`.
        ``.bin`` with ``.idx``
            A dataset of Megatron (by the path of either file, or by their common prefix), as its IndexedDataset writes
            it. A document is a sequence of the index, as in Megatron's GPTDataset.
        others
            Uncompressed Arrow IPC files or streams, such as Hugging Face's ``.arrow``, with a column of lists. For
            Parquet use `slipring.arrow.TableDataset`.
    bounds : array of int or path of a .npy file, optional
        The n + 1 bounds of the documents of one array or file, which is then the only source. It is not copied.
    lengths : array of int, optional
        In place of `bounds`: the tokens of each document. The bounds are made of them.
    end_token : int, optional
        Divide arrays, ``.npy`` and plain ``.bin`` files into documents, each of which ends with this token. All tokens
        are read once for it.
    dtype : dtype_like, optional
        Of plain ``.bin`` files: "uint16" for nanoGPT's. uint8, int8, uint16, int16, uint32, int32 or int64.
    column : str
        The column of Arrow files.

    Attributes
    ----------
    num_tokens : int
        The tokens of all documents.
    dtype : numpy.dtype
        Of the tokens.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; a file is truncated, or of another format, or sources differ in dtype. The text names the
        file, and what was expected and found.
    OSError
        A file cannot be opened.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring import tokens
    >>> corpus = tokens.Corpus(np.array([5, 6, 0, 7, 8, 9, 0], np.uint16), end_token=0)
    >>> len(corpus), corpus[1].tolist(), corpus[tokens.Chunk(1, 5)].tolist()
    (2, [7, 8, 9, 0], [6, 0, 7, 8])
    """

    num_tokens: int
    dtype: np.dtype[Any]

    def __init__(
        self,
        sources: Source | Sequence[Source],
        *,
        bounds: ArrayLike | str | os.PathLike[str] | None = None,
        lengths: ArrayLike | None = None,
        end_token: int | None = None,
        dtype: DTypeLike | None = None,
        column: str = "input_ids",
    ) -> None:
        if dtype is not None and not isinstance(dtype, str):
            dtype = np.dtype(dtype).name
        one_of("dtype", dtype, (*TOKENS, None))
        integer("end_token", end_token, optional=True)
        ways = {"bounds": bounds, "lengths": lengths, "end_token": end_token}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: each divides tokens into documents")
        listed = list(sources) if isinstance(sources, (list, tuple)) else [sources]
        if given and given != ["end_token"] and len(listed) != 1:
            raise ValueError(
                f"{given[0]}= is of one source, and there are {len(listed)}: make a Corpus of each, and one of these"
            )
        if bounds is not None:
            is_path = isinstance(bounds, (str, os.PathLike))
            bounds = os.path.abspath(file_path("bounds", bounds)) if is_path else numbers("bounds", bounds)
        elif lengths is not None:
            bounds = _sums(numbers("lengths", lengths))
        self._recipes = []  # a reader of parts and its arguments, for each source
        for source in listed:
            self._recipes += self._read_by(source, dtype, column, bounds, given)
            if end_token is not None:
                reader, (data, kind, _) = self._recipes[-1]
                name = data if isinstance(data, str) else "the array"
                (part,) = reader(data, kind, None)
                self._recipes[-1] = reader, (data, kind, divided(part.tokens, end_token, name))
        if dtype is not None and not any(args[1] for reader, args in self._recipes if reader is read_flat):
            raise ValueError(f"dtype={dtype!r} is of .bin files without an index, and there is none in sources")
        self._open()

    def _read_by(self, source, dtype, column, bounds, given):
        """Return the recipes of a source."""
        if isinstance(source, Corpus):
            found, what = source._recipes, "a Corpus"
        elif hasattr(source, "__array__"):
            return [(read_flat, (np.asarray(source), None, bounds))]
        else:
            if not isinstance(source, (str, bytes, os.PathLike)):
                raise TypeError(f"sources must be an array, a path, a Corpus, or a list of these, not {shown(source)}")
            path = os.path.abspath(file_path("sources", source))
            prefix = path[:-4] if path.endswith((".bin", ".idx")) else path
            if path.endswith(".npy"):
                return [(read_flat, (path, None, bounds))]
            if os.path.exists(f"{prefix}.idx"):
                found, what = [(read_megatron, (prefix,))], f"{path}, which has an index,"
            elif path.endswith(".bin"):
                if dtype is None:
                    raise ValueError(
                        f"{path} has no index {prefix}.idx, which a dataset of Megatron needs; for tokens without an "
                        "index, as nanoGPT's, give dtype='uint16' or another one"
                    )
                return [(read_flat, (path, dtype, bounds))]
            else:
                found, what = [(read_arrow, (path, column))], f"{path}, an Arrow file,"
        if given:
            raise ValueError(f"{given[0]}= divides tokens into documents, and {what} has documents already")
        return found

    def _open(self):
        """Map the sources."""
        self._parts = [part for reader, args in self._recipes for part in reader(*args)]
        if not self._parts:
            raise ValueError("a Corpus needs at least one document; sources are empty")
        first = self._parts[0]
        self.dtype = first.tokens.dtype
        for part in self._parts:
            if part.tokens.dtype != self.dtype:
                raise ValueError(
                    f"the tokens of {part.name} are {part.tokens.dtype}, those of {first.name} {self.dtype}: sources "
                    "must have the same dtype"
                )
        self._document_ends = np.cumsum([len(part) for part in self._parts])
        self._token_ends = np.cumsum([len(part.tokens) for part in self._parts])
        self.num_tokens = int(self._token_ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {"recipes": self._recipes, "found": (len(self), self.num_tokens)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._recipes = state["recipes"]
        self._open()
        if (found := (len(self), self.num_tokens)) != state["found"]:
            names = ", ".join(dict.fromkeys(part.name for part in self._parts))
            raise ValueError(
                f"the files of a Corpus have changed: (documents, tokens) were {state['found']}, and are {found} in "
                f"{names}"
            )

    def __len__(self) -> int:
        return int(self._document_ends[-1])

    def __repr__(self) -> str:
        return f"Corpus({len(self)} documents, {self.num_tokens} tokens, {len(self._parts)} arrays)"

    @property
    def lengths(self) -> NDArray[Any]:
        """ndarray of int: the tokens of each document. Those of one dataset of Megatron are mapped, others made."""
        if len(self._parts) == 1 and self._parts[0].lengths is not None:
            return self._parts[0].lengths
        bounds = self.bounds
        return bounds[1:] - bounds[:-1]

    @property
    def bounds(self) -> NDArray[Any]:
        """ndarray of int: where each document begins among all tokens, and their number. Made, unless it was given."""
        found, first = [], 0
        for part in self._parts:
            if len(self._parts) == 1 and part.bounds is not None and part.bounds[0] == 0:
                return part.bounds
            found.append(part.span(np.arange(len(part)))[0] + first)
            first += len(part.tokens)
        return np.append(np.concatenate(found), first)

    def __getitem__(self, index: SupportsIndex | Piece | Chunk) -> NDArray[Any]:
        """Return the tokens of a document, of a part of it, or of a chunk: a view, unless a chunk lies in two sources.

        Raises
        ------
        IndexError
            There is no such document, or it has no such tokens.
        """
        if isinstance(index, Chunk):
            (flat,), (start,), (stop,) = self.spans([index])[IDS]
            return flat[start:stop]
        try:
            number = operator.index(index.index if isinstance(index, Piece) else index)
        except TypeError:
            raise TypeError(f"the index of a Corpus must be an int, a Chunk or a Piece, not {shown(index)}") from None
        n = len(self)
        if not -n <= number < n:
            raise IndexError(f"index {number} of a Corpus of {n} documents")
        number += n * (number < 0)
        which = bisect.bisect_right(self._document_ends, number)
        part = self._parts[which]
        start, stop = map(int, part.span(number - (self._document_ends[which] - len(part))))
        if not 0 <= start <= stop <= len(part.tokens):  # many bounds are not checked when they are given
            raise ValueError(f"document {number} of {part.name} has tokens {start}:{stop} of {len(part.tokens)}")
        if isinstance(index, Piece):
            start, stop = _piece(index, start, stop)
        return part.tokens[start:stop]

    def spans(self, indices: Sequence[Any]) -> dict[str, tuple[list[NDArray[Any]], NDArray[Any], NDArray[Any]]]:
        """Return where documents, or chunks, lie in memory: see `slipring.tokens.Flat`, which calls it.

        Parameters
        ----------
        indices : sequence of int or of Chunk

        Raises
        ------
        IndexError
            There is no such document or chunk.
        """
        try:
            at = np.asarray(indices)
        except ValueError:  # of different lengths
            at = np.empty(0, object)
        if at.dtype.kind not in "iu" or at.shape[1:] not in ((), (2,)):
            raise TypeError(f"indices of a Corpus must be ints, or all of them a Chunk, not {shown(indices)}")
        return {IDS: self._documents(at) if at.ndim == 1 else self._chunks(at)}

    def _documents(self, at):
        n = len(self)
        if ((at < -n) | (at >= n)).any():
            raise IndexError(f"index {at[(at < -n) | (at >= n)][0]} of a Corpus of {n} documents")
        at = np.where(at < 0, at.astype(np.int64) + n, at)
        which = self._document_ends.searchsorted(at, "right")
        flat, rows = [], 0
        starts, stops = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
        for number in np.unique(which).tolist():
            part, here = self._parts[number], which == number
            start, stop = part.span(at[here] - (self._document_ends[number] - len(part)))
            starts[here], stops[here] = start + rows, stop + rows
            flat.append(part.tokens)
            rows += len(part.tokens)
        return flat, starts, stops

    def _chunks(self, at):
        start, stop = at.astype(np.int64).T
        if (wrong := (start < 0) | (start > stop) | (stop > self.num_tokens)).any():
            raise IndexError(
                f"{Chunk(*at[wrong][0].tolist())} of a Corpus of {self.num_tokens} tokens: give the sampler "
                "num_tokens=corpus.num_tokens"
            )
        if len(self._parts) == 1:  # half of the time of small batches
            return [self._parts[0].tokens], start, stop
        which = np.minimum(self._token_ends.searchsorted(start, "right"), len(self._parts) - 1)
        flat, rows = [], 0
        starts, stops = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
        alone = stop <= self._token_ends[which]
        for number in np.unique(which[alone]).tolist():
            part, here = self._parts[number], alone & (which == number)
            shift = rows - (self._token_ends[number] - len(part.tokens))
            starts[here], stops[here] = start[here] + shift, stop[here] + shift
            flat.append(part.tokens)
            rows += len(part.tokens)
        for number in np.flatnonzero(~alone).tolist():  # these are copied, since a span lies in one array
            flat.append(self._joined(int(start[number]), int(stop[number]), int(which[number])))
            starts[number], stops[number] = rows, rows + len(flat[-1])
            rows += len(flat[-1])
        return flat, starts, stops

    def _joined(self, start, stop, which):
        """Return the tokens of a chunk that begins in that part and lies in several."""
        found = []
        while start < stop:
            part, end = self._parts[which], int(self._token_ends[which])
            first = end - len(part.tokens)
            found.append(part.tokens[start - first : stop - first])
            start, which = max(start, end), which + 1
        return np.concatenate(found)


def _sums(lengths):
    """Return the bounds of documents of these lengths."""
    if (wrong := np.flatnonzero(lengths < 0)).size:
        raise ValueError(f"document {wrong[0]} has {lengths[wrong[0]]} tokens in lengths=")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _piece(piece, start, stop):
    if not 0 <= piece.start <= piece.stop <= stop - start:
        raise IndexError(f"{piece} of a document of {stop - start} tokens")
    return start + piece.start, start + piece.stop
