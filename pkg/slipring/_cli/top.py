"""Watch a job live: how fast it is, what its workers and slots do, and what it waits for.

Without a PID: the only job there is. On a terminal the whole screen is used, Ctrl-C ends it; where the output is no
terminal, one frame follows another. The job is neither stopped nor slowed.
"""

import argparse

from slipring._cli import shown
from slipring._cli.failure import Failure
from slipring._cli.seen import Eye
from slipring._observe import jobs as processes
from slipring._observe.jobs import attach

ENDING_S = 0.5  # that a process is given to end


def add_arguments(parser):
    """Add the command's arguments."""
    parser.add_argument("pid", metavar="PID", type=int, nargs="?", help="a job's process, or one of its workers")
    parser.add_argument("--once", action="store_true", help="print one frame")
    parser.add_argument(
        "--interval", type=interval, default=1.0, metavar="S", help="seconds from frame to frame (default 1)"
    )
    parser.add_argument(
        "--segment",
        type=int,
        metavar="N",
        help="of a job with several loaders: which, from 1 (default: the one that was busy last)",
    )
    parser.add_argument("--json", action="store_true", help="print one frame as one JSON object")


def interval(text):
    """Return seconds between frames."""
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.05 to 3600, not {text}")
    return value


def main(args):
    """Show frames until the job or the user ends it."""
    if args.pid is None:
        jobs = shown.only_job()
    else:
        with shown.reasons():
            jobs = attach(args.pid)
    number = args.segment or 1
    if not 1 <= number <= len(jobs):
        raise Failure(f"--segment {number}: the job has {len(jobs)}", shown.USAGE)
    job = jobs[number - 1]
    if args.json:
        eye = Eye(job)
        eye.measure()
        shown.print_json(eye.look().dict())
        return 0
    try:
        from slipring._cli.frame import Frames
    except ImportError as error:
        raise Failure(f"it needs rich ({error}): pip install slipring[monitor]") from error
    frames = Frames(job, number, len(jobs))
    if args.once:
        frames.measure()
        frames.console().print(frames.draw())
        return 0
    with shown.ended_by_signals():
        try:
            watch(job, frames, args.interval)
        finally:
            frames.stop()
    raise Failure(why_ended(job))


def watch(job, frames, seconds):
    """Show a frame every `seconds`, until the segment has gone."""
    with processes.Ending(job.pid) as ending:
        while True:
            frames.show()
            # An end is seen at once; what is no file descriptor cannot be waited for.
            ending.wait(seconds)
            if not job.is_there():
                return


def why_ended(job):
    """Return why a segment has gone, as text."""
    pid = job.pid
    if not pid:
        return "the job has ended"
    with processes.Ending(pid) as ending:
        # A process that ends closes its files first.
        ended = ending.wait(ENDING_S)
    found = processes.process_of(pid)
    ended = ended or found is None or found.ending or not processes.is_alive(found)
    return f"process {pid} has ended" if ended else f"process {pid} has closed the segment"
