"""What the participants of a segment do at one moment, and what the loop has received recently."""

import dataclasses
import os

from slipring._core._cache import NO_INDEX, NO_SLOT
from slipring.monitor import processes, records
from slipring.monitor.records import state_name
from slipring.monitor.words import seconds

SERVING = 2  # a participant's status, of a worker that has begun
INDICES = 1  # a task's kind: its indices lie in the slot
DUE = ("task", "claimed", "shared", "ready")  # states of a slot whose batch has not been taken
SEEN_S = 1e-3  # of a job that has ended, less is not told: the newest stamp may be that of its beginning
WINDOW_S = 5.0  # what rates are of
TICKS = os.sysconf("SC_CLK_TCK")
LETTERS = {"T": "stopped", "t": "traced", "Z": "dead", "X": "dead", "D": "in the kernel"}


@dataclasses.dataclass(frozen=True)
class Doing:
    """What a participant does, or was doing when a job ended."""

    name: str  # "consumer", "worker 0", "made by the loop", or "participant 3" of a queue
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
        told = {
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
            # Where it begins is known, not when the job has ended.
            told += f"{', for at least' if was else ' for'} {seconds(self.since_s)}"
        if long and self.seq is not None:
            first = f", from index {self.first_index} on" if self.first_index is not None else ""
            of = f"epoch {self.epoch}, {self.rows} rows{first}"
            told += f" (batch {self.seq}, {of})" if self.what == "reading" else f" ({of})"
        if was:
            return told
        mark = "gone" if not self.state and self.pid else LETTERS.get(self.state, "")
        return f"{mark}: {told}" if mark else told

    def dict(self):
        """Return the fields and the sentence, for JSON."""
        return {**dataclasses.asdict(self), "sentence": self.sentence()}


def doing(sight, job=None):
    """Return the activity (`Doing`) of each participant of a snapshot, the consumer first.

    `job` is needed to name samples by their index. The record file of a job that has ended has none: the contents of
    the slots are gone.
    """
    push = sight.segment_info["push"]
    lying = {int(slot["batch"]["slot"]): slot for slot in sight.slots}
    claimed = {
        int(slot["batch"]["participant"]): slot for slot in sight.slots if state_name(slot["state"]) == "claimed"
    }
    by_rows = bool((sight.table["slowest_ns"] > 0).any())
    found = [] if push else [_consumer(sight, job, claimed)]
    told = sight.told if job is None else sight.there
    for number, participant in enumerate(sight.participants):
        pid = int(participant["pid"])
        if (number == 0 and not push) or not (pid or sight.inline):
            continue
        if not (participant["status"] if push else told[number] or sight.inline):
            continue  # it has left
        name = f"participant {number}" if push else f"worker {number - 1}"
        if sight.inline:
            name, pid = "made by the loop", sight.consumer_pid
        here = job.number(pid) if job is not None else pid
        state = processes.state_of(here, 0 if sight.inline else int(participant["started"]))
        work = _at_work(sight, job, number, participant, lying, claimed, by_rows)
        found.append(Doing(name, here or pid, state, **work))
    return found


def _at_work(sight, job, number, participant, lying, claimed, by_rows):
    """Return the fields of `Doing` that say what a participant does, and with which batch."""
    since = _ago(sight, participant["at_since"])
    slot = claimed.get(number)
    if int(participant["at_slot"]) != NO_SLOT:
        place, row = int(participant["at_slot"]), int(participant["at_row"])
        told = {"what": "reading", "since_s": since, "row": row, "slot": place}
        at = lying.get(place)
        if at is None or state_name(at["state"]) not in ("claimed", "shared"):
            return told  # it has gone on meanwhile
        told.update(_batch(at["batch"], at["task_rows"]))
        if int(at["task_kind"]) == INDICES:
            if row == 0:
                told["index"] = told["first_index"]
            elif job is not None:
                told["index"] = _index(job, number, participant, place, row)
        return told
    if participant["needs_memory_for"]:
        return {"what": "waiting for memory"}
    if slot is not None:
        # Samples that are read one by one are told of, so that this one has read them all, or is about to begin.
        # Without a row `at_since` is when it had read the last one: of this batch, or of one before.
        claimed_at, read_at = int(slot["batch"]["claimed_at"]), int(participant["at_since"])
        by_rows = (by_rows or read_at >= claimed_at) and int(slot["task_kind"]) == INDICES
        what, begun = ("collating", max(claimed_at, read_at)) if by_rows else ("making", claimed_at)
        return {"what": what, "since_s": _ago(sight, begun), **_batch(slot["batch"], slot["task_rows"])}
    if not sight.segment_info["push"] and not sight.inline and int(participant["status"]) < SERVING:
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


def _ago(sight, stamp):
    return (sight.at_ns - int(stamp)) / 1e9 if 0 < int(stamp) <= sight.at_ns else None


def _consumer(sight, job, claimed):
    participant = sight.participants[0]
    pid = int(participant["pid"])
    here = job.number(pid) if job is not None else pid
    state = processes.state_of(here, int(participant["started"]))
    told = {"what": "in its step"}
    last = int(sight.table["taken_at"].max(initial=0))
    if last:
        told["since_s"] = _ago(sight, last)
    slots = sight.slots[sight.slots["batch"]["run"] == sight.segment_info["run"]]
    late = sight.participants[sight.there & (sight.participants["status"] < SERVING)]
    if sight.inline and claimed:  # it makes the batch that it has asked for
        slot = next(iter(claimed.values()))
        its = _batch(slot["batch"], slot["task_rows"])
        told["since_s"] = _ago(sight, slot["batch"]["claimed_at"])
        told.update(what="waiting for a batch", **{name: its[name] for name in ("seq", "epoch", "rows")})
    elif sight.segment_info["ready_waiters"] and not sight.inline and len(late) == sight.there.sum():
        # A worker that imports modules or unpickles the dataset has not joined the segment yet.
        begun = late["at_since"] if len(late) else slots["batch"]["dispatched_at"]
        told = {"what": "waiting for workers", "since_s": _ago(sight, begun.min(initial=sight.at_ns))}
    elif sight.segment_info["ready_waiters"]:
        told["what"] = "waiting for a batch"
        due = [slot["batch"] for slot in slots if state_name(slot["state"]) in DUE]
        if due:
            told["seq"] = min(int(batch["seq"]) for batch in due)
            told.update(epoch=int(due[0]["epoch"]), rows=int(due[0]["rows"]))
    return Doing("consumer", here or pid, state, **told)


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the loop has received recently."""

    batches: float  # per second
    bytes: float  # per second
    waiting: float | None  # the part of the time in which the loop waited, from 0 to 1; None: unknown
    over_s: float  # the time that these figures cover

    def dict(self):
        """Return the fields, for JSON."""
        return dataclasses.asdict(self)


def rates(sight, before=None, window_s=WINDOW_S):
    """Return the `Rates` of a `Sight`, over `window_s` seconds or as far as its table reaches back.

    `before` is an earlier Sight: if a thread takes the batches for the loop, only sums say how long the loop waited.
    """
    got = sight.taken
    if not len(got):
        return Rates(0.0, 0.0, _of_loop(sight, before), 0.0)
    begin = max(sight.at_ns - int(window_s * 1e9), int(got["taken_at"][0]))
    lately = got[got["taken_at"] > begin]
    lasted = max(1e-9, (sight.at_ns - begin) / 1e9)
    waiting = _of_loop(sight, before)
    if waiting is None and not sight.segment_info["push"]:
        waited, all_of_it = (
            int(lately["waited_ns"].sum()),
            int((lately["waited_ns"] + lately["step_ns"]).sum()),
        )
        if sight.segment_info["ready_waiters"]:  # it waits just now
            since = sight.at_ns - max(begin, int(got["taken_at"][-1]))
            waited, all_of_it = waited + since, all_of_it + since
        waiting = waited / all_of_it if all_of_it > 0 else None
    return Rates(len(lately) / lasted, int(lately["bytes"].sum()) / lasted, waiting, lasted)


def _of_loop(sight, before):
    """Return the waiting share of a loop for which a thread takes the batches; None if there is no such thread."""
    now, then = (
        sight.segment_info,
        before.segment_info if before is not None else {"loop_ns": 0, "loop_wait_ns": 0},
    )
    if not now["loop_steps"]:
        return None
    if now["loop_ns"] <= then["loop_ns"]:
        then = {"loop_ns": 0, "loop_wait_ns": 0}
    return (now["loop_wait_ns"] - then["loop_wait_ns"]) / max(1, now["loop_ns"] - then["loop_ns"])


def lately(sight, window_s=WINDOW_S):
    """Return a snapshot's batches published in the last `window_s` seconds; if there are none, all it remembers."""
    done = records.published(sight.table)
    recent = done[done["published_at"] > sight.at_ns - int(window_s * 1e9)]
    return recent if len(recent) else done
