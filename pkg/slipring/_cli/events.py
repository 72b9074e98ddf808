"""Recordings as Chrome's trace events, the JSON that Perfetto and chrome://tracing read.

The format is that of the document "Trace Event Format": X are slices, s, t and f arrows, M names. Events are written
as they are made, because a long trace has millions.
"""

import contextlib
import gzip
import json

import numpy as np

from slipring._core._cache import KINDS, NO_INDEX
from slipring._observe.activity import activities
from slipring._observe.snapshot import Snapshot

BLOCK = 4096  # records at a time
CONSUMER, DEVICE, WORKERS = 1, 2, 10  # tracks of a job; the workers' follow
ROOM = 100_000  # of track numbers for a process


class Writer:
    """A writer of events to a binary file, one per line; `events` is their number."""

    def __init__(self, file):
        self.file, self.events, self.lines = file, 0, []
        self._write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def add(self, line):
        """Write an event."""
        self.lines.append(line)
        if len(self.lines) >= BLOCK:
            self.flush()

    def flush(self):
        """Write the events that were added."""
        if self.lines:
            self._write((",\n" if self.events else "") + ",\n".join(self.lines))
            self.events += len(self.lines)
            self.lines = []

    def end(self, told):
        """Write the end of the file."""
        self.flush()
        self._write(f'\n],"otherData":{json.dumps(told)}}}\n')

    def _write(self, text):
        self.file.write(text.encode())


def write(recordings, file, compressed):
    """Write a trace to a binary file; return a dict of what it contains, with the number of bytes written."""
    counted = Counted(file)
    with contextlib.ExitStack() as stack:
        into = stack.enter_context(gzip.open(counted, "wb", compresslevel=4)) if compressed else counted
        out = Writer(into)
        told = {"batches": 0, "lost": 0}
        for n, recording in enumerate(recordings):
            tracks = Tracks(out, recording, n)
            tracks.write()
            told["batches"] += len(tracks.table)
            told["lost"] += recording.lost
        out.end({"clock": "CLOCK_MONOTONIC", "program": "slipring trace", **told})
    return {**told, "events": out.events, "bytes": counted.bytes}


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


class Tracks:
    """The events of one segment; `number` is the segment's, from 0."""

    def __init__(self, out, recording, number):
        self.out, self.recording, self.job = out, recording, recording.job
        self.table = recording.table()
        self.end = recording.ended_at
        self.push = self.job.push
        self.of_job, self.of_slots = 2 * number + 1, 2 * number + 2
        self.arrow = number << 40  # arrows have numbers of their own in each segment

    def write(self):
        """Write all events."""
        self._names()
        # Which of them have all that an arrow needs. Its number is the row in the table.
        whole = (self.table["published_at"] > 0) & (self.table["taken_at"] > 0)
        if not self.push:
            whole &= self.table["dispatched_at"] > 0
        published = np.where(self.table["published_at"] > 0, self.table["published_at"], np.uint64(self.end))
        self._each(np.argsort(published, kind="stable"), whole, self._worker)
        if not self.push:
            self._each(np.argsort(self.table["taken_at"], kind="stable"), whole, self._consumer)
        self._each(np.arange(len(self.table)), whole, self._slot)

    def _each(self, order, whole, write):
        ends = {}
        for start in range(0, len(order), BLOCK):
            block = order[start : start + BLOCK]
            for row, at, arrow in zip(self.table[block].tolist(), block.tolist(), whole[block].tolist()):
                write(Batch(*row), self.arrow + at + 1, arrow, ends)

    # ---- names

    def _names(self):
        job, slots, pid = self.of_job, self.of_slots, self.job.pid
        self._name(job, "process_name", f"{self.job.name} (process {pid or '?'})", "process_sort_index")
        self._name(slots, "process_name", f"slots of process {pid or '?'}", "process_sort_index")
        if not self.push:
            self._name(job, "thread_name", "consumer", "thread_sort_index", CONSUMER)
        if (self.table["copy_ns"] > 0).any():
            self._name(job, "thread_name", "copies to the device", "thread_sort_index", DEVICE)
        named = {}
        for each in activities(Snapshot(self.job.watch), self.job):
            kind, _, n = each.name.partition(" ")
            participant = int(n) if kind == "participant" else int(n) + 1 if kind == "worker" else 1
            if kind != "consumer":
                named[participant] = f"{each.name} (pid {each.pid or '?'})"
        made = self.table[(self.table["published_at"] > 0) | (self.table["claimed_at"] > 0)]
        for participant in sorted({*named, *np.unique(made["participant"]).tolist()}):
            # Without a name: it has left.
            name = named.get(participant) or (
                f"participant {participant}" if self.push else f"worker {participant - 1}"
            )
            self._name(job, "thread_name", name, "thread_sort_index", WORKERS + participant)
        for slot in np.unique(self.table["slot"]).tolist():
            self._name(slots, "thread_name", f"slot {slot}", "thread_sort_index", slot)

    def _name(self, process, kind, name, sorting, track=None):
        tid = "" if track is None else f',"tid":{process * ROOM + track}'
        head = f'{{"ph":"M","pid":{process}{tid}'
        self.out.add(f'{head},"name":"{kind}","args":{{"name":{json.dumps(name)}}}}}')
        order = process if track is None else track
        self.out.add(f'{head},"name":"{sorting}","args":{{"sort_index":{order}}}}}')

    # ---- events

    def _slice(self, process, track, name, begin, end, args=""):
        self.out.add(
            f'{{"ph":"X","pid":{process},"tid":{process * ROOM + track},"name":"{name}","ts":{begin / 1e3:.3f},'
            f'"dur":{(end - begin) / 1e3:.3f}{args}}}'
        )

    def _point(self, phase, process, track, arrow, ts):
        binds = ',"bp":"e"' if phase == "f" else ""
        self.out.add(
            f'{{"ph":"{phase}","pid":{process},"tid":{process * ROOM + track},"cat":"batch","name":"batch",'
            f'"id":{arrow},"ts":{ts / 1e3:.3f}{binds}}}'
        )

    def _worker(self, b, arrow, is_whole, ends):
        if not b.claimed_at:
            return
        track = WORKERS + b.participant
        # Where several make one batch, the last stands for all; and a track has one slice at a time.
        begin = max(b.claimed_at, ends.get(track, 0))
        end = max(begin, b.published_at or self.end)
        ends[track] = end
        if self.push:
            self._slice(self.of_job, track, f"put {b.named}", begin, end, b.args)
            if is_whole:
                self._point("s", self.of_job, track, arrow, begin)
            return
        fetched = min(max(begin, b.fetched_at), end) if b.fetched_at and b.published_at else end
        self._slice(self.of_job, track, f"fetch {b.named}", begin, fetched, b.args)
        if fetched < end:
            self._slice(self.of_job, track, f"collate {b.named}", fetched, end, b.args)
        if is_whole:
            self._point("t", self.of_job, track, arrow, begin)

    def _consumer(self, b, arrow, is_whole, ends):
        if not b.taken_at:
            return
        job = self.of_job
        asked = max(b.taken_at - b.waited_ns, ends.get(CONSUMER, 0))
        # A nanosecond from the waits before and behind it: viewers show one of no length that touches it inside it.
        begin = max(asked - b.step_ns, ends.get(CONSUMER, 0) + 1) if b.step_ns else asked
        ends[CONSUMER] = b.taken_at
        if begin < asked:
            self._slice(job, CONSUMER, "step", begin, asked - 1)
        # Also where nothing was waited for: it is where the arrow ends.
        self._slice(job, CONSUMER, f"wait for {b.named}", asked, b.taken_at)
        if is_whole:
            self._point("f", job, CONSUMER, arrow, b.taken_at)
        if b.copy_ns:
            start = max(b.taken_at, ends.get(DEVICE, 0))
            ends[DEVICE] = start + b.copy_ns
            self._slice(job, DEVICE, f"copy {b.named}", start, start + b.copy_ns)

    def _slot(self, b, arrow, is_whole, ends):
        slots, slot = self.of_slots, b.slot
        freed = b.freed_at if b.freed_at >= b.taken_at > 0 else 0
        stamps = (b.dispatched_at, b.claimed_at, b.published_at, b.taken_at, freed)
        for at, state in enumerate(STAYS):
            begin = stamps[at]
            end = next((stamp for stamp in stamps[at + 1 :] if stamp), self.end)
            if begin and end >= begin:
                self._slice(slots, slot, f"{state} {b.named}", begin, end)
        if is_whole:
            phase, ts = ("f", b.taken_at) if self.push else ("s", b.dispatched_at)
            self._point(phase, slots, slot, arrow, ts)


STAYS = ("task", "being made:", "ready", "leased")  # what a slot is between two of a batch's stamps


class Batch:
    """A record as Python's numbers, with the texts that its events contain."""

    FIELDS = (
        "number", "run", "seq", "epoch", "bytes", "freed_at", "participant", "rows", "slot", "kind", "dispatched_at",
        "claimed_at", "fetched_at", "published_at", "taken_at", "fetch_ns", "collate_ns", "idle_ns", "waited_ns",
        "step_ns", "copy_ns", "first_index", "read_ns", "decode_ns", "resize_ns", "hits", "misses", "slowest_ns",
        "slowest_index",
    )  # fmt: skip
    __slots__ = (*FIELDS, "args", "named")

    def __init__(self, *values):
        for name, value in zip(self.FIELDS, values):
            setattr(self, name, value)
        has_index = self.first_index != NO_INDEX
        kind = f" ({KINDS[self.kind & 3]})" if self.kind > 1 else ""
        where = f" [{self.first_index} + {self.rows}]" if has_index else ""
        self.named = f"{self.seq}{where}{kind}"
        told = f'"seq":{self.seq},"epoch":{self.epoch},"run":{self.run},"rows":{self.rows},"bytes":{self.bytes}'
        if has_index:
            told += f',"first_index":{self.first_index}'
        if self.slowest_ns:
            whole = self.slowest_index >= NO_INDEX + (1 << 33)
            which = f'"index":{self.slowest_index}' if whole else f'"row":{self.slowest_index & 0xFFFFFFFF}'
            told += f',"slowest":{{{which},"ms":{self.slowest_ns / 1e6:.3f}}}'
        if self.hits or self.misses:
            told += f',"hits":{self.hits},"misses":{self.misses}'
        for name in ("read", "decode", "resize"):
            if ns := getattr(self, f"{name}_ns"):
                told += f',"{name}_ms":{ns / 1e6:.3f}'
        self.args = f',"args":{{{told}}}'
