"""Every figure, of runs made here: nothing is cut off, overlaps or is empty, and every name has its own look."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from neusight.experiments import figures
from neusight.lab.page import DPI, canvas, legend, save

SLACK = 1.0
"""Pixels."""


def shown_texts(figure: Figure) -> Iterator[Text]:
    """Texts that are seen: all but the labels of ticks outside of their axis."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not axis.axes.axison or not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            yield text


def looks(found: Legend) -> list[tuple[Any, ...]]:
    """Colour, marker and line of every entry."""
    return [
        tuple(str(getattr(handle, f"get_{key}", lambda: "")()) for key in ("color", "facecolor", "marker", "linestyle"))
        for handle in found.legend_handles
        if handle is not None
    ]


def faults(figure: Figure) -> Iterator[str]:
    """What whoever opens the picture would stumble over."""
    figure.set_dpi(DPI)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    whole = figure.bbox.padded(SLACK)
    boxes = {text: text.get_window_extent(renderer) for text in shown_texts(figure)}
    told = {f"'{text.get_text()}'": box for text, box in boxes.items()}
    told |= {f"a {type(artist).__name__}": artist.get_window_extent(renderer) for artist in figure.legends}
    told |= {f"panel {place}": axes.get_tightbbox(renderer) for place, axes in enumerate(figure.axes)}
    for name, box in told.items():
        if box is not None and not (whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1)):
            yield f"{name} is cut off"
    for (a, first), (b, second) in combinations(boxes.items(), 2):
        both = Bbox.intersection(first, second)
        if both is not None and min(both.width, both.height) > SLACK:
            yield f"'{a.get_text()}' overlaps '{b.get_text()}'"
    yield from (f"panel {i} is empty" for i, axes in enumerate(figure.axes) if axes.axison and not axes.has_data())
    for found in figure.legends:
        if len(set(looks(found))) < len(found.get_texts()):
            yield "two names of the legend look alike"


def crowded(results: dict[str, Any]) -> dict[str, Any]:
    """The same with sixteen predictors of long names, several trainings, and a few-shot curve."""
    kernels, names = results["kernels"], [f"a predictor of a rather long name, {place}" for place in range(16)]
    first = [row for row in kernels["by_kind"] if row["predictor"] == "ours"]
    by_kind = [row | {"predictor": name, "spread": [1.0, 900.0 * i]} for i, name in enumerate(names) for row in first]
    declared = results["declared"] | {"predictors": [{"name": name, "title": ""} for name in names]}
    points = [{"points": p, "mape": 9.0, "mean": 9.0} for p in (0, 10, 100)]
    kinds = [{"design": d, "kind": kind, **p} for d in ("plan", "random") for kind in ("linear", "bmm") for p in points]
    cells = [{"gpu": gpu, **row} for gpu in (*declared["gpus"], "mi100", "a100-pcie-80gb") for row in kinds]
    curve = {"cells": cells, "by_kind": kinds}
    return {**results, "declared": declared, "kernels": {**kernels, "by_kind": by_kind}, "few_shot_curve": curve}


def test_a_legend_grows_downwards_and_the_figure_with_it(tmp_path: Path) -> None:
    figure, (axes,) = canvas(1, 1, 3.0, 2.0)
    for name in range(9):
        axes.plot([0, 1], [name, name], label=f"a name of some length {name}")
    before = figure.get_figheight()
    legend(figure, [axes])
    assert figure.get_figheight() > before + 0.5
    assert list(faults(figure)) == []
    save(figure, tmp_path / "a.png")
    save(figure, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_faults_are_seen() -> None:
    figure, (axes, _) = canvas(2, 2, 3.0, 2.0)
    axes.plot([0, 1], [0, 1], color="red", label="x" * 90)
    axes.plot([0, 1], [0, 1], color="red", label="y" * 90)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center")
    axes.set_xticks([0.5, 0.51], labels=["one", "other"])
    found = " ".join(faults(figure))
    assert all(said in found for said in ("cut off", "'one' overlaps 'other'", "panel 1 is empty", "look alike"))


def test_a_figure_is_drawn_where_results_hold_what_it_needs() -> None:
    for drawing in figures.FIGURES.values():
        assert not drawing.drawable({})
        head, _, tail = drawing.needs.partition(".")
        assert drawing.drawable({head: {tail: [1]} if tail else [1]})
