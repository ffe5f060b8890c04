"""Figures of an experiment: small PNGs, the same for the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.experiments.model_step import PREDICTORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"ours": "#0b5fa5", "neusight": "#e07b00", "habitat": "#5a9e4b", "li": "#8d6bb1", "roofline": "#9a9a9a"}
MARKERS = {"ours": "o", "neusight": "s", "habitat": "^", "li": "v", "roofline": "D"}
PANELS = {"held_out": "held-out GPUs", "training": "training GPUs"}
MILLISECONDS = (100, 200, 500, 1000, 2000, 5000)
RATIOS = (0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8)
CUT = 70.0
"""Errors beyond this many percent are cut off and written out."""
Results = Mapping[str, Any]


def draw(results: Results, folder: Path) -> list[str]:
    """Draw what the first run holds into ``folder``; the files' names."""
    run, split = results["runs"][0], results["split"]
    figures: dict[str, Figure] = {}
    if "models" in run:
        figures["models.png"] = _models(run["models"]["rows"])
        figures["gpus.png"] = _gpus(run["models"]["by_gpu"], split)
    if "kernels" in run:
        figures["kernels.png"] = _kernels(run["kernels"]["by_gpu"], (*split["held_out"], *split["other_vendor"]))
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=90, metadata={"Software": None})
    return list(figures)


def _figure(width: float, height: float, columns: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _models(rows: Sequence[Results]) -> Figure:
    """Every predictor's ratio to the measured step along our prediction; left held-out GPUs, right training GPUs."""
    figure, panels = _figure(10, 4.6, 2)
    panels[1].sharex(panels[0])
    panels[1].sharey(panels[0])
    for axes, (group, title) in zip(panels, PANELS.items(), strict=True):
        for name in reversed(PREDICTORS):
            _points(axes, [row for row in rows if row["group"] == group and row["errors"][name] is not None], name)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="predicted by this project, ms", title=title)
        axes.set_xticks(MILLISECONDS, labels=[f"{tick:,}" for tick in MILLISECONDS])
        axes.set_yticks(RATIOS, labels=[f"{tick:g}" for tick in RATIOS])
        axes.minorticks_off()
        axes.grid(linewidth=0.3)
    panels[0].set_ylabel("predicted / measured")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def _points(axes: Axes, rows: Sequence[Results], name: str) -> None:
    ratios = [1 + row["errors"][name] / 100 for row in rows]
    style: dict[str, Any] = {"marker": MARKERS[name], "linestyle": "", "color": COLOURS[name], "markersize": 4.5}
    axes.plot([row["ours_ms"] for row in rows], ratios, **style, label=PREDICTORS[name])


def _gpus(by_gpu: Results, split: Results) -> Figure:
    figure, (axes,) = _figure(9, 3.6, 1)
    for place, name in enumerate(PREDICTORS):
        errors = [(x, gpu["predictors"][name]) for x, gpu in enumerate(by_gpu.values()) if gpu["predictors"][name]]
        at = [x + 0.16 * (place - 2) for x, _ in errors]
        means = [error["mean"] for _, error in errors]
        axes.bar(at, [min(mean, CUT) for mean in means], 0.15, color=COLOURS[name], label=PREDICTORS[name])
        worst = [(x, error["worst"]) for x, (_, error) in zip(at, errors, strict=True) if error["worst"] <= CUT]
        axes.plot([x for x, _ in worst], [high for _, high in worst], "_", color=COLOURS[name], markersize=7)
        for x, mean in zip(at, means, strict=True):
            if mean > CUT:
                axes.text(x, CUT, f" {mean:.0f}", ha="center", va="bottom", fontsize=7, rotation=90)
    axes.set_xticks(range(len(by_gpu)), labels=[_gpu_label(gpu, split) for gpu in by_gpu], fontsize=7)
    axes.set(ylabel="error of whole models, %", xlim=(-0.6, len(by_gpu) - 0.4), ylim=(0, CUT * 1.1))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure


def _gpu_label(gpu: str, split: Results) -> str:
    names = {"held_out": "held out", "other_vendor": "other vendor", "training": "trained on"}
    return f"{gpu}\n({next(text for key, text in names.items() if gpu in split[key])})"


def _kernels(rows: Sequence[Results], gpus: Sequence[str]) -> Figure:
    figure, panels = _figure(3.2 * len(gpus), 3.4, len(gpus))
    bars = {"mape": ("this project", "ours"), "bound_mape": ("our bound", "habitat"), "roofline_mape": ("", "roofline")}
    for axes, gpu in zip(panels, gpus, strict=True):
        found = [row for row in rows if row["gpu"] == gpu]
        for place, (key, (label, colour)) in enumerate(bars.items()):
            at = [x + 0.27 * (place - 1) for x in range(len(found))]
            axes.bar(at, [row[key] for row in found], 0.25, color=COLOURS[colour], label=label or "roofline")
        axes.set_xticks(range(len(found)), labels=[row["family"].replace("_", "\n") for row in found], fontsize=8)
        axes.set_title(gpu, fontsize=9)
        axes.set_ylim(0, 105)
    panels[0].set_ylabel("mean error of kernels, %")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8
    )
    return figure
