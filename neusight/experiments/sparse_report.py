"""The report of a simulated experiment: a table of each declared group of rows, and the declared figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from neusight.figures.palette import COLOURS, GREY
from neusight.lab.page import (
    SMALL,
    Drawing,
    ReportForm,
    canvas,
    legend,
    listing,
    matrix,
    style,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
FORMS = {"count": "{count:.0f}", "zeros": "{zeros:.0%}"}
"""Forms of figures in tables that have no two decimals."""
LONGEST_TICKS = 24
"""Characters of all values along an axis that are no numbers; of longer ones the first and the last are written."""


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    return [*results["declared"]["method"], f"Again with `neusight experiments run {results['experiment']}`."]


def sections(results: Results) -> dict[str, list[str]]:
    """Title, table and words of each group, by its name."""
    by_group = results["by_group"]
    return {
        group["name"]: [f"## {group['title']}", _table(group, by_group[group["name"]]), wrapped(group["text"])]
        for group in results["declared"]["groups"]
    }


def _table(group: Mapping[str, Any], rows: Rows) -> str:
    by, forms = group["by"], {name: FORMS.get(name, f"{{{name}:.2f}}") for name in group["figures"]}
    if not group["across"]:
        columns = [*((name, f"{{{name}}}") for name in by), *forms.items()]
        return listing(rows, columns, words=len(by))
    labelled = [{**row, "by": _joined(row, by), "across": _joined(row, group["across"])} for row in rows]
    heads = list(dict.fromkeys(row["across"] for row in labelled))
    return matrix(labelled, "by", ("across", heads), forms[group["figures"][0]], corner=" ".join(by))


def _joined(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return " ".join(str(row[name]) for name in names)


def declared_drawings(declared: Mapping[str, Any]) -> dict[str, Drawing]:
    """Declared figures by the name of their file."""
    return {
        f"{figure['name']}.png": Drawing(partial(draw, figure), figure["caption"], figure["part"], figure["of"])
        for figure in declared.get("figures", ())
    }


def draw(declared: Mapping[str, Any], results: Results) -> Figure:
    """Curves or points of each series, or a bar of each for every value along x, in a panel for each value of a key."""
    table: Any = results
    for key in declared["of"].split("."):
        table = table[key]
    rows: Rows = [row for row in table if row[declared["y"]] is not None]
    names = list(dict.fromkeys(row[declared["panels"]] for row in rows)) if declared["panels"] else [None]
    width, height = (5.2, 3.6) if len(names) == 1 and declared["kind"] != "bars" else (9.0, 2.7)
    figure, panels = canvas(len(names), 4, width, height, sharey=True)
    paint = _bars if declared["kind"] == "bars" else _curves
    for axes, name in zip(panels, names, strict=True):
        paint(axes, [row for row in rows if name is None or row[declared["panels"]] == name], declared)
        axes.set_title(name or "", fontsize=SMALL)
        axes.grid(axis="y", color=GREY, alpha=0.3)
    figure.supylabel(declared["ylabel"], fontsize=10)
    figure.supxlabel(declared["xlabel"], fontsize=10)
    legend(figure, panels)
    return figure


def _curves(axes: Axes, rows: Rows, declared: Mapping[str, Any]) -> None:
    values = list(dict.fromkeys(row[declared["x"]] for row in rows))
    numbers = all(isinstance(value, float) for value in values)
    linestyle = "" if declared["kind"] == "points" else "-"
    for place, series in enumerate(dict.fromkeys(row[declared["series"]] for row in rows)):
        ours = [(row[declared["x"]], row[declared["y"]]) for row in rows if row[declared["series"]] == series]
        points = ours if numbers else sorted((values.index(x), y) for x, y in ours)
        axes.plot(*zip(*points, strict=True), linestyle, markersize=3, **style(place), label=series)
    if not numbers:
        few = len("".join(values)) <= LONGEST_TICKS
        places = range(len(values)) if few else [0, len(values) - 1]
        axes.set_xticks(places, values if few else ["first", "last"], fontsize=SMALL)


def _bars(axes: Axes, rows: Rows, declared: Mapping[str, Any]) -> None:
    values, series = (list(dict.fromkeys(row[declared[key]] for row in rows)) for key in ("x", "series"))
    width = 0.8 / len(series)
    for place, name in enumerate(series):
        heights = {row[declared["x"]]: row[declared["y"]] for row in rows if row[declared["series"]] == name}
        at = [x + (place - (len(series) - 1) / 2) * width for x in range(len(values))]
        axes.bar(at, [heights.get(value, 0.0) for value in values], width, color=COLOURS[place], label=name)
    axes.set_xticks(range(len(values)), [value.replace(" ", "\n") for value in values], fontsize=SMALL)


SPARSE = ReportForm(setup=setup, sections=sections, figures={})
