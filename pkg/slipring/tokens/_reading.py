"""Documents of a stream one by one, each with the location by which it can be read again."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from slipring._core.ring._ring import mix
from slipring._core.ring._slot import current
from slipring._core.ring.worker_info import runs_in_thread
from slipring._core.workers.fetch import load_stream
from slipring._core.workers.stateful import copied, stateful_parts, states_of
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SNAPSHOT_EVERY = 64  # documents


@contextlib.contextmanager
def outside_of_slot() -> Iterator[None]:
    """Let arrays be made in ordinary memory: those of documents that belong to a later pack than the one being made."""
    fill = current()
    if fill is None:
        yield
        return
    fill.__exit__()
    try:
        yield
    finally:
        fill.__enter__()


class ShardReading:
    """Documents of a stream of shards. A location is [shard, sample, seed]."""

    LOCATION_SIZE = 3  # numbers

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
        self.iterator = iter(self.stream)
        self.next = _reader_of(self.iterator)

    def restart(self, number: int) -> None:
        """Begin another pass of this epoch, in another order."""
        seed = mix(self.iterator.state_dict()["seed"], number)
        self.begin()
        self.load({**self.iterator.state_dict(), "seed": seed, "shard": 0, "sample": 0})

    def location(self) -> list[int]:
        """Return the location of the document that was read last."""
        return self.iterator.last_read()

    def name(self, location: list[int]) -> str:
        """Return the name of a document, for errors."""
        shards = getattr(self.stream, "shards", None)
        return f"sample {location[1]} of shard {location[0] if shards is None else shown(shards[location[0]])}"

    def state(self, locations: Iterable[list[int]]) -> dict[str, Any]:
        """Return the position after the last document. `locations` are read again by whoever resumes."""
        state = self.iterator.state_dict()
        state.pop("batch_size", None)  # rows are not counted in batches here
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.iterator.load_state_dict(state)

    def again(self, locations: Iterable[list[int]]) -> dict[tuple[int, ...], Any]:
        """Read documents again; return {location: document}."""
        found, of_shard = {}, {}
        for shard, sample, seed in locations:
            of_shard.setdefault((shard, seed), set()).add(sample)
        for (shard, seed), samples in of_shard.items():
            iterator = iter(self.stream)
            first = min(samples)
            state = {**iterator.state_dict(), "seed": seed, "shard": 0, "sample": first}
            state["pieces"] = [[shard, first, seed]]
            iterator.load_state_dict(state)
            read, reached = _reader_of(iterator), (0, first)
            while samples:
                try:
                    document = read()
                except StopIteration:
                    raise _changed(self.name([shard, min(samples), seed])) from None
                except Exception:
                    state, before = iterator.state_dict(), reached
                    reached = state["shard"], state["sample"]
                    if reached == before or reached[0] or reached[1] - 1 in samples:
                        raise
                    continue  # this sample has raised it before
                location = iterator.last_read()
                reached = 0, location[1] + 1
                if location[1] in samples:
                    samples.remove(location[1])
                    found[tuple(location)] = document
        return found


class NumberReading:
    """Documents of any iterable dataset. A location is [number of the document in this worker's pass].

    A resume loads the newest state of the dataset and its iterator before the oldest document that is needed, and reads
    on from there. Without states it reads the pass from its beginning.
    """

    LOCATION_SIZE = 1

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
        self.iterator = None  # opened with the first document
        self.read = 0  # documents
        self.raised = []  # the numbers of those that raised an exception instead
        self.snapshots = deque([(0, None)])  # (documents before, states)

    def _open(self, states):
        self.iterator = load_stream(self.stream, {"states": states})
        self.parts = stateful_parts(None if runs_in_thread() else self.stream, self.iterator)
        self._next = _reader_of(self.iterator)

    def restart(self, number: int) -> None:
        """Begin another pass of this epoch."""
        self.begin()

    def next(self) -> Any:
        """Return the next document. Do not call it again after the last one."""
        if self.iterator is None:
            self._open(None)
        if self.parts and self.read % _SNAPSHOT_EVERY == 0:
            self.snapshots.append((self.read, copied(states_of(self.parts))))
        try:
            document = self._next()
        except StopIteration:
            raise
        except Exception:
            self.raised.append(self.read)
            self.read += 1
            raise
        self.read += 1
        return document

    def location(self) -> list[int]:
        """Return the location of the document that was read last."""
        return [self.read - 1]

    def name(self, location: list[int]) -> str:
        """Return the name of a document, for errors."""
        return f"document {location[0]} of this worker's part of {type(self.stream).__name__}"

    def state(self, locations: Iterable[list[int]]) -> dict[str, Any]:
        """Return the position after the last document. `locations` are read again by whoever resumes."""
        oldest = min((number for (number,) in locations), default=self.read)
        while len(self.snapshots) > 1 and self.snapshots[1][0] <= oldest:
            self.snapshots.popleft()
        at, states = self.snapshots[0]
        self.raised = [number for number in self.raised if number >= at]
        return {"read": self.read, "raised": self.raised, "at": at, "states": states}

    def load(self, state: dict[str, Any]) -> None:
        """Continue at a position; `again` reads up to there."""
        self.read, self.raised = state["read"], list(state["raised"])
        self.snapshots = deque([(state["at"], state["states"])])

    def again(self, locations: Iterable[list[int]]) -> dict[tuple[int, ...], Any]:
        """Read documents again, up to the position of the loaded state; return {location: document}."""
        wanted, found = {number for (number,) in locations}, {}
        at, states = self.snapshots[0]
        self._open(states)
        for number in range(at, self.read):
            try:
                document = self._next()
            except StopIteration:
                raise _changed(self.name([number])) from None
            except Exception:
                if number not in self.raised:
                    raise
                continue
            if number in wanted:
                found[(number,)] = document
        return found


def _reader_of(iterator):
    """Return the function that reads the next document: a row of a `slipring.streams.Stream`, or a sample."""
    return getattr(iterator, "next_document", iterator.__next__)


def _changed(name):
    return ValueError(
        f"{name} does not exist, but the state says that it was read: resume with the documents that the state was "
        "taken of"
    )
