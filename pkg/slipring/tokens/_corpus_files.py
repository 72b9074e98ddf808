"""Files of tokens as arrays over mapped memory: .npy, plain .bin, Megatron's .bin and .idx, and Arrow.

A reader returns a list of `TokenArray`. Another process gets the same parts from the same arguments.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from slipring.tokens._arguments import check_increase

TOKENS = "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"
_AT_ONCE = 1 << 24  # tokens that are compared with the end token
_SPACED = 1024  # documents of an index that are checked when it is opened
# Of Megatron's index: magic, version, code of the dtype, numbers of sequences and of bounds of documents.
_HEADER = struct.Struct("<9sQBQQ")
_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_LLM_C = {(20240520, 1), (20240801, 7)}  # the first numbers of its files


class TokenArray:
    """Documents in one array of tokens; `name` is that of the file, for errors.

    `bounds` are the beginnings of documents, and the end of the last one; the array begins at ``bounds[0]``. In place
    of them, `pointers` has the first byte of each document, and `lengths` its number of tokens.
    """

    __slots__ = "bounds", "lengths", "name", "pointers", "tokens"

    def __init__(self, name, tokens, bounds=None, pointers=None, lengths=None):
        self.name, self.tokens, self.bounds, self.pointers, self.lengths = name, tokens, bounds, pointers, lengths

    def __len__(self):
        return len(self.lengths) if self.bounds is None else len(self.bounds) - 1

    def span(self, at):
        """Return the first token of a document, or of an array of them, and the token after the last one."""
        if self.bounds is None:
            start = self.pointers[at] // self.tokens.itemsize
            return start, start + self.lengths[at]
        first = int(self.bounds[0])
        return self.bounds[at].astype(np.int64) - first, self.bounds[at + 1].astype(np.int64) - first


# ---- readers


def read_flat(source, dtype, bounds):
    """Return the part of an array, of a plain file of tokens of that dtype, or of a .npy file if `dtype` is None.

    `bounds` are those of documents, or a .npy file of them; None: there is one document.
    """
    name = source if isinstance(source, str) else "the array"
    tokens = _plain(source, dtype) if dtype is not None else _array(source, "tokens")
    if bounds is None:
        return [TokenArray(name, tokens, np.array([0, len(tokens)]))]
    bounds = _array(bounds, "bounds")
    if not len(bounds) or int(bounds[0]) != 0 or int(bounds[-1]) != len(tokens):
        found = f"go from {bounds[0]} to {bounds[-1]}" if len(bounds) else "are none"
        raise ValueError(
            f"bounds must go from 0 to the number of tokens, which is {len(tokens)} in {name}, and they {found}: give "
            "the n + 1 bounds of all documents, or their lengths as lengths="
        )
    check_increase(bounds, name)
    return [TokenArray(name, tokens, bounds)]


def read_megatron(prefix):
    """Return the part of a dataset of Megatron, as its IndexedDataset writes it; each sequence is a document."""
    index, data = f"{prefix}.idx", f"{prefix}.bin"
    size = os.path.getsize(index)
    with open(index, "rb") as file:
        head = file.read(_HEADER.size)
    if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
        raise ValueError(
            f"{index} ({size} bytes) is no index of Megatron: it must begin with {_MAGIC!r} and have {_HEADER.size} "
            f"bytes or more, and begins with {head[: len(_MAGIC)]!r}"
        )
    _, version, code, n, documents = _HEADER.unpack(head)
    if version != _VERSION or _CODES.get(code) not in TOKENS:
        raise ValueError(
            f"{index} has version {version} and dtype {_CODES.get(code, code)}: version {_VERSION} is expected, and "
            f"tokens of {', '.join(TOKENS)}"
        )
    least = _HEADER.size + 12 * n + 8 * documents
    if size not in (least, least + n):  # with the mode of each sequence
        raise ValueError(
            f"{index} has {size} bytes, and {least} or {least + n} are expected for the {n} sequences and {documents} "
            "bounds of documents in its header: it is truncated, or of another format"
        )
    # These arrays are not aligned, which numpy reads, but does not search without a copy.
    raw = np.asarray(np.memmap(index, np.uint8, "r"))
    lengths = raw[_HEADER.size :][: 4 * n].view("<i4")
    pointers = raw[_HEADER.size + 4 * n :][: 8 * n].view("<i8")
    tokens = _plain(data, _CODES[code])
    end = int(pointers[-1]) + int(lengths[-1]) * tokens.itemsize if n else 0
    if end != tokens.nbytes:
        raise ValueError(f"{data} has {tokens.nbytes} bytes, and {end} are expected by {index}: they do not fit")
    at = np.linspace(0, n - 2, min(n - 1, _SPACED), dtype=np.int64) if n > 1 else np.empty(0, np.int64)
    after = pointers[at] + lengths[at].astype(np.int64) * tokens.itemsize
    if n and (pointers[0] or (lengths[at] < 0).any() or (after != pointers[at + 1]).any()):
        raise ValueError(f"the sequences of {index} do not lie one after the other in {data}: write them in order")
    return [TokenArray(data, tokens, None, pointers, lengths)]


def read_arrow(path, column):
    """Return the parts of an Arrow file, one for each record batch, of which a column has lists of tokens."""
    import pyarrow as pa

    from slipring.arrow.files import Ipc, open_table
    from slipring.arrow.spans import Spans, has_spans

    file = open_table(path, [column])
    kind = file.schema.field(column).type
    if not has_spans(kind) or str(kind.value_type) not in TOKENS:
        raise ValueError(
            f"column {column!r} of {path} must have lists of tokens, which are {', '.join(TOKENS)}, not {kind}"
        )
    parts = []
    for group in range(len(file.counts())):
        table, mapped = file.read(group) if isinstance(file, Ipc) else (None, False)
        if not mapped:
            raise ValueError(
                f"{path} is compressed, or a Parquet file, so its tokens are not in flat memory: read it with "
                "slipring.arrow.TableDataset, which the samplers and collators of documents take too, or write it as "
                "an uncompressed Arrow file"
            )
        for chunk in table.column(column).chunks:
            if len(chunk):
                spans, first = Spans(column, 1), np.zeros(1, np.int64)
                try:
                    spans.add(first, pa.chunked_array([chunk]), first)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None
                (tokens,) = spans.flat
                if pa.types.is_fixed_size_list(kind):
                    bounds = np.arange(len(chunk) + 1) * kind.list_size
                else:
                    bounds = chunk.offsets.to_numpy()
                parts.append(TokenArray(path, tokens[int(bounds[0]) : int(bounds[-1])], bounds))
    return parts


# ---- arrays


def divided(tokens, end_token, name):
    """Return the bounds of documents, each of which ends with `end_token`; the last one may lack it."""
    ends = [
        np.flatnonzero(tokens[first : first + _AT_ONCE] == end_token) + (first + 1)
        for first in range(0, len(tokens), _AT_ONCE)
    ]
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    if len(bounds) == 1 and len(tokens):
        raise ValueError(f"{name} has {len(tokens)} tokens, and end_token={end_token} is none of them")
    return bounds if bounds[-1] == len(tokens) else np.append(bounds, len(tokens))


def _array(source, what):
    """Return an array of integers; of a .npy file, mapped."""
    kinds = (*TOKENS, "uint64") if what == "bounds" else TOKENS
    array, name = source, "the array"
    if isinstance(source, str):
        name = source
        try:
            array = np.lib.format.open_memmap(source, mode="r")
        except (ValueError, EOFError) as error:
            size = os.path.getsize(source)
            raise ValueError(f"{source} ({size} bytes) cannot be read as a .npy file: {error}") from None
    if array.ndim != 1 or array.dtype.name not in kinds or not array.flags.c_contiguous or not array.dtype.isnative:
        gaps = "" if array.flags.c_contiguous else ", with gaps"
        raise ValueError(
            f"{what} must be a contiguous row of native integers ({', '.join(kinds)}), and {name} has "
            f"{array.dtype if array.dtype.isnative else array.dtype.str} of shape {array.shape}{gaps}"
        )
    return np.asarray(array)


def _plain(path, dtype):
    """Return the tokens of a file that has nothing else."""
    size, kind = os.path.getsize(path), np.dtype(dtype)
    if size % kind.itemsize:
        raise ValueError(
            f"{path} has {size} bytes, and {kind} tokens have {kind.itemsize} bytes each: it is truncated, or of "
            "another dtype"
        )
    tokens = np.asarray(np.memmap(path, kind, "r")) if size else np.empty(0, kind)
    if size >= 8 and tuple(tokens[: 8 // kind.itemsize].view("<i4").tolist()) in _LLM_C:
        raise ValueError(
            f"{path} is a file of llm.c, which begins with a header of 1,024 bytes: give "
            f"numpy.memmap(path, {dtype!r}, 'r', 1024) in place of its path"
        )
    return tokens
