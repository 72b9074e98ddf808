"""The exceptions of slipring::

    SlipringError
    ├── WorkerError     (also RuntimeError)   an exception in a worker, with its traceback and indices
    ├── WorkerDied      (also RuntimeError)   a worker was killed or left
    ├── LeadDied        (also RuntimeError)   the process that makes the batches of ``share=`` has died
    ├── LoaderTimeout   (also RuntimeError, TimeoutError)   no batch within `timeout` seconds
    ├── SegmentFull                           no memory for a batch; it has the needed and the free bytes
    ├── CacheMismatch   (also ValueError)     the cache holds another dataset's samples
    ├── BatchTooLarge   (also ValueError)     a batch is larger than a slot
    ├── SlotsExhausted  (also RuntimeError)   there is no slot to be filled; one of these two
    │   ├── SlotsHeld                         all slots are in use
    │   └── SlotLost                          a worker that was believed dead has lost its slot
    ├── CorruptBatch                          the contents of a slot are not a batch
    ├── ImageError      (also ValueError)     bytes that cannot be read as an image
    ├── VideoError      (also ValueError)     a video file that cannot be read, or a frame of it
    ├── RemoteError     (also OSError)        a file behind a URL cannot be read
    ├── BlockError      (also ValueError)     a block of a stream does not match the earlier ones
    ├── DescriptorClosed  (also RuntimeError)  other code has closed slipring's file descriptor
    ├── TooManyProcesses  (also RuntimeError)  more processes use a queue or a broadcast than it has room for
    ├── ReaderDied      (also RuntimeError)   a reader of a broadcast was killed or left without close()
    ├── WriterDied      (also RuntimeError)   the writer of a broadcast was killed or left without close()
    └── Closed          (also RuntimeError)   used after close()
        └── ShutDown    (also queue.ShutDown, from Python 3.13 on)   a queue or a broadcast has been shut down

Every message gives the number, the limit and the remedy. Credentials in URLs are ``***`` in messages and attributes.
"""

from __future__ import annotations

import collections
import queue
import reprlib
import sys
from typing import TYPE_CHECKING

from slipring.redaction import redacted

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BatchTooLarge", "BlockError", "CacheMismatch", "Closed", "CorruptBatch", "DescriptorClosed", "ImageError",
    "LeadDied", "LoaderTimeout", "ReaderDied", "RemoteError", "SegmentFull", "ShutDown", "SlipringError", "SlotLost",
    "SlotsExhausted", "SlotsHeld", "TooManyProcesses", "VideoError", "WorkerDied", "WorkerError", "WorkerMemoryWarning",
    "WriterDied",
]  # fmt: skip


class SlipringError(Exception):
    """Base of all errors that slipring raises by itself.

    Attributes given by keyword are set on the exception, and travel with it between processes.
    """

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*map(_redacted, args))
        self.__dict__.update((name, _redacted(value)) for name, value in attributes.items())


class WorkerError(SlipringError, RuntimeError):
    """An exception in a worker: the cause of the original exception, or its stand-in.

    If the original exception can be rebuilt in the consumer, it is raised there, with a WorkerError as its
    ``__cause__``. If not (it cannot be pickled, or its class cannot be found), the WorkerError itself is raised.

    Attributes
    ----------
    worker : int
        Number of the worker, from 0.
    seq : int
        Number of the batch in the epoch, from 0.
    indices : list or None
        The requested indices; None for a stream.
    index, row : object, int or None
        Of the sample that raised it: the requested index, and the sample's row in the batch. None if no single sample
        raised it, or if that is unknown: in a ``collate_fn``, in a stream, and in ``__getitems__`` or ``fetch_into`` of
        a class that is neither slipring's nor torch's ``Subset``.
    traceback : str
        The traceback in the worker.

    Examples
    --------
    >>> import slipring
    >>> class Reciprocals:
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, i):
    ...         return 1 / (i - 2)
    >>> with slipring.Loader(Reciprocals(), batch_size=2, num_workers=1) as loader:
    ...     try:
    ...         list(loader)
    ...     except ZeroDivisionError as error:
    ...         print(error, "at index", error.__cause__.index)
    division by zero at index 2
    """

    worker: int
    seq: int
    indices: list[Any] | None
    index: Any
    row: int | None
    traceback: str


class WorkerDied(SlipringError, RuntimeError):
    """A worker process has ended unexpectedly.

    Attributes
    ----------
    worker, pid : int
        pid 0: there was no process yet, a fork server has ended. worker -1: it was the process of a pool.
    exitcode : int or None
        As `multiprocessing.Process.exitcode`: negative for a signal. None: it is not known.
    indices : list
        The indices of the worker's batches in flight.
    """

    worker: int
    pid: int
    exitcode: int | None
    indices: list[Any]


class LeadDied(SlipringError, RuntimeError):
    """The process that makes the batches for the ranks of ``share=`` has died, or has dropped its loader.

    Attributes
    ----------
    rank, pid : int
        The rank and the process.
    """

    rank: int
    pid: int


class LoaderTimeout(SlipringError, RuntimeError, TimeoutError):
    """No batch came within the loader's `timeout` seconds."""


class SegmentFull(SlipringError):
    """Memory for a batch cannot be committed.

    Attributes
    ----------
    needed, free : int
        Bytes.
    limit : str
        The limit: the file system, a memory cgroup, the machine's memory, a file-size limit or the memory of a pool.
    """

    needed: int
    free: int
    limit: str


class WorkerMemoryWarning(RuntimeWarning):
    """The workers' private memory has grown so much that as much again would not fit. Issued once per loader.

    It is a category of its own, for ``warnings.filterwarnings``. If a filter turns it into an error, ``next()`` raises
    it before a batch is taken, and the iteration can continue.
    """


class BatchTooLarge(SlipringError, ValueError):
    """A batch is larger than a slot's reserved capacity.

    Attributes
    ----------
    needed, limit : int
        Bytes.
    """

    needed: int
    limit: int


class SlotsExhausted(SlipringError, RuntimeError):
    """No slot can be filled: the base class of `SlotsHeld` and `SlotLost`."""


class SlotsHeld(SlotsExhausted):
    """All slots are held: by views in the consumer, computations on a device, or arrays that worker code keeps.

    Drop batches, or wait until the device has finished its computations; then the iteration can continue.

    Attributes
    ----------
    slots, held : int
        All slots of the segment, and those that are held.
    """

    slots: int
    held: int


class SlotLost(SlotsExhausted):
    """A worker that was believed dead continues, but has lost its slot; its result is dropped."""


class CorruptBatch(SlipringError):
    """The records in a slot contradict the slot: a worker has written where it should not."""


class CacheMismatch(SlipringError, ValueError):
    """A cache holds another dataset's samples, or the same ones made in another way."""


class ImageError(SlipringError, ValueError):
    """Bytes cannot be read as an image, or not in the requested way.

    Attributes
    ----------
    path : str or None
        The file, or the position in an archive or table, as far as it is known.
    index : int or None
        The index of the sample, in a dataset of slipring.images.
    """

    path: str | None = None
    index: int | None = None


class VideoError(SlipringError, ValueError):
    """A video file cannot be read, or one of its frames or a part of its audio cannot be decoded.

    Attributes
    ----------
    path : str or None
        The file.
    frame : int or None
        The number of the frame, from 0 in presentation order.
    time : float or None
        The time stamp of the frame or of the part of the audio, in seconds.
    index : int or None
        The index of the sample, in a dataset of slipring.clips.
    """

    path: str | None = None
    frame: int | None = None
    time: float | None = None
    index: int | None = None


class RemoteError(SlipringError, OSError):
    """A file behind a URL cannot be read: it does not exist, may not be read, or every attempt has failed.

    ``__cause__`` is the last attempt's error, in the process that read.

    Attributes
    ----------
    url : str
    start, stop : int or None
        The requested bytes; None: the whole file, or its size.
    attempts : int
        The number of attempts.
    missing : bool
        The server reports that the file does not exist.
    index : int or None
        The index of the sample, in a dataset of slipring.images or slipring.clips.
    """

    url: str
    start: int | None = None
    stop: int | None = None
    attempts: int = 1
    missing: bool = False
    index: int | None = None


class BlockError(SlipringError, ValueError):
    """An item of a `slipring.stream` is not a block, or its columns differ from those of earlier blocks.

    Attributes
    ----------
    column : str or None
        The column with the error.
    block, batch : int or None
        The block's number in its stream, and the number of the batch that needed it; from 0, in each worker.
    """

    column: str | None = None
    block: int | None = None
    batch: int | None = None


class DescriptorClosed(SlipringError, RuntimeError):
    """Code that did not open a file descriptor of slipring has closed it. The error names the descriptor."""


class TooManyProcesses(SlipringError, RuntimeError):
    """More living processes want to use a queue than its `max_processes`, or to read a broadcast than `n_readers`."""


class ReaderDied(SlipringError, RuntimeError):
    """Readers of a broadcast have ended without ``close()``. What they had is released, and the others continue.

    Attributes
    ----------
    readers : list of int
        Their numbers.
    pids : list of int
        0: the process died while it joined.
    """

    readers: list[int]
    pids: list[int]


class WriterDied(SlipringError, RuntimeError):
    """The writer of a broadcast has ended without ``close()``, and no message of it is left.

    Attributes
    ----------
    pid : int
    """

    pid: int


class Closed(SlipringError, RuntimeError):
    """The loader, or its segment, has been closed."""


if sys.version_info >= (3, 13):

    class ShutDown(Closed, queue.ShutDown):
        """The queue or broadcast has been shut down: nothing can be put, and nothing is left to get."""

else:

    class ShutDown(Closed):
        """The queue or broadcast has been shut down: nothing can be put, and nothing is left to get."""


def _redacted(value: object) -> object:
    return redacted(value) if type(value) is str else value


SHOWN_CHARACTERS = 500  # of a value, in a message
_containers = reprlib.Repr()
_containers.maxlist = _containers.maxtuple = _containers.maxdict = _containers.maxset = 32
_containers.maxfrozenset = _containers.maxdeque = 32
_containers.maxstring = _containers.maxother = SHOWN_CHARACTERS


def reentered() -> RuntimeError:
    """Return the exception for a call of next() inside next() of the same iterator, on the same thread."""
    return RuntimeError(
        "next() is not reentrant: a signal's handler, or code that this iterator's next() runs (a sampler, a dataset), "
        "has called next() of the same iterator. Let it set a flag, and call next() later"
    )


def ended_meanwhile() -> Closed:
    """Return the exception for a call of next() during which the iteration was closed."""
    return Closed("another thread ended the iteration while a batch was awaited")


def state_in_a_step() -> RuntimeError:
    """Return the exception for a request for a state by the thread that is making a batch."""
    return RuntimeError(
        "state_dict() was called while this thread makes a batch, by a signal handler or by the dataset or sampler "
        "itself: a Stateful object cannot say where it is in the middle of a step. Let the handler set a flag, and "
        "call state_dict() between two batches"
    )


def closed_in_a_step() -> RuntimeError:
    """Return the exception for a request for the state of an iteration that was closed within `next`."""
    return RuntimeError(
        "state_dict() of an iteration that was closed while a batch was being made in this process: its Stateful "
        "dataset could not say where it was"
    )


def ended_by(error: BaseException, where: str) -> str:
    """Return why an iteration is over that an exception such as KeyboardInterrupt has ended in user code."""
    return (
        f"a {type(error).__name__} that was raised while this process ran {where} has ended the iteration: begin a new "
        "one, or resume from state_dict()"
    )


def state_half_made() -> RuntimeError:
    """Return the exception for a request for a state after `next` was interrupted."""
    return RuntimeError(
        "state_dict() after next() was interrupted (Ctrl-C, a timer) while a batch was made: a Stateful object has "
        "given samples of a batch that was not delivered, and cannot say where the batch before ended. If the "
        "iteration can continue, call next() once more, and then state_dict(). If not, resume from an earlier state"
    )


def shown(value: object) -> str:
    """Return a value's repr without secrets; a long one is cut.

    If the repr raises an exception, return a text in its place, so that no other error is hidden.
    """
    try:
        plain = type(value) in (list, tuple, dict, set, frozenset, collections.deque)
        text = _containers.repr(value) if plain else repr(value)
    except Exception as error:
        return f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return _cut(text)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or a replacement if ``str(exception)`` fails."""
    try:
        return str(error)
    except Exception as second:
        return f"<str(exception) failed: {shown(second)}>"


def message_of(error: BaseException) -> str:
    """Return the text of an exception without secrets; a long one is cut."""
    return _cut(text_of(error))


def _cut(text: str) -> str:
    text = redacted(text)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters in all)"


def brief(indices):
    """Return the first of many indices, and their number, as text."""
    first = ", ".join(shown(i) for i in indices[:16])
    return f"[{first}{f', ... {len(indices)} in all' if len(indices) > 16 else ''}]"
