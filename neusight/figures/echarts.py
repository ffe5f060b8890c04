"""A chart on a screen, as options of Apache ECharts; the parts drawn by JavaScript are in ``charts.js``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.figures.marks import Bar, Dot, Interval, Line, Scale
from neusight.figures.palette import GREY

if TYPE_CHECKING:
    from neusight.figures.chart import Chart

SCRIPT = Path(__file__).with_name("charts.js")
INK, GRID = "#333333", "#d5d5d5"
"""Colours of letters and of the grid: a dark page inverts all colours."""
_LANE_PX, _HEIGHT_PX, _AXIS_PX, _LEGEND_PX = 30, 380, 74, 30
_LARGEST_PX, _DOT_PX = 56.0, 9.0
"""Diameters of the largest dot of those that have sizes, and of one without."""
_WIDE = 1e3
"""Ratio above which ends of an axis are powers of ten."""
_LEFT_OF_LABELS = 0.7
"""Share of the largest horizontal value: dots beyond have their labels to the left, where there is room."""
_INSIDE = {"containLabel": True}
_WHISKER = {"color": INK}


def height_px(chart: Chart) -> int:
    """Height that a chart needs [pixels]."""
    lanes_px = _AXIS_PX + _LANE_PX * len(chart.lanes) if chart.lanes else _HEIGHT_PX - _LEGEND_PX
    return lanes_px + (_LEGEND_PX if len(_legend(chart)) > 1 else 0)


def _legend(chart: Chart) -> list[str]:
    """Series that a legend lists."""
    return [name for name in chart.colours if name]


_ROOM = 0.05
"""Margin of a linear axis next to dots whose size has a meaning."""


def options(chart: Chart) -> dict[str, Any]:
    """Options of ``echarts.setOption``; keys that begin with ":" contain JavaScript."""
    lanes = bool(chart.lanes)
    names = _legend(chart)
    legend = [
        {"name": name, "icon": "roundRect", "itemStyle": {"color": chart.colours[name], "opacity": 1}} for name in names
    ]
    return {
        "animation": False,
        "textStyle": {"color": INK, "fontFamily": "Roboto, sans-serif"},
        "grid": {"left": 12, "right": 26, "top": 14 if lanes else 34, "bottom": 64 if len(names) > 1 else 34}
        | _INSIDE,
        "legend": {
            "type": "scroll", "bottom": 0, "left": 0, "data": legend, "itemWidth": 12, "itemHeight": 12,
            "textStyle": {"color": INK}, "show": len(names) > 1,
        },
        "tooltip": {"trigger": "item", "confine": True, "className": "chart-note", ":formatter": "neusight.note"},
        "xAxis": _axis(chart.x, _across(chart), down=False),
        "yAxis": _lanes(chart.lanes) if lanes else _axis(chart.y or Scale(name=""), _up(chart), down=True),
        "dataZoom": [{"type": "inside", "filterMode": "none"}] if chart.zoom else [],
        "series": [
            *_lines(chart), *(_bars(chart) if chart.bars else []), *_dots(chart), _whiskers(chart), *_knees(chart)
        ],
    }  # fmt: skip


def _across(chart: Chart) -> dict[str, float]:
    """Ends of the horizontal axis: of curves where they end, of other marks on a logarithmic scale at round ones."""
    bars = [end for bar in chart.bars for end in (bar.start, bar.end, *(bar.interval or ()))]
    dots = [end for dot in chart.dots for end in (dot.x, *(dot.x_interval or ()))]
    lines = [x for line in chart.lines for x in line.xs]
    if lines and not any(dot.x_interval for dot in chart.dots):
        low, high = min(lines), max(lines)
        room = _ROOM * (high - low) if not chart.x.log and any(dot.size for dot in chart.dots) else 0.0
        return {"min": floor(low - room), "max": ceil(high + room)} if room else {"min": low, "max": high}
    return _round(bars + dots + lines) if chart.x.log else {}


def _up(chart: Chart) -> dict[str, float]:
    """Ends of the vertical axis, where it is logarithmic."""
    dots = [end for dot in chart.dots for end in (dot.y, *(dot.y_interval or ()))]
    lines = [y for line in chart.lines for ys in (line.ys, *(line.band or ())) for y in ys]
    return _round(dots + lines) if chart.y and chart.y.log else {}


def _round(values: Sequence[float]) -> dict[str, float]:
    """Round ends outwards to a power of ten, in a narrow range to 1, 2 or 5 times one."""
    low, high = min(values), max(values)
    heads = (1, 2, 5) if high < _WIDE * low else (1,)
    ends = [head * 10.0**e for e in range(floor(log10(low)) - 1, ceil(log10(high)) + 2) for head in heads]
    return {"min": max(v for v in ends if v <= low * 1.001), "max": min(v for v in ends if v >= high * 0.999)}


def _axis(axis: Scale, ends: Mapping[str, float], *, down: bool) -> dict[str, Any]:
    return {
        "type": "log" if axis.log else "value",
        "name": axis.name,
        "nameTextStyle": {"color": INK, "align": "left"} if down else {"color": INK},
        **ends,
        "nameLocation": "end" if down else "middle",
        "nameGap": 10 if down else 24,
        "scale": axis.log,
        "axisLine": {"show": True, "lineStyle": {"color": GRID}},
        "splitLine": {"lineStyle": {"color": GRID}},
        "axisLabel": {
            "color": INK, "hideOverlap": True, ":formatter": f"(v) => neusight.scaled(v, {json.dumps(axis.unit)})"
        },
    }  # fmt: skip


def _lanes(lanes: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "category",
        "data": list(lanes),
        "inverse": True,
        "axisTick": {"show": False},
        "axisLine": {"lineStyle": {"color": GRID}},
        "axisLabel": {"color": INK, "interval": 0, ":formatter": "neusight.lane"},
    }


def _bars(chart: Chart) -> list[dict[str, Any]]:
    """One series a name: each bar as (start, end, lane, label, where a label may stand beside it)."""
    in_lane = Counter(bar.lane for bar in chart.bars)

    def data(bar: Bar, colour: str) -> dict[str, Any]:
        beside = max(bar.start, bar.end, *(bar.interval or ())) if in_lane[bar.lane] == 1 else None
        value = [bar.start, bar.end, bar.lane, bar.label, beside]
        return {
            "value": value,
            "note": bar.note or _note(bar.label or bar.series, bar.end - bar.start, None, chart.x),
            "itemStyle": {"color": GREY if bar.outside else colour},
        }

    return [
        {
            "type": "custom", "name": name, "clip": True, ":renderItem": "neusight.bar", "color": colour,
            "encode": {"x": [0, 1], "y": 2}, "itemStyle": {"color": colour},
            "data": [data(bar, colour) for bar in chart.bars if bar.series == name],
        }
        for name, colour in chart.colours.items()
    ]  # fmt: skip


def _dots(chart: Chart) -> list[dict[str, Any]]:
    most = _LEFT_OF_LABELS * max((dot.x for dot in chart.dots), default=0.0)

    def data(dot: Dot, colour: str) -> dict[str, Any]:
        return {
            "value": [dot.x, dot.y],
            "name": dot.label,
            "link": dot.link,
            "label": {
                "show": bool(dot.label),
                "formatter": "{b}",
                "position": [0, -12] if dot.x > most else [8, -12],
                "align": "right" if dot.x > most else "left",
                "fontSize": 10,
                "color": INK,
                "minMargin": 4,
            },
            "note": dot.note or _note(dot.label or dot.series, dot.x, dot.y, chart.x, chart.y),
            "symbolSize": _DOT_PX if dot.size is None else max(6.0, _LARGEST_PX * dot.size**0.5),
            "itemStyle": {"color": GREY if dot.outside else colour, "opacity": 0.8},
        }

    return [
        {
            "type": "scatter", "name": name, "color": colour, "itemStyle": {"color": colour},
            "labelLayout": {"hideOverlap": True},
            "data": [data(dot, colour) for dot in chart.dots if dot.series == name],
        }
        for name, colour in chart.colours.items()
        if any(dot.series == name for dot in chart.dots)
    ]  # fmt: skip


def _note(what: str, x: float, y: float | None, x_axis: Scale, y_axis: Scale | None = None) -> dict[str, Any]:
    """Label that a browser writes next to a mark."""
    figures = [[x_axis.name, x, x_axis.unit]]
    figures += [] if y is None or y_axis is None else [[y_axis.name, y, y_axis.unit]]
    return {"what": what, "figures": figures}


def _lines(chart: Chart) -> list[dict[str, Any]]:
    return [item for line in chart.lines for item in _line(line, GREY if line.outside else chart.colours[line.series])]


def _line(line: Line, colour: str) -> list[dict[str, Any]]:
    look = {"color": colour, "width": 1.5, "type": "dashed" if line.dashed else "solid"}
    same: dict[str, Any] = {"type": "line", "name": line.series, "symbol": "none", "color": colour}
    drawn = [{**same, "lineStyle": look, "data": [list(pair) for pair in zip(line.xs, line.ys, strict=True)]}]
    if line.label and line.labelled == -1:
        end = {"show": True, ":formatter": f"() => {json.dumps(line.label)}", "color": INK, "fontSize": 10}
        drawn[0] |= {"endLabel": {**end, "align": "right", "offset": [-8, -8]}, "silent": True}
    if line.band:
        pieces = list(zip(line.xs, *line.band, strict=True))
        shape: dict[str, Any] = {
            "type": "custom",
            "name": line.series,
            "clip": True,
            ":renderItem": "neusight.band",
            "silent": True,
        }
        data = [[*first, *second] for first, second in pairwise(pieces)]
        drawn.append({**shape, "color": colour, "encode": {"x": [0, 3], "y": [1, 2, 4, 5]}, "data": data})
    return drawn


def _knees(chart: Chart) -> list[dict[str, Any]]:
    """Labels that end within their line, the lowest first: each is moved up as far as the one below it needs."""
    lines = sorted((line for line in chart.lines if line.label and line.labelled != -1), key=lambda line: line.ys[-1])
    points = [[line.xs[line.labelled], line.ys[line.labelled]] for line in lines]
    labels = json.dumps([[line.label, *point] for line, point in zip(lines, points, strict=True)])
    knees = {"type": "custom", "silent": True, ":renderItem": f"neusight.knees({labels})", "data": points[:1]}
    return [knees] if lines else []


def _whiskers(chart: Chart) -> dict[str, Any]:
    """All intervals, each as (x, y) of its two ends, and whether it is of a bar, whose label stands above it."""
    ends: list[list[float]] = []
    for bar in chart.bars:
        ends += [[*end, 1.0] for end in _ends(bar.interval, (bar.lane, bar.lane), across=True)]
    for dot in chart.dots:
        ends += _ends(dot.x_interval, (dot.y, dot.y), across=True)
        ends += _ends(dot.y_interval, (dot.x, dot.x), across=False)
    return {
        "type": "custom", "name": "90 % interval", "clip": True, "silent": True, ":renderItem": "neusight.whisker",
        "encode": {"x": [0, 2], "y": [1, 3]}, "data": ends, "itemStyle": _WHISKER, "z": 5,
    }  # fmt: skip


def _ends(interval: Interval | None, others: Interval, *, across: bool) -> list[list[float]]:
    if interval is None:
        return []
    low, high = interval
    return [[low, others[0], high, others[1]] if across else [others[0], low, others[1], high]]
