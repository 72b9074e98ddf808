"""A segment as any process sees it, copied into arrays: the binding of csrc/watch.c."""

import os

cimport cython
cimport numpy as cnp
from libc.errno cimport EPROTO
from libc.stdint cimport uint32_t, uint64_t

from slipring._core.ring cimport _cwatch as w

import numpy as np

from slipring._core.ring._ring import EPOCH_BITS
from slipring._core.ring._segment import READ_COUNTS

cdef extern from "<errno.h>" nogil:
    enum:
        ENOLINK
        EPROTONOSUPPORT

cnp.import_array()

STAGES = ("queued", "fetch", "collate", "ready", "waited", "step", "lease", "copy")
STATES = ("free", "task", "claimed", "ready", "leased", "shared", "parked", "trimmed", "broadcast")
KINDS = ("", "batch", "error", "end", "empty")
NO_INDEX = -(1 << 63)  # marks a missing index; its low half has the row
NO_SLOT = 65536
VERSION = w.SR_VERSION

# A record, and the batch of a slot. Times are CLOCK_MONOTONIC in ns; 0 if the event has not happened.
RECORD = np.dtype([
    ("number", "u8"), ("run", "u8"), ("seq", "u8"), ("epoch", "u8"), ("bytes", "u8"), ("freed_at", "u8"),
    ("participant", "u4"), ("rows", "u4"), ("slot", "u4"), ("kind", "u4"),
    ("dispatched_at", "u8"), ("claimed_at", "u8"), ("fetched_at", "u8"), ("published_at", "u8"), ("taken_at", "u8"),
    ("fetch_ns", "u8"), ("collate_ns", "u8"), ("idle_ns", "u8"), ("waited_ns", "u8"), ("step_ns", "u8"),
    ("copy_ns", "u8"), ("first_index", "i8"), ("read_ns", "u8"), ("decode_ns", "u8"), ("resize_ns", "u8"),
    ("augment_ns", "u8"), ("user_ns", "u8"), ("hits", "u4"), ("misses", "u4"), ("slowest_ns", "u8"),
    ("slowest_index", "i8"),
])
SLOT = np.dtype([
    ("state", "u8"), ("committed", "u8"), ("task_bytes", "u8"), ("skipped", "u8"), ("task_rows", "u4"),
    ("pinned", "u4"), ("n_ranges", "u4"), ("task_kind", "u4"), ("ranges_done", "u4"), ("readers", "u4"),
    ("batch", RECORD),
])
PARTICIPANT = np.dtype([
    ("started", "u8"), ("batches", "u8"), ("bytes", "u8"), ("fetch_ns", "u8"), ("collate_ns", "u8"), ("idle_ns", "u8"),
    ("at_since", "u8"), ("cpu_ns", "u8"), ("queued_ns", "u8"), ("reported_ns", "u8"), ("pid", "i4"), ("status", "u4"),
    ("waiting", "u4"), ("at_slot", "u4"), ("at_row", "u4"),
    ("needs_memory_for", "u4"), ("retiring", "u4"), ("lag", "u4"),
])
assert RECORD.itemsize == w.SR_RECORD_WORDS * 8 and SLOT.itemsize == sizeof(w.sr_slot_view)
assert PARTICIPANT.itemsize == sizeof(w.sr_participant_view)


class NoSegment(ValueError):
    """A file that is not a segment, or that this version cannot read."""


class InRecordFile(NoSegment):
    """A segment whose controls lie in a record file."""


@cython.auto_pickle(False)
cdef class Watch:
    """A segment's header, participants, slots and records, read only.

    `fd` is the segment's file or its record file; it is not kept. `copy`: read all of it now, because anyone may
    truncate the file. The constructor raises NoSegment with the reason, or OSError.
    """

    cdef w.sr_watch *ptr

    def __cinit__(self, int fd, bint copy=False):
        cdef uint32_t version = 0
        cdef int rc = w.sr_watch_open(fd, copy, &self.ptr, &version)
        if rc == -EPROTONOSUPPORT:
            raise NoSegment(
                f"it speaks version {version} of slipring's protocol, and this is a slipring of version "
                f"{w.SR_VERSION}: use the one that the job runs with"
            )
        if rc == -ENOLINK:
            raise InRecordFile("its controls are in a record file (SLIPRING_RECORD): watch that one")
        if rc == -EPROTO:
            raise NoSegment("it is no slipring segment or record file, or it is damaged or cut short")
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc))

    def __dealloc__(self):
        w.sr_watch_close(self.ptr)

    def segment_info(self):
        """dict: label, push, n_slots, used_slots, n_participants, run, recorded, folded, closed, pid_namespace, ..."""
        cdef w.sr_segment_info o
        w.sr_watch_segment(self.ptr, &o)
        return {
            "label": (<bytes> o.label).decode(errors="replace"), "push": bool(o.flags & w.SR_SEG_QUEUE),
            "closed": bool(o.closed), "n_slots": o.n_slots, "used_slots": o.high_water,
            "n_participants": o.n_participants - o.n_readers, "n_readers": o.n_readers, "shared": o.shared,
            "run": o.iteration,
            "recorded": o.recorded, "folded": o.folded, "loop_steps": o.loop_steps,
            "loop_wait_ns": o.loop_wait_ns, "loop_ns": o.loop_ns, "capacity": o.capacity, "total": o.total,
            "data_off": o.data_off, "stride": o.stride, "pid_namespace": o.pid_namespace, "budget": o.budget,
            "ready_waiters": o.ready_waiters, "reads": {name: o.reads[at] for at, name in enumerate(READ_COUNTS)},
        }

    def records(self, uint64_t first=0):
        """Return the records that are still available, from number `first` on, as an array of `RECORD`."""
        made = np.empty(w.SR_RECORDS, RECORD)
        cdef w.sr_record_view *at = <w.sr_record_view *> cnp.PyArray_DATA(made)
        return numbered(made[:w.sr_watch_records(self.ptr, first, at, w.SR_RECORDS)])

    def slowest(self, bint samples=False):
        """Return the batches that took longest to make, or those with the slowest samples, as an array of `RECORD`."""
        made = np.empty(w.SR_SLOWEST, RECORD)
        return numbered(made[:w.sr_watch_slowest(self.ptr, samples, <w.sr_record_view *> cnp.PyArray_DATA(made))])

    def totals(self):
        """Return (sums, stages): a dict of sums, and a dict of stage -> (sum, maximum, counts) of ns."""
        made = np.empty(w.SR_SUMS, np.uint64)
        w.sr_watch_totals(self.ptr, <uint64_t *> cnp.PyArray_DATA(made))
        names = (
            "batches", "bytes", "rows", "errors", "folded", "", "read_ns", "decode_ns", "resize_ns", "augment_ns",
            "user_ns", "hits", "misses",
        )
        sums = {name: int(value) for name, value in zip(names, made) if name}
        stages = made[len(names):].reshape(w.SR_STAGES, 2 + w.SR_BUCKETS)
        return sums, {n: (int(s[0]), int(s[1]), s[2:].astype(np.int64)) for n, s in zip(STAGES, stages)}

    def slots(self):
        """Return the slots that have been used and are not changing at the moment, as an array of `SLOT`."""
        cdef w.sr_segment_info o
        w.sr_watch_segment(self.ptr, &o)
        made = np.empty(o.high_water, SLOT)
        cdef w.sr_slot_view *at = <w.sr_slot_view *> cnp.PyArray_DATA(made)
        cdef uint32_t i, n = 0, _try
        for i in range(o.high_water):
            for _try in range(4):
                if w.sr_watch_slot(self.ptr, i, &at[n]) == 0:
                    n += 1
                    break
        numbered(made["batch"])
        return made[:n]

    def participants(self):
        """Return the consumer and the workers, or a queue's participants, as an array of `PARTICIPANT`."""
        cdef w.sr_segment_info o
        w.sr_watch_segment(self.ptr, &o)
        return self.some_participants(0, o.n_participants - o.n_readers)

    def readers(self):
        """Return the readers of shared batches, as an array of `PARTICIPANT`."""
        cdef w.sr_segment_info o
        w.sr_watch_segment(self.ptr, &o)
        return self.some_participants(o.n_participants - o.n_readers, o.n_participants)

    cdef object some_participants(self, uint32_t first, uint32_t end):
        made = np.empty(end - first, PARTICIPANT)
        cdef w.sr_participant_view *at = <w.sr_participant_view *> cnp.PyArray_DATA(made)
        cdef uint32_t i
        for i in range(first, end):
            w.sr_watch_participant(self.ptr, i, &at[i - first])
        return made


cdef object numbered(records):
    """Reduce the epochs of an array of `RECORD` to their numbers; return the array."""
    records["epoch"] &= np.uint64((1 << EPOCH_BITS) - 1)
    return records
