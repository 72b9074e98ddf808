"""Messages from one process to many: written once, in shared memory, where every reader reads them."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import checked_backing, integer, real
from slipring._core.passes._broadcast import ReaderCore, WriterCore
from slipring._core.passes._queue import how_to_copy
from slipring._core.ring import process
from slipring._core.ring._fd import Descriptor, identity
from slipring._core.ring._ring import MAX_SLOTS, Ring
from slipring._core.ring.text import (
    message_refused,
    other_pid_namespace,
    other_version,
    writer_is_gone,
    writer_is_not_ours,
)
from slipring._version import __version__
from slipring.errors import SegmentFull, ShutDown, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

__all__ = ["Broadcast", "BroadcastHandle", "BroadcastReader"]

MAX_READERS = 40
MAX_SPIN_US = 1_000_000


class Broadcast(WriterCore):
    """The writer of a broadcast: each message that it puts reaches every reader, in order, exactly once.

    A message is written once, in shared memory, and all readers get views of the same bytes. The process that makes
    the broadcast writes; any thread of it may put. Readers are other processes of the same user on this machine (or
    threads), which open the `handle`. They sleep while there is no message.

    A reader that dies or closes holds nobody back. The next `put` after a death raises `~slipring.errors.ReaderDied`
    once, and then the broadcast continues with the other readers.

    Parameters
    ----------
    n_readers : int
        From 1 to 40. The first `put` waits until as many have joined.
    maxsize : int
        Number of slots: the messages that can be put before the slowest reader gets the first of them. Views that a
        reader keeps occupy their slots.
    slot_bytes : int or None
        Bytes to reserve per slot: the largest message. None: as much as fits, at most 16 GiB. Memory is committed as
        messages need it.
    backing : {'auto', 'shm', 'memfd'} or str
        Where the memory comes from; an absolute path names a directory on a tmpfs. The file has no name, so nothing
        remains after the last process has ended.

    Raises
    ------
    SegmentFull
        There is no memory for the slots' first pages.

    Examples
    --------
    >>> import multiprocessing
    >>> import numpy as np
    >>> import slipring
    >>> def read(handle, sums):
    ...     with handle.open() as reader:
    ...         sums.put(sum(weights.sum() for weights in reader))
    >>> fork = multiprocessing.get_context("fork")
    >>> with slipring.Broadcast(n_readers=2) as broadcast:
    ...     sums = slipring.Queue(2)
    ...     readers = [fork.Process(target=read, args=(broadcast.handle, sums)) for _ in range(2)]
    ...     for process in readers:
    ...         process.start()
    ...     received = [broadcast.put(np.full(10, step)) for step in range(3)]
    >>> received
    [2, 2, 2]
    >>> int(sums.get()), int(sums.get())
    (30, 30)
    >>> for process in readers:
    ...     process.join()
    >>> sums.close()
    """

    def __init__(
        self, n_readers: int, maxsize: int = 8, slot_bytes: int | None = None, *, backing: str = "auto"
    ) -> None:
        n_readers = integer("n_readers", n_readers, 1, MAX_READERS)
        maxsize = integer("maxsize", maxsize, 1, MAX_SLOTS)
        slot_bytes = integer("slot_bytes", slot_bytes, 1, 1 << 46, optional=True)
        checked_backing(backing)
        try:
            ring = Ring(maxsize, 1, backing, slot_bytes or 0, False, "Broadcast", readers=n_readers)
        except SegmentFull as refused:
            raise message_refused(refused, maxsize) from None
        self._open(ring)

    def __repr__(self) -> str:
        ring = self._ring_if_open()  # another thread may close the broadcast meanwhile
        if ring is None:
            return f"<{type(self).__name__} closed at {id(self):#x}>"
        return f"<{type(self).__name__} n_readers={ring.n_readers} maxsize={ring.n_slots} at {id(self):#x}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Broadcast stays in the process that made it: send its handle, and open that there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def handle(self) -> BroadcastHandle:
        """BroadcastHandle: what a process needs to join as a reader. It can be pickled and sent in any way."""
        ring = self._ring()
        fd, record = ring.fd, ring.controls
        return BroadcastHandle(
            pid=process.pid(),
            fd=fd,
            file=identity(fd),
            record=-1 if record == fd else record,
            n_readers=ring.n_readers,
            pid_namespace=_pid_namespace(),
            version=__version__,
        )

    @property
    def readers(self) -> int:
        """int: how many readers take part now."""
        return self._joined()


@dataclasses.dataclass(frozen=True)
class BroadcastHandle:
    """What a process needs to join a broadcast: `slipring.Broadcast.handle` makes it. Send it in any way that pickles.

    It names the writer's process and its file descriptor of the shared memory, so it is valid as long as the writer has
    the broadcast open, for processes of the same user in the same PID namespace (one container).

    Attributes
    ----------
    pid, fd, record : int
        The writer, and its descriptors; record -1: there is no record file.
    file : tuple of int
        Device and inode of the shared memory.
    n_readers : int
    pid_namespace : int
        0: unknown.
    version : str
        Of slipring; a reader needs the same.

    Examples
    --------
    >>> import pickle
    >>> import slipring
    >>> broadcast = slipring.Broadcast(n_readers=1)
    >>> sent = pickle.dumps(broadcast.handle)
    >>> reader = pickle.loads(sent).open()
    >>> broadcast.put("hello")
    1
    >>> reader.get()
    'hello'
    >>> reader.close()
    >>> broadcast.close()
    """

    pid: int
    fd: int
    file: tuple[int, int]
    record: int
    n_readers: int
    pid_namespace: int
    version: str

    def open(
        self, number: int | None = None, *, copy: Literal["auto", "always", "never"] = "auto", spin: float = 0
    ) -> BroadcastReader:
        """Join as a reader, in any process; see `BroadcastReader`.

        Parameters
        ----------
        number : int or None
            The reader's number, below `n_readers`; None: any that is free.
        copy : {'auto', 'always', 'never'}
            See `BroadcastReader.get`.
        spin : float
            Microseconds, at most a second, in which `get` checks for a message again and again before it sleeps. A
            message that comes within this time is received without the delay of a wake-up; meanwhile the reader keeps
            a CPU busy.

        Raises
        ------
        TooManyProcesses
            All readers have joined.
        Closed
            The writer has closed the broadcast, or its process has ended.
        ValueError
            There is no such number, another process reads with it, or the writer has another version of slipring.
        PermissionError
            The writer's process belongs to another user, or does not allow others to open its files.
        OSError
            The writer is in another container.
        """
        return BroadcastReader(self, number, copy=copy, spin=spin)

    def _descriptors(self) -> tuple[Descriptor, Descriptor, Descriptor | None]:
        """Open the writer's pidfd, the shared memory and the record file."""
        if self.version != __version__:
            raise other_version(self.version, __version__)
        here = _pid_namespace()
        if here and self.pid_namespace and here != self.pid_namespace:
            raise other_pid_namespace()
        try:
            # The pidfd first: if the file is the right one afterwards, no other process has the pid.
            writer = Descriptor(os.pidfd_open(self.pid), "the pidfd of a broadcast's writer")
            shared = self._file_of(self.fd)
            record = None if self.record < 0 else self._file_of(self.record)
        except (FileNotFoundError, ProcessLookupError):
            raise writer_is_gone(self.pid) from None
        except PermissionError:
            raise writer_is_not_ours(self.pid) from None
        if identity(shared.fd) != self.file:
            raise writer_is_gone(self.pid)
        return writer, shared, record

    def _file_of(self, fd: int) -> Descriptor:
        return Descriptor(os.open(f"/proc/{self.pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), "a broadcast")


class BroadcastReader(ReaderCore):
    """A reader of a broadcast, made by ``handle.open()``: it gets every message that is put after it joined, in order.

    Any thread of the process that made it may get. Iterate over it to get messages until the writer closes the
    broadcast.

    Parameters
    ----------
    handle : BroadcastHandle
    number, copy, spin
        See `BroadcastHandle.open`, which also lists the errors.

    Attributes
    ----------
    number : int
        The reader's number.

    Examples
    --------
    >>> import numpy as np
    >>> import slipring
    >>> broadcast = slipring.Broadcast(n_readers=1)
    >>> with broadcast.handle.open() as reader:
    ...     reached = broadcast.put({"weights": np.arange(3)})
    ...     weights = reader.get()["weights"]
    >>> weights, weights.flags.writeable
    (array([0, 1, 2]), False)
    >>> broadcast.close()
    """

    def __init__(
        self,
        handle: BroadcastHandle,
        number: int | None = None,
        *,
        copy: Literal["auto", "always", "never"] = "auto",
        spin: float = 0,
    ) -> None:
        number = integer("number", number, 0, optional=True)
        if not 0 <= real("spin", spin, "a number of microseconds") <= MAX_SPIN_US:
            raise ValueError(f"spin must be from 0 to {MAX_SPIN_US} microseconds, not {shown(spin)}")
        writer, shared, record = handle._descriptors()
        self._open(shared.fd, record.fd if record else -1, writer, number, how_to_copy(copy), int(spin * 1000))

    def __repr__(self) -> str:
        state = "closed" if self._ring_if_open() is None else self.number
        return f"<{type(self).__name__} {state} at {id(self):#x}>"

    def __reduce__(self) -> Any:
        raise TypeError("a BroadcastReader stays in the process that made it: send the broadcast's handle")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                message = self.get()
            except ShutDown:
                return
            yield message
            del message  # its slot must not wait for the next one


def _pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 if it is unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
