"""A snapshot of a segment at one moment, with the figures that follow from it."""

from __future__ import annotations

import dataclasses

import numpy as np

from slipring._core.ring import process
from slipring._core.ring._segment import now
from slipring._core.ring._watch import NO_INDEX, PARTICIPANT, RECORD, SLOT, STAGES, STATES

RETIRED = 2  # a participant's `retiring`: it claims nothing more
FIRST_NS, PER_OCTAVE = 256, 8  # buckets of the segment's histograms, as in csrc/record.c
STATE_MASK = np.uint64(0xF)
# The parts of fetching that a dataset may report, and their fields in a record.
PARTS = {
    "read": "read_ns",
    "decode": "decode_ns",
    "resize": "resize_ns",
    "augment": "augment_ns",
    "your_code": "user_ns",
}
SHOWN = 0.02  # of fetching: a smaller part is not worth naming
ENDED = 3  # `kind` of a stream's end; 4 is a batch without samples. Neither is delivered


@dataclasses.dataclass(frozen=True)
class Stage:
    """How long one stage of a batch has taken, in seconds.

    Attributes
    ----------
    count : int
        Batches.
    total_s, p50_s, p90_s, p99_s, max_s : float
        Quantiles to 5 %: eight buckets for each power of two.

    Examples
    --------
    >>> import slipring
    >>> with slipring.Loader(range(100), batch_size=10, num_workers=2) as loader:
    ...     total = sum(batch.sum() for batch in loader)
    ...     stages = loader.report().stages
    >>> stages["fetch"].count, stages["fetch"].p50_s <= stages["fetch"].max_s
    (10, True)
    """

    count: int
    total_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


Stage.__module__ = "slipring.monitor"  # its pickle and its repr have its public name


def bucket_of(ns):
    """Return the histogram buckets of an array of durations in ns."""
    ns = np.maximum(np.asarray(ns, np.int64), 1)
    octave = 63 - _leading_zeros(ns)
    bucket = (octave - 8) * PER_OCTAVE + ((ns >> np.maximum(octave - 3, 0)) & 7)
    return np.where(ns < FIRST_NS, 0, np.minimum(bucket, 255))


def _leading_zeros(ns):
    return 64 - np.frexp(ns.astype(np.float64))[1]


def _middle(bucket):
    """Return the middle of a bucket, in ns."""
    octave, part = divmod(bucket, PER_OCTAVE)
    return FIRST_NS * 2.0**octave * (1 + (part + 0.5) / PER_OCTAVE)


def stage_of(total, most, counts):
    """Return the `Stage` of a sum and a maximum in ns, and a histogram."""
    count = int(counts.sum())
    if not count:
        return Stage(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    upto = np.cumsum(counts)
    marks = (min(_middle(int(np.searchsorted(upto, q * count))), most) / 1e9 for q in (0.5, 0.9, 0.99))
    return Stage(count, total / 1e9, *marks, most / 1e9)


def durations(table):
    """Return {stage: ns of each batch of a table that went through it}; the segment's totals count in the same way."""
    done = table[(table["kind"] == 1) & (table["published_at"] > 0)]
    got = done[done["taken_at"] > 0]
    given_back = got[got["freed_at"] > got["taken_at"]]

    def between(first, then, of):
        return np.maximum(of[then].astype(np.int64) - of[first].astype(np.int64), 0)

    dispatched = done[done["dispatched_at"] > 0]
    return {
        "queued": between("dispatched_at", "claimed_at", dispatched),
        "fetch": done["fetch_ns"],
        "collate": done["collate_ns"],
        "ready": between("published_at", "taken_at", got),
        "waited": got["waited_ns"],
        "step": got["step_ns"][got["step_ns"] > 0],
        "lease": between("taken_at", "freed_at", given_back),
        "copy": got["copy_ns"][got["copy_ns"] > 0],
    }


# ---- the history of batches as one table: the flight recorder's records, and the batches that lie in the slots


def states(slots):
    """Return the names of the states of an array of `SLOT`."""
    return [state_name(word) for word in slots["state"]]


def state_name(word):
    """Return the name of the state in a slot's state word; "damaged" if a damaged file has no such state."""
    number = int(word & STATE_MASK)
    return STATES[number] if number < len(STATES) else "damaged"


def batches(watch, since=0):
    """Return all visible batches, published or not, as an array of `RECORD` in the order of their dispatch.

    `since` is the number of the first record to read. A batch that still lies in a slot has the number 0.
    """
    slots = watch.slots()["batch"]  # first: batches whose slots are reused meanwhile are among the records
    kept = watch.records(since)
    lying = slots[(slots["dispatched_at"] > 0) & (slots["kind"] < ENDED) | (slots["published_at"] > 0)]
    lying = lying[lying["kind"] < ENDED]
    known = set(zip(kept["run"].tolist(), kept["seq"].tolist()))
    new = [key not in known for key in zip(lying["run"].tolist(), lying["seq"].tolist())]
    if not any(new):
        return kept
    both = np.concatenate([kept, lying[np.array(new)]])
    return both[np.lexsort((both["seq"], both["run"]))]


def published(table):
    """Return the complete batches of a table."""
    return table[(table["published_at"] > 0) & (table["kind"] == 1)]


def taken(table):
    """Return the batches that the consumer has received, in that order."""
    got = table[(table["taken_at"] > 0) & (table["kind"] == 1)]
    return got[np.argsort(got["taken_at"], kind="stable")]


def part_shares(fetch_ns, ns_of):
    """Return {part: its share of `fetch_ns`} for the reported parts; ``ns_of(field)`` is the sum of a field."""
    found = {name: float(ns_of(field)) / fetch_ns for name, field in PARTS.items()} if fetch_ns else {}
    return {name: share for name, share in found.items() if share}


def part_name(name):
    """Return the name of a part as text."""
    return name.replace("_", " ")


def parts_text(shares):
    """Return shares as text, such as "20% decode, 60% your code"; very small ones are left out."""
    return ", ".join(f"{share:.0%} {part_name(name)}" for name, share in shares.items() if share > SHOWN)


def index_text(index):
    """Return a sample's index as text, or its row if the sampler gave something else than an int."""
    index = int(index)
    return f"row {index & 0xFFFFFFFF}" if index < NO_INDEX + (1 << 33) else f"index {index}"


def empty():
    """Return a table without batches."""
    return np.empty(0, RECORD)


# ---- the snapshot


class Snapshot:
    """A segment at one moment: copies, which do not change.

    `at_ns` is the moment, by CLOCK_MONOTONIC; for a record file it is the newest stamp in it.
    """

    def __init__(self, watch, at_ns=None):
        self.at_ns = now() if at_ns is None else at_ns
        self.participants = watch.participants()  # first: the table then has the batches that they have published
        self.slots = watch.slots()
        self.table = batches(watch)  # of `RECORD`: all batches that are remembered, by dispatch
        self.sums, self._stages = watch.totals()
        self.segment_info = watch.segment_info()
        self.slowest, self.slowest_samples = watch.slowest(), watch.slowest(True)
        self._add_what_is_new()

    def _add_what_is_new(self):
        """Add the newest batches of the table to the totals, which do not have them yet."""
        new = self.table[(self.table["number"] > self.sums["folded"]) | (self.table["number"] == 0)]
        done = new[(new["kind"] == 1) & (new["published_at"] > 0)]
        self.sums["errors"] += int(np.count_nonzero(new["kind"] == 2))
        self.sums["batches"] += len(done)
        for name in ("bytes", "rows", *PARTS.values(), "hits", "misses"):
            self.sums[name] += int(done[name].sum())
        for name, ns in durations(new).items():
            total, most, counts = self._stages[name]
            counts = counts + np.bincount(bucket_of(ns), minlength=256)
            self._stages[name] = (total + int(ns.sum()), max(most, int(ns.max(initial=0))), counts)
        for name, key in (("slowest", "batch"), ("slowest_samples", "sample")):
            kept = getattr(self, name)
            both = np.concatenate([kept, done])
            cost = both["slowest_ns"] if key == "sample" else both["fetch_ns"] + both["collate_ns"]
            setattr(self, name, both[np.argsort(cost, kind="stable")[::-1][:16]])

    @property
    def stages(self):
        """dict: stage -> `Stage`, since the segment was created."""
        return {name: stage_of(*self._stages[name]) for name in STAGES}

    @property
    def workers(self):
        """numpy.ndarray: the participants that make batches."""
        return self.participants[1:]

    @property
    def taken(self):
        """numpy.ndarray: the batches of the table that the consumer has received, in that order."""
        return taken(self.table)

    @property
    def there(self):
        """numpy.ndarray of bool: which participants are workers that have not left."""
        found = (
            (self.participants["pid"] > 0)
            & (self.participants["status"] > 0)
            & (self.participants["retiring"] != RETIRED)
        )
        found[:1] = False
        return found

    @property
    def reported(self):
        """numpy.ndarray of bool: `there`; if all workers have left, all former workers."""
        there = self.there
        if not there.any():
            there = self.participants["pid"] > 0
            there[:1] = False
        return there

    @property
    def serving(self):
        """numpy.ndarray: the participants that `reported` selects."""
        return self.participants[self.reported]

    @property
    def consumer_pid(self):
        """int: the process that takes the batches; 0 for a queue's segment, where any process may take them."""
        return 0 if self.segment_info["push"] else int(self.participants[0]["pid"])

    @property
    def threads(self):
        """bool: whether the workers are threads of the consumer's process."""
        pids = self.workers["pid"]
        return bool(len(pids)) and self.consumer_pid != 0 and bool((pids == self.consumer_pid).any())


class EmptySnapshot:
    """The stand-in for a `Snapshot` without a segment of this process: other processes or the loop make the batches.

    `meter` counts the batches that the loop has received.
    """

    def __init__(self, meter):
        self.at_ns = now()
        self.threads, self.consumer_pid = False, process.pid()
        self.table = self.taken = self.slowest = self.slowest_samples = empty()
        self.slots, self.participants = np.empty(0, SLOT), np.empty(0, PARTICIPANT)
        self.workers = self.serving = self.participants
        self.there = self.reported = np.empty(0, bool)
        names = ("rows", "errors", *PARTS.values(), "hits", "misses")
        self.sums = {"batches": meter.batches, "bytes": meter.bytes, **dict.fromkeys(names, 0)}
        self.segment_info = {
            **dict.fromkeys(("n_slots", "used_slots", "recorded", "run"), 0),
            "push": False,
            "closed": True,
            "loop_steps": meter.batches,
            "loop_wait_ns": meter.fetch_ns + meter.collate_ns or meter.wait_ns,
            "loop_ns": meter.spent_ns,
            "reads": meter.reads,
        }
        nothing = stage_of(0, 0, np.zeros(1, np.int64))
        self.stages = dict.fromkeys(STAGES, nothing)
        for name in ("fetch", "collate", "waited"):
            total = meter.wait_ns if name == "waited" else getattr(meter, f"{name}_ns")
            self.stages[name] = dataclasses.replace(nothing, count=meter.batches, total_s=total / 1e9)
