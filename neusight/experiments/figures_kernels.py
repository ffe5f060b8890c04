"""Figures of single kernels: where errors lie, predicted against measured, calibration, roofline, few-shot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.experiments.canvas import COLOURS, GREY, MARKERS, canvas, gpus_in, judged, kinds_in, legend, titles
from neusight.experiments.kernel_summary import main_group
from neusight.experiments.verdicts import PLANNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
CUT = 60.0
"""Errors beyond this many percent are cut off."""
MARGIN = 0.2
"""Thin lines stand so far from the prediction."""


def errors(results: Results) -> Figure:
    """Signed errors of the judged predictor: a panel a kind of kernel, a box a GPU."""
    cells = [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]
    kinds, gpus = kinds_in(cells), gpus_in(results, cells)
    figure, panels = canvas(len(kinds), 3)
    for axes, kind in zip(panels, kinds, strict=True):
        found = {cell["gpu"]: cell for cell in cells if cell["kind"] == kind}
        at = [place for place, gpu in enumerate(gpus) if gpu in found]
        stats = [_box(found[gpus[place]]["quantiles"]) for place in at]
        style: dict[str, Any] = {"patch_artist": True, "showfliers": False, "widths": 0.6}
        axes.bxp(stats, positions=at, boxprops={"facecolor": "#a9cbe6"}, medianprops={"color": "black"}, **style)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(title=kind, ylim=(-CUT, CUT), xlim=(-0.6, len(gpus) - 0.4))
        axes.set_xticks(range(len(gpus)), labels=gpus, rotation=40, ha="right", fontsize=7)
        axes.grid(axis="y", linewidth=0.3)
    panels[0].set_ylabel("signed error, %")
    return figure


def _box(quantiles: Sequence[float]) -> dict[str, float]:
    return dict(zip(("whislo", "q1", "med", "q3", "whishi"), quantiles, strict=True))


def predicted(results: Results) -> Figure:
    """Predicted against measured, logarithmic, of the kept sample: a panel a kind of kernel, a colour a GPU."""
    rows = results["kernels"]["sample"]
    kinds, gpus = kinds_in(rows), gpus_in(results, rows)
    figure, panels = canvas(len(kinds), 3)
    for axes, kind in zip(panels, kinds, strict=True):
        values = []
        for place, gpu in enumerate(gpus):
            part = [row for row in rows if (row["kind"], row["gpu"]) == (kind, gpu)]
            x, y = [measured_ms(row) for row in part], [row["predicted_ms"] for row in part]
            values += [*x, *y]
            style: dict[str, Any] = {
                "marker": MARKERS[place % 9],
                "color": COLOURS[place % 9],
                "linestyle": "",
                "markersize": 2.5,
            }
            axes.plot(x, y, label=gpu, markeredgewidth=0, alpha=0.7, **style)
        _diagonal(axes, values)
        axes.set_title(kind)
    panels[0].set_ylabel("predicted, ms")
    panels[-1].set_xlabel("measured, ms")
    legend(figure, panels, 7, scale=2.5)
    return figure


def _diagonal(axes: Axes, values: Sequence[float]) -> None:
    """Both axes alike, with the line of perfect predictions and two that are off by ``MARGIN``."""
    ends = np.array([min(values) / 1.5, max(values) * 1.5])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for factor in (1 - MARGIN, 1 + MARGIN):
        axes.plot(ends, factor * ends, color=GREY, linewidth=0.6)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)


def measured_ms(row: Mapping[str, Any]) -> float:
    """What a row of results was compared with, to the accuracy of its error."""
    return float(row["predicted_ms"] / (1 + row["error"] / 100))


def calibration(results: Results) -> Figure:
    """Share of rows within intervals against the share that they should hold."""
    rows = results["kernels"]["calibration"]
    figure, (axes,) = canvas(1, 1, 5.2, 4.2)
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8)
    axes.fill_between([85, 95], 85, 95, color="#dddddd")
    for place, kind in enumerate(kinds_in(rows)):
        part = [row for row in rows if row["kind"] == kind]
        style: dict[str, Any] = {"marker": MARKERS[place], "color": COLOURS[place], "markersize": 4, "linewidth": 1}
        axes.plot([row["nominal"] for row in part], [row["found"] for row in part], label=kind, **style)
    axes.set(xlabel="interval, %", ylabel="measurements within it, %", xlim=(0, 100), ylim=(0, 101))
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def roofline(results: Results) -> Figure:
    """FLOP/s against FLOP a byte, measured and predicted, under each GPU's roof: a panel a GPU."""
    from neusight.devices import load_device

    rows = results["kernels"]["sample"]
    gpus = gpus_in(results, rows)
    figure, panels = canvas(len(gpus), 4, 10, 2.4)
    for axes, gpu in zip(panels, gpus, strict=True):
        device, part = load_device(gpu), [row for row in rows if row["gpu"] == gpu]
        intensity = np.array([row["flops"] / row["bytes"] for row in part])
        for label, colour, times in (
            ("measured", GREY, [measured_ms(row) for row in part]),
            ("predicted", COLOURS[0], [row["predicted_ms"] for row in part]),
        ):
            speed = [1e-9 * row["flops"] / ms for row, ms in zip(part, times, strict=True)]
            axes.plot(intensity, speed, "o", markersize=1.8, color=colour, markeredgewidth=0, alpha=0.7, label=label)
        reach = np.geomspace(intensity.min(), max(intensity.max(), 100), 50)
        peak = 1e-12 * device.gemm_flops_per_s("float32")
        roof = np.minimum(peak, 1e-12 * device.dram_bandwidth_bytes_per_s * reach)
        axes.plot(reach, roof, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", title=gpu, ylim=(1e-3 * peak, 2 * peak))
    panels[0].set_ylabel("TFLOP/s")
    panels[-1].set_xlabel("FLOP/byte")
    legend(figure, panels[:1], 2, scale=3)
    return figure


def few_shot(results: Results) -> Figure:
    """Mean error against measured kernels of the GPU: a panel a kind of kernel, a line a GPU, means in black."""
    curve = results["few_shot_curve"]
    cells = [cell for cell in curve["cells"] if cell["design"] == PLANNED]
    kinds, gpus = kinds_in(cells), gpus_in(results, cells)
    points = sorted({cell["points"] for cell in cells})
    figure, panels = canvas(len(kinds), 3)
    for axes, kind in zip(panels, kinds, strict=True):
        for place, gpu in enumerate(gpus):
            style: dict[str, Any] = {"marker": MARKERS[place % 9], "color": COLOURS[place % 9], "markersize": 3}
            found = {cell["points"]: cell["mape"] for cell in cells if (cell["kind"], cell["gpu"]) == (kind, gpu)}
            axes.plot([points.index(p) for p in found], list(found.values()), label=gpu, linewidth=0.8, **style)
        for design, line in (("plan", "k-"), ("random", "k:")):
            mean = [row for row in curve["by_kind"] if (row["kind"], row["design"]) == (kind, design)]
            label = f"mean, {'planned' if design == PLANNED else 'drawn at random'}"
            at = [points.index(row["points"]) for row in mean]
            axes.plot(at, [row["mean"] for row in mean], line, linewidth=2, label=label)
        axes.set(title=kind, ylim=(0, None))
        axes.set_xticks(range(len(points)), labels=[str(p) for p in points])
        axes.grid(axis="y", linewidth=0.3)
    panels[0].set_ylabel("mean error, %")
    panels[-1].set_xlabel("measured kernels of the GPU")
    legend(figure, panels, 5)
    return figure


def predictors(results: Results) -> Figure:
    """Mean error of every predictor by kind of kernel, held-out GPUs counted alike; a line is the spread of seeds."""
    names = titles(results)
    rows = [row for row in results["kernels"]["by_kind"] if row["group"] == main_group(results["kernels"]["cells"])]
    kinds, shown = kinds_in(rows), list(dict.fromkeys(row["predictor"] for row in rows))
    figure, (axes,) = canvas(1, 1, 9, 3.2)
    width = 0.8 / len(shown)
    for place, name in enumerate(shown):
        found = {row["kind"]: row for row in rows if row["predictor"] == name}
        at = [x + width * (place - (len(shown) - 1) / 2) for x, kind in enumerate(kinds) if kind in found]
        part = [found[kind] for kind in kinds if kind in found]
        axes.bar(
            at, [min(row["mean"], 2 * CUT) for row in part], 0.9 * width, color=COLOURS[place % 9], label=names[name]
        )
        for x, row in zip(at, part, strict=True):
            axes.plot([x, x], row["spread"], color="black", linewidth=1)
            if row["mean"] > 2 * CUT:
                axes.text(x, 2 * CUT, f"{row['mean']:.0f}", ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(kinds)), labels=kinds)
    axes.set(ylabel="mean error, %", ylim=(0, None))
    axes.grid(axis="y", linewidth=0.3)
    legend(figure, [axes], 4)
    return figure
