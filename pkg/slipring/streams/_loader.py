"""Batches of an exact size from a stream of blocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import instance, integer, seconds
from slipring._core.options.rule import refuse
from slipring._core.ring._ring import MAX_WORKERS
from slipring.loader import Loader
from slipring.options import OF_WORKERS, FlowOptions, Workers, declares
from slipring.streams._source import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Unpack

# Options that a stream cannot have, and why.
REFUSED = {
    "workers.chunk_size": "blocks of rows are copied whole. Give a smaller batch_size",
    "workers.fetch_threads": "it reads one block after the other. Read concurrently in the source",
}


@declares(FlowOptions)
def stream(
    batches: Iterable[Any] | Callable[[int, int], Iterable[Any]],
    batch_size: int,
    *,
    columns: Sequence[str] | None = None,
    shuffle_buffer: int = 0,
    fill_null: Mapping[str, Any] | None = None,
    null_mask: Sequence[str] | None = None,
    **options: Unpack[FlowOptions],
) -> Loader[dict[str, Any]]:
    """Return a loader of batches of an exact size from blocks of any size.

    Each row is copied once, from its block to the slot that the training process reads. A block is released when its
    last row has been copied.

    Parameters
    ----------
    batches : iterable of blocks, or callable
        A block is a ``pyarrow.RecordBatch``, a ``pyarrow.Table``, an object with Arrow's interface for either (such as
        a polars frame), or a dict of arrays with one row per sample. All blocks have the same columns. An iterator is
        read once. Any other iterable (a list, a ``pyarrow.Table``) is read again in each epoch. A function of
        ``(worker, num_workers)`` is called in the worker and returns an iterable of that worker's part.
    batch_size : int
        Rows per batch. Each of several workers fills batches from its own part, and its last batch may have fewer rows.
    columns : sequence of str, optional
        The columns to read, in this order. Default: all columns of the first block, which every block must then have.
    shuffle_buffer : int
        Draw the rows of a batch at random from a buffer of so many rows, at least `batch_size`, in each worker's own
        memory. 0: rows keep the source's order. Columns without a fixed size per row are slower to draw.
    fill_null : dict of str to scalar, optional
        Column -> the value that replaces its nulls, and that the column's type must have: a number, a bool, a
        ``datetime``, or a str for text. It also replaces nulls within tensors and lists of a fixed size, and the masked
        values of a ``numpy.ma.MaskedArray``. Needs pyarrow.
    null_mask : sequence of str, optional
        Columns whose masks the batch has too. A mask is another column, ``"<name>_mask"``, of bools that are true at
        each null, in the shape of the values. If `fill_null` does not name the column, nulls among numbers, bools and
        times become 0, False and the epoch; other nulls stay. Needs pyarrow.
    {options}

    Returns
    -------
    Loader
        Each batch is a dict of column -> values. Numbers, bools and times are numpy arrays of shape
        ``(batch_size,)``. Arrow's lists of a fixed size and tensors are arrays of shape ``(batch_size, *shape)``. Text,
        bytes and nested columns are ``pyarrow.Array``; `slipring.StringList` takes one of strings. All of them are in
        the slot, without a copy.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Notes
    -----
    With ``num_workers=0`` this process makes each batch on request. With workers, `batches` must be a function, and
    each worker reads one part. With ``num_workers=1`` it can also be an iterable, which a thread of this process reads
    ahead (``Workers(start_method='thread')``). A `timeout` needs a worker, because nothing can end a read in this
    thread. The same `seed` draws the same rows, provided that the source gives the same.

    The iterator raises `slipring.errors.BlockError` for a block with other columns, or with nulls in a column that
    becomes an array and that neither `fill_null` nor `null_mask` names. The error names the column and the batch. It
    costs only that block: request the next batch, or continue with ``for``, on the same iterator. An exception of the
    source keeps its type.

    The loader's ``state_dict()`` counts rows. To resume, the source is read from its beginning, and the rows that were
    delivered are skipped without being copied (a shuffle still copies them into its buffer). The source must give the
    same rows in the same order. Without a shuffle, the resumed loader may have another `batch_size`.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> blocks = [{"x": np.arange(3), "y": np.ones((3, 2))}, {"x": np.arange(3, 9), "y": np.ones((6, 2))}]
    >>> with slipring.stream(blocks, batch_size=4) as loader:
    ...     for batch in loader:
    ...         print(batch["x"], batch["y"].shape)
    [0 1 2 3] (4, 2)
    [4 5 6 7] (4, 2)
    [8] (1, 2)
    """
    refuse(options, REFUSED, "slipring.stream")
    data = Stream(
        batches, batch_size, columns=columns, drop_last=options.pop("drop_last", False), shuffle_buffer=shuffle_buffer,
        fill_null=fill_null, null_mask=null_mask, skip_none=options.get("skip_none", False),
    )  # fmt: skip
    num_workers = integer(
        "num_workers", options.get("num_workers", 0), 0, MAX_WORKERS, hint="; 0 reads in this process"
    )
    timeout, workers = options.get("timeout", 0), options.get("workers", Workers())
    seconds("timeout", timeout)
    instance("workers", workers, Workers, OF_WORKERS)
    if not data.per_worker and num_workers:
        if num_workers > 1:
            raise ValueError(
                f"num_workers={num_workers} for one {type(batches).__name__}, which only one can read: give a function "
                "of (worker, num_workers) that returns each worker's part, or num_workers=1"
            )
        if workers.start_method not in (None, "thread"):
            raise ValueError(
                f"start_method={workers.start_method!r} for a {type(batches).__name__} of this process, which a thread "
                "of it reads: give a function of (worker, num_workers), which the worker calls, or "
                "Workers(start_method='thread')"
            )
        options["workers"] = dataclasses.replace(workers, start_method="thread")
    if timeout and not num_workers:
        raise ValueError(
            f"timeout={timeout!r} with num_workers=0: nothing can end a read in this thread. Give num_workers=1"
        )
    return Loader(data, None, **options)
