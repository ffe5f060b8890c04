"""A chart on paper: notebooks, PNG, SVG and PDF, by matplotlib."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.figures.marks import Dot, Interval, Scale
from neusight.figures.palette import GREY
from neusight.units import decimal, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from neusight.figures.chart import Chart

_WIDTH_IN, _LANE_IN, _HEIGHT_IN = 8.0, 0.32, 4.5
_LARGEST_PT2, _DOT_PT2 = 900.0, 30.0
"""Areas of the largest dot of those that have sizes, and of one without."""
SMALL = 8
"""Size of letters [points]."""
_LABEL_SHARE = 0.012
"""Share of the axis that a letter of a bar's label takes."""
_LABELLED = 12
"""Largest number of points that are labelled."""


def drawn(chart: Chart) -> Figure:
    """The chart as a figure, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height_in = 1.5 + _LANE_IN * len(chart.lanes) if chart.lanes else _HEIGHT_IN
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _lines(axes, chart)
    _dots(axes, chart)
    _frame(axes, chart)
    _bars(axes, chart)
    axes.set_title(chart.title, fontsize=SMALL + 2, loc="left")
    _legend(figure, chart)
    return figure


def ink_on(colour: str) -> str:
    """Black or white, the one that is read more easily on a colour ``#rrggbb`` (relative luminance of WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _frame(axes: Axes, chart: Chart) -> None:
    axes.grid(axis="x" if chart.lanes else "both", linewidth=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    _axis(axes, "x", chart.x)
    if chart.lanes:
        axes.set_yticks(range(len(chart.lanes)), labels=chart.lanes)
        axes.set_ylim(len(chart.lanes) - 0.5, -0.5)
        ends = [end for bar in chart.bars for end in (bar.start, bar.end, *(bar.interval or ()))]
        ends += [dot.x for dot in chart.dots]
        if not chart.x.log:
            axes.set_xlim(min([0.0, *ends]), 1.02 * max([0.0, *ends]) or 1.0)
    elif chart.y:
        _axis(axes, "y", chart.y)


def _axis(axes: Axes, which: str, axis: Scale) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    getattr(axes, f"set_{which}label")(axis.name, fontsize=SMALL)
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
    side = getattr(axes, f"{which}axis")
    side.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, axis.unit)))
    side.set_minor_formatter(NullFormatter())


def _tick(value: float, unit: str) -> str:
    """A percentage takes no prefix."""
    return scaled(value, unit) if unit and unit != "%" else f"{decimal(value, 6)} {unit}".rstrip()


def _bars(axes: Axes, chart: Chart) -> None:
    width = axes.get_xlim()[1] - axes.get_xlim()[0]
    in_lane = Counter(bar.lane for bar in chart.bars)
    for bar in chart.bars:
        colour = GREY if bar.outside else chart.colours[bar.series]
        axes.barh(bar.lane, bar.end - bar.start, left=bar.start, color=colour, height=0.7, edgecolor="white", lw=0.4)
        if bar.label and abs(bar.end - bar.start) > _LABEL_SHARE * len(bar.label) * width:
            middle = (bar.start + bar.end) / 2
            axes.text(middle, bar.lane, bar.label, ha="center", va="center", fontsize=SMALL - 1, color=ink_on(colour))
        elif bar.label and in_lane[bar.lane] == 1:
            label_at = max(bar.start, bar.end, *(bar.interval or ())) + _LABEL_SHARE * width
            axes.text(label_at, bar.lane, bar.label, ha="left", va="center", fontsize=SMALL - 1)
        if bar.interval:
            low, high = bar.interval
            axes.plot([low, high], [bar.lane] * 2, color="black", lw=1, marker="|", markersize=6)


def _dots(axes: Axes, chart: Chart) -> None:
    for dot in chart.dots:
        colour = GREY if dot.outside else chart.colours[dot.series]
        area = _DOT_PT2 if dot.size is None else max(8.0, _LARGEST_PT2 * dot.size)
        axes.scatter(dot.x, dot.y, s=area, color=colour, alpha=0.75, linewidths=0)
        across, down = _ends(dot.x, dot.x_interval), _ends(dot.y, dot.y_interval)
        axes.errorbar(dot.x, dot.y, xerr=across, yerr=down, color=colour, lw=0.8, capsize=2)
    labelled: list[Dot] = sorted(chart.dots, key=lambda dot: -(dot.size or 0.0))[:_LABELLED]
    for dot in labelled:
        where = (4, 4)
        axes.annotate(dot.label, (dot.x, dot.y), xytext=where, textcoords="offset points", fontsize=SMALL - 1)


def _ends(value: float, interval: Interval | None) -> np.ndarray | None:
    return None if interval is None else np.abs(np.array(interval)[:, None] - value)


def _lines(axes: Axes, chart: Chart) -> None:
    for line in chart.lines:
        colour = GREY if line.outside else chart.colours[line.series]
        axes.plot(line.xs, line.ys, color=colour, lw=1.2, ls="--" if line.dashed else "-")
        if line.label:
            end = (line.xs[line.labelled], line.ys[line.labelled])
            style: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": SMALL - 1}
            axes.annotate(line.label, end, xytext=(0, 2), textcoords="offset points", **style)
        if line.band:
            axes.fill_between(line.xs, *line.band, color=colour, alpha=0.15, lw=0)


def _legend(figure: Figure, chart: Chart) -> None:
    from matplotlib.patches import Patch

    entries = [Patch(color=colour, label=name) for name, colour in chart.colours.items() if name]
    if chart.outside:
        entries.append(Patch(color=GREY, label="outside of what was measured"))
    if len(entries) > 1:
        figure.legend(handles=entries, loc="outside lower left", ncols=5, frameon=False, fontsize=SMALL)
