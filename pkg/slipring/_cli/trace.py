"""Write a trace of a job that Perfetto (ui.perfetto.dev) and chrome://tracing open.

It has a track for the consumer, each worker and each slot, and arrows from a batch's dispatch to its delivery. Times
are of CLOCK_MONOTONIC. The job is not stopped; Ctrl-C ends the trace early, and what there is by then is written;
SIGTERM ends it without.
"""

import argparse
import contextlib
import errno
import os
import shutil
import sys
import time

from slipring._cli import shown
from slipring._cli.events import write
from slipring._cli.failure import USAGE, Failure
from slipring._core import process
from slipring._observe import jobs as processes
from slipring._observe.jobs import attach
from slipring._observe.recording import Recording

NICE = 15
CHECK_S = 0.5  # after so long it is looked whether the job still has its segments


def add_arguments(parser):
    """Add the command's arguments."""
    parser.add_argument("pid", metavar="PID", type=int, help="a job's process, or one of its workers")
    parser.add_argument("--seconds", type=seconds, default=10.0, metavar="S", help="how long (default 10)")
    parser.add_argument(
        "-o",
        "--output",
        default="trace.json",
        metavar="FILE",
        help="default trace.json; .json.gz is compressed; - is the standard output",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object")


def seconds(text):
    """Return how long a trace is."""
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 86400, not {text}")
    return value


def main(args):
    """Record, and write the file."""
    with shown.reasons():
        jobs = attach(args.pid)
    if args.json and args.output == "-":
        raise Failure("--json and -o - both print to the standard output: leave one out", USAGE)
    with shown.ended_by_signals(), output(args.output) as (file, name):
        recordings = [Recording(job) for job in jobs]
        interrupted = record(jobs, recordings, args.seconds)
        os.nice(NICE)  # what is left to do takes a processor, and may wait for the job
        told = write(recordings, file, name.endswith(".gz"))
    if args.json:
        shown.print_json({"file": args.output, **told})
    else:
        lost = f", {told['lost']:,} lost" if told["lost"] else ""
        counted = f"{shown.count(told['batches'], 'batch', 'batches')}{lost}, {told['events']:,} events"
        line = f"{args.output}: {counted}, {shown.megabytes(told['bytes'])} MB"
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
        with open(part, "xb") as file:  # whether it can be written is to be known before
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
    with processes.Ending(jobs[0].pid) as ending:
        try:
            shown.tell(f"tracing process {jobs[0].pid or '?'} for {seconds:g} s")
            while (at := time.monotonic()) < begun + seconds:
                pause = min(recording.poll() for recording in recordings)
                ended = ending.wait(min(pause, begun + seconds - at))
                if not ended and at > looked + CHECK_S:
                    looked, ended = at, not any(job.is_there() for job in jobs)
                if ended:
                    shown.tell(f"the job has ended, {at - begun:.1f} s after the beginning")
                    break
        except KeyboardInterrupt:
            return True
        finally:
            for recording in recordings:
                recording.end()
    return False
