"""`slipring dump`: the last batches of a job, and what its workers do, or did before a crash."""

import json
import os

import numpy as np

from slipring._cli.main import USAGE, Failure
from slipring._core.ring._watch import KINDS, NO_INDEX, Watch
from slipring._core.ring.text import count, mb, millis, seconds
from slipring._observe.activity import activities
from slipring._observe.jobs import attach, lives, one_line
from slipring._observe.rendering import remote_reads
from slipring._observe.snapshot import Snapshot, index_text

COLUMNS = (
    "when", "run", "epoch", "batch", "slot", "worker", "indices", "MB", "queued", "fetch", "collate", "ready",
    "waited", "step", "lease", "hits", "slowest",
)  # fmt: skip
TIMES = ("dispatched_at", "claimed_at", "fetched_at", "published_at", "taken_at", "freed_at")


def dump_arguments(parser):
    """Add the arguments of `slipring dump`."""
    parser.add_argument(
        "job", metavar="PID|FILE", help="a job's process, or one of its workers; or the file of SLIPRING_RECORD"
    )
    parser.add_argument(
        "-n", type=number, default=20, metavar="N", help="batches to print (default 20; 1024 are remembered)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with times in ns")


def number(text):
    """Return a number of batches."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def dump(args):
    """Print the last batches of a job, and what each worker does now; for a job that has crashed, what it was doing.

    The job is not stopped. A job that hangs or is stopped is shown in the same way: which worker, which sample, how
    long.
    """
    segments = of_process(int(args.job)) if args.job.isdecimal() else [of_file(args.job)]
    if args.json:
        print(json.dumps({"segments": [as_dict(*each, args.n) for each in segments]}, indent=1))
        return 0
    for n, each in enumerate(segments):
        if n:
            print()
        show(*each, args.n)
    return 0


def of_process(pid):
    """Return (title, ended, snapshot, activities) of each segment of a process."""
    segments = []
    for job in attach(pid):
        snapshot = Snapshot(job.watch)
        segments.append(
            (f"process {job.pid or '?'}: {job.kind}, {job.named()}", False, snapshot, activities(snapshot, job))
        )
    return segments


def of_file(path):
    """Return (title, ended, snapshot, activities) of a record file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure(f"there is no file {path}, and it is no process's number", USAGE) from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
    try:
        watch = Watch(fd, copy=True)
    except (ValueError, OSError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        os.close(fd)
    snapshot = Snapshot(watch)
    seen = activities(snapshot)
    ended = not any(lives(each.state) for each in (seen if snapshot.segment_info["push"] else seen[:1]))
    if ended:  # its clock may be that of another boot or machine: its newest stamp is the end
        snapshot = Snapshot(watch, at_ns=newest(snapshot))
        seen = activities(snapshot)
    label = one_line(snapshot.segment_info["label"])
    return f"file {path}{': ' + label if label else ''}", ended, snapshot, seen


def newest(snapshot):
    """Return the newest stamp of a snapshot, in ns."""
    stamps = [snapshot.table[name].max(initial=0) for name in TIMES]
    return int(max([*stamps, snapshot.participants["at_since"].max(initial=0)]))


def last(snapshot, n):
    """Return the n batches to which something happened last, and when it happened."""
    if n == 0:
        return snapshot.table[:0], None
    stamps = np.max([snapshot.table[name] for name in TIMES], axis=0)
    chosen = np.sort(np.argsort(stamps, kind="stable")[-n:])
    return snapshot.table[chosen], stamps[chosen]


def show(title, ended, snapshot, seen, n):
    """Print the state of a segment."""
    segment_info, sums = snapshot.segment_info, snapshot.sums
    counted = ((segment_info["n_slots"], "slot", "slots"), (sums["batches"], "batch", "batches"))
    counted = ", ".join(count(*each) for each in (*counted, (sums["errors"], "error", "errors")))
    print(f"{title}; {counted}")
    if segment_info["loop_steps"]:
        print("a thread takes the batches, ahead of the loop: waits and steps below are that thread's")
    if segment_info["reads"]["attempts"]:
        print(remote_reads(segment_info["reads"]))
    print("what they were doing at the end:" if ended else "what they do now:")
    for each in seen:
        print(f"  {each.name}, pid {each.pid or '?'}: {each.sentence(was=ended)}")
    table, stamps = last(snapshot, n)
    if not len(table):
        print("no batches")
        return
    heading = "the last batch" if len(table) == 1 else f"the last {len(table)} batches"
    print(f"{heading}; ms, and how long before {'the newest stamp' if ended else 'now'}:")
    rows = [cells(batch, int(stamp), snapshot.at_ns) for batch, stamp in zip(table, stamps)]
    from slipring._cli.view import print_table

    print_table(COLUMNS, rows, left=("slowest", "indices"))


def cells(batch, stamp, at_ns):
    """Return the texts of a table line."""

    def between(first, then):
        begin, end = int(batch[first]), int(batch[then])
        return millis(end - begin) if begin and end >= begin else "-"

    made, got = int(batch["published_at"]) > 0, int(batch["taken_at"]) > 0
    looked = int(batch["hits"]) + int(batch["misses"])
    slow = f"{index_text(batch['slowest_index'])}, {millis(batch['slowest_ns'])}"
    kind = f" {KINDS[int(batch['kind']) & 3]}" if int(batch["kind"]) > 1 else ""
    return (
        f"-{seconds(max(0, at_ns - stamp) / 1e9)}",
        str(batch["run"]),
        str(batch["epoch"]),
        f"{batch['seq']}{kind}",
        str(batch["slot"]),
        str(int(batch["participant"]) - 1) if made and batch["participant"] else "-",
        indices(batch),
        mb(int(batch["bytes"])) if made else "-",
        between("dispatched_at", "claimed_at"),
        millis(batch["fetch_ns"]) if made else "-",
        millis(batch["collate_ns"]) if made else "-",
        between("published_at", "taken_at"),
        millis(batch["waited_ns"]) if got else "-",
        millis(batch["step_ns"]) if got else "-",
        between("taken_at", "freed_at"),
        f"{int(batch['hits'])}/{looked}" if looked else "",
        slow if batch["slowest_ns"] else "",
    )


def indices(batch):
    """Return which samples a batch has, as text."""
    first, rows = int(batch["first_index"]), int(batch["rows"])
    if first == NO_INDEX:
        return f"{rows} rows" if rows else "-"
    return f"{first} … ({rows})" if rows > 1 else str(first)


def as_dict(title, ended, snapshot, seen, n):
    """Return the state of a segment, for JSON."""
    table, _ = last(snapshot, n)
    batches = []
    for batch in table:
        one = {name: int(batch[name]) for name in table.dtype.names}
        for name in ("first_index", "slowest_index"):
            one[name] = None if one[name] < NO_INDEX + (1 << 33) else one[name]
        batches.append(one)
    segment_info = {name: value for name, value in snapshot.segment_info.items() if name != "pid_namespace"}
    participants = [{**each.dict(), "sentence": each.sentence(was=ended)} for each in seen]
    return {
        "title": title, "ended": ended, "at_ns": snapshot.at_ns, "segment": segment_info, "sums": snapshot.sums,
        "participants": participants, "batches": batches,
    }  # fmt: skip
