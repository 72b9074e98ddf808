"""One frame of `slipring top`: a segment's snapshot, drawn by rich for any width."""

import sys

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slipring._cli import shown
from slipring._cli.seen import Eye
from slipring._core.text import seconds
from slipring._observe import snapshot as records

COLOURS = {
    "free": "bright_black", "task": "blue", "claimed": "cyan", "ready": "green", "leased": "yellow",
    "shared": "cyan", "parked": "magenta", "trimmed": "bright_black",
}  # fmt: skip
TOLD = {"claimed": "being made", "shared": "being made by several", "parked": "kept by a worker"}
LETTERS = {
    "free": ".",
    "task": "t",
    "claimed": "m",
    "ready": "R",
    "leased": "L",
    "shared": "s",
    "parked": "p",
}
NARROW, MIDDLE = 60, 100  # columns
SHORT = 24  # lines


class Frames:
    """Frames of a job, one after another: `number` of the `of` segments of its process, from 1."""

    def __init__(self, job, number=1, of=1):
        self.job, self.number, self.of = job, number, of
        eye = Eye(job)
        self.look, self.measure = eye.look, eye.measure
        self.live = self._console = None

    def console(self):
        """Return the console on which frames are printed."""
        if self._console is None:
            self._console = shown.console()
        return self._console

    # ---- drawing

    def draw(self, seen=None):
        """Return a frame for the console's width; on a whole screen, with as many participants as fit its height."""
        seen = self.look() if seen is None else seen
        height = self.console().height if self.live is not None else None
        short = height is not None and height < SHORT
        n = len(seen.participants) if height is None else min(len(seen.participants), height)
        drawn = self._draw(seen, short, n)
        while height is not None and n > 1 and self._lines(drawn) > height:
            n -= 1
            drawn = self._draw(seen, short, n)
        return drawn

    def _lines(self, drawn):
        return len(self.console().render_lines(drawn))

    def _draw(self, seen, short, n):
        """Return a frame with n of the participants; a short one has only the necessary lines besides them."""
        width = self.console().width
        kind = "queue" if self.job.push else "loader"
        several = f", segment {self.number} of {self.of}" if self.of > 1 else ""
        title = f"slipring top · {kind} of process {self.job.pid or '?'}{several} · {self.job.name}"
        got = seen.rates
        figures = f"{got.batches:,.1f} batches/s   {shown.megabytes(got.bytes)} MB/s"
        title = Text(shown.short(title, width), style="bold", no_wrap=True)
        if not self.job.push:
            figures += f"   waiting {shown.share(got.waiting)}"
        if short:
            first = seen.verdict.split(". ")[0].removesuffix(".") + "."
            head = [
                title,
                Text(first, style="bold yellow"),
                Text(figures),
                self._slots(seen.snapshot, width, False),
            ]
            return Group(*head, self._participants(seen, width, n))
        figures += (
            f"   over {got.over_s:.1f} s   {shown.count(seen.snapshot.sums['batches'], 'batch', 'batches')} in all"
        )
        parts = [
            title,
            Text(seen.verdict, style="bold yellow"),
            Text(figures),
            self._slots(seen.snapshot, width),
            Text(),
            self._participants(seen, width, n),
            Text(),
            self._stages(seen, width),
        ]
        return Group(*parts)

    def _slots(self, snapshot, width, counts=True):
        """Return a letter for each slot, and how many slots each state has."""
        states = records.states(snapshot.slots)
        states += ["free"] * (snapshot.segment_info["n_slots"] - len(states))
        order = [state for state in ("leased", "ready", "claimed", "shared", "task", "parked", "trimmed", "free")]
        counted = [(state, states.count(state)) for state in order if state in states]
        room = max(10, min(width, 100))
        bar = Text("slots ")
        for state, n in counted:
            drawn = n if len(states) <= room - 6 else max(1, n * (room - 6) // len(states))
            bar.append(LETTERS.get(state, "-") * drawn, style=COLOURS[state])
        if not counts:
            return bar
        words = ", ".join(f"{n} {TOLD.get(state, state)}" for state, n in counted)
        return Group(bar, Text(f"{shown.count(len(states), 'slot', 'slots')}: {words}", style="bright_black"))

    def _participants(self, seen, width, n):
        table = Table(box=None, pad_edge=False, expand=False)
        narrow, middle = width < NARROW, width < MIDDLE
        columns = [("who", "left"), *([] if narrow else [("pid", "right"), ("", "left"), ("CPU", "right")])]
        columns += [("b/s", "right")]
        columns += [] if middle else [("fetch ms", "right"), ("collate ms", "right")]
        for name, justify in columns:
            table.add_column(name, justify=justify, no_wrap=True)
        table.add_column("does", overflow="fold", ratio=None)
        for participant in seen.participants[:n]:
            each = participant.doing
            row = [each.name.replace("worker ", "w") if narrow else each.name]
            row += [] if narrow else [str(each.pid or "?"), each.state or "-", shown.share(participant.cpu)]
            row += [f"{participant.rate:,.1f}"]
            row += [] if middle else [_ms(participant.fetch_ms), _ms(participant.collate_ms)]
            trouble = each.state in ("", "T", "t", "Z") or each.what == "waiting for memory"
            slow = each.what == "reading" and (each.since_s or 0) > 5
            says = Text(each.sentence(long=not middle), style="red" if trouble or slow else "")
            table.add_row(*map(Text, row), says)
        if len(seen.participants) > n:
            table.add_row(Text(f"… {len(seen.participants) - n} more"), *[Text()] * len(columns))
        return table

    def _stages(self, seen, width):
        table = Table(box=None, pad_edge=False)
        table.add_column("stage")
        for name in ("p50", "p99", "max"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, marks in seen.stages.items():
            table.add_row(name, *map(seconds, marks))
        return table if seen.stages else Text("no batches yet")

    # ---- on the screen

    def show(self):
        """Draw a frame: over the last one on a terminal, else below it."""
        console = self.console()
        if not console.is_terminal or console.is_dumb_terminal:
            console.print(self.draw())
            console.print()
            sys.stdout.flush()
            return
        if self.live is None:
            self.live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
            self.live.start()
        self.live.update(self.draw(), refresh=True)

    def stop(self):
        """Give the terminal back to the shell."""
        if self.live is not None:
            self.live.stop()


def _ms(value):
    return "-" if value is None else f"{value:.3g}"
