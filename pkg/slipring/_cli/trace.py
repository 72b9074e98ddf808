"""`slipring trace`: recordings as Chrome's trace events, the JSON that Perfetto and chrome://tracing read.

The format is that of the document "Trace Event Format": X are slices, s, t and f arrows, M names.
"""

import argparse
import contextlib
import errno
import gzip
import json
import os
import shutil
import sys
import time

import numpy as np

from slipring._cli.main import USAGE, Failure, ended_by_signals
from slipring._core.ring import process
from slipring._core.ring._watch import KINDS, NO_INDEX
from slipring._core.ring.text import count, mb
from slipring._observe.activity import activities
from slipring._observe.jobs import Ending, attach
from slipring._observe.recording import Recording
from slipring._observe.snapshot import PARTS, Snapshot

BLOCK = 4096  # records at a time
CONSUMER, DEVICE, WORKERS = 1, 2, 10  # tracks of a job; the workers' follow
ROOM = 100_000  # of track numbers for a process
# The states of a slot between two stamps of a batch.
SPANS = ("task", "being made:", "ready", "leased")
ENCODE = json.JSONEncoder(separators=(",", ":")).encode
NICE = 15
CHECK_S = 0.5  # how often to check whether the job still has its segments


def trace_arguments(parser):
    """Add the arguments of `slipring trace`."""
    parser.add_argument("pid", metavar="PID", type=int, help="a job's process, or one of its workers")
    parser.add_argument("--seconds", type=seconds, default=10.0, metavar="S", help="how long (default 10)")
    parser.add_argument(
        "-o",
        "--output",
        default="trace.json",
        metavar="FILE",
        help="default trace.json; .json.gz is compressed; - is the standard output",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as one JSON object")


def seconds(text):
    """Return how long a trace is."""
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 86400, not {text}")
    return value


def trace(args):
    """Write a trace of a job that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    It has a track for the consumer, each worker and each slot, and arrows from a batch's dispatch to its delivery.
    Times are CLOCK_MONOTONIC. The job is not stopped. Ctrl-C ends the trace early and writes the batches so far;
    SIGTERM ends it without writing.
    """
    jobs = attach(args.pid)
    if args.json and args.output == "-":
        raise Failure("--json and -o - both print to the standard output: leave one out", USAGE)
    with ended_by_signals(), output(args.output) as (file, name):
        recordings = [Recording(job) for job in jobs]
        interrupted = record(jobs, recordings, args.seconds)
        os.nice(NICE)  # writing takes a processor, which the job may need
        summary = write(recordings, file, name.endswith(".gz"))
    if args.json:
        print(json.dumps({"file": args.output, **summary}, indent=1))
    else:
        lost = f", {summary['lost']:,} lost" if summary["lost"] else ""
        counted = f"{count(summary['batches'], 'batch', 'batches')}{lost}, {summary['events']:,} events"
        line = f"{args.output}: {counted}, {mb(summary['bytes'])} MB"
        print(line, file=sys.stderr if args.output == "-" else sys.stdout)
    if interrupted:
        raise KeyboardInterrupt
    return 0


@contextlib.contextmanager
def output(path):
    """Yield (file, name) of the output of a trace; raise a `Failure` that names it if it cannot be written.

    A file gets its new content when all of it is written, and keeps the old one if that fails. The target of a link
    is replaced, not the link. A path that is no file (a FIFO, a device) is written to; - is the standard output.
    """
    try:
        if path == "-":
            yield sys.stdout.buffer, path
            sys.stdout.buffer.flush()
            return
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            with open(target, "wb") as file:
                yield file, path
            return
        if os.path.exists(target) and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        part = f"{target}.{process.pid()}.part"
        with open(part, "xb") as file:  # first: a path that cannot be written must fail before the recording
            try:
                if os.path.exists(target):
                    shutil.copymode(target, part)
                yield file, path
                file.flush()
                os.replace(part, target)
            except BaseException:
                os.unlink(part)
                raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from error


def record(jobs, recordings, seconds):
    """Record until the time is over or the job has ended; return whether the user has ended the recording."""
    begun = looked = time.monotonic()
    with Ending(jobs[0].pid) as ending:
        try:
            say(f"tracing process {jobs[0].pid or '?'} for {seconds:g} s")
            while (at := time.monotonic()) < begun + seconds:
                pause = min(recording.poll() for recording in recordings)
                ended = ending.wait(min(pause, begun + seconds - at))
                if not ended and at > looked + CHECK_S:
                    looked, ended = at, not any(job.is_there() for job in jobs)
                if ended:
                    say(f"the job has ended, {at - begun:.1f} s after the beginning")
                    break
        except KeyboardInterrupt:
            return True
        finally:
            for recording in recordings:
                recording.end()
    return False


# ---- the file


def say(text):
    """Print a message on stderr."""
    print(text, file=sys.stderr, flush=True)


class Counted:
    """A binary file that counts the bytes written to it: a FIFO has no size."""

    def __init__(self, file):
        self.file, self.bytes = file, 0

    def write(self, data):
        """Write the bytes; return how many."""
        self.bytes += len(data)
        self.file.write(data)
        return len(data)

    def flush(self):
        """Flush the file."""
        self.file.flush()


def write(recordings, file, compressed):
    """Write a trace to a binary file; return a dict of what it contains, with the number of bytes written.

    Events are written as they are made, one per line, because a long trace has millions.
    """
    counted = Counted(file)
    summary = {"batches": 0, "lost": 0}
    events = 0
    with gzip.open(counted, "wb", compresslevel=4) if compressed else contextlib.nullcontext(counted) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for n, recording in enumerate(recordings):
            tracks = Tracks(recording, n)
            for made in tracks.blocks():
                lines = ",\n".join(map(ENCODE, made))
                out.write(f"{',' if events else ''}\n{lines}".encode())
                events += len(made)
            summary["batches"] += len(tracks.table)
            summary["lost"] += recording.lost
        others = {"clock": "CLOCK_MONOTONIC", "program": "slipring trace", **summary}
        out.write(f'\n],"otherData":{ENCODE(others)}}}\n'.encode())
    return {**summary, "events": events, "bytes": counted.bytes}


# ---- the events


class Tracks:
    """The events of one segment; `number` is the segment's, from 0."""

    def __init__(self, recording, number):
        self.recording, self.job = recording, recording.job
        self.table = recording.table()
        self.end = recording.ended_at
        self.push = self.job.push
        self.of_job, self.of_slots = 2 * number + 1, 2 * number + 2
        self.arrow = number << 40  # arrows have numbers of their own in each segment

    def blocks(self):
        """Yield all events, as lists of dicts."""
        table = self.table
        yield list(self._names())
        # The batches with all stamps that an arrow needs. An arrow has the number of its batch's row in the table.
        whole = (table["published_at"] > 0) & (table["taken_at"] > 0)
        if not self.push:
            whole &= table["dispatched_at"] > 0
        published = np.where(table["published_at"] > 0, table["published_at"], np.uint64(self.end))
        orders = [(np.argsort(published, kind="stable"), self._worker), (np.arange(len(table)), self._slot)]
        if not self.push:
            orders.insert(1, (np.argsort(table["taken_at"], kind="stable"), self._consumer))
        for order, events_of in orders:
            ends = {}
            for start in range(0, len(order), BLOCK):
                block = order[start : start + BLOCK]
                made = []
                for row, at, arrow in zip(table[block].tolist(), block.tolist(), whole[block].tolist()):
                    batch = dict(zip(table.dtype.names, row))
                    made += events_of(batch, self.arrow + at + 1 if arrow else 0, ends)
                if made:
                    yield made

    # ---- names

    def _names(self):
        job, slots, pid = self.of_job, self.of_slots, self.job.pid
        yield from _named(job, f"{self.job.named()} (process {pid or '?'})")
        yield from _named(slots, f"slots of process {pid or '?'}")
        if not self.push:
            yield from _named(job, "consumer", CONSUMER)
        if (self.table["copy_ns"] > 0).any():
            yield from _named(job, "copies to the device", DEVICE)
        found = activities(Snapshot(self.job.watch), self.job)
        named = {each.number: f"{each.name} (pid {each.pid or '?'})" for each in found if each.name != "consumer"}
        made = self.table[(self.table["published_at"] > 0) | (self.table["claimed_at"] > 0)]
        for number in sorted({*named, *np.unique(made["participant"]).tolist()}):
            left = f"participant {number}" if self.push else f"worker {number - 1}"  # it has left
            yield from _named(job, named.get(number, left), WORKERS + number)
        for slot in np.unique(self.table["slot"]).tolist():
            yield from _named(slots, f"slot {slot}", slot)

    # ---- of a batch

    def _worker(self, b, arrow, ends):
        if not b["claimed_at"]:
            return
        job, track = self.of_job, WORKERS + b["participant"]
        # If several workers make a batch, the last one stands for all. A track has one slice at a time.
        begin = max(b["claimed_at"], ends.get(track, 0))
        end = max(begin, b["published_at"] or self.end)
        ends[track] = end
        name, args = _name(b), _details(b)
        fetched = min(max(begin, b["fetched_at"]), end) if b["fetched_at"] and b["published_at"] else end
        if self.push:
            yield _slice(job, track, f"put {name}", begin, end, args)
        else:
            yield _slice(job, track, f"fetch {name}", begin, fetched, args)
            if fetched < end:
                yield _slice(job, track, f"collate {name}", fetched, end, args)
        if arrow:
            yield _point("s" if self.push else "t", job, track, arrow, begin)

    def _consumer(self, b, arrow, ends):
        if not b["taken_at"]:
            return
        job, name = self.of_job, _name(b)
        asked = max(b["taken_at"] - b["waited_ns"], ends.get(CONSUMER, 0))
        # One nanosecond from the waits before and after it: viewers nest a wait of no length that touches a slice.
        begin = max(asked - b["step_ns"], ends.get(CONSUMER, 0) + 1) if b["step_ns"] else asked
        ends[CONSUMER] = b["taken_at"]
        if begin < asked:
            yield _slice(job, CONSUMER, "step", begin, asked - 1)
        # Even without a wait: the arrow ends here.
        yield _slice(job, CONSUMER, f"wait for {name}", asked, b["taken_at"])
        if arrow:
            yield _point("f", job, CONSUMER, arrow, b["taken_at"])
        if b["copy_ns"]:
            start = max(b["taken_at"], ends.get(DEVICE, 0))
            ends[DEVICE] = start + b["copy_ns"]
            yield _slice(job, DEVICE, f"copy {name}", start, ends[DEVICE])

    def _slot(self, b, arrow, ends):
        slots, slot, name = self.of_slots, b["slot"], _name(b)
        freed = b["freed_at"] if b["freed_at"] >= b["taken_at"] > 0 else 0
        stamps = (b["dispatched_at"], b["claimed_at"], b["published_at"], b["taken_at"], freed)
        for at, state in enumerate(SPANS):
            begin = stamps[at]
            end = next((stamp for stamp in stamps[at + 1 :] if stamp), self.end)
            if begin and end >= begin:
                yield _slice(slots, slot, f"{state} {name}", begin, end)
        if arrow:
            phase, ns = ("f", b["taken_at"]) if self.push else ("s", b["dispatched_at"])
            yield _point(phase, slots, slot, arrow, ns)


def _track(process, track):
    return {"pid": process, "tid": process * ROOM + track}


def _named(process, name, track=None):
    """Yield the events that name and order a process or a track."""
    kind, where, order = "process", {"pid": process}, process
    if track is not None:
        kind, where, order = "thread", _track(process, track), track
    yield {"ph": "M", **where, "name": f"{kind}_name", "args": {"name": name}}
    yield {"ph": "M", **where, "name": f"{kind}_sort_index", "args": {"sort_index": order}}


def _slice(process, track, name, begin, end, args=None):
    event = {"ph": "X", **_track(process, track), "name": name, "ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {**event, "args": args} if args else event


def _point(phase, process, track, arrow, ns):
    event = {"ph": phase, **_track(process, track), "cat": "batch", "name": "batch", "id": arrow, "ts": ns / 1e3}
    return {**event, "bp": "e"} if phase == "f" else event


def _name(b):
    kind = f" ({KINDS[b['kind'] & 3]})" if b["kind"] > 1 else ""
    where = f" [{b['first_index']} + {b['rows']}]" if b["first_index"] != NO_INDEX else ""
    return f"{b['seq']}{where}{kind}"


def _details(b):
    summary = {name: b[name] for name in ("seq", "epoch", "run", "rows", "bytes")}
    if b["first_index"] != NO_INDEX:
        summary["first_index"] = b["first_index"]
    if b["slowest_ns"]:
        index = b["slowest_index"]
        sample = {"index": index} if index >= NO_INDEX + (1 << 33) else {"row": index & 0xFFFFFFFF}
        summary["slowest"] = {**sample, "ms": b["slowest_ns"] / 1e6}
    if b["hits"] or b["misses"]:
        summary.update(hits=b["hits"], misses=b["misses"])
    return summary | {f"{name}_ms": b[field] / 1e6 for name, field in PARTS.items() if b[field]}
