"""What all figures share: a canvas without a screen, colours that people of most kinds of sight can tell, axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.model_rows import PUBLISHED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0b5fa5", "#e07b00", "#5a9e4b", "#8d6bb1", "#b5423c", "#6b6b6b", "#2aa6a6", "#c9a227", "#d36fa5")
MARKERS = "osD^vP*X<"
GREY = "#9a9a9a"
ALONE = "whole models"
"""What whole models are called beside kinds of kernels."""


def canvas(panels: int, columns: int, width: float = 9.0, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """A figure of ``panels`` in rows of ``columns``, ``height`` inches a row; spare places stay empty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width, height * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in places[panels:]:
        spare.set_axis_off()
    return figure, places[:panels]


def legend(figure: Figure, axes: Iterable[Axes], columns: int = 5, scale: float = 1.0) -> None:
    """One legend above all panels, each name once, with markers ``scale`` times as large as in the panels."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    handles, labels = list(found.values()), list(found)
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8, markerscale=scale
    )


def titles(results: Mapping[str, Any]) -> dict[str, str]:
    """Names of the predictors as people read them, in order: those that took part, then those that were published."""
    own = {entry["name"]: entry["title"] or entry["name"] for entry in results["predictors"]}
    rows = results.get("models", {}).get("rows", ())
    published = {name: title for name, title in PUBLISHED.items() if any(name in row["errors"] for row in rows)}
    return own | published


def judged(results: Mapping[str, Any]) -> str:
    """The predictor that the targets judge: the first."""
    return str(results["predictors"][0]["name"])


def in_order(values: Iterable[str], first: Sequence[str]) -> list[str]:
    """Distinct values, those that ``first`` names in its order, then the others."""
    found = list(dict.fromkeys(values))
    return [v for v in dict.fromkeys(first) if v in found] + [v for v in found if v not in first]


KINDS = ("linear", "bmm", "conv2d", "elementwise", "softmax", "layer_norm")
"""Kinds of kernels in the order of tables and figures."""


def kinds_in(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Kinds of kernels that rows name, in order."""
    return in_order((row["kind"] for row in rows), KINDS)


def gpus_in(results: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """GPUs that rows name: in the order of the declaration, then those of the folds."""
    held = [gpu for fold in results["folds"] for gpu in fold["held_out"]]
    return in_order((row["gpu"] for row in rows), [*results["gpus"], *held])
