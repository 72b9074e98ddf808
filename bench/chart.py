"""The picture: one panel per question, one bar per rival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: there may be no display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.question import Question
from bench.report import number
from bench.rivals import RIVALS
from bench.summary import OURS, Row

COLOURS = {OURS: "#d1495b", "roofline": "#c9ced6"}
OTHER = "#30638e"
WIDE = 12.0  # a linear axis serves up to this ratio between the best and the worst


def draw(
    questions: Sequence[Question], summary: dict[str, Any], machine: dict[str, Any], paths: Sequence[Path]
) -> None:
    """Draw all panels and save them to `paths`; the suffix gives the format."""
    with plt.rc_context({"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none"}):
        columns = min(2, len(questions))
        lines = -(-len(questions) // columns)
        figure, grid = plt.subplots(
            lines, columns, figsize=(6.6 * columns, 0.9 + 2.9 * lines), squeeze=False, layout="constrained"
        )
        for axes, question in zip(grid.flat, questions):
            _panel(axes, question, summary["tables"][question.key])
        for axes in list(grid.flat)[len(questions) :]:
            axes.set_visible(False)
        figure.suptitle(
            "Batches per second: median of the rounds, whiskers from lowest to highest",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        figure.supxlabel(
            f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
            f"{machine['date'][:10]}\n{versions}",
            x=0.01, ha="left", fontsize=7, color="#666666",
        )  # fmt: skip
        for path in paths:
            figure.savefig(path, dpi=150)
        plt.close(figure)


def _panel(axes: Axes, question: Question, table: list[Row]) -> None:
    rates = {row.rival: row.rate for row in table if row.rate}
    order = sorted(rates, key=lambda key: (key == "roofline", rates[key].median))
    axes.set_title(f"({question.key}) {question.title}", loc="left", fontsize=10)
    if not order:
        axes.text(0.5, 0.5, "nothing measured", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    values = [rates[key].median for key in order]
    spread = [
        [rates[key].median - rates[key].low for key in order],
        [rates[key].high - rates[key].median for key in order],
    ]
    bars = axes.barh(
        [RIVALS[key].label for key in order],
        values,
        height=0.72,
        color=[COLOURS.get(key, OTHER) for key in order],
        xerr=spread,
        error_kw={"ecolor": "#222222", "elinewidth": 0.9, "capsize": 2},
    )
    top = max(rates[key].high for key in order)
    wide = max(values) / min(values) > WIDE
    if wide:
        axes.set_xscale("log")
        axes.set_xlim(min(rates[key].low for key in order) / 2, top * 3)
    else:
        axes.set_xlim(0, top * 1.16)
    for bar, key in zip(bars, order):
        axes.annotate(
            number(rates[key].median),
            (rates[key].high, bar.get_y() + bar.get_height() / 2),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if key == OURS else "normal",
        )
    for label, key in zip(axes.get_yticklabels(), order):
        label.set_fontweight("bold" if key == OURS else "normal")
    axes.set_xlabel("batches/s, logarithmic" if wide else "batches/s", fontsize=8, color="#666666")
    axes.tick_params(length=0)
    axes.tick_params(axis="x", colors="#666666", labelsize=8)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
