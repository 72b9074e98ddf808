"""Batches of an exact size from a stream of blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipring._core._rebatch import Place, StreamIterator
from slipring._core._ring import MAX_WORKERS, mix
from slipring._core.arguments import instance, integer, seconds
from slipring._core.declare import refuse
from slipring._core.source import StreamPlan
from slipring.errors import shown
from slipring.loader import MASK_62, Loader
from slipring.options import OF_WORKERS, StreamOptions, Workers, declares
from slipring.streams.source import Stream, check_shuffle
from slipring.streams.worker import StreamWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Unpack

STATE_FORMAT = 1  # of a state
# Options that a stream cannot have, and why.
REFUSED = {
    "workers.chunk_size": "blocks of rows are copied whole. Give a smaller batch_size",
    "workers.fetch_threads": "it reads one block after the other. Read concurrently in the source",
}


@declares(StreamOptions)
def stream(
    batches: Iterable[Any] | Callable[[int, int], Iterable[Any]],
    batch_size: int,
    *,
    columns: Sequence[str] | None = None,
    shuffle_buffer: int = 0,
    fill_null: Mapping[str, Any] | None = None,
    null_mask: Sequence[str] | None = None,
    **options: Unpack[StreamOptions],
) -> StreamLoader:
    """Return a loader of batches of an exact size from blocks of any: record batches, tables or dicts of arrays.

    Rows are copied once, from the block that they came in to the slot that the training reads; a block is let go of
    when its last row has been copied.

    Parameters
    ----------
    batches : iterable of blocks, or callable
        A block is a ``pyarrow.RecordBatch``, a ``pyarrow.Table``, what has Arrow's interface for either (a polars
        frame), or a dict of arrays with a row for each sample; all have the same columns. An iterator is read once;
        another iterable (a list, ``pyarrow.Table``) is iterated anew in each epoch. A function of
        ``(worker, num_workers)`` returns an iterable of that worker's part, and is called in the worker.
    batch_size : int
        Rows per batch. With several workers each fills batches from its own part, and each one's last may have fewer.
    columns : sequence of str, optional
        Only these columns, in this order; default all of the first block's, which all blocks then must have.
    shuffle_buffer : int
        Draw the rows of a batch at random from a buffer of so many, at least `batch_size`, in each worker's own
        memory. 0: rows come in the source's order. Columns without a fixed size per row are slower to draw.
    fill_null : dict of str to scalar, optional
        Column -> the value that comes in the place of its nulls, which the column's type must have: a number, a bool,
        a ``datetime``, for text a str. It also fills nulls within lists of a fixed size and tensors, and the masked
        values of a ``numpy.ma.MaskedArray``. Needs pyarrow.
    null_mask : sequence of str, optional
        Columns of which the batch has the mask too: another column, ``"<name>_mask"``, of bools that are true where a
        value was null, in the shape of the values. Numbers, bools and times that `fill_null` does not name are 0,
        False and the epoch there; other nulls stay. Needs pyarrow.
    {options}

    Returns
    -------
    StreamLoader
        Each batch is a dict of column -> values. Numbers, bools and times are numpy arrays of shape
        ``(batch_size,)``, Arrow's lists of a fixed size and its tensors of shape ``(batch_size, *shape)``, without a
        copy out of the slot. Text, bytes and nested columns are ``pyarrow.Array``, in the slot too:
        `slipring.StringList` takes one of strings.

    Raises
    ------
    TypeError, ValueError
        At construction, naming argument, value and rule.

    Notes
    -----
    With ``num_workers=0`` this process makes a batch when you ask for it. Else `batches` must be a function, and each
    worker reads one part. With ``num_workers=1`` it can also be an iterable, which a thread of this process reads ahead
    (``Workers(start_method='thread')``). A `timeout` needs a worker, because nothing can end a read in this thread. The
    same `seed` draws the same rows, if the source gives the same.

    The iterator raises `slipring.errors.BlockError` for a block with other columns, or with nulls in a column that
    becomes an array and that neither `fill_null` nor `null_mask` names. That names the column and the batch, and costs
    the block alone: ask for the next batch, or go on with ``for``, on the same iterator. An exception of the source
    comes with its own type.

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
        fill_null=fill_null, null_mask=null_mask,
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
            f"timeout={timeout!r} with num_workers=0: nobody is there to end a read in this thread. Give num_workers=1"
        )
    return StreamLoader(data, **options)


class StreamLoader(Loader[dict[str, Any]]):
    """What `slipring.stream` returns: a `slipring.Loader` with a state.

    Parameters
    ----------
    dataset : Stream
    **options
        As `slipring.Loader` has them.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> def blocks(worker, num_workers):
    ...     return ({"x": np.arange(at, at + 3)} for at in range(0, 12, 3))
    >>> with slipring.stream(blocks, batch_size=4, seed=0) as loader:
    ...     first = next(iter(loader))["x"].tolist()
    ...     state = loader.state_dict()
    >>> with slipring.stream(blocks, batch_size=4) as loader:
    ...     loader.load_state_dict(state)
    ...     first, [batch["x"].tolist() for batch in loader]
    ([0, 1, 2, 3], [[4, 5, 6, 7], [8, 9, 10, 11]])
    """

    dataset: Stream
    seed: int
    _at: Place | None
    _worker_class = StreamWorker
    _keeps_states = False

    def __init__(self, dataset: Stream, **options: Any) -> None:
        self._at = None  # `Place`: how far the latest pass is
        super().__init__(dataset, batch_size=None, **options)

    def __iter__(self) -> StreamIterator:
        self._at = at = self._next_place()  # before the plan is asked for
        iterator = super().__iter__()
        at.begun = True
        return StreamIterator(iterator, at)

    def _next_place(self):
        """Return where the next pass begins: a state that was loaded holds for one pass, the first of its epoch."""
        at = self._at
        if at is not None and at.epoch == self.epoch and not at.begun:
            return at
        resumed = self.dataset._resume
        if resumed is not None and resumed[0] == pass_seed(self.seed, self.epoch):
            self._rest()  # workers that stay have it too
            self.dataset._resume = None
        return self._beginning(self.epoch)

    def _beginning(self, epoch):
        return Place(epoch, [0] * max(1, self.options.num_workers))

    def _stream_plan(self, first):
        o = self.options
        return StreamPlan(max(1, o.num_workers), o.in_order, self._at.turn)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_at": self._at}

    def __repr__(self) -> str:
        data, o = self.dataset, self.options
        return f"slipring.{data!r} with num_workers={o.num_workers}".replace("Stream", "stream", 1)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is: behind the last batch that it has given out.

        Returns
        -------
        dict
            Plain values: the epoch, its seed, and how many rows each worker's part has given. The buffer of a shuffle
            is not in it: it is filled again, with the same rows.
        """
        at = self._at
        if at is None or at.ended or (at.epoch != self.epoch and not at.begun):
            at = self._beginning(self.epoch)
        return {
            "slipring_stream": STATE_FORMAT,
            "seed": self.seed,
            "epoch": at.epoch,
            "rows": list(at.rows),
            "turn": at.turn,
            "shuffled": self._shuffled,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from a state: the same batches come as without the interruption.

        The source is read from its beginning, and what was given out is passed over without being copied (with a
        shuffle: but into the buffer). It must give the same rows in the same order as it did; that it has fewer is
        noticed. Who sets ``epoch`` to another one before that iteration begins there instead, and whoever comes to
        the state's epoch once more gets all of it.

        Parameters
        ----------
        state : dict
            What `state_dict` has returned, also of a loader with another `batch_size` if it does not shuffle.

        Raises
        ------
        TypeError, ValueError
            It is no such state, is of another number of workers or another shuffle; or the source is an iterator that
            a pass has begun to read.
        """
        if not isinstance(state, Mapping) or state.get("slipring_stream") != STATE_FORMAT:
            raise TypeError(f"a state must be what state_dict() of a slipring.stream returns, not {shown(state)}")
        workers = max(1, self.options.num_workers)
        if len(state["rows"]) != workers:
            raise ValueError(
                f"the state is of {len(state['rows'])} workers, the loader has {workers}: each reads a part of its "
                "own. Use as many workers, or finish the epoch first"
            )
        check_shuffle(state["shuffled"], self._shuffled)
        data = self.dataset
        if data.reads_once and data._begun:
            raise ValueError(
                "the loader's source is an iterator that a pass has begun to read, and a state counts from its "
                "beginning: make a new loader of a new iterator"
            )
        self._rest()
        self.seed, self.epoch = state["seed"], state["epoch"]
        self._at = Place(self.epoch, state["rows"], state["turn"])
        data._resume = pass_seed(self.seed, self.epoch), list(state["rows"])

    @property
    def _shuffled(self):
        data = self.dataset
        return [data.shuffle_buffer, data.batch_size] if data.shuffle_buffer else [0, 0]


def pass_seed(seed, epoch):
    """Return a pass's seed as a worker finds it: see `slipring._core.worker.Worker._enter_run`."""
    return mix(mix(seed, epoch) & MASK_62, epoch)
