"""List the jobs of slipring's on this machine: yours, or as root everybody's.

Rates are of the last five seconds, as far as each job's flight recorder has them. Nothing is stopped or written.
"""

from slipring._cli import shown
from slipring._observe import jobs as processes
from slipring._observe.jobs import jobs
from slipring._observe.rates import WINDOW_S, rates
from slipring._observe.snapshot import Snapshot

COLUMNS = ("PID", "kind", "workers", "slots", "batches", "batches/s", "MB/s", "waiting", "job")


def add_arguments(parser):
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--arguments", action="store_true", help="show the arguments of scripts, which may be secrets")


def main(args):
    """Print a line for each segment."""
    with shown.reasons():
        found, refused = jobs()
    rows = sorted((row_of(job, args.arguments) for job in found), key=lambda row: (row["pid"], row["file"]))
    if args.json:
        told = [{"pid": pid, "reason": reason} for pid, reason in refused]
        shown.print_json({"window_s": WINDOW_S, "jobs": rows, "refused": told})
        return 0
    if rows:
        shown.print_table(COLUMNS, [cells(row) for row in rows], left=("kind", "job"))
        print(f"batches: since the start; batches/s, MB/s, waiting: over the last {WINDOW_S:g} s")
    elif not refused:
        print("no jobs")
    for _, reason in refused:
        shown.tell(f"slipring ps: {reason}")
    return 0


def row_of(job, arguments=False):
    """Return the figures of a job, as a dict."""
    snapshot = Snapshot(job.watch)
    lately = rates(snapshot)
    pid = job.pid
    return {
        "pid": pid,
        "kind": "queue" if job.push else "loader",
        "name": job.named(arguments),
        "label": snapshot.segment_info["label"],
        "command": processes.command_of(pid, arguments),
        "workers": int((snapshot.participants["status"] > 0 if job.push else snapshot.there).sum()),
        "slots": snapshot.segment_info["n_slots"],
        "batches": snapshot.sums["batches"],
        "bytes": snapshot.sums["bytes"],
        **{f"{name}_per_s": value for name, value in (("batches", lately.batches), ("bytes", lately.bytes))},
        "waiting": lately.waiting,
        "over_s": lately.over_s,
        "file": job.path,
        "processes": sorted(job.holders),
        "elsewhere": job.elsewhere,
    }


def cells(row):
    """Return the texts of a table line."""
    return (
        str(row["pid"] or "?") + ("*" if row["elsewhere"] else ""),
        row["kind"],
        str(row["workers"]),
        str(row["slots"]),
        f"{row['batches']:,}",
        f"{row['batches_per_s']:,.1f}",
        shown.megabytes(row["bytes_per_s"]),
        shown.share(row["waiting"]),
        shown.short(row["name"], 70),
    )
