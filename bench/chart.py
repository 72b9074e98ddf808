"""The chart: a panel for each of some tables, with a bar for each row."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.record import number
from bench.workload import EXACT

OURS, ROOFLINE, OTHER = "#d1495b", "#c3c9d1", "#3b6e96"
INK, PALE, GRID = "#1f2933", "#6b7580", "#e4e8ec"
STYLE = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": PALE,
    "xtick.color": PALE,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text
}
ROOFLINES = ("roofline (no hand-over)", "roofline", "decoding alone, no loader", "the same batch again")
WIDTH, HEAD, ROW = 6.8, 0.8, 0.185  # inches


@dataclass(frozen=True)
class Panel:
    """A column of a table.

    Parameters
    ----------
    title, table, column
        The title of the panel; the table; the column with the lengths of the bars.
    ours
        The rows that have slipring's colour; None: all of them.
    ratio
        A column of ratios, which are written next to slipring's rates.
    """

    title: str
    table: Mapping[str, Any]
    column: str
    ours: Sequence[str] | None
    ratio: str | None = None


def draw(panels: Sequence[Panel], title: str, small_print: str, paths: Sequence[Path]) -> None:
    """Draw all panels and save them to `paths`; the suffix gives the format."""
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    heights = [
        HEAD + ROW * max(len(_bars(panel)) for panel in panels[line * columns : (line + 1) * columns])
        for line in range(lines)
    ]
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            lines, columns, figsize=(WIDTH * columns, 1.1 + sum(heights)), squeeze=False, layout="constrained",
            height_ratios=heights,
        )  # fmt: skip
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12, wspace=0.04, hspace=0.03)
        axes = list(grid.flat)
        for space, panel in zip(axes, panels):
            _panel(space, panel)
        for space in axes[len(panels) :]:
            space.set_axis_off()
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold")
        figure.supxlabel(
            "\n".join(textwrap.fill(line, 112 * columns) for line in small_print.splitlines()),
            x=0.012, ha="left", fontsize=7.5, color=PALE, linespacing=1.5,
        )  # fmt: skip
        for path in paths:
            figure.savefig(path, dpi=150, facecolor="white")
        plt.close(figure)


def _bars(panel: Panel) -> list[tuple[str, list[float], str]]:
    """Return (name, [median, lowest, highest], text) of each row that was measured, the slowest first."""
    columns = list(panel.table["columns"])
    found = []
    for row in panel.table["rows"]:
        value = row[columns.index(panel.column)]
        if value is not None:
            figures = value if isinstance(value, list) else [value] * 3
            found.append((str(row[0]), figures, _text(panel, dict(zip(columns, row)), figures[0])))
    if panel.ours is None:
        return found[::-1]  # in the order of the table
    return sorted(found, key=lambda bar: (bar[0] in ROOFLINES, bar[1][0]))


def _text(panel: Panel, row: Mapping[str, Any], median: float) -> str:
    """Write the figure, our ratio, and the largest error of a decoder that is not exact."""
    text = number(median)
    error = re.search(r"\((\d+)\)", str(row.get("error, mean (largest)") or ""))
    if error and int(error[1]) > EXACT:
        text += f"  (off by up to {error[1]})"
    if panel.ours is None:
        return f"{text} ×"
    ratio = row.get(panel.ratio or "")
    if ratio is not None and str(next(iter(row.values()))) in panel.ours:
        text += f"  ({number(ratio[0] if isinstance(ratio, list) else ratio, 2)} {panel.ratio})"
    return text


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10.5, pad=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    found = _bars(panel)
    if not found:
        axes.text(0.0, 0.5, "nothing measured", color=PALE, transform=axes.transAxes)
        axes.set_axis_off()
        return
    is_ours = [panel.ours is None or name in panel.ours for name, *_ in found]
    colours = [OURS if ours else ROOFLINE if name in ROOFLINES else OTHER for (name, *_), ours in zip(found, is_ours)]
    medians, lows, highs = zip(*(figures for _, figures, _ in found))
    bars = axes.barh(
        [name for name, *_ in found],
        medians,
        height=0.7,
        color=colours,
        xerr=[[m - low for m, low in zip(medians, lows)], [high - m for m, high in zip(medians, highs)]],
        error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
    )
    for bar, (_, figures, text), ours, name in zip(bars, found, is_ours, axes.get_yticklabels()):
        weight = "bold" if ours and panel.ours is not None else "normal"
        name.set_fontweight(weight)
        axes.annotate(
            text, (figures[2], bar.get_y() + bar.get_height() / 2), xytext=(5, 0), textcoords="offset points",
            va="center", fontweight=weight,
        )  # fmt: skip
    # From zero and linear, so that a bar twice as long is twice as fast; labels distinguish the short ones.
    axes.set_xlim(0, max(highs) * 1.4)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
