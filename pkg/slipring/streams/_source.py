"""A stream of blocks as an iterable dataset of whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.codec.nulls import null_options
from slipring._core.options.checks import MAX_COUNT, flag, integer, is_scalar, names
from slipring._core.passes._rebatch import BlockReading, Rebatcher, Shuffler
from slipring._core.ring._ring import mix
from slipring._core.workers.shards import IterableSource, here
from slipring.errors import BlockError, shown
from slipring.streams._blocks import BlockReader, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Stream(IterableSource):
    """Blocks of rows as an iterable dataset whose samples are batches of an exact size, for any loader.

    `slipring.stream` makes one and a loader for it. After `slipring.torch` is imported it is an ``IterableDataset``,
    which a torch loader reads with ``batch_size=None``.

    Parameters
    ----------
    batches, batch_size, columns, drop_last, shuffle_buffer, fill_null, null_mask, skip_none
        As in `slipring.stream`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    Notes
    -----
    Its iterators have ``state_dict`` and ``load_state_dict``, which count rows. An iterator that resumes reads its
    source from the beginning, and drops the rows that were delivered before.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring.streams import Stream
    >>> blocks = [{"x": np.arange(3)}, {"x": np.arange(3, 7)}]
    >>> [batch["x"].tolist() for batch in Stream(blocks, 2)]
    [[0, 1], [2, 3], [4, 5], [6]]
    """

    batches: Iterable[Any] | Callable[[int, int], Iterable[Any]]
    batch_size: int
    columns: list[str] | None
    drop_last: bool
    shuffle_buffer: int
    fill_null: dict[str, Any]
    null_mask: list[str]
    skip_none: bool
    _passes: int
    _begun: bool

    _keys = ("rows", "shuffled", "divided")
    draws_as_caller = True  # without workers, the source draws from the program's own generators

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[int, int], Iterable[Any]],
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        shuffle_buffer: int = 0,
        fill_null: Mapping[str, Any] | None = None,
        null_mask: Sequence[str] | None = None,
        skip_none: bool = False,
    ) -> None:
        _check_source(batches)
        batch_size = integer("batch_size", batch_size, 1, MAX_COUNT)
        shuffle_buffer = integer("shuffle_buffer", shuffle_buffer, 0, MAX_COUNT)
        flag("drop_last", drop_last)
        flag("skip_none", skip_none)
        if 0 < shuffle_buffer < batch_size:
            raise ValueError(
                f"shuffle_buffer={shuffle_buffer} rows cannot fill a batch of batch_size={batch_size}: use at "
                "least as many (0: no shuffling)"
            )
        self.columns = names("columns", columns)
        self.fill_null, self.null_mask = null_options(self.columns, fill_null, null_mask)
        self.batches, self.batch_size = batches, batch_size
        self.drop_last, self.shuffle_buffer = bool(drop_last), shuffle_buffer
        self.skip_none = bool(skip_none)
        self._passes = 0  # in this process
        self._begun = False  # whether a pass has begun to read an iterator

    @property
    def per_worker(self) -> bool:
        """bool: whether each worker makes the source of its part."""
        return _is_factory(self.batches)

    @property
    def _source_name(self) -> str:
        """str: the source's name for messages."""
        return _named(self.batches)

    @property
    def reads_once(self) -> bool:
        """bool: whether the source is an iterator."""
        return hasattr(self.batches, "__next__")

    def __iter__(self) -> StreamPass:
        self._passes += 1
        return StreamPass(self)

    def check_position(self, state: Mapping[str, Any], since: int) -> None:
        """Raise ValueError if a state does not fit this stream; loaders call it when they load a state.

        The dataset and the shuffle must be the same. If the source is an iterator, no pass may have begun to read it.
        `since` batches were delivered after the state.
        """
        super().check_position(state, since)
        had, has = list(state["shuffled"]), self._shuffled
        if had != has:
            words = "shuffle_buffer={} and batch_size={}"
            then, here = (words.format(*how) if how[0] else "shuffle_buffer=0" for how in (had, has))
            raise ValueError(
                f"the state is of {then}, this is {here}: other rows would be drawn. Resume with the same ones"
            )
        if self.reads_once and self._begun:
            raise ValueError(
                "the loader's source is an iterator that a pass has begun to read, and a state counts from its "
                "beginning: make a new loader of a new iterator"
            )

    @property
    def _shuffled(self):
        return [self.shuffle_buffer, self.batch_size] if self.shuffle_buffer else [0, 0]

    def __repr__(self) -> str:
        return f"Stream({_named(self.batches)}, batch_size={self.batch_size})"

    def _open(self, worker, workers):
        """Return the blocks for this worker."""
        if self.per_worker:
            source = self.batches(worker, workers)
            _check_source(source, made_by=self.batches)
        else:
            source = self.batches
            if workers > 1:
                raise ValueError(
                    f"{_named(source)} is one stream for {workers} workers, each of which would read all of it: "
                    "give a function of (worker, num_workers) that returns each one's part"
                )
        if self.reads_once:
            if self._begun:
                raise ValueError(
                    f"{_named(source)} is an iterator, and a pass has begun to read it: it cannot be read from its "
                    "beginning again. Give an iterable, or a function that returns a new iterator each time"
                )
        blocks = _blocks_of(source)
        self._begun = self.reads_once
        return blocks


class StreamPass(BlockReading):
    """One pass of a worker over its part of a `Stream`."""

    continues_after_errors = True  # its state says where to read on after an exception
    _skipped: tuple[type[Exception], ...] = (BlockError,)  # errors of single blocks, which are skipped

    made: Any
    rows_to_skip: int
    _stream: Stream
    _worker: int
    _workers: int
    _seed: int
    _block_reader: BlockReader | None

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._worker, self._workers, seed = here(stream._passes)
        self._begin(seed)

    def _begin(self, seed, rows=0, raised=0):
        self._seed, self.rows_to_skip, self._raised = seed, rows, raised
        self._block_reader = self.made = None

    def open(self) -> None:
        """Open the source."""
        stream = self._stream
        self._block_reader = BlockReader(stream)
        common = stream._open(self._worker, self._workers), self._block_reader, stream.batch_size, stream.drop_last
        if stream.shuffle_buffer:
            rng = np.random.Generator(np.random.Philox(key=mix(self._seed, self._worker)))
            made = Shuffler(*common, stream.shuffle_buffer, rng)
        else:
            made = Rebatcher(*common)
        made.skip(self.rows_to_skip)
        made.raised = self._raised
        self.made = made

    def next_document(self) -> dict[str, Any]:
        """Return the next row as a sample, for `slipring.tokens.pack`. The stream has ``batch_size=1``."""
        return {name: first_of(column, name) for name, column in next(self).items()}

    def catch_up(self) -> None:
        """Read the rows that were delivered before again, and drop them."""
        while True:
            try:
                missing = self.made.catch_up()
            except self._skipped:
                continue  # this pass has raised it before
            break
        if missing:
            raise ValueError(
                f"the state says that {self.rows_to_skip} rows were read of {self._stream._source_name}, which now "
                f"ends after {self.rows_to_skip - missing}: resume with the source that the state was taken of"
            )
        self.rows_to_skip = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch."""
        rows = self.rows_to_skip if self.made is None else max(self.rows_to_skip, self.made.made)
        return {
            "seed": self._seed,
            "rows": rows,
            "raised": self._raised if self.made is None else self.made.raised,
            "batch_size": self._stream.batch_size,
            "divided": self._divided,
            "shuffled": self._stream._shuffled,
        }

    @property
    def _divided(self):
        return [self._worker, self._workers]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`: the source is read from its beginning, and must give the same rows again.

        Raise ValueError if the worker, the number of workers or the shuffle is not the same as in the state.
        """
        had, has = state["divided"], self._divided
        if had[:2] != has[:2]:
            words = "worker {} of {}"
            raise ValueError(
                f"the state is of {words.format(*had)}; this is {words.format(*has)}: resume with as many workers"
            )
        self._stream.check_position(state, 0)
        self._begin(state["seed"], state["rows"], state.get("raised", 0))


def _is_factory(source):
    return callable(source) and not hasattr(source, "__iter__") and not hasattr(source, "__arrow_c_stream__")


def _named(source):
    """Return a source's name for messages."""
    if _is_factory(source):
        return getattr(source, "__qualname__", type(source).__name__)
    return f"a {type(source).__name__}"


def _blocks_of(source):
    """Return an iterator over the blocks of a checked source."""
    if hasattr(source, "__iter__"):
        return iter(source)
    from slipring.arrow import blocks

    return blocks.reader(source)


def _check_source(source, made_by=None, of="worker, num_workers"):
    whose = "batches" if made_by is None else f"what {_named(made_by)}({of}) returns"
    if isinstance(source, (Mapping, str, bytes, np.ndarray)):
        raise TypeError(
            f"{whose} must be an iterable of blocks, not {shown(source)}: for a stream of one block give [block]"
        )
    iterable = hasattr(source, "__iter__") or hasattr(source, "__arrow_c_stream__")
    iterable = iterable and not is_scalar(source)
    if not iterable and (made_by is not None or not callable(source)):
        rest = "" if made_by is not None else ", or a function of (worker, num_workers) that returns one"
        raise TypeError(
            f"{whose} must be an iterable of record batches, tables or dicts of arrays{rest}, not {shown(source)}"
        )
