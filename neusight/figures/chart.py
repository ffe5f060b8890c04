"""``Chart``: the contents of a figure, independent of the library that draws it.

Three marks are enough: bars in lanes (memory, time, a waterfall, a flame graph, a timeline), dots and lines.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from neusight.errors import DataError, nearest
from neusight.figures.marks import Bar, Dot, Line, Scale
from neusight.figures.palette import COLOURS, PLAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
T = TypeVar("T")


def named(of: T, name: str, charts: Mapping[str, Callable[[T], Chart]]) -> Chart:
    """A chart of an answer, by its name.

    Raises:
        DataError: an unknown name.
    """
    if name not in charts:
        raise DataError(f"unknown figure '{name}'{nearest(name, charts)}: one of {', '.join(charts)}")
    return charts[name](of)


@dataclass(frozen=True, kw_only=True, repr=False)
class Chart:
    """Marks on two axes; with ``lanes`` there are bars, and the vertical axis names their lanes.

    ``rows`` are the figures behind the marks, ``palette`` the colours of names that have one of ``figures.palette``,
    ``series`` all other names in the order of their colours, where it is not that of the marks, ``zoom`` whether one
    looks closer at parts of it.
    """

    name: str
    title: str
    x: Scale
    y: Scale | None = None
    lanes: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    dots: tuple[Dot, ...] = ()
    lines: tuple[Line, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    palette: Mapping[str, str] = field(default_factory=dict)
    series: tuple[str, ...] = ()
    zoom: bool = False

    @property
    def colours(self) -> dict[str, str]:
        """Series that occur → colour."""
        marks: tuple[Bar | Dot | Line, ...] = (*self.bars, *self.dots, *self.lines)
        names = tuple(dict.fromkeys((*self.palette, *self.series, *(mark.series for mark in marks))))
        used = {mark.series for mark in marks}
        others = (name for name in names if name and name not in self.palette)
        coloured = {**self.palette, **dict(zip(others, cycle(COLOURS), strict=False))}
        return {name: coloured.get(name, PLAIN) for name in names if name in used}

    @property
    def outside(self) -> bool:
        """True if any mark is outside of measured ranges, and is grey."""
        return any(mark.outside for marks in (self.bars, self.dots, self.lines) for mark in marks)

    def to_json(self) -> str:
        """The rows."""
        return json.dumps([dict(row) for row in self.rows], indent=2, ensure_ascii=False, default=str)

    def to_csv(self) -> str:
        """The rows."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def drawn(self) -> Figure:
        """The chart as a figure of matplotlib."""
        from neusight.figures.matplotlib import drawn

        return drawn(self)

    def echarts(self) -> dict[str, Any]:
        """Options of Apache ECharts, for a page that has ``charts.js``."""
        from neusight.figures.echarts import options

        return options(self)

    def picture(self, suffix: str = ".png") -> bytes:
        """The chart as a file of one of ``PICTURES``, without the date and the version of the library."""
        out = io.BytesIO()
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}}.get(suffix)
        self.drawn().savefig(out, format=suffix.removeprefix("."), dpi=100, metadata=metadata)
        return out.getvalue()

    def content(self, suffix: str) -> bytes:
        """A file that ends in ``.csv``, ``.json`` or one of ``PICTURES``."""
        texts = {".csv": self.to_csv, ".json": self.to_json}
        return texts[suffix]().encode() if suffix in texts else self.picture(suffix)

    def save(self, path: str | Path) -> None:
        """Save the chart as a picture, CSV or JSON, by the ending of its name.

        Raises:
            DataError: another ending.
        """
        file, endings = Path(path), (".csv", ".json", *PICTURES)
        if file.suffix not in endings:
            raise DataError(f"'{file.name}' does not end in {', '.join(endings)}: name it so")
        file.write_bytes(self.content(file.suffix))

    def trace(self) -> str:
        """Bars in time as Chrome's trace events, which Perfetto opens: a thread a lane, microseconds."""
        names = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": name}}
            for lane, name in enumerate(self.lanes)
        ]
        slices = [
            {"ph": "X", "name": bar.label or bar.series, "cat": bar.series, "pid": 0, "tid": bar.lane,
             "ts": 1e6 * bar.start, "dur": 1e6 * (bar.end - bar.start)}
            for bar in self.bars
        ]  # fmt: skip
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *slices]})

    def __repr__(self) -> str:
        return f"<Chart {self.name}: {self.title}>"

    def _repr_png_(self) -> bytes:
        """Representations of the chart for a notebook."""
        return self.picture()
