"""Packs of a stream, whose lengths only a worker learns: online best fit, and steps that are equal in all ranks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import flag, integer, one_of
from slipring._core.workers.fetch import is_stream
from slipring._core.workers.shards import IterableSource, Sharded
from slipring.errors import shown
from slipring.tokens._arguments import compare, mapping
from slipring.tokens._packing import PackedPass, share
from slipring.tokens._planned import MOST
from slipring.tokens._reading import NumberReading, ShardReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


def pack(
    stream: Iterable[Any],
    max_tokens: int,
    *,
    split: bool = False,
    overflow: Literal["error", "drop", "truncate", "split"] = "error",
    length: str | Callable[[Any], int] | None = None,
    max_documents: int | None = None,
    document_multiple_of: int = 1,
    open_packs: int = 16,
    steps_per_epoch: int | None = None,
) -> PackedStream:
    """Make packs of the documents of a stream, which are tokenized in the worker that reads them.

    A pack is a list of documents with at most `max_tokens` tokens together. Load the stream of packs with
    ``batch_size=None`` and a collator, such as `Flat`: each batch is one pack.

    A worker puts each document into the open pack in which the least room remains (online best fit). If no open pack
    has room, the document opens a new one. If `open_packs` are open already, the fullest is delivered.

    Parameters
    ----------
    stream : iterable
        Any iterable dataset: each sample is one document, a dict of fields or an array of tokens. Of a
        `slipring.streams.Stream` or `slipring.streams.ShardStream` with ``batch_size=1``, each row is one; its columns
        of lists become arrays.
    max_tokens : int
        A pack never has more tokens.
    split : bool
        Cut documents where a pack is full: each pack has exactly `max_tokens`, except a worker's last ones. Documents
        keep their order. (Exactly: the largest multiple of `document_multiple_of`, unless `max_documents` comes first.)
    overflow : {"error", "drop", "truncate", "split"}
        What happens to a document with more than `max_tokens`. "drop" leaves it out, "truncate" takes its first tokens,
        and "split" takes all of it, in parts. A worker logs the first one that it drops or truncates, and their number
        at the end of its pass.
    length : str or callable, optional
        The field whose length counts, or a function that returns a document's number of tokens. Default: "input_ids",
        or else the first field.
    max_documents : int, optional
        A pack never has more documents.
    document_multiple_of : int
        Round up each document's length to a multiple of this number.
    open_packs : int
        Packs that are filled at once. A worker reads as many packs ahead, and keeps their documents in its memory.
    steps_per_epoch : int, optional
        Deliver exactly so many packs in each epoch of each rank, so that all ranks stop at the same step. Documents
        that remain are not read in this epoch. A worker whose documents do not suffice begins them again, in another
        order if `stream` is shuffled, and logs a warning.

    Returns
    -------
    PackedStream
        If `stream` divides its shards among ranks (`slipring.streams.ShardStream`, `slipring.images.TarStream`), so
        does this one, and any number of ranks and workers can continue from all ranks' states.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument, its value and the rule.

    See Also
    --------
    equal_steps : Stop all ranks when the first one has no more packs.

    Notes
    -----
    A state has the locations of open packs' documents, not their tokens: a worker that resumes reads them again, so
    the stream must give the same documents. If its iterator has no ``state_dict`` and ``load_state_dict``, the worker
    reads the pass again from its beginning.

    The packing is that of "best fit with bounded space" (Csirik and Johnson, *Bounded space on-line bin packing: best
    is better than first*, 2001).

    Examples
    --------
    >>> import slipring
    >>> from slipring import tokens
    >>> class Documents:
    ...     def __iter__(self):  # with several workers: this worker's part, see `slipring.get_worker_info`
    ...         return iter([[1] * 5, [2] * 2, [3] * 4, [4] * 3])
    >>> packs = tokens.pack(Documents(), max_tokens=8)
    >>> with slipring.Loader(packs, batch_size=None, num_workers=1, collate_fn=tokens.Flat()) as loader:
    ...     [batch["input_ids"].tolist() for batch in loader]
    [[1, 1, 1, 1, 1, 2, 2], [3, 3, 3, 3, 4, 4, 4]]
    """
    if not is_stream(stream):
        raise TypeError(
            f"stream must be an iterable dataset, and {type(stream).__name__} is indexed: give its lengths to "
            "slipring.tokens.PackedSampler, or iterate it in a dataset that divides it among workers"
        )
    max_tokens = integer("max_tokens", max_tokens, 1, MOST)
    flag("split", split)
    one_of("overflow", overflow, ("error", "drop", "truncate", "split"))
    if split and overflow != "error":
        raise ValueError(f"split=True cuts every document at the end of a pack: leave out overflow={overflow!r}")
    if not (length is None or isinstance(length, str) or callable(length)):
        raise TypeError(f"length must be a field's name or a function of a document, not {shown(length)}")
    rows = getattr(stream, "batch_size", 1) if isinstance(stream, IterableSource) else 1
    if rows != 1:
        raise ValueError(f"{stream!r} yields {rows} rows at once, and each row is a document: give it batch_size=1")
    options = {
        "max_tokens": max_tokens,
        "split": bool(split),
        "overflow": overflow,
        "max_documents": integer("max_documents", max_documents, 1, MOST, optional=True),
        "document_multiple_of": integer("document_multiple_of", document_multiple_of, 1, max_tokens),
        "open_packs": integer("open_packs", open_packs, 1, 1 << 16),
        "steps_per_epoch": integer("steps_per_epoch", steps_per_epoch, 1, MOST, optional=True),
    }
    return (ShardedPacks if isinstance(stream, Sharded) else PackedStream)(stream, length, options)


class PackedStream(IterableSource):
    """The packs that `pack` makes, as an iterable dataset.

    Its iterators have ``state_dict`` and ``load_state_dict``, which loaders call. After `slipring.torch` is imported,
    it is a torch ``IterableDataset``.

    Attributes
    ----------
    stream : iterable
        The documents.
    options : dict
        The arguments of `pack` that a state must have been saved with.
    rank, world_size : int
        Those of `stream`, if it has them.

    Examples
    --------
    >>> from slipring import streams, tokens
    >>> def read(path):  # tokenize a file here
    ...     import pyarrow as pa
    ...     yield {"input_ids": pa.array([[1] * 5, [2] * 2, [3] * 4])}
    >>> packs = tokens.pack(streams.ShardStream(["a.jsonl"], read, batch_size=1), max_tokens=8, split=True)
    >>> [[document["input_ids"].tolist() for document in pack] for pack in packs]
    [[[1, 1, 1, 1, 1], [2, 2], [3]], [[3, 3, 3]]]
    """

    stream: Any
    options: dict[str, Any]
    rank: int
    world_size: int

    _keys = "packs", "rests", "left", "round", "ended", "options"
    _reading: type[ShardReading | NumberReading] = NumberReading

    def __init__(self, stream: Any, length: str | Callable[[Any], int] | None, options: dict[str, Any]) -> None:
        self.stream, self.options, self._length = stream, options, length
        for name in ("rank", "world_size"):
            if hasattr(stream, name):
                setattr(self, name, getattr(stream, name))

    def __iter__(self) -> Iterator[list[Any]]:
        return PackedPass(self)

    def check_position(self, state: Mapping[str, Any], since: int) -> None:
        """Raise ValueError if an iterator's state is of other options or another stream; loaders call it.

        `since` batches were delivered after the state.
        """
        super().check_position(state, since)
        why = "other documents would be in the packs. Resume with the same options"
        compare(self.options, mapping("options", state["options"]), ("this pack()", "the state"), why)

    def __repr__(self) -> str:
        return f"slipring.tokens.pack({self.stream!r}, {self.options['max_tokens']})"


class ShardedPacks(PackedStream, Sharded):
    """Packs of a stream of shards."""

    _keys = (*PackedStream._keys, *Sharded._keys)
    _reading = ShardReading

    def __init__(self, stream, length, options):
        super().__init__(stream, length, options)
        self.shuffle, self._division = stream.shuffle, stream._division

    def rest_of(self, states: Sequence[Sequence[Mapping[str, Any] | None]], num_workers: int) -> list[dict[str, Any]]:
        """Return the positions from which this rank's workers read what other ranks or workers have not delivered.

        As `slipring.streams.ShardStream.rest_of`; open packs are dealt to the new workers in turn.
        """
        own = super().rest_of(states, num_workers)
        begun = [state["iterator"] for rank in states for state in rank if state is not None]
        for state in begun:
            self.check_position(state, 0)
        steps = self.options["steps_per_epoch"]
        left = None if steps is None else _same_of_ranks([_left_of(rank, steps) for rank in states])
        packs, rests = (
            [each for one in begun for each in one[name]][self.rank :: self.world_size] for name in ("packs", "rests")
        )
        for n, state in enumerate(own):
            state["iterator"].update(
                packs=packs[n::num_workers],
                rests=rests[n::num_workers],
                left=None if left is None else share(left, n, num_workers),
                round=0,
                ended=False,
                options=self.options,
            )
        return own


def _left_of(rank, steps):
    """Return how many packs a rank has still to deliver, from the states of its workers."""
    return sum(
        share(steps, n, len(rank)) if state is None else state["iterator"]["left"] for n, state in enumerate(rank)
    )


def _same_of_ranks(left):
    if len(set(left)) > 1:
        raise ValueError(
            f"the ranks' states are not of the same step: {left} packs are missing of steps_per_epoch. Save them at "
            "the same step of all ranks"
        )
    return left[0]


# ---- steps that are equal in all ranks


def equal_steps(loader: Any, least: Callable[[int], int] | None = None) -> Iterator[Any]:
    """Yield the batches of a loader of packs, until the first rank has no more.

    A training that communicates in each step hangs if one rank has fewer batches than the others. The states of a
    rank's workers say how many packs they are filling, and all of these will be delivered. The ranks compare these
    numbers, and then take as many steps as the smallest without communication.

    Parameters
    ----------
    loader : slipring.Loader or slipring.torch.DataLoader
        Of `pack`.
    least : callable, optional
        Called with an int in all ranks at the same steps; returns the smallest of theirs. By default
        torch.distributed's default group is used, if it is initialized.

    Yields
    ------
    object
        A batch.

    Raises
    ------
    TypeError
        The loader has no state.

    Notes
    -----
    Documents that the other ranks still have are not read in this epoch. A job that resumes from the states of this
    step reads them. Only if a rank has no pack at all, the others have taken one before they learn it, which is lost.

    If a batch raises an exception, the next ``next()`` continues after it, and all ranks still take the same steps.

    Examples
    --------
    >>> import slipring
    >>> from slipring import tokens
    >>> class Documents:
    ...     def __iter__(self):
    ...         return iter([[1] * 5, [2] * 2, [3] * 4, [4] * 3])
    >>> loader = slipring.Loader(tokens.pack(Documents(), max_tokens=8), batch_size=None)
    >>> len(list(tokens.equal_steps(loader)))
    2
    """
    if not hasattr(loader, "state_dict"):
        raise TypeError(f"loader must be a slipring.Loader or slipring.torch.DataLoader, not {shown(loader)}")
    return _EqualSteps(loader, _least_of_ranks if least is None else least)


class _EqualSteps:
    """The iterator of `equal_steps`; it can continue after an exception, which would end a generator."""

    def __init__(self, loader, least):
        self.loader, self.least = loader, least
        self.batches, self.first, self.steps, self.is_over = None, [], 0, False

    def __iter__(self):
        return self

    def __next__(self):
        if not self.steps and not self.is_over:
            self.steps = self._compared()
            self.is_over = not self.steps
        if self.is_over:
            self.batches = None
            raise StopIteration
        batch = self.first.pop() if self.first else next(self.batches, _NONE)
        if batch is _NONE:
            raise RuntimeError(f"the loader has ended {self.steps} batches before those that its workers have promised")
        self.steps -= 1
        return batch

    def _compared(self):
        """Return how many steps all ranks can take."""
        if self.batches is None:
            self.batches = iter(self.loader)
        sure, is_all = _surely_left(self.loader.state_dict())
        if not sure and not is_all and not self.first:  # such as before the first batch
            self.first += itertools.islice(self.batches, 1)
        if self.first:
            sure = 1 + _surely_left(self.loader.state_dict())[0]
        return self.least(sure)


_NONE = object()


def _surely_left(state):
    """Return (how many batches a loader of packs will deliver at least, whether there are no more)."""
    count = ended = 0
    for position in state["workers"]:
        # Until a worker's first batch, its position may be that of the end of the pass before.
        states = None if position is None or position.get("ended") else position["states"]
        if states and "packs" in states.get("iterator", ()):
            own = states["iterator"]
            packs = len(own["packs"]) if own["left"] is None else min(len(own["packs"]), own["left"])
            count += max(0, packs - position.get("since", 0))
            ended += own["ended"] or own["left"] == 0
    return count, ended == max(1, state["num_workers"])


def _least_of_ranks(own):
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return own
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    return min(found)
