"""Text: bytes and durations with their units, and the messages of errors for which the C ring returns only numbers."""

from __future__ import annotations

import errno
import logging
import os

from slipring._core.ring import process
from slipring.errors import (
    BatchTooLarge,
    Closed,
    DescriptorClosed,
    LoaderTimeout,
    ReaderDied,
    SegmentFull,
    SlotsHeld,
    TooManyProcesses,
    WriterDied,
)

# ---- figures


def megabytes(n: int) -> str:
    """Return `n` bytes in readable form: '38.5 MB'."""
    if n >= 1e10:
        return f"{n / 1e9:,.1f} GB"
    return f"{mb(n)} MB" if n >= 100_000 else f"{n:,} bytes"


def mb(n: float) -> str:
    """Return bytes as a number of MB, for a column of a table."""
    form = ".3g" if n < 100_000 else ",.1f" if n < 1e9 else ",.0f"
    return f"{n / 1e6:{form}}"


def seconds(s: float | None) -> str:
    """Return a duration with its unit, three digits of it; minutes from ten of them on; - for None."""
    if s is None:
        return "-"
    if not s:
        return "0"
    if s >= 600:
        return f"{s / 60:.0f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if s * factor >= 1:
            return f"{digits(s * factor)} {unit}"
    return f"{digits(s * 1e6)} us"


def millis(ns: float | None) -> str:
    """Return ns as a number of ms, for a column of a table; - for None."""
    return "-" if ns is None else digits(float(ns) / 1e6)


def digits(n: float) -> str:
    """Return a number with three digits, or all digits before its point: '0.0264', '26.4', '8,000'."""
    return f"{n:.3g}" if n < 999.5 else f"{n:,.0f}"


def share(part: float | None) -> str:
    """Return a share as percent; - for None."""
    return "-" if part is None else f"{part:.0%}"


def count(n: int, one: str, several: str) -> str:
    """Return a number of things: '1 batch', '2 batches'."""
    return f"{n:,} {one if n == 1 else several}"


def short(text: str, most: int) -> str:
    """Return a text cut to that many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- log records


def escape_surrogates(record: logging.LogRecord) -> bool:
    """Escape the bytes of file names that are not UTF-8, which a handler that writes strict UTF-8 would refuse."""
    text = record.getMessage()
    try:
        text.encode()
    except UnicodeEncodeError:
        record.msg, record.args = text.encode("utf-8", "backslashreplace").decode(), ()
    return True


logging.getLogger("slipring").addFilter(escape_surrogates)

# ---- errors

FILE_SIZE = "the limit on file size (RLIMIT_FSIZE, ulimit -f)"


def segment_full(needed: int, free: int, limit: str, slots: int) -> SegmentFull:
    """Return the SegmentFull for `needed` bytes of which `limit` (a text) leaves `free`."""
    if limit == FILE_SIZE:
        text = (
            f"a segment is a file in memory, and {limit} allows too few bytes: {slots} slots need {megabytes(needed)} "
            f"({needed} bytes) more; raise that limit (ulimit -f unlimited, or resource.setrlimit) or use fewer slots"
        )
        return SegmentFull(text, needed=needed, free=free, limit=limit)
    text = (
        f"no memory for a batch: {megabytes(needed)} ({needed} bytes) more are needed, {megabytes(free)} "
        f"({free} bytes) are free within {limit}; use fewer slots (slots={slots} now), a smaller batch_size "
        "or prefetch_factor, raise that limit, or choose another backing"
    )
    return SegmentFull(text, needed=needed, free=free, limit=limit)


def budget_refused(
    needed: int, free: int, share: int, memory: int, cached: int, loaders: int, least: int
) -> SegmentFull:
    """Return the SegmentFull of a loader whose share of a pool's `memory` does not suffice; `least` would."""
    limit = f"memory={memory} of its pool"
    text = (
        f"no memory for a batch: {megabytes(needed)} ({needed} bytes) more are needed, and {megabytes(free)} are left "
        f"of the {megabytes(share)} that {limit} gives this loader: {megabytes(cached)} of {megabytes(memory)} are "
        f"for caches, and the rest is for {loaders} loader{'' if loaders == 1 else 's'}. Raise memory= "
        f"(two batches of each of these loaders and the caches need {megabytes(least)}), lower batch_size or the "
        "number of loaders, or keep fewer batches"
    )
    return SegmentFull(text, needed=needed, free=free, limit=limit)


def cache_refused(needed: int, free: int, limit: str) -> SegmentFull:
    """Return the SegmentFull for a cache without memory for its first pages."""
    text = (
        f"no room for a cache's first pages: {megabytes(needed)} ({needed} bytes) are needed, {megabytes(free)} "
        f"({free} bytes) may be taken within {limit}; raise that limit, or close caches and loaders that are not in use"
    )
    return SegmentFull(text, needed=needed, free=free, limit=limit)


def dataset_refused(whole: int, needed: int, free: int, limit: str) -> SegmentFull:
    """Return the SegmentFull for a dataset without memory for the parts that all workers share."""
    text = (
        f"no memory to hand the dataset to workers: {megabytes(whole)} at least, of which {megabytes(needed)} "
        f"({needed} bytes) are still to be written, and {megabytes(free)} ({free} bytes) are free within {limit}; "
        "keep arrays in files (np.memmap), tensors in shared memory (share_memory_()), or start workers by fork"
    )
    return SegmentFull(text, needed=needed, free=free, limit=limit)


def segment_refused(needed: int, free: int, limit: str, slots: int) -> SegmentFull:
    """Return the SegmentFull if not even the smallest segment can be reserved."""
    text = (
        f"no room to reserve a segment: {megabytes(needed)} ({needed} bytes) of addresses are needed for "
        f"{slots} slots, {megabytes(free)} ({free} bytes) may be taken within {limit}; close loaders and "
        f"queues that are not in use (each live one has a segment), use fewer slots (slots={slots} now), or "
        "raise that limit"
    )
    return SegmentFull(text, needed=needed, free=free, limit=limit)


def batch_too_large(needed: int, capacity: int, limited_by: str | None) -> BatchTooLarge:
    """Return the BatchTooLarge for a slot of `capacity` bytes; `limited_by` made it smaller than wanted."""
    shrunk, remedy = "", f"raise slot_bytes to at least {needed}"
    if limited_by:
        shrunk = f" (reserved less than requested because of {limited_by})"
        remedy = "raise that limit, use fewer slots"
    text = (
        f"a batch of at least {megabytes(needed)} does not fit a slot of {megabytes(capacity)}{shrunk}; "
        f"{remedy}, or make the batch smaller"
    )
    return BatchTooLarge(text, needed=needed, limit=capacity)


def task_too_large(needed: int, room: int, slot_bytes: int, limited_by: str | None) -> BatchTooLarge:
    """Return the BatchTooLarge for indices that do not fit the `room` that a slot has for them."""
    remedy = f"use a smaller batch_size (at most {room // 8} whole numbers)"
    if limited_by:
        remedy += f", or raise {limited_by}, which has reduced the reserve"
    elif room == slot_bytes:  # no more than for the batch itself
        remedy += ", or raise slot_bytes"
    text = (
        f"the indices of a batch take {megabytes(needed)} ({needed} bytes); a slot has room for "
        f"{megabytes(room)} ({room} bytes) of them; {remedy}; or let one index stand for many rows"
    )
    return BatchTooLarge(text, needed=needed, limit=room)


FORKED = (
    ". A forked worker waits forever for a lock that a thread of its parent held at the fork. Libraries such as JAX "
    "and TensorFlow start threads when they are first used. If the dataset uses one, give the start method "
    "'forkserver', or create the workers before the library is used"
)


def slots_held(slots: int, free: int) -> SlotsHeld:
    """Return the SlotsHeld for a loader with all slots in use, of which only `free` can be released."""
    return SlotsHeld(
        f"all {slots} slots are held ({slots - free} of them by batches you keep, by computations still running on a "
        "device, or by worker code that keeps arrays from slipring.empty), so no batch can be made; drop batches, wait "
        f"for the device (jax.block_until_ready), raise slots (now {slots}), or use copy='auto'",
        slots=slots,
        held=slots - free,
    )


def timed_out(seconds: float, seq: int, workers: int, method: str) -> LoaderTimeout:
    """Return the LoaderTimeout for a batch that has not come in time."""
    return LoaderTimeout(
        f"no batch within timeout={seconds} s: batch {seq} is still being made by {workers} workers (start method "
        f"{method!r}); raise timeout, use more workers, or look at what they wait for (`slipring dump {process.pid()}` "
        "shows what each worker does, `py-spy dump --pid` of a worker where)" + (FORKED if method == "fork" else "")
    )


def message_refused(refused: SegmentFull, maxsize: int) -> SegmentFull:
    """Return the SegmentFull of a queue, in place of a loader's."""
    text = (
        f"no memory for a message: {megabytes(refused.needed)} ({refused.needed} bytes) more are needed, "
        f"{megabytes(refused.free)} ({refused.free} bytes) are free within {refused.limit}; put smaller "
        f"messages, use a smaller maxsize (now {maxsize}), raise that limit, or choose another backing"
    )
    return SegmentFull(text, needed=refused.needed, free=refused.free, limit=refused.limit)


def descriptor_closed(what: str) -> DescriptorClosed:
    """Return the DescriptorClosed for this process's descriptor of `what`."""
    return DescriptorClosed(
        f"slipring's file descriptor of {what} in this process (pid {process.pid()}) has been closed by other code, "
        "such as os.closerange(), or a library that makes a daemon of its process. No file that has its number now was "
        "touched. Close only what your code has opened, then make a new loader, queue or cache"
    )


def not_in_memory(directory: str) -> ValueError:
    """Return the ValueError for a directory that is not on a tmpfs."""
    return ValueError(
        f"backing={directory!r} lies on {_file_system(directory)}, not on a tmpfs: batches would be written "
        "to its disk, and its free space says nothing of the memory. Use backing='memfd', or a directory on "
        "a tmpfs (`findmnt -t tmpfs` lists them; /dev/shm usually is)"
    )


def _file_system(directory: str) -> str:
    """Return the kind of file system that a directory lies on."""
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            for fields in map(str.split, mounts):
                if fields[2] == number:
                    return fields[fields.index("-") + 1]
    except OSError:  # no /proc here: the message goes without
        pass
    return "another file system"


def reader_is_taken(number: int) -> ValueError:
    """Return the ValueError of a reader's number that is in use."""
    return ValueError(
        f"reader {number} of this segment takes part already, or its process has died and the consumer has not noticed "
        "it yet: give each process a number of its own"
    )


def not_a_reader(number: int, readers: int) -> ValueError:
    """Return the ValueError of a reader's number that a segment for `readers` does not have."""
    return ValueError(
        f"reader {number}: the segment was made for {readers} readers, so their numbers must be below {readers}"
    )


def owned_by_another(uid: int) -> PermissionError:
    """Return the PermissionError of a segment that belongs to another user."""
    return PermissionError(
        f"the segment belongs to user {uid}, and this process runs as user {os.geteuid()}: a batch may contain pickled "
        "code, so all readers must run as the user of the process that shares its batches"
    )


def too_many_processes(participants: int) -> TooManyProcesses:
    """Return the TooManyProcesses of a segment with `participants` numbers."""
    return TooManyProcesses(
        f"{participants} living processes use this queue already, and it has room for no more; raise "
        f"max_processes= (now {participants}), or have some of them drop the queue or call its disconnect_client()"
    )


# ---- errors of a broadcast


def no_message_within(timeout: float) -> TimeoutError:
    """Return the TimeoutError of a reader."""
    return TimeoutError(f"no message came within timeout={timeout} s: the writer is alive and has put none")


def not_joined_within(timeout: float, joined: int, readers: int) -> TimeoutError:
    """Return the TimeoutError of a writer whose readers have not all joined."""
    return TimeoutError(
        f"{joined} of {readers} readers have joined within timeout={timeout} s: start the others, which open the "
        f"handle, wait longer, or make the broadcast with n_readers={max(joined, 1)}"
    )


def no_slot_within(timeout: float, slots: int, lagging: list[tuple[int, int, int, int]]) -> TimeoutError:
    """Return the TimeoutError of a put; `lagging` has (reader, pid, messages to get, messages kept)."""
    what = "; ".join(
        f"reader {reader} (pid {pid}) has {count(waiting, 'message', 'messages')} to get and keeps {kept}"
        for reader, pid, waiting, kept in lagging
    )
    return TimeoutError(
        f"no slot of {slots} became free within timeout={timeout} s: {what or 'readers have just released some'}; let "
        f"the readers get messages and drop their views or copy them (copy='always'), wait longer, or raise maxsize "
        f"(now {slots})"
    )


def all_readers_joined(pids: list[int]) -> TooManyProcesses:
    """Return the TooManyProcesses of a broadcast whose readers' numbers are in use by processes."""
    return TooManyProcesses(
        f"all {len(pids)} readers of this broadcast have joined already (pids {', '.join(map(str, pids))}): raise "
        f"n_readers= (now {len(pids)}), or let one close its reader and drop the messages that it got. The number of a "
        "dead reader is free after the writer's next put()"
    )


def readers_died(died: list[tuple[int, int]]) -> ReaderDied:
    """Return the ReaderDied for (reader, pid) of each; pid 0: it died while it joined."""
    what = ", ".join(f"reader {reader} (pid {pid or 'unknown'})" for reader, pid in died)
    return ReaderDied(
        f"{what} ended without close(); nothing was put, and their messages are released. Call again to continue "
        "with the other readers",
        readers=[reader for reader, _ in died],
        pids=[pid for _, pid in died],
    )


def writer_died(pid: int) -> WriterDied:
    """Return the WriterDied of a broadcast."""
    return WriterDied(f"the writer (pid {pid}) has ended without close(), and no message of it is left", pid=pid)


def writer_is_gone(pid: int) -> Closed:
    """Return the Closed of a handle whose writer is not there any more."""
    return Closed(
        f"the broadcast that this handle belongs to is gone: its writer (pid {pid}) has closed it or ended. Make a new "
        "one, and send its handle"
    )


def writer_is_not_ours(pid: int) -> PermissionError:
    """Return the PermissionError of a handle whose writer this process may not look into."""
    return PermissionError(
        f"this process runs as user {os.geteuid()} and may not open the files of the broadcast's writer (pid {pid}): "
        "run all readers as the writer's user, which must not have given up its privileges after its start"
    )


def other_version(theirs: str, ours: str) -> ValueError:
    """Return the ValueError of a handle that another version of slipring has made."""
    return ValueError(
        f"the handle was made by slipring {theirs}, and this process has slipring {ours}: all processes of a "
        "broadcast need the same version"
    )


def other_pid_namespace() -> OSError:
    """Return the OSError of a handle from another container."""
    return OSError(
        errno.EXDEV,
        "the handle was made in another PID namespace, whose processes this one cannot watch: run the writer and its "
        "readers in one container",
    )
