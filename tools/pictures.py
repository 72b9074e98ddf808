"""Make the pictures of docs/observing.md from a real job: ``python -m tools.pictures``.

Requires ``pip install slipring[monitor]``.
"""

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 110  # columns
COLOURS = {"fetch": "#4c78a8", "collate": "#72b7b2", "wait": "#e45756", "step": "#54a24b", "lease": "#b5b5b5"}

JOB = """
import sys, time
import numpy as np
import slipring

class Pictures:
    def __len__(self):
        return 1_000_000
    def __getitem__(self, i):
        end = time.thread_time() + 0.002  # decodes
        while time.thread_time() < end:
            pass
        if i % 701 == 700:
            time.sleep(0.12)  # lies on a slow disk
        return np.zeros((64, 64, 3), np.uint8)

with slipring.Loader(Pictures(), batch_size=8, num_workers=2) as loader:
    for number, batch in enumerate(loader):
        time.sleep(0.003)  # trains
        if number == 300:
            print("runs", flush=True)
        if number == 900:
            import rich.console
            console = rich.console.Console(record=True, width=WIDTH, file=open("/dev/null", "w"))
            console.print(loader.report())
            console.save_svg(sys.argv[1], title="print(loader.report())")
            break
"""


def screen(text, title, path):
    """Write the output of a command as a picture of a terminal."""
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(text))
    console.save_svg(str(path), title=title)


def without_fonts(path):
    """Remove the fonts that rich's picture would fetch from the network."""
    path.write_text(re.sub(r"@font-face \{.*?\}", "", path.read_text(), flags=re.DOTALL))


def timeline(events, path, seconds=0.25):
    """Draw some tenths of a second of a trace's tracks, as Perfetto shows them."""
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    longest = max((e for e in spans if e["name"].startswith("wait")), key=lambda e: e["dur"])
    begin = longest["ts"] + longest["dur"] - 0.8 * seconds * 1e6
    spans = [e for e in spans if e["ts"] < begin + seconds * 1e6 and e["ts"] + e["dur"] > begin]
    tracks = sorted({(e["pid"], e["tid"]) for e in spans}, key=lambda t: (names.get(t, ""), t))
    row, left, wide = 26, 150, 900
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide}" height="{row * (len(tracks) + 1)}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']  # fmt: skip
    for n, track in enumerate(tracks):
        out.append(f'<text x="4" y="{n * row + 17}">{names.get(track, track)}</text>')
        for e in (e for e in spans if (e["pid"], e["tid"]) == track):
            x = max(0.0, (e["ts"] - begin) / seconds / 1e6)
            width = min(1.0, (e["ts"] + e["dur"] - begin) / seconds / 1e6) - x
            colour = next((c for word, c in COLOURS.items() if word in e["name"]), "#f2cf5b")
            out.append(f'<rect x="{left + x * wide:.1f}" y="{n * row + 3}" width="{max(1, width * wide - 1):.1f}" '
                       f'height="{row - 6}" fill="{colour}"><title>{e["name"]}</title></rect>')  # fmt: skip
    out.append(f'<text x="{left}" y="{row * len(tracks) + 17}">{seconds * 1e3:.0f} ms</text></svg>')
    path.write_text("\n".join(out))


def main():
    slipring = [sys.executable, "-m", "slipring"]
    with subprocess.Popen([sys.executable, "-c", JOB.replace("WIDTH", str(WIDTH)), str(DOCS / "report.svg")],
                          stdout=subprocess.PIPE, text=True) as job:  # fmt: skip
        job.stdout.readline()
        shown = {**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
        command = [*slipring, "top", "--once", str(job.pid)]
        top = subprocess.run(command, env=shown, capture_output=True, text=True, check=True).stdout
        screen(top, "slipring top --once", DOCS / "top.svg")
        trace = DOCS.parent / "build" / f"trace-{time.time_ns()}.json"
        subprocess.run([*slipring, "trace", str(job.pid), "--seconds", "2", "-o", str(trace)], check=True)
        timeline(json.loads(trace.read_text())["traceEvents"], DOCS / "trace.svg")
    for name in ("report.svg", "top.svg"):
        without_fonts(DOCS / name)


if __name__ == "__main__":
    main()
