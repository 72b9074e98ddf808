"""What the commands that look at jobs share: reasons for failures, tables, and figures as people read them."""

import contextlib
import json
import os
import signal
import sys

from slipring._cli.failure import USAGE, Failure, Terminated
from slipring._core._cache import NoSegment
from slipring._core.text import aligned
from slipring._observe.jobs import NoJob, attach, jobs

WIDE = 150  # columns of what is printed to no terminal
WORD = 20  # columns that a word of a table's last column gets on a narrow one


@contextlib.contextmanager
def reasons():
    """Turn the errors for jobs and files that cannot be read into a `Failure`."""
    try:
        yield
    except (NoJob, NoSegment) as error:
        raise Failure(str(error)) from error


@contextlib.contextmanager
def ended_by_signals():
    """Make SIGTERM and SIGHUP raise `Terminated`, so that a command cleans up what it has begun."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [number for number, handler in before.items() if handler is signal.SIG_DFL]  # nohup's is kept
    try:
        for number in mine:
            signal.signal(number, _terminated)
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _terminated(number, frame):
    raise Terminated(number)


def only_job():
    """Return the jobs of the only process that has some; raise a `Failure` that lists them if there are several."""
    with reasons():
        found, refused = jobs()
    of = {}
    for job in found:
        of.setdefault(job.pid, []).append(job)
    if not of:
        why = f"; {refused[0][1]}" if refused else ""
        who = "on this machine" if os.geteuid() == 0 else "of this user"
        raise Failure(f"there is no job of slipring's {who}{why}")
    if len(of) > 1:
        listed = ", ".join(f"{pid} ({short(its[0].name, 40)})" for pid, its in sorted(of.items()))
        raise Failure(f"there are several jobs, give the PID of one: {listed}", USAGE)
    (pid,) = of
    with reasons():
        return attach(pid) if pid else found


def short(text, most):
    """Return a text cut to that many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def millis(ns):
    """Return ns as ms."""
    return f"{int(ns) / 1e6:.3g}"


def megabytes(n):
    """Return bytes as MB."""
    return f"{n / 1e6:,.1f}" if n < 1e9 else f"{n / 1e6:,.0f}"


def share(part):
    """Return a share as percent."""
    return "-" if part is None else f"{part:.0%}"


def count(n, one, several):
    """Return a number of things as text."""
    return f"{n:,} {one if n == 1 else several}"


def print_json(told):
    """Print one JSON object."""
    print(json.dumps(told, indent=1))


def print_table(head, rows, left=()):
    """Print a table, with rich if it is installed; `left` names the columns that are text.

    If the screen is too narrow, lines are wrapped: no number is cut.
    """
    try:
        from rich.table import Table
        from rich.text import Text

        screen = console()
    except ImportError:
        print(*aligned([head, *rows], [at for at, name in enumerate(head) if name in left]), sep="\n")
        return
    table = Table(box=None, pad_edge=False)
    for name in head:
        justify = "left" if name in left else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != head[-1])
    for row in rows:
        table.add_row(*map(Text, row))
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = WIDE
    screen.width = max(screen.width, least_width([head, *rows]))
    screen.print(table)


def console():
    """Return rich's console, which raises BrokenPipeError if nobody reads; raise ImportError without rich."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self):  # rich's ends the process with 1
            raise BrokenPipeError

    return Ours(highlight=False)


def least_width(lines):
    """Return how many columns show a table without cutting it; words of its last column may be folded."""
    *numbers, last = zip(*lines)
    words = max((len(word) for text in last for word in text.split()), default=0)
    return sum(max(map(len, column)) + 2 for column in numbers) + max(len(last[0]), min(words, WORD))


def tell(text):
    """Print on stderr what is not a result."""
    print(text, file=sys.stderr, flush=True)
