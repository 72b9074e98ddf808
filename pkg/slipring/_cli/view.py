"""Terminal output of the commands, with rich: tables, and the frames of `slipring top`, for any width."""

import os
import sys

from slipring._core.ring.text import count, mb, millis, seconds, share, short
from slipring._observe.rendering import rank_memory, table
from slipring._observe.snapshot import parts_text, states

try:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text
except ImportError as error:
    raise ImportError(f"it needs rich ({error}): pip install slipring[monitor]") from error

WIDE = 150  # columns, if the output is not a terminal
WORD = 20  # columns for a word of a table's last column, on a narrow screen
# State of a slot -> (its letter, its colour, its description), in the order in which they are drawn.
SLOTS = {
    "leased": ("L", "yellow", "leased"),
    "broadcast": ("B", "yellow", "leased by several readers"),
    "ready": ("R", "green", "ready"),
    "claimed": ("m", "cyan", "being made"),
    "shared": ("s", "cyan", "being made by several"),
    "task": ("t", "blue", "task"),
    "parked": ("p", "magenta", "kept by a worker"),
    "trimmed": ("-", "bright_black", "trimmed"),
    "free": (".", "bright_black", "free"),
}
NARROW, MIDDLE = 60, 100  # columns
LOW = 24  # lines


class Screen(Console):
    """rich's console, which raises BrokenPipeError if no process reads."""

    def __init__(self):
        super().__init__(highlight=False)

    def on_broken_pipe(self):  # rich's ends the process with 1
        raise BrokenPipeError


def print_table(head, rows, left=()):
    """Print a table; `left` names the columns that are text.

    If the screen is too narrow, lines are wrapped: no number is cut.
    """
    screen = Screen()
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = WIDE
    *numbers, last = zip(head, *rows)
    widest = max((len(word) for text in last for word in text.split()), default=0)
    least = sum(max(map(len, column)) + 2 for column in numbers) + max(len(last[0]), min(widest, WORD))
    screen.width = max(screen.width, least)
    screen.print(table(head, rows, [head.index(name) for name in left]))


class FrameView:
    """The frames of `slipring top`, drawn one after another."""

    def __init__(self):
        self.screen, self.live = Screen(), None

    def draw(self, frame):
        """Return a frame for the screen's width; on a whole screen, with as many participants as fit its height."""
        height = self.screen.height if self.live is not None else None
        low = height is not None and height < LOW
        n = len(frame.participants) if height is None else min(len(frame.participants), height)
        drawn = self._draw(frame, low, n)
        while height is not None and n > 1 and len(self.screen.render_lines(drawn)) > height:
            n -= 1
            drawn = self._draw(frame, low, n)
        return drawn

    def _draw(self, frame, low, n):
        """Return a frame with n of the participants; on a low screen it has only the necessary lines besides them."""
        width, rates, job = self.screen.width, frame.rates, frame.job
        title = f"slipring top · {job.kind} of process {job.pid or '?'}{frame.rank_text} · {job.named()}"
        figures = f"{rates.batches:,.1f} batches/s   {mb(rates.bytes)} MB/s"
        figures += "" if job.push else f"   waiting {share(rates.waiting)}"
        verdict = frame.verdict
        if low:
            verdict = verdict.split(". ")[0].removesuffix(".") + "."
        else:
            figures += (
                f"   over {rates.over_s:.1f} s   {count(frame.snapshot.sums['batches'], 'batch', 'batches')} in all"
            )
        parts = [
            Text(short(title, width), style="bold", no_wrap=True),
            Text(verdict, style="bold yellow"),
            Text(figures),
            *self._slots(frame.snapshot, width)[: 1 if low else 2],
        ]
        if low:
            return Group(*parts, self._participants(frame, width, n))
        stages = [[name, *map(seconds, marks)] for name, marks in frame.stages.items()]
        stages = table(["stage", "p50", "p99", "max"], stages, (0,)) if stages else Text("no batches yet")
        shares = parts_text(frame.parts)
        below = [Text(f"of fetching: {shares}")] if shares else []
        ranks = [Text(), self._ranks(frame)] if frame.ranks else []
        return Group(*parts, *ranks, Text(), self._participants(frame, width, n), Text(), stages, *below)

    def _ranks(self, frame):
        """Return a table of the job's ranks on this machine, the one that waits longest first."""
        rows = [
            [str(each["rank"]), str(each["pid"]), share(each["wait_share"]), *rank_memory(each),
             "waits for memory" if each["waits_for_memory"] else each["cause"]]
            for each in sorted(frame.ranks, key=lambda each: -each["wait_share"])
        ]  # fmt: skip
        return table(["rank", "pid", "waits", "memory", "of", ""], rows, (5,))

    def _slots(self, snapshot, width):
        """Return two lines: a letter for each slot, and how many slots each state has."""
        found = states(snapshot.slots)
        found += ["free"] * (snapshot.segment_info["n_slots"] - len(found))
        counted = [(state, found.count(state)) for state in SLOTS if state in found]
        room = max(10, min(width, 100)) - 6
        bar = Text("slots ")
        for state, n in counted:
            letter, colour, _ = SLOTS[state]
            bar.append(letter * (n if len(found) <= room else max(1, n * room // len(found))), style=colour)
        described = ", ".join(f"{n} {SLOTS[state][2]}" for state, n in counted)
        return [bar, Text(f"{count(len(found), 'slot', 'slots')}: {described}", style="bright_black")]

    def _participants(self, frame, width, n):
        narrow, middle = width < NARROW, width < MIDDLE
        head = ["who", *([] if narrow else ["pid", "", "CPU"]), "b/s"]
        head += [*([] if middle else ["fetch ms", "collate ms"]), "does"]
        rows = []
        for one in frame.participants[:n]:
            its = one.activity
            row = [its.name.replace("worker ", "w") if narrow else its.name]
            row += [] if narrow else [str(its.pid or "?"), its.state or "-", share(one.cpu)]
            row += [f"{one.rate:,.1f}", *([] if middle else map(millis, (one.fetch_ns, one.collate_ns)))]
            trouble = its.state in ("", "T", "t", "Z") or its.what == "waiting for memory"
            slow = its.what == "reading" and its.lasted_s > 5
            rows.append([*row, Text(its.sentence(long=not middle), style="red" if trouble or slow else "")])
        if len(frame.participants) > n:
            rows.append([f"… {len(frame.participants) - n} more", *[""] * (len(head) - 1)])
        return table(head, rows, (0, 2, len(head) - 1))

    def show(self, frame):
        """Draw a frame: over the last one on a terminal, else below it."""
        if not self.screen.is_terminal or self.screen.is_dumb_terminal:
            self.screen.print(self.draw(frame))
            self.screen.print()
            sys.stdout.flush()
            return
        if self.live is None:
            self.live = Live(console=self.screen, screen=True, auto_refresh=False, vertical_overflow="crop")
            self.live.start()
        self.live.update(self.draw(frame), refresh=True)

    def stop(self):
        """Give the terminal back to the shell."""
        if self.live is not None:
            self.live.stop()
