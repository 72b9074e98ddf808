"""The exceptions of slipring::

    SlipringError
    ├── WorkerError     (also RuntimeError)   an exception in a worker, with its traceback and indices
    ├── WorkerDied      (also RuntimeError)   a worker was killed or left
    ├── LoaderTimeout   (also RuntimeError, TimeoutError)   no batch within `timeout` seconds
    ├── SegmentFull                           no memory for a batch; says what is needed and what is free
    ├── CacheMismatch   (also ValueError)     the cache holds another dataset's samples
    ├── BatchTooLarge   (also ValueError)     a batch is larger than a slot
    ├── SlotsExhausted  (also RuntimeError)   there is no slot to be filled; one of these two
    │   ├── SlotsHeld                         every slot is held by batches that are kept
    │   └── SlotLost                          the slot of a worker thought dead is another's now
    ├── CorruptBatch                          what lies in a slot is not a batch
    ├── ImageError      (also ValueError)     bytes that are no image, or not as they should be
    ├── RemoteError     (also OSError)        what a URL stands for cannot be read
    ├── BlockError      (also ValueError)     a block of a stream is not as the ones before
    ├── DescriptorClosed  (also RuntimeError)  other code has closed slipring's file descriptor
    ├── TooManyProcesses  (also RuntimeError)  more processes use a queue than it has room for
    └── Closed          (also RuntimeError)   used after close()
        └── ShutDown    (also queue.ShutDown, from Python 3.13 on)   a queue has been shut down

Every message gives the number, the limit and the remedy. Credentials in URLs are ``***`` in messages and attributes.
"""

from __future__ import annotations

import collections
import queue
import reprlib
import sys
import types
from typing import TYPE_CHECKING

from slipring.redaction import redacted

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BatchTooLarge",
    "BlockError",
    "CacheMismatch",
    "Closed",
    "CorruptBatch",
    "DescriptorClosed",
    "ImageError",
    "LoaderTimeout",
    "RemoteError",
    "SegmentFull",
    "ShutDown",
    "SlipringError",
    "SlotLost",
    "SlotsExhausted",
    "SlotsHeld",
    "TooManyProcesses",
    "WorkerDied",
    "WorkerError",
    "WorkerMemoryWarning",
]


class SlipringError(Exception):
    """Base of all errors that slipring raises by itself.

    Attributes given by keyword are set on the exception, and travel with it between processes.
    """

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*map(_redacted, args))
        self.__dict__.update((name, _redacted(value)) for name, value in attributes.items())


class WorkerError(SlipringError, RuntimeError):
    """An exception in a worker: the cause of the original exception, or its stand-in.

    The original exception is raised where it can be rebuilt in the consumer, with a WorkerError as its
    ``__cause__``; where it cannot (it cannot be pickled, or its class not be found), the WorkerError itself.

    Attributes
    ----------
    worker : int
        Number of the worker, from 0.
    seq : int
        Number of the batch in the epoch, from 0.
    indices : list or None
        What the dataset was asked for; None for a stream.
    index, row : object, int or None
        Of the sample that raised it: what the dataset was asked for, and its row of the batch. None where no
        single one did, or where nothing tells which: in a ``collate_fn``, in a stream, and in ``__getitems__`` or
        ``fetch_into`` of a class that is neither slipring's nor torch's ``Subset``.
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
    """A worker process has gone without being told to.

    Attributes
    ----------
    worker, pid : int
        pid 0: there was no process yet, a fork server has ended.
    exitcode : int or None
        As `multiprocessing.Process.exitcode`: negative for a signal. None: it is not known.
    indices : list
        What the worker was working on: the indices of its batches in flight.
    """

    worker: int
    pid: int
    exitcode: int | None
    indices: list[Any]


class LoaderTimeout(SlipringError, RuntimeError, TimeoutError):
    """No batch came within the loader's `timeout` seconds."""


class SegmentFull(SlipringError):
    """Memory for a batch cannot be committed.

    Attributes
    ----------
    needed, free : int
        Bytes.
    limit : str
        What limits: the file system, a memory cgroup, the machine's memory or a file-size limit.
    """

    needed: int
    free: int
    limit: str


class WorkerMemoryWarning(RuntimeWarning):
    """Workers' own memory has grown so much that as much again would not fit. Given once per loader.

    A category of its own, for ``warnings.filterwarnings``. Where a filter makes it an error, ``next()``
    raises it before a batch is taken, and the iteration can go on.
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
    """There is no slot to be filled: `SlotsHeld` or `SlotLost`, which see. Catches both."""


class SlotsHeld(SlotsExhausted):
    """All slots are held: by views in the consumer, computations on a device, or arrays that worker code keeps.

    Drop batches, or wait until the device has finished its computations; then the iteration can go on.

    Attributes
    ----------
    slots, held : int
        Slots of the segment; those of them that are held.
    """

    slots: int
    held: int


class SlotLost(SlotsExhausted):
    """A worker that was thought dead goes on, and its slot is another's now: what it makes is not wanted."""


class CorruptBatch(SlipringError):
    """The records in a slot contradict the slot: a worker has written where it should not."""


class CacheMismatch(SlipringError, ValueError):
    """A cache holds another dataset's samples, or the same ones made in another way."""


class ImageError(SlipringError, ValueError):
    """Bytes cannot be read as an image, or not in the way that was asked for.

    Attributes
    ----------
    path : str or None
        The file, or the place in an archive or table, as far as it is known.
    index : int or None
        Of the sample, in a dataset of slipring.images.
    """

    path: str | None = None
    index: int | None = None


class RemoteError(SlipringError, OSError):
    """What a URL stands for cannot be read: it does not exist, may not be read, or every attempt has failed.

    ``__cause__`` is the last attempt's error, in the process that read.

    Attributes
    ----------
    url : str
    start, stop : int or None
        The bytes that were wanted; None: all of them, or what is known about them.
    attempts : int
        How often it was tried.
    missing : bool
        The server says that there is no such thing.
    index : int or None
        Of the sample, in a dataset of slipring.images.
    """

    url: str
    start: int | None = None
    stop: int | None = None
    attempts: int = 1
    missing: bool = False
    index: int | None = None


class BlockError(SlipringError, ValueError):
    """A block of a `slipring.stream` is none, or its columns are not those of the ones before.

    Attributes
    ----------
    column : str or None
        The column that it is about.
    block, batch : int or None
        The block's number in its stream, and that of the batch for which it was wanted; from 0, each worker's own.
    """

    column: str | None = None
    block: int | None = None
    batch: int | None = None


class DescriptorClosed(SlipringError, RuntimeError):
    """Code that did not open a file descriptor of slipring has closed it. The error names the descriptor."""


class TooManyProcesses(SlipringError, RuntimeError):
    """More living processes want to use a queue than its `max_processes`."""


class Closed(SlipringError, RuntimeError):
    """The loader, or its segment, has been closed."""


if sys.version_info >= (3, 13):

    class ShutDown(Closed, queue.ShutDown):
        """The queue has been shut down: nothing can be put, and nothing is left to get."""

else:

    class ShutDown(Closed):
        """The queue has been shut down: nothing can be put, and nothing is left to get."""


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


def generator_ended(iterator: Any, error: BaseException) -> SlipringError | None:
    """Return the exception for later requests to a generator that `error` has ended; None for other iterators."""
    if type(iterator) is not types.GeneratorType or iterator.gi_frame is not None:
        return None
    return SlipringError(
        f"the generator {iterator.__qualname__} was ended by the {type(error).__name__} that came while it ran, and "
        "what it had not given yet is lost: begin a new iteration, or resume from a state. An iterator that is an "
        "object with __next__ can go on"
    )


def state_half_made() -> RuntimeError:
    """Return the exception for a request for a state after a signal handler has interrupted `next`."""
    return RuntimeError(
        "state_dict() was called after a signal handler (Ctrl-C, a timer) interrupted next(): a Stateful object has "
        "given samples of a batch that was not delivered. Call next() once more, which returns that batch, and then "
        "call state_dict()"
    )


def shown(value: object) -> str:
    """Return a value's repr without secrets, of long ones the beginning.

    A text in its place where that raises, so that it hides no other error.
    """
    try:
        plain = type(value) in (list, tuple, dict, set, frozenset, collections.deque)
        text = _containers.repr(value) if plain else repr(value)
    except Exception as error:
        return f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return _cut(text)


def told(error: BaseException) -> str:
    """Return what an exception says of itself, in the same manner."""
    try:
        return _cut(str(error))
    except Exception as second:
        return f"<its text cannot be had: {shown(second)}>"


def _cut(text: str) -> str:
    text = redacted(text)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters in all)"


def brief(indices):
    """The first of many indices, and how many there are."""
    first = ", ".join(shown(i) for i in indices[:16])
    return f"[{first}{f', ... {len(indices)} in all' if len(indices) > 16 else ''}]"
