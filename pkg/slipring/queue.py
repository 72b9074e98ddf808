"""multiprocessing.Queue's interface over the ring: a message is written once, where it will be read."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import checked_backing, integer
from slipring._core.passes._queue import QueueCore, Slot, how_to_copy
from slipring._core.ring._fd import Event
from slipring._core.ring._ring import MAX_SLOTS, MAX_WORKERS
from slipring._core.ring._segment import Segment
from slipring._core.ring.text import message_refused
from slipring.errors import SegmentFull

if TYPE_CHECKING:
    from slipring._observe.report import Report

__all__ = ["Queue", "QueueStats", "Slot"]

MAX_PROCESSES = MAX_WORKERS + 1


@dataclasses.dataclass(frozen=True)
class QueueStats:
    """The figures of a queue: messages that this process has received, and memory.

    Attributes
    ----------
    got, got_bytes : int
        Messages, and the payload bytes that they took in their slots.
    copied, copied_bytes : int
        Those of them that were copied out of their slots.
    kept : int
        Those that their producer copied once more, because it still had their arrays (see `slipring.queue.Slot.put`).
    pickled_leaves : int
        Pickled values in them.
    slots, slot_bytes, bytes_committed : int
        Slots; bytes reserved for each; bytes of memory of the whole segment.
    backing : str

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> queue = slipring.Queue(4)
    >>> queue.put(np.zeros(1000))
    >>> zeros = queue.get()
    >>> queue.stats().got, queue.stats().pickled_leaves
    (1, 0)
    >>> queue.close()
    """

    got: int
    got_bytes: int
    copied: int
    copied_bytes: int
    kept: int
    pickled_leaves: int
    slots: int
    slot_bytes: int
    bytes_committed: int
    backing: str


class Queue(QueueCore):
    """A queue between processes and threads. Arrays are sent without pickle, and received as views of their slots.

    Any number of processes may put and get. Pass the queue to `multiprocessing.Process` as an argument, with fork,
    forkserver or spawn. Messages of one producer (a thread) arrive in the order in which they were put. A killed
    process leaves nothing locked: the messages that it had put arrive, a message that it was putting does not, and the
    messages that it had received are lost.

    Parameters
    ----------
    maxsize : int
        Number of slots, at least 1: the messages that can be put before one is received. Views that a consumer keeps
        occupy their slots. Each slot takes 20 KiB from the beginning. Put and get scan all slots that were in use at
        the same time: with a thousand slots they take several times as long as with a few.
    slot_bytes : int or None
        Bytes to reserve per slot: the largest message. None: as much as fits, at most 16 GiB. Memory is committed as
        messages need it.
    copy : {'auto', 'always', 'never'}
        Whether received arrays are views or copies; see `get`.
    max_processes : int
        How many living processes may use the queue at a time.
    backing : {'auto', 'shm', 'memfd'} or str
        Where the memory comes from; an absolute path names a directory on a tmpfs.

    Raises
    ------
    SegmentFull
        There is no memory for the slots' first pages.

    Examples
    --------
    >>> import multiprocessing
    >>> import numpy as np
    >>> import slipring
    >>> def produce(queue):
    ...     for label in range(3):
    ...         queue.put({"image": np.full((224, 224, 3), label, np.uint8), "label": label})
    >>> queue = slipring.Queue(8)
    >>> producer = multiprocessing.get_context("fork").Process(target=produce, args=(queue,))
    >>> producer.start()
    >>> [queue.get()["label"] for _ in range(3)]
    [0, 1, 2]
    >>> producer.join()
    >>> queue.close()
    """

    def __init__(
        self,
        maxsize: int,
        slot_bytes: int | None = None,
        *,
        copy: Literal["auto", "always", "never"] = "auto",
        max_processes: int = 256,
        backing: str = "auto",
    ) -> None:
        unbounded = " (there is no queue without bound, multiprocessing's 0)"
        maxsize = integer("maxsize", maxsize, 1, MAX_SLOTS, hint=unbounded)
        max_processes = integer("max_processes", max_processes, 2, MAX_PROCESSES)
        slot_bytes = integer("slot_bytes", slot_bytes, 1, 1 << 46, optional=True)
        how_to_copy(copy)
        checked_backing(backing)
        try:
            ring = Segment(maxsize, max_processes, backing, slot_bytes or 0, push=True)
        except SegmentFull as refused:
            raise message_refused(refused, maxsize) from None
        self._copy = copy
        self._open(ring, copy, Event())

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.context import assert_spawning
        from multiprocessing.reduction import DupFd

        assert_spawning(self)
        return _attach, (type(self), self._ring(), DupFd(self.event.number()), self._copy)

    def __repr__(self) -> str:
        ring = self._ring_if_open()  # another thread may close the queue meanwhile
        if ring is None:
            return f"<{type(self).__name__} closed at {id(self):#x}>"
        state = "shut down" if ring.closed else f"maxsize={ring.n_slots}"
        return f"<{type(self).__name__} {state} at {id(self):#x}>"

    @property
    def maxsize(self) -> int:
        """int: the number of slots."""
        return self._ring().n_slots

    def put_nowait(self, obj: object) -> None:
        """``put(obj, block=False)``."""
        self.put(obj, False)

    def get_nowait(self, *, copy: Literal["auto", "always", "never"] | None = None) -> Any:
        """``get(block=False)``."""
        return self.get(False, copy=copy)

    def slot(self, block: bool = True, timeout: float | None = None) -> Slot:
        """Claim a free slot to build a message in, so that not even the producer copies it.

        Use it as a context manager. If nothing is put by the end of the block, or the block raises an exception, the
        slot is released.

        Parameters
        ----------
        block, timeout
            As in `put`.

        Returns
        -------
        Slot
            With ``empty(shape, dtype)`` and ``put(obj, move=False)``.

        Examples
        --------
        >>> import slipring
        >>> queue = slipring.Queue(8)
        >>> with queue.slot() as slot:
        ...     image = slot.empty((224, 224, 3), "uint8")
        ...     image.fill(255)  # or a decoder writes there
        ...     slot.put({"image": image, "label": 3}, move=True)
        ...     del image
        >>> queue.get()["label"]
        3
        >>> queue.close()
        """
        return Slot(self, block, timeout)

    def join_thread(self) -> None:
        """Return at once: there is no thread. A message is available as soon as `put` returns."""

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread to wait for."""

    def shutdown(self, immediate: bool = False) -> None:
        """End the queue for all processes: put raises `~slipring.errors.ShutDown`, and so does get when it is empty.

        Waiting calls end. A message that is being put at that moment may still arrive.

        Parameters
        ----------
        immediate : bool
            Drop the messages in the queue.
        """
        self._shut_down(immediate)

    def report(self) -> Report:
        """Return the `slipring.monitor.Report` of all messages in the queue so far, in all processes."""
        from slipring._core.ring._watch import Watch
        from slipring._observe.report import Report
        from slipring._observe.snapshot import Snapshot

        return Report("Queue", Snapshot(Watch(self._ring().controls)), self.stats())

    def stats(self) -> QueueStats:
        """Return `QueueStats` of this process."""
        ring = self._ring()  # another thread may close the queue meanwhile
        info, meter = ring.info, ring.meter
        return QueueStats(
            got=meter.batches,
            got_bytes=meter.bytes,
            copied=meter.copied_batches,
            copied_bytes=meter.copied_bytes,
            kept=meter.kept_batches,
            pickled_leaves=meter.pickled_leaves,
            slots=ring.n_slots,
            slot_bytes=info["capacity"],
            bytes_committed=info["committed"],
            backing=info["backing"],
        )


def _attach(cls, ring, event, copy):
    queue = cls.__new__(cls)
    queue._copy = copy
    fd = event.detach()
    os.set_inheritable(fd, False)  # programs that this process executes would inherit it
    queue._open(ring, copy, Event(fd))
    return queue
