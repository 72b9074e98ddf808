"""What the participants of a segment do at one moment, and what the loop has received recently."""

import dataclasses

from slipring._core.ring._watch import NO_INDEX, NO_SLOT
from slipring._core.ring.text import seconds
from slipring._observe.jobs import lives, namespace, state_of
from slipring._observe.snapshot import index_text, state_name

SERVING = 2  # status of a participant that takes tasks
INDICES = 1  # a task's kind: its indices lie in the slot
DUE = ("task", "claimed", "shared", "ready")  # states of a slot whose batch has not been taken
SEEN_S = 1e-3  # shorter times of a job that has ended are not shown: the newest stamp may be their own
LETTERS = {"T": "stopped", "t": "traced", "Z": "dead", "X": "dead", "D": "in the kernel"}


@dataclasses.dataclass(frozen=True)
class Activity:
    """The activity of a participant now, or when its job ended."""

    name: str  # "consumer", "worker 0", or "participant 3" of a queue
    pid: int  # as this PID namespace numbers it; if that is unknown, as the job does
    state: str  # the process's letter in /proc/<pid>/stat; "" if there is no such process
    # "not begun", "idle", "reading", "making", "collating", "waiting for memory", "waiting for a batch", "waiting for
    # workers", "in its step" or "between tasks"
    what: str
    # How long it has done that. If the job has ended: up to the newest stamp, so that it may be longer.
    since_s: float | None = None
    index: int | None = None  # of the sample that it reads
    first_index: int | None = None  # of the batch's first sample
    row: int | None = None  # in the batch
    # The batch.
    slot: int | None = None
    run: int | None = None
    epoch: int | None = None
    seq: int | None = None
    rows: int | None = None

    @property
    def number(self):
        """int: its number among the segment's participants."""
        kind, _, number = self.name.partition(" ")
        return int(number or 0) + (kind == "worker")

    @property
    def lasted_s(self):
        """float: `since_s`; 0 if it is unknown."""
        return self.since_s or 0.0

    @property
    def sample(self):
        """str: the sample that it reads, in words."""
        if self.index is not None:
            return f"index {self.index}"
        if self.first_index is not None:
            return f"row {self.row} of those from index {self.first_index} on"
        return f"row {self.row}"

    def sentence(self, long=True, was=False):
        """Return the activity in words; `long`: with its batch; `was`: of a job that has ended."""
        batch = f"batch {self.seq}" if self.seq is not None else "a batch"
        text = {
            "reading": f"reads {self.sample}" if not was else f"was reading {self.sample}",
            "making": f"{'was making' if was else 'makes'} {batch}",
            "collating": f"{'was collating' if was else 'collates'} {batch}",
            "idle": "was waiting for a task" if was else "waits for a task",
            "waiting for memory": f"{'was waiting' if was else 'waits'} for memory",
            "waiting for a batch": f"{'was waiting' if was else 'waits'} for {batch}",
            "waiting for workers": f"{'was waiting' if was else 'waits'} for its workers to begin",
            "in its step": "was in its step" if was else "in its step",
            "between tasks": "was between two tasks" if was else "between two tasks",
            "not begun": "had not begun" if was else "not begun",
        }[self.what]
        if self.since_s is not None and not (was and self.since_s < SEEN_S):
            # The beginning is known, the end of the job is not.
            text += f"{', for at least' if was else ' for'} {seconds(self.since_s)}"
        if long and self.seq is not None:
            first = f", from index {self.first_index} on" if self.first_index is not None else ""
            of = f"epoch {self.epoch}, {self.rows} rows{first}"
            text += f" (batch {self.seq}, {of})" if self.what == "reading" else f" ({of})"
        if was:
            return text
        mark = "gone" if not self.state and self.pid else LETTERS.get(self.state, "")
        return f"{mark}: {text}" if mark else text

    def dict(self):
        """Return the fields and the sentence, for JSON."""
        return {**dataclasses.asdict(self), "sentence": self.sentence()}


def activities(snapshot, job=None):
    """Return the activity (`Activity`) of each participant of a snapshot, the consumer first.

    `job` is needed to name samples by their index. The record file of a job that has ended has none: the contents of
    the slots are gone.
    """
    push = snapshot.segment_info["push"]
    lying = {int(slot["batch"]["slot"]): slot for slot in snapshot.slots}
    claimed = {
        int(slot["batch"]["participant"]): slot for slot in snapshot.slots if state_name(slot["state"]) == "claimed"
    }
    by_rows = bool((snapshot.table["slowest_ns"] > 0).any())
    found = [] if push else [_consumer(snapshot, job)]
    reported = snapshot.reported if job is None else snapshot.there
    for number, participant in enumerate(snapshot.participants):
        pid = int(participant["pid"])
        if (number == 0 and not push) or not pid:
            continue
        if not (participant["status"] if push else reported[number]):
            continue  # it has left
        name = f"participant {number}" if push else f"worker {number - 1}"
        here = job.number(pid) if job is not None else pid
        state = state_of(here, int(participant["started"]))
        work = _at_work(snapshot, job, number, participant, lying, claimed, by_rows)
        found.append(Activity(name, here or pid, state, **work))
    return found


def _at_work(snapshot, job, number, participant, lying, claimed, by_rows):
    """Return the fields of `Activity` that say what a participant does, and with which batch."""
    since = _ago(snapshot, participant["at_since"])
    slot = claimed.get(number)
    if int(participant["at_slot"]) != NO_SLOT:
        slot_number, row = int(participant["at_slot"]), int(participant["at_row"])
        fields = {"what": "reading", "since_s": since, "row": row, "slot": slot_number}
        at = lying.get(slot_number)
        if at is None or state_name(at["state"]) not in ("claimed", "shared"):
            return fields  # it has another batch now
        fields.update(_batch(at["batch"], at["task_rows"]))
        if int(at["task_kind"]) == INDICES:
            if row == 0:
                fields["index"] = fields["first_index"]
            elif job is not None:
                fields["index"] = _index(job, number, participant, slot_number, row)
        return fields
    if participant["needs_memory_for"]:
        return {"what": "waiting for memory"}
    if slot is not None:
        # A worker reports each sample that it reads one by one, so this one has read all of them, or is about to begin.
        # Without a row, `at_since` is when it had read its last sample, of this batch or of an earlier one.
        claimed_at, read_at = int(slot["batch"]["claimed_at"]), int(participant["at_since"])
        by_rows = (by_rows or read_at >= claimed_at) and int(slot["task_kind"]) == INDICES
        what, begun = ("collating", max(claimed_at, read_at)) if by_rows else ("making", claimed_at)
        return {"what": what, "since_s": _ago(snapshot, begun), **_batch(slot["batch"], slot["task_rows"])}
    if not snapshot.segment_info["push"] and int(participant["status"]) < SERVING:
        return {"what": "not begun", "since_s": since}
    return {"what": "idle" if participant["waiting"] else "between tasks"}


def _index(job, number, participant, slot, row):
    """Return the index that a worker reads; None if the worker has moved on meanwhile."""
    index = job.index_at(slot, row)
    again = job.watch.participants()[number]
    same = all(int(again[name]) == int(participant[name]) for name in ("pid", "at_slot", "at_row", "at_since"))
    return index if same else None


def _batch(batch, rows):
    first = int(batch["first_index"])
    return {
        "slot": int(batch["slot"]), "run": int(batch["run"]), "epoch": int(batch["epoch"]),
        "seq": int(batch["seq"]), "rows": int(rows),
        "first_index": None if first == NO_INDEX else first,
    }  # fmt: skip


def _ago(snapshot, stamp):
    return (snapshot.at_ns - int(stamp)) / 1e9 if 0 < int(stamp) <= snapshot.at_ns else None


def _consumer(snapshot, job):
    participant = snapshot.participants[0]
    pid = int(participant["pid"])
    here = job.number(pid) if job is not None else pid
    state = state_of(here, int(participant["started"]))
    fields = {"what": "in its step"}
    last = int(snapshot.table["taken_at"].max(initial=0))
    if last:
        fields["since_s"] = _ago(snapshot, last)
    slots = snapshot.slots[snapshot.slots["batch"]["run"] == snapshot.segment_info["run"]]
    late = snapshot.participants[snapshot.there & (snapshot.participants["status"] < SERVING)]
    if snapshot.segment_info["ready_waiters"] and len(late) == snapshot.there.sum():
        # A worker that imports modules or unpickles the dataset has not joined the segment yet.
        begun = late["at_since"] if len(late) else slots["batch"]["dispatched_at"]
        fields = {"what": "waiting for workers", "since_s": _ago(snapshot, begun.min(initial=snapshot.at_ns))}
    elif snapshot.segment_info["ready_waiters"]:
        fields["what"] = "waiting for a batch"
        due = [slot["batch"] for slot in slots if state_name(slot["state"]) in DUE]
        if due:
            fields["seq"] = min(int(batch["seq"]) for batch in due)
            fields.update(epoch=int(due[0]["epoch"]), rows=int(due[0]["rows"]))
    return Activity("consumer", here or pid, state, **fields)


# ---- participants that have begun something and not finished it

# `Activity.what` of a worker that has begun something -> the activity as a sentence names it
WORK = {"reading": "reading one sample", "making": "making one batch", "collating": "putting one batch together"}


def is_here(snapshot):
    """Return whether the processes of a snapshot are in this PID namespace."""
    return snapshot.segment_info.get("pid_namespace") in (0, namespace())


def alive(snapshot):
    """Return the `Activity` of each living participant; none if all workers have left."""
    if not len(snapshot.participants) or not snapshot.there.any():
        return []
    here = is_here(snapshot)
    return [each for each in activities(snapshot) if not here or lives(each.state)]


def at_work(snapshot):
    """Return the `Activity` of each worker that has begun something and not finished it, the longest first."""
    return sorted((each for each in alive(snapshot) if each.what in WORK), key=lambda each: each.lasted_s, reverse=True)


def sentence_of(each):
    """Return a sentence about what `at_work` has found: which worker has been busy with what, and for how long."""
    where = f"batch {each.seq}" if each.row is None else f"row {each.row} of its batch"
    if each.first_index is not None:
        where += f", which begins at {index_text(each.first_index)}"
    return (
        f"{each.name.capitalize()} (pid {each.pid}) has been {WORK[each.what]} for {seconds(each.lasted_s)}: {where}."
    )
