"""Figures of whole models: every predictor over what was measured, and means by GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.experiments.canvas import COLOURS, MARKERS, canvas, gpus_in, judged, legend, titles
from neusight.experiments.model_rows import errors_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "another vendor's GPU"}
MILLISECONDS = (100, 200, 500, 1000, 2000, 5000)
RATIOS = (0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8)
CUT = 70.0
"""Errors beyond this many percent are cut off and written out."""
Results = Mapping[str, Any]


def models(results: Results) -> Figure:
    """Every predictor's ratio to the measured step along the judged prediction: a panel a group of GPUs."""
    rows, names = results["models"]["rows"], titles(results)
    groups = [group for group in PANELS if any(row["group"] == group for row in rows)]
    figure, panels = canvas(len(groups), 3, 4.5 * len(groups) if len(groups) < 3 else 11, 4)
    for axes, group in zip(panels, groups, strict=True):
        part = [row for row in rows if row["group"] == group]
        for place, name in enumerate(names):
            _points(axes, part, name, place, names[name])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=f"predicted by {names[judged(results)]}, ms", title=PANELS[group])
        axes.set_xticks(MILLISECONDS, labels=[f"{tick:,}" for tick in MILLISECONDS])
        axes.set_yticks(RATIOS, labels=[f"{tick:g}" for tick in RATIOS])
        axes.minorticks_off()
        axes.grid(linewidth=0.3)
    panels[0].set_ylabel("predicted / measured")
    legend(figure, panels, 4)
    return figure


def _points(axes: Axes, rows: Sequence[Results], name: str, place: int, title: str) -> None:
    """A point a row; of several trainings their mean."""
    found = [(row["predicted_ms"], errors) for row in rows if (errors := errors_of(row, name))]
    ratios = [1 + float(np.mean(errors)) / 100 for _, errors in found]
    style: dict[str, Any] = {"marker": MARKERS[place % 9], "linestyle": "", "color": COLOURS[place % 9]}
    style["zorder"] = 3 - 0.1 * place
    axes.plot([ms for ms, _ in found], ratios, markersize=4.5 if place == 0 else 3.2, **style, label=title)


def gpus(results: Results) -> Figure:
    """Mean error of whole models by GPU and predictor; a dash is the worst row."""
    by_gpu, names = results["models"]["by_gpu"], titles(results)
    order = gpus_in(results, results["models"]["rows"])
    figure, (axes,) = canvas(1, 1, 10, 3.6)
    width = 0.84 / len(names)
    for place, (name, title) in enumerate(names.items()):
        found = [(x, by_gpu[gpu]["predictors"].get(name)) for x, gpu in enumerate(order)]
        at = [x + width * (place - (len(names) - 1) / 2) for x, error in found if error]
        said = [error for _, error in found if error]
        axes.bar(at, [min(e["mean"], CUT) for e in said], 0.92 * width, color=COLOURS[place % 9], label=title)
        for x, error in zip(at, said, strict=True):
            if error["worst"] <= CUT:
                axes.plot([x], [error["worst"]], "_", color=COLOURS[place % 9], markersize=6)
            if error["mean"] > CUT:
                axes.text(x, CUT, f" {error['mean']:.0f}", ha="center", va="bottom", fontsize=7, rotation=90)
    held = {gpu for fold in results["folds"] for gpu in fold["held_out"]}
    axes.set_xticks(
        range(len(order)), labels=[f"{g}\n({'held' if g in held else 'trained'})" for g in order], fontsize=7
    )
    axes.set(ylabel="mean error of whole models, %", xlim=(-0.6, len(order) - 0.4), ylim=(0, CUT * 1.1))
    legend(figure, [axes], 4)
    return figure
