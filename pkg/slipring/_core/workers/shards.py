"""Divide a stream among workers, and find the part of a stream of shards that is still unread.

A pass over shards reads pieces: [number of the shard, its first sample (or row), the seed for random values; None
stands for the pass's own seed]. The state of a pass has "seed", "shard" (how many pieces are read), "sample" (the next
one of the current shard), "divided" ([worker, workers, rank, ranks, shards]), "shuffled" (whether the order is random),
and "pieces" if they were divided again. `division` is the last three numbers of "divided".
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slipring._core.ring._ring import mix
from slipring._core.ring.worker_info import get_worker_info
from slipring._core.workers import seeding
from slipring._core.workers.redivision import check_divided_once

if TYPE_CHECKING:
    from collections.abc import Sequence


class IterableSource:
    """Base class of the package's iterable datasets: `slipring.torch` registers it as a torch IterableDataset."""

    _keys: tuple[str, ...]  # of the states of its iterators

    def check_position(self, state: Mapping[str, Any], since: int) -> None:
        """Raise ValueError if an iterator's state is not valid here; loaders call it when they load a state.

        `since` batches were delivered after the state.
        """
        if not isinstance(state, Mapping) or not state.keys() >= set(self._keys):
            raise ValueError(
                f"the state is of another dataset: it lacks keys of {type(self).__name__}'s states "
                f"({', '.join(self._keys)}). Resume with the dataset that the state was taken of"
            )
        size = getattr(self, "batch_size", None)
        if since and state.get("batch_size", size) != size:
            raise ValueError(
                f"the state counts {since} batches of batch_size={state['batch_size']}, this is batch_size={size}: "
                "other rows would be skipped than were delivered. Use the same batch_size, or save states with "
                "Workers(snapshot_every_n_steps=1)"
            )


class Sharded(IterableSource):
    """A stream that is read by shards, so that other ranks and workers can continue it."""

    shuffle: bool
    rank: int
    world_size: int
    _division: list[int]
    _keys = ("shard", "sample", "shuffled")

    def _divide(self, shards: int, shuffle: bool, rank: int, world_size: int) -> None:
        """Take this rank's part of `shards` shards."""
        self.shuffle, self.rank, self.world_size = bool(shuffle), rank, world_size
        self._division = [rank, world_size, shards]

    def check_position(self, state: Mapping[str, Any], since: int) -> None:
        """Raise ValueError if an iterator's state is of another dataset or another order; loaders call it.

        `since` batches were delivered after the state.
        """
        IterableSource.check_position(self, state, since)
        _check_order(state, self.shuffle)

    def rest_of(self, states: Sequence[Sequence[Mapping[str, Any] | None]], num_workers: int) -> list[dict[str, Any]]:
        """Return the positions from which this rank's workers read what other ranks or workers have not read.

        Shards that no worker has begun are divided again. Shards that were being read continue at their position. So no
        row or sample is read twice, and none is lost. `slipring.torch.DataLoader.load_state_dict` calls this method.

        Parameters
        ----------
        states : list of list of dict or None
            For each earlier rank and each of its workers: ``{"iterator": state}``, or None if it had begun nothing.
        num_workers : int
            Workers of this rank now; at least 1.

        Returns
        -------
        list of dict
            One for each worker.

        Raises
        ------
        ValueError
            The states are of other shards, or of another ``shuffle``.
        """
        rank, ranks, shards = self._division
        own = _left(states, shards, self.shuffle)[rank::ranks]
        beginning = {"seed": None, "shard": 0, "sample": 0, "shuffled": self.shuffle}
        return [
            {"iterator": {**beginning, "divided": [n, num_workers, *self._division], "pieces": own[n::num_workers]}}
            for n in range(num_workers)
        ]


class ShardedPass:
    """One pass of a worker over its part of a `Sharded` stream: the pieces that it reads, and its position in them."""

    _stream: Any
    _worker: int
    _workers: int
    _seed: int
    _pieces: list[list[Any]]
    _redivided: bool
    _position: tuple[int, int]  # finished pieces, and the next row or sample of the piece after them

    def _begin(self, seed, pieces=None):
        stream = self._stream
        check_divided_once(stream)
        self._seed, self._redivided = seed, pieces is not None
        if pieces is None:
            pieces = turns(seed, stream._division, stream.shuffle, self._worker, self._workers)
        self._pieces = pieces
        self._position = 0, pieces[0][1] if pieces else 0

    def _reached(self):
        """Return the position after the last delivered row or sample."""
        return self._position

    def last_read(self) -> list[int]:
        """Return [shard, sample, seed] of the sample that was read last: a piece that begins with it."""
        at, sample = self._reached()
        number, _, seed = self._pieces[at]
        return [number, sample - 1, self._seed if seed is None else seed]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered row or sample."""
        shard, sample = self._reached()
        return {
            "seed": self._seed,
            "shard": shard,
            "sample": sample,
            "divided": [self._worker, self._workers, *self._stream._division],
            "shuffled": self._stream.shuffle,
            **({"pieces": self._pieces} if self._redivided else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from that position; the shard must give the same samples. Batches of rows may have another size.

        If the state is of another worker, of other numbers of workers, ranks or shards, or of another ``shuffle``,
        raise ValueError.
        """
        _check_division(state, self.state_dict())
        self._begin(self._seed if state["seed"] is None else state["seed"], pieces=state.get("pieces"))
        if state["seed"] is not None:
            self._position = state["shard"], state["sample"]


def here(passes):
    """Return (worker, workers, the pass's seed) of the caller: in slipring's workers, in torch's, or in none.

    `passes` is how many passes have begun in this process.
    """
    seed, info = seeding.stream_seed(), get_worker_info()
    if seed is None and info is None and (torch := sys.modules.get("torch.utils.data")) is not None:
        info = torch.get_worker_info()
    if seed is None:
        # torch's persistent workers have one seed for all passes, which they begin together.
        seed = random.getrandbits(64) if info is None else mix(info.seed - info.id, passes)
    return (0, 1, seed) if info is None else (info.id, info.num_workers, seed)


def turns(seed, division, shuffle, worker, workers):
    """Return the pieces of a worker at the beginning of a pass: whole shards, dealt in turn to its rank's workers."""
    rank, ranks, shards = division
    numbers = list(range(shards)[rank::ranks])
    if shuffle:
        random.Random(seed).shuffle(numbers)
    return [[number, 0, None] for number in numbers[worker::workers]]


def _check_division(state, here):
    """Raise ValueError if a state is of another part of the shards, or of another order; `here` is this one's state."""
    had, has = state["divided"], here["divided"]
    if list(had) != list(has):
        words = "worker {} of {}, rank {} of {}, {} shards"
        raise ValueError(
            f"the state is of {words.format(*had)}; this is {words.format(*has)}: "
            "resume with as many workers, ranks and shards, or with a list of all ranks' states"
        )
    _check_order(state, here["shuffled"])


def _check_order(state, shuffle):
    had = state["shuffled"]
    if had != shuffle:
        raise ValueError(
            f"the state is of shuffle={had}, this is shuffle={shuffle}: the order differs, so some rows would "
            f"be read again, and others not at all. Resume with shuffle={had}"
        )


def _left(states, shards, shuffle):
    """Return the pieces that no worker has read, from all ranks' workers' states; pieces already begun come first."""
    begun, whole = [], []
    for rank, of_rank in enumerate(states):
        division = [rank, len(states), shards]
        iterators = [None if state is None else state["iterator"] for state in of_rank]
        seed = next((one["seed"] for one in iterators if one is not None and one["seed"] is not None), None)
        for worker, state in enumerate(iterators):
            if state is None:
                whole += turns(seed, division, shuffle and seed is not None, worker, len(of_rank))
                continue
            if state["divided"] != [worker, len(of_rank), *division]:
                raise ValueError(
                    f"the state of rank {rank}'s worker {worker} is of {state['divided'][4]} shards, divided among "
                    f"{state['divided'][3]} ranks; here are {shards} shards and {len(states)} states: resume "
                    "with the shards that the states are of"
                )
            _check_order(state, shuffle)
            pieces = state.get("pieces")
            if pieces is None:
                pieces = turns(state["seed"], division, shuffle, worker, len(of_rank))
            left = [[number, first, state["seed"] if own is None else own] for number, first, own in pieces]
            left = left[state["shard"] :]
            if left and state["sample"]:
                begun.append([left[0][0], state["sample"], left[0][2]])
                del left[0]
            whole += left
    return begun + whole
