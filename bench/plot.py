"""Pictures of results, as SVG. Needs matplotlib, and only here: `pip install matplotlib`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

OURS, THEIRS, GREY = "#c2410c", "#94a3b8", "#475569"
mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "redsched",  # the same numbers make the same file
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
    }
)


def save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": "redsched bench"})


def peers(document: dict[str, Any], path: Path) -> None:
    """Bars side by side: dag20, flat (more is better), hop (less is better)."""
    figure = Figure(figsize=(9, 3.6))
    figure.patch.set_facecolor("white")
    panels = (
        ("dag20_tasks_per_s", "dag20: tasks/s", True),
        ("flat_drain_per_s", "flat: drained/s", True),
        ("hop_ms_p50", "hop: ms from body to body (p50)", False),
    )
    for place, (name, title, more) in enumerate(panels, 1):
        found = {who: row[name] for who, row in document["rows"].items() if row.get(name)}
        bars(figure.add_subplot(1, 3, place), found, title, more)
    save(figure, path)


def bars(axes: Axes, found: dict[str, float], title: str, more: bool) -> None:
    """The best on top, each with its number; the axis is logarithmic, because they are powers of ten apart."""
    ranked = sorted(found, key=lambda who: found[who], reverse=not more)
    values = [found[who] for who in ranked]
    colours = [OURS if who == "redsched" else THEIRS for who in ranked]
    axes.barh(ranked, values, color=colours, height=0.7)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 4)
    for i, value in enumerate(values):
        axes.text(value * 1.08, i, f"{value:,.0f}" if value >= 100 else f"{value:.2g}", va="center", size=8)
    axes.set_title(title)
    axes.tick_params(axis="y", length=0)


def lines(path: Path, series: dict[str, list[tuple[float, float]]], title: str, x: str, y: str) -> None:
    """One panel, logarithmic both ways, so that a law x^k is a straight line with slope k."""
    figure = Figure(figsize=(4.2, 3))
    figure.patch.set_facecolor("white")
    axes = figure.add_subplot()
    for (name, points), colour in zip(series.items(), (OURS, GREY, THEIRS, "#0f766e"), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted({at for points in series.values() for at, _ in points}))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    values = [value for points in series.values() for _, value in points]
    axes.set_ylim(min(values) / 3, max(values) * 3)
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="major", color="#e2e8f0", linewidth=0.6)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)
