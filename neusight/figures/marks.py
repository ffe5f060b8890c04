"""Marks of a chart: bars in lanes, dots and lines, and the scales of its axes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The quantity of an axis, and its SI unit ("": a plain number)."""

    name: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar from ``start`` to ``end`` in a lane, counted from the top; ``interval``: that of ``end``, or of the sum."""

    lane: int
    start: float
    end: float
    series: str
    label: str = ""
    note: str = ""
    interval: Interval | None = None
    outside: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A dot at (x, y); ``link``: element of a page that it leads to; ``size``: share of the largest dot's area."""

    x: float
    y: float
    series: str
    label: str = ""
    note: str = ""
    x_interval: Interval | None = None
    y_interval: Interval | None = None
    size: float | None = None
    link: str = ""
    outside: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through dots, with the ``band`` of lower and upper ends of their intervals; without a series it helps to
    read, and ``label`` ends at the point ``labelled``. Grey in any series if ``outside`` of measured ranges.
    """

    series: str = ""
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    dashed: bool = False
    label: str = ""
    labelled: int = -1
    outside: bool = False


def stacked(lane: int, parts: Iterable[tuple[str, float]], interval: Interval | None = None) -> tuple[Bar, ...]:
    """Bars one after the other in a lane, those of no length left out; ``interval`` is of the sum."""
    bars: list[Bar] = []
    for series, length in parts:
        start = bars[-1].end if bars else 0.0
        if length > 0:
            bars.append(Bar(lane=lane, start=start, end=start + length, series=series, label=series))
    if not bars:
        return ()
    last = bars.pop()
    return (*bars, replace(last, interval=interval))
