"""A stream of blocks that is read by shards, so that other ranks and workers can go on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.options import flag, integer
from slipring.streams._shards import ShardRebatcher
from slipring.streams.blocks import Feed
from slipring.streams.source import Pass, Stream, _blocks_of, _check_source
from slipring.workers.passes import check_division, divided_anew, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class ShardStream(Stream):
    """A `Stream` of shards: files, partitions, queries, whose rows come in the same order whoever reads them.

    Ranks take the shards in turn, and so do the workers of a rank. Its states say how far each shard was read, so
    other ranks and workers can go on with them: see `rest_of`. It is read by `slipring.torch.DataLoader`, as `Stream`
    is: ``class Rows(slipring.streams.ShardStream, torch.utils.data.IterableDataset): pass``, with ``batch_size=None``.

    Parameters
    ----------
    shards : sequence
        What tells `read` which shard: paths, or anything else that can be pickled.
    read : callable
        Called with a shard in the worker that reads it: returns an iterable of blocks, as `slipring.stream` has them.
    batch_size, columns, drop_last
        As `slipring.stream` has them. A batch goes on from one shard to the next.
    shuffle : bool
        Take a rank's shards in another order in each pass. Rows within a shard come in its order: those of a shuffle
        buffer would belong to many shards at once, and no state could say which of them were given out.
    rank, world_size : int
        Whose shards these are.

    Attributes
    ----------
    shards : list
        Of all ranks.
    shuffle, rank, world_size
        As given.

    Raises
    ------
    TypeError, ValueError
        At construction, naming argument, value and rule; there are fewer shards than ranks.

    Notes
    -----
    When `read`, or what it returns, raises in the middle of a shard, whoever asks for the next batch has the shard
    opened again, and gets the rows behind those that came.

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
    shuffle: bool
    rank: int
    world_size: int
    _division: list[int]

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
    ) -> None:
        if isinstance(shards, (str, bytes)):
            raise TypeError(f"shards must be a sequence of them, not the one {shards!r}")
        if not callable(read):
            raise TypeError(f"read must be a function of a shard that returns its blocks, not {shown(read)}")
        super().__init__(read, batch_size, columns=columns, drop_last=drop_last)
        flag("shuffle", shuffle)
        integer("world_size", world_size, 1)
        integer("rank", rank, 0, world_size - 1)
        self.shards, self.shuffle = list(shards), bool(shuffle)
        if len(self.shards) < world_size:
            raise ValueError(
                f"{len(self.shards)} shards are too few for {world_size} ranks: each needs one at least"
            )
        self.rank, self.world_size = rank, world_size
        self._division = [rank, world_size, len(self.shards)]

    def __iter__(self) -> Pass:
        self._passes += 1
        return ShardPass(self)

    def rest_of(
        self, states: Sequence[Sequence[Mapping[str, Any] | None]], num_workers: int
    ) -> list[dict[str, Any]]:
        """Return where this rank's workers begin to read what other ranks, or workers, have not read.

        Shards that nobody has begun are divided anew, and those that were being read go on at their row: no row
        comes twice, none is lost. `slipring.torch.DataLoader.load_state_dict` asks for it.

        Parameters
        ----------
        states : list of list of dict or None
            Of each rank of then, of each of its workers: ``{"iterator": state}``, or None where it had begun nothing.
        num_workers : int
            Of this rank now; at least 1.

        Returns
        -------
        list of dict
            One for each worker.

        Raises
        ------
        ValueError
            The states are of other shards, or of another `shuffle`.
        """
        return divided_anew(states, self._division, self.shuffle, num_workers)

    def _read(self, number):
        source = self.batches(self.shards[number])
        _check_source(source, made_by=self.batches, of="shard")
        return _blocks_of(source)

    def __repr__(self) -> str:
        return f"ShardStream({len(self.shards)} shards, batch_size={self.batch_size})"


class ShardPass(Pass):
    """One pass of a worker over its shards of a `ShardStream`.

    Parameters
    ----------
    stream : ShardStream
    """

    _stream: ShardStream
    _divided_anew: bool
    _pieces: list[list[Any]]
    _place: tuple[int, int]

    def _begin(self, seed, rows=0, pieces=None):
        super()._begin(seed, 0)
        stream = self._stream
        self._divided_anew = pieces is not None
        if pieces is None:
            pieces = turns(seed, stream._division, stream.shuffle, self._worker, self._workers)
        self._pieces = pieces
        self._place = 0, pieces[0][1] if pieces else 0  # when it is opened

    def open(self) -> None:
        """Have the shards read from here on."""
        stream = self._stream
        at, row = self._place
        left = [[number, first] for number, first, _ in self._pieces[at:]]
        if left:
            left[0][1] = row
        self._feed = Feed(stream.columns, stream.batch_size)
        self.made = ShardRebatcher(stream._read, self._feed, stream.batch_size, stream.drop_last, left)

    def state_dict(self) -> dict[str, Any]:
        """Return the place behind the last batch."""
        at, row = self._place
        if self.made is not None:
            read, row = self.made.place()
            at += read
        return {
            "seed": self._seed,
            "shard": at,
            "sample": row,
            "divided": [self._worker, self._workers, *self._stream._division],
            "shuffled": self._stream.shuffle,
            **({"pieces": self._pieces} if self._divided_anew else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, also in batches of another size; the shard must give the same rows again.

        Raises
        ------
        ValueError
            It is the place of another worker, of other numbers of workers, ranks or shards, or of another `shuffle`.
        """
        check_division(state, self.state_dict())
        self._begin(self._seed if state["seed"] is None else state["seed"], pieces=state.get("pieces"))
        if state["seed"] is not None:
            self._place = state["shard"], state["sample"]
