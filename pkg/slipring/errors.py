"""The exceptions of slipring.

SlipringError
├── WorkerError     (also RuntimeError)   an exception in a worker, with its traceback and indices
├── WorkerDied      (also RuntimeError)   a worker was killed or left
├── LoaderTimeout   (also RuntimeError, TimeoutError)   no batch within `timeout` seconds
├── SegmentFull                           no memory for a batch; says what is needed and what is free
├── BatchTooLarge   (also ValueError)     a batch is larger than a slot
├── SlotsExhausted  (also RuntimeError)   every slot is held by somebody
├── CorruptBatch                          what lies in a slot is not a batch
├── TooManyProcesses  (also RuntimeError)  more processes use a queue than it has room for
└── Closed          (also RuntimeError)   used after close()
    └── ShutDown    (also queue.ShutDown, from Python 3.13 on)   a queue has been shut down

Every message gives the number, the limit and the remedy.
"""

import queue

_SHUT_DOWN = (queue.ShutDown,) if hasattr(queue, "ShutDown") else ()


class SlipringError(Exception):
    """Base of all errors that slipring raises by itself.

    Attributes given by keyword are set on the exception, and travel with it between processes.
    """

    def __init__(self, *args, **attributes):
        super().__init__(*args)
        self.__dict__.update(attributes)


class WorkerError(SlipringError, RuntimeError):
    """An exception in a worker: the cause of the original exception, or its stand-in.

    The original exception is raised where it can be rebuilt in the consumer, with a WorkerError as its
    ``__cause__``; where it cannot (it cannot be pickled, or its class not be found), the WorkerError itself.

    Attributes
    ----------
    worker : int
        Number of the worker, from 0.
    ticket : int
        Number of the batch in the epoch, from 0.
    indices : list or None
        What the dataset was asked for; None for a stream.
    traceback : str
        The traceback in the worker.
    """


class WorkerDied(SlipringError, RuntimeError):
    """A worker process has gone without being told to.

    Attributes
    ----------
    worker, pid : int
    exitcode : int
        As `multiprocessing.Process.exitcode`: negative for a signal.
    indices : list
        What the worker was working on: the indices of its batches in flight.
    """


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


class SlotsExhausted(SlipringError, RuntimeError):
    """All slots are held (views in the consumer, arrays kept by worker code): nothing can be filled."""


class CorruptBatch(SlipringError):
    """The records in a slot contradict the slot: a worker has written where it should not."""


class TooManyProcesses(SlipringError, RuntimeError):
    """More living processes want to use a queue than its `max_processes`."""


class Closed(SlipringError, RuntimeError):
    """The loader, or its segment, has been closed."""


class ShutDown(Closed, *_SHUT_DOWN):
    """The queue has been shut down: nothing can be put, and nothing is left to get."""


# ---- the texts of refusals, where the C ring only has numbers


def megabytes(n):
    """`n` bytes as people read them: '38.5 MB'."""
    return f"{n / 1e6:,.1f} MB" if n >= 100_000 else f"{n:,} bytes"


def segment_full(needed, free, limit, slots):
    """Return the SegmentFull for `needed` bytes where `limit` (a text) leaves `free`."""
    return SegmentFull(
        f"no memory for a batch: {megabytes(needed)} ({needed} bytes) more are needed, {megabytes(free)} "
        f"({free} bytes) are free within {limit}; use fewer slots (slots={slots} now), a smaller batch_size "
        "or prefetch_factor, raise that limit, or choose another backing=",
        needed=needed,
        free=free,
        limit=limit,
    )


def batch_too_large(needed, capacity, limited_by):
    """Return the BatchTooLarge for a slot of `capacity` bytes; `limited_by` made it smaller than wanted."""
    shrunk = f" (reserved less than asked for because of {limited_by})" if limited_by else ""
    return BatchTooLarge(
        f"a batch of at least {megabytes(needed)} does not fit a slot of {megabytes(capacity)}{shrunk}; "
        f"raise slot_bytes= to at least {needed}, or make the batch smaller",
        needed=needed,
        limit=capacity,
    )


def task_too_large(needed, capacity):
    """Return the BatchTooLarge for indices that do not fit a slot's task area."""
    return BatchTooLarge(
        f"the indices of a batch take {megabytes(needed)}; a slot has room for {megabytes(capacity)}; use a "
        "smaller batch_size, or raise slot_bytes=",
        needed=needed,
        limit=capacity,
    )


def slots_exhausted(slots, free):
    """Return the SlotsExhausted where all slots are in use and only `free` of them can come back."""
    return SlotsExhausted(
        f"all {slots} slots are held ({slots - free} of them by batches you keep, or by worker "
        "code that keeps arrays from slipring.empty), so no batch can be made; drop batches, raise slots="
        f" (now {slots}), or use copy='auto'"
    )


def timed_out(seconds, ticket, workers):
    """Return the LoaderTimeout where a batch has not come in time."""
    return LoaderTimeout(
        f"no batch within timeout={seconds} s: batch {ticket} is still being made by {workers} workers; "
        "raise timeout, use more workers, or look at what the dataset waits for (py-spy dump --pid of a "
        "worker)"
    )


def message_refused(refused, maxsize):
    """Return the SegmentFull of a queue, in place of a loader's."""
    return SegmentFull(
        f"no memory for a message: {megabytes(refused.needed)} ({refused.needed} bytes) more are needed, "
        f"{megabytes(refused.free)} ({refused.free} bytes) are free within {refused.limit}; put smaller "
        f"messages, use a smaller maxsize (now {maxsize}), raise that limit, or choose another backing=",
        needed=refused.needed,
        free=refused.free,
        limit=refused.limit,
    )


def too_many_processes(parties):
    """Return the TooManyProcesses of a segment with `parties` numbers."""
    return TooManyProcesses(
        f"{parties} living processes use this queue already, and it has room for no more; raise "
        f"max_processes= (now {parties}), or have some of them drop the queue or call its disconnect_client()"
    )
