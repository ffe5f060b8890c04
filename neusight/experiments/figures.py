"""Figures of an experiment: small PNGs, the same for the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.experiments import figures_kernels, figures_models
from neusight.experiments.results import is_sparse
from neusight.experiments.sparse_figures import DRAWINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
DPI = 85


@dataclass(frozen=True)
class Drawing:
    """A figure of the report: how it is drawn, what it shows, and which part of the results it needs."""

    draw: Callable[[Results], Figure]
    caption: str
    needs: str


FIGURES = {
    "errors.png": Drawing(
        figures_kernels.errors,
        "Signed errors of single kernels on held-out GPUs: half of the rows lie in the box, nine tenths between the "
        "whiskers.",
        "kernels",
    ),
    "predictors.png": Drawing(
        figures_kernels.predictors,
        "Mean error of single kernels on held-out GPUs, each GPU counted once; a line is the spread over seeds.",
        "kernels",
    ),
    "predicted.png": Drawing(
        figures_kernels.predicted,
        "Predicted against measured, a sample of kernels on held-out GPUs; thin lines are 20 % off.",
        "kernels",
    ),
    "calibration.png": Drawing(
        figures_kernels.calibration,
        "How many measurements lie within intervals. 90 % is what predictions state; other levels are that interval "
        "scaled as a normal distribution's would be. Grey: 85 to 95 %.",
        "kernels",
    ),
    "roofline.png": Drawing(
        figures_kernels.roofline,
        "The same sample under each held-out GPU's datasheet roofline (float32), measured and predicted.",
        "kernels",
    ),
    "few-shot.png": Drawing(
        figures_kernels.few_shot,
        "Mean error after some kernels of the held-out GPU were measured and made known. Colours: planned.",
        "few_shot_curve",
    ),
    "gpus.png": Drawing(
        figures_models.gpus,
        "Mean error of whole models by GPU; a dash is the worst row; bars beyond the axis carry their figure.",
        "models",
    ),
    "models.png": Drawing(
        figures_models.models,
        "Whole models: every predictor over what was measured, along the first one's prediction.",
        "models",
    ),
}
"""In the order of the report, by file name."""


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what the results hold into ``folder``; the files' names. Figures of an earlier run that this one lacks go.

    Points are drawn from predictions and their errors, which results keep to a tenth of a percent.
    """
    if is_sparse(results):
        for name, (drawing, _) in DRAWINGS.items():
            save(drawing(results), folder / name)
        return list(DRAWINGS)
    drawn = []
    for name, figure in FIGURES.items():
        if _shown(name, results):
            save(figure.draw(results), folder / name)
            drawn.append(name)
        else:
            (folder / name).unlink(missing_ok=True)
    return drawn


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without the date and the version of the library."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _shown(name: str, results: Results) -> bool:
    """A figure of one predictor alone, or of intervals that none states, shows nothing."""
    if name == "predictors.png" and len(results["predictors"]) == 1:
        return False
    if name == "calibration.png" and "calibration" not in results.get("kernels", {}):
        return False
    return FIGURES[name].needs in results
