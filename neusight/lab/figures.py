"""Figures of a report by their kind, of any experiment's groups or rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.lab.declare import DeclaredFigure, declared_in
from neusight.lab.page import SMALL, canvas, legend, save, style
from neusight.lab.results import Results
from neusight.laws.doubts import NORMAL_90

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
_LEVELS = np.linspace(0.05, 0.99, 40)
_LONG = 24
"""Characters of all words along an axis; of longer ones the ends are marked."""
WIDE = 4.0
"""The largest ratio of a panel over the smallest from which its axis is logarithmic: half and twice are as far off."""
_MARKS = {10.0: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 200.0: (1.0, 2.0, 5.0), np.inf: (1.0,)}
"""Marks within a decade of a logarithmic axis, by the largest ratio over the smallest, at most."""
_TALL = 0.19
"""Inches of a line of a panel."""


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what is declared and what results hold rows of; the names of what was drawn."""
    drawn = []
    for drawing in declared_in(results).figures:
        of_rows = drawing.kind in ("scatter", "calibration")
        rows = results.get("rows", ()) if of_rows else results["groups"].get(drawing.group, ())
        rows = [row for row in rows if drawing.kind != "calibration" or row.get("level") is not None]
        if rows:
            save(KINDS[drawing.kind](rows, drawing), folder / f"{drawing.file}.png")
            drawn.append(f"{drawing.file}.png")
    return drawn


def _panels(rows: Rows, drawing: DeclaredFigure) -> dict[str, list[Mapping[str, Any]]]:
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        panels.setdefault(str(row.get(drawing.panel, "")), []).append(row)
    return panels


def _line(row: Mapping[str, Any], drawing: DeclaredFigure) -> str:
    return " ".join(str(row[name]) for name in drawing.lines if row.get(name) not in ("", None))


def _by_line(
    rows: Rows, drawing: DeclaredFigure
) -> tuple[Figure, list[tuple[Axes, list[str], list[Mapping[str, Any]]]]]:
    """A panel for each value of ``panel``, with a line for each row."""
    panels = {name: [row for row in part if row.get("count")] for name, part in _panels(rows, drawing).items()}
    tallest = max(map(len, panels.values()))
    figure, axes = canvas(len(panels), 2, 11 if len(panels) > 1 else 8, 0.9 + _TALL * tallest)
    shown = []
    for place, (name, part) in zip(axes, panels.items(), strict=True):
        lines = [f"{_line(row, drawing)} ({row['count']:,})" for row in part]
        place.set(title=name.replace("_", " "))
        place.set_yticks(range(len(part)), labels=lines, fontsize=SMALL)
        place.invert_yaxis()
        place.grid(linewidth=0.3, axis="x")
        shown.append((place, lines, part))
    return figure, shown


def spread(rows: Rows, drawing: DeclaredFigure) -> Figure:
    """Predicted over measured: the median, and 80 % of the rows; on a logarithmic axis zeros are at its left end."""
    from matplotlib.ticker import LogLocator

    figure, panels = _by_line([row for row in rows if row.get("ratio")], drawing)
    for axes, _, part in panels:
        ratios = np.array([row["ratio"] for row in part])
        least = ratios[ratios > 0.0].min()
        for y, (low, middle, high) in enumerate(np.maximum(ratios, least)):
            axes.plot([low, high], [y, y], color=style(0)["color"], linewidth=2, alpha=0.6)
            axes.plot([middle], [y], "o", color=style(0)["color"], markersize=4)
        axes.axvline(1.0, color="black", linewidth=0.8)
        if (wide := ratios.max() / least) >= WIDE:
            marks = next(marks for most, marks in _MARKS.items() if wide <= most)
            axes.set_xscale("log")
            axes.xaxis.set(major_locator=LogLocator(subs=marks), major_formatter="{x:g}", minor_formatter="")
    figure.supxlabel("predicted / measured", fontsize=10)
    return figure


def _label(drawing: DeclaredFigure) -> str:
    return drawing.label or f"{drawing.figure} error, %"


def bars(rows: Rows, drawing: DeclaredFigure) -> Figure:
    """One figure of each row."""
    figure, panels = _by_line([row for row in rows if row.get(drawing.figure) is not None], drawing)
    for axes, _, part in panels:
        axes.barh(range(len(part)), [row[drawing.figure] for row in part], color=style(0)["color"])
    figure.supxlabel(_label(drawing), fontsize=10)
    return figure


def curve(rows: Rows, drawing: DeclaredFigure) -> Figure:
    """One figure along a column, a line for each value of ``lines``."""
    panels, lines = _panels(rows, drawing), list(dict.fromkeys(_line(row, drawing) for row in rows))
    figure, axes = canvas(len(panels), 3, 9 if len(panels) > 1 else 5.5, 3.2)
    for place, (name, part) in zip(axes, panels.items(), strict=True):
        # Words stand along the axis in the order in which they come.
        words = list(dict.fromkeys(row[drawing.x] for row in part if isinstance(row[drawing.x], str)))
        for line in dict.fromkeys(_line(row, drawing) for row in part):
            points = [(row[drawing.x], row[drawing.figure]) for row in part if _line(row, drawing) == line]
            x = sorted((words.index(x), y) for x, y in points) if words else sorted(points)
            place.plot(*zip(*x, strict=True), label=line, markersize=4, **style(lines.index(line)))
        if words:
            few = len("".join(words)) <= _LONG
            place.set_xticks(range(len(words)) if few else [0, len(words) - 1], words if few else ["first", "last"])
        place.set(title=name, xlabel=drawing.x.replace("_", " "), ylabel=_label(drawing))
        place.grid(linewidth=0.3)
    legend(figure, axes)
    return figure


def scatter(rows: Rows, drawing: DeclaredFigure) -> Figure:
    """Predicted against measured, thin lines are 20 % off."""
    panels = _panels([row for row in rows if row.get("error") is not None], drawing)
    figure, axes = canvas(len(panels), 3, 9 if len(panels) > 1 else 5.5, 3.2)
    for place, (name, part) in zip(axes, panels.items(), strict=True):
        predicted = np.array([row["predicted"] for row in part])
        measured = predicted / (1.0 + np.array([row["error"] for row in part]) / 100.0)
        place.plot(measured, predicted, ".", markersize=2, alpha=0.5, color=style(0)["color"])
        ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
        for factor, width in ((1.0, 0.9), (0.8, 0.4), (1.25, 0.4)):
            place.plot(ends, factor * ends, color="black", linewidth=width)
        place.set(xscale="log", yscale="log", title=name, xlabel="measured", ylabel="predicted")
    return figure


def calibration(rows: Rows, drawing: DeclaredFigure) -> Figure:
    """Rows within intervals of every level, each interval of 90 % scaled as a normal distribution's would be."""
    from scipy.special import ndtri

    figure, (axes,) = canvas(1, 1, 4.2, 3.6)
    panels = _panels(rows, drawing)
    for at, (name, part) in enumerate(panels.items()):
        levels = np.array([row["level"] for row in part])
        scales = ndtri(0.5 + 0.5 * _LEVELS) / NORMAL_90
        shares = [100.0 * float((levels <= scale).mean()) for scale in scales]
        axes.plot(100.0 * _LEVELS, shares, label=name, color=style(at)["color"])
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8)
    axes.set(xlabel="level of the interval, %", ylabel="measurements within, %")
    axes.grid(linewidth=0.3)
    legend(figure, [axes])
    return figure


KINDS: Mapping[str, Callable[[Rows, DeclaredFigure], Figure]] = {
    "spread": spread,
    "bars": bars,
    "curve": curve,
    "scatter": scatter,
    "calibration": calibration,
}
