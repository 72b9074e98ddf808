"""The chart: one panel per workload, one bar per baseline."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.baselines import find
from bench.report import number
from bench.summary import Row
from bench.workload import EXACT, Workload

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


def draw(
    workloads: Sequence[Workload],
    summary: dict[str, Any],
    machine: dict[str, Any],
    workers: int,
    paths: Sequence[Path],
) -> None:
    """Draw all panels and save them to `paths`; the suffix gives the format."""
    columns = min(2, len(workloads))
    lines = -(-len(workloads) // columns)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            lines, columns, figsize=(6.8 * columns, 1.3 + 2.6 * lines), squeeze=False, layout="constrained"
        )
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12, wspace=0.04, hspace=0.03)
        panels = list(grid.flat)
        for axes, workload in zip(panels, workloads):
            _panel(axes, workload, summary["tables"][workload.key])
        for axes in panels[len(workloads) :]:
            axes.set_axis_off()
        figure.suptitle(
            f"Batches per second with {workers} worker{'s' if workers > 1 else ''}",
            x=0.012,
            ha="left",
            fontsize=14,
            fontweight="bold",
        )
        figure.supxlabel(
            "\n".join(textwrap.fill(line, 112 * columns) for line in _small_print(machine)),
            x=0.012,
            ha="left",
            fontsize=7.5,
            color=PALE,
            linespacing=1.5,
        )
        for path in paths:
            figure.savefig(path, dpi=150, facecolor="white")
        plt.close(figure)


def _small_print(machine: dict[str, Any]) -> tuple[str, str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        "Bars: median of the rounds; whiskers: lowest and highest round. "
        "The roofline does the same work and hands nothing over.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['date'][:10]}. "
        f"Python {machine['python']}, {versions}",
    )


def _panel(axes: Axes, workload: Workload, table: list[Row]) -> None:
    measured = [row for row in table if row.rate is not None]
    roles = workload.roles
    measured.sort(key=lambda row: (row.baseline in roles.roofline, row.rate.median))
    colours = {roles.ours: OURS, **dict.fromkeys(roles.roofline, ROOFLINE)}
    axes.set_title(f"({workload.key})  {workload.title}", loc="left", fontsize=10.5, pad=8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if not measured:
        axes.text(0.0, 0.5, "nothing measured", color=PALE, transform=axes.transAxes)
        axes.set_axis_off()
        return
    rates = [row.rate for row in measured]
    bars = axes.barh(
        [find(row.baseline).label for row in measured],
        [rate.median for rate in rates],
        height=0.7,
        color=[colours.get(row.baseline, OTHER) for row in measured],
        xerr=[[rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates]],
        error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
    )
    for bar, row, name in zip(bars, measured, axes.get_yticklabels()):
        weight = "bold" if row.baseline == roles.ours else "normal"
        name.set_fontweight(weight)
        axes.annotate(
            _label(row, row.baseline == roles.ours),
            (row.rate.high, bar.get_y() + bar.get_height() / 2),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontweight=weight,
        )
    # From zero and linear, so that a bar twice as long is twice as fast; labels distinguish the short ones.
    axes.set_xlim(0, max(rate.high for rate in rates) * (1.5 if workload.crops else 1.3))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _label(row: Row, ours: bool) -> str:
    """Write the rate, our ratio to torch's, and the difference of a decoder that is not exact."""
    text = number(row.rate.median)
    if row.error_max is not None and row.error_max > EXACT:
        text += f"  (off by up to {row.error_max})"
    if ours and row.to_torch:
        text += f"  ({number(row.to_torch.median, 2)} × torch)"
    elif ours and row.to_plain:
        text += f"  ({number(row.to_plain.median, 2)} × without a cache)"
    return text
