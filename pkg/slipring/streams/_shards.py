"""A stream of blocks that is read by shards, so that other ranks and workers can continue it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import flag, integer, iterable
from slipring._core.passes._rebatch import ShardRebatcher
from slipring._core.workers.shards import Sharded, ShardedPass
from slipring.errors import shown
from slipring.streams._blocks import BlockReader
from slipring.streams._source import Stream, StreamPass, _blocks_of, _check_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class ShardStream(Sharded, Stream):
    """A `Stream` of shards, such as files, partitions or queries, each of which always has the same order of rows.

    Ranks take the shards in turn, and so do the workers of a rank. A state tells how far each shard was read, so that
    other ranks and workers can continue from it: see `rest_of`. `slipring.torch.DataLoader` reads it with
    ``batch_size=None``, like a `Stream`.

    Parameters
    ----------
    shards : sequence
        Arguments for `read`: paths, or anything else that can be pickled.
    read : callable
        Called with a shard in the worker that reads it; it returns an iterable of blocks, as for `slipring.stream`.
    batch_size, columns, drop_last
        As in `slipring.stream`. A batch can span several shards.
    shuffle : bool
        Take a rank's shards in another order in each pass. Rows keep their order within a shard: a shuffle buffer would
        hold rows of many shards at once, and no state could tell which of them were delivered.
    rank, world_size : int
        The rank that reads, and the number of ranks.
    fill_null, null_mask, skip_none
        As in `slipring.stream`.

    Attributes
    ----------
    shards : list
        The shards of all ranks.
    shuffle, rank, world_size
        As given.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or there are fewer shards than ranks; the text names the argument, its value and the rule.

    Notes
    -----
    If `read`, or its iterable, raises in the middle of a shard, the next request for a batch opens the shard again and
    skips the rows that were delivered.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring.streams import ShardStream
    >>> def read(first):
    ...     yield {"x": np.arange(first, first + 3)}
    >>> [batch["x"].tolist() for batch in ShardStream([0, 10, 20], read, 4)]
    [[0, 1, 2, 10], [11, 12, 20, 21], [22]]
    """

    shards: list[Any]

    def __init__(
        self,
        shards: Sequence[Any],
        read: Callable[[Any], Iterable[Any]],
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
        fill_null: Mapping[str, Any] | None = None,
        null_mask: Sequence[str] | None = None,
        skip_none: bool = False,
    ) -> None:
        if isinstance(shards, (str, bytes)):
            raise TypeError(f"shards must be a sequence of them, not the one {shown(shards)}")
        iterable("shards", shards, "a sequence of them")
        if not callable(read):
            raise TypeError(f"read must be a function of a shard that returns its blocks, not {shown(read)}")
        super().__init__(
            read, batch_size, columns=columns, drop_last=drop_last, fill_null=fill_null, null_mask=null_mask,
            skip_none=skip_none,
        )  # fmt: skip
        flag("shuffle", shuffle)
        world_size = integer("world_size", world_size, 1)
        rank = integer("rank", rank, 0, world_size - 1)
        self.shards = list(shards)
        if len(self.shards) < world_size:
            raise ValueError(f"{len(self.shards)} shards are too few for {world_size} ranks: each needs one at least")
        self._divide(len(self.shards), shuffle, rank, world_size)

    def __iter__(self) -> StreamPass:
        self._passes += 1
        return ShardPass(self)

    def _read(self, reader, number):
        shard = self.shards[number]
        reader.within = f"the stream, in shard {shown(shard)}"
        source = self.batches(shard)
        _check_source(source, made_by=self.batches, of="shard")
        return _blocks_of(source)

    def __repr__(self) -> str:
        return f"ShardStream({len(self.shards)} shards, batch_size={self.batch_size})"


class ShardPass(ShardedPass, StreamPass):
    """One pass of a worker over its part of a `ShardStream`."""

    _bad = -1, 0  # (piece, number of its blocks up to the last that raised)

    def _begin(self, seed, rows=0, pieces=None):
        StreamPass._begin(self, seed, 0)
        ShardedPass._begin(self, seed, pieces)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered row or sample."""
        piece, block = self._bad
        if self.made is not None and self.made.bad[0] >= 0:
            piece, block = self._position[0] + self.made.bad[0], self.made.bad[1]
        return {**super().state_dict(), "batch_size": self._stream.batch_size, "raised": [piece, block]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ShardedPass`."""
        super().load_state_dict(state)
        self._bad = tuple(state.get("raised", self._bad))

    def open(self) -> None:
        """Open the shards from this position on."""
        stream = self._stream
        at, row = self._position
        left = [[number, first] for number, first, _ in self._pieces[at:]]
        if left:
            left[0][1] = row
        self._block_reader = BlockReader(stream)
        self.made = ShardRebatcher(
            partial(stream._read, self._block_reader), self._block_reader, stream.batch_size, stream.drop_last, left
        )
        self.made.bad = self._bad[0] - at, self._bad[1]

    def _reached(self):
        if self.made is None:
            return self._position
        read, row = self.made.position()
        return self._position[0] + read, row
