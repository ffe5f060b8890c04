"""What all reports share: tables in Markdown that read as text, too, and a canvas for figures without a screen.

Colours are such that people of most kinds of sight can tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.figures.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X<"
DPI = 85
LEGEND_SHARE = 0.97
"""Of a figure's width, at most."""
SMALL = 8
"""Points of the smallest letters."""


def canvas(
    panels: int, columns: int, width_in: float = 9.0, height_in: float = 2.7, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of ``panels`` in rows of ``columns``, ``height_in`` inches a row; spare places stay empty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width_in, height_in * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    places = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for spare in places[panels:]:
        spare.set_axis_off()
    return figure, places[:panels]


def style(place: int) -> dict[str, Any]:
    """Colour and marker of the series at a place."""
    round_, colour = divmod(place, len(COLOURS))
    return {"color": COLOURS[colour], "marker": MARKERS[(colour + round_) % len(MARKERS)]}


def legend(figure: Figure, axes: Iterable[Axes], scale: float = 1.0) -> None:
    """One legend above all panels, each name once, with markers ``scale`` times as large as in the panels.

    It has as few rows as fit into the width, all alike long, and the figure grows by its height.
    """
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    look: dict[str, Any] = {"loc": "outside upper center", "frameon": False, "fontsize": SMALL, "markerscale": scale}
    for rows in range(1, len(handles) + 1):
        shown = figure.legend(list(handles.values()), list(handles), ncols=-(-len(handles) // rows), **look)
        if shown.get_window_extent().width <= LEGEND_SHARE * figure.bbox.width or rows == len(handles):
            break
        shown.remove()
    figure.set_figheight(figure.get_figheight() + shown.get_window_extent().height / figure.dpi)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without the date and the version of the library."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A Markdown table, padded so that it reads as text, too; columns after the first ``words`` stand right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(head))]
    rule = ["-" * width if place < words else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = [_line(cells[0], widths, words), f"| {' | '.join(rule)} |"]
    return "\n".join([*lines, *(_line(row, widths, words) for row in cells[1:])])


def _line(row: Sequence[str], widths: Sequence[int], words: int) -> str:
    sides = "<" * words + ">" * (len(row) - words)
    return f"| {' | '.join(map(format, row, map('{}{}'.format, sides, widths)))} |"


def listing(rows: Iterable[Mapping[str, Any]], columns: Sequence[tuple[str, str]], words: int = 1) -> str:
    """A row each, a column for each pair of its head and its form, such as ``("mean", "{mean:.1f}")``."""
    shown = (tuple(filled(form, row) for _, form in columns) for row in rows)
    return table([head for head, _ in columns], shown, words)


def filled(form: str, row: Mapping[str, Any]) -> str:
    """A form with the figures of a row; nothing where the row lacks one of them."""
    try:
        return form.format_map(row)
    except (KeyError, TypeError, ValueError):
        return ""


def wrapped(text: str, width: int = 80) -> str:
    """Prose in lines of at most so many characters."""
    from textwrap import fill

    return fill(text, width, break_long_words=False, break_on_hyphens=False)


def quoted(text: str) -> str:
    """Prose as a quotation."""
    return "> " + wrapped(text, 78).replace("\n", "\n> ")
