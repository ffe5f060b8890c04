"""Figures of a measured experiment, of single kernels and of whole models: the same for the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.experiments.kernels import main_group
from neusight.experiments.models import step_of
from neusight.experiments.results import PLANNED, gpus_in, judged, kinds_in, titles
from neusight.figures.palette import COLOURS, GREY
from neusight.lab.page import SMALL, Drawing, canvas, legend, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
CUT = 60.0
"""Errors beyond this many percent are cut off, those of predictors at twice as many, and written out."""
MARGIN = 0.2
"""Thin lines stand so far from the prediction."""
PANELS = {"held_out": "held-out GPUs", "training": "training GPUs", "other_vendor": "another vendor's GPU"}
TICKS = 6
"""On a logarithmic axis, at most, before only powers of ten are left."""
RATIOS = (0.06, 0.12, 0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8, 16, 32, 64)


def _gpus(results: Results, rows: Rows) -> list[str]:
    return gpus_in(results, (row["gpu"] for row in rows))


def errors(results: Results) -> Figure:
    """Signed errors of the judged predictor: a panel a kind of kernel, a box a GPU."""
    cells = [cell for cell in results["kernels"]["cells"] if cell["predictor"] == judged(results)]
    kinds, gpus = kinds_in(cells), _gpus(results, cells)
    figure, panels = canvas(len(kinds), 3, sharex=True, sharey=True)
    look: dict[str, Any] = {"patch_artist": True, "showfliers": False, "widths": 0.6, "manage_ticks": False}
    for axes, kind in zip(panels, kinds, strict=True):
        by_gpu = {cell["gpu"]: cell for cell in cells if cell["kind"] == kind}
        at = [place for place, gpu in enumerate(gpus) if gpu in by_gpu]
        stats = [_box(by_gpu[gpus[place]]["quantiles"]) for place in at]
        axes.bxp(stats, positions=at, boxprops={"facecolor": "#a9cbe6"}, medianprops={"color": "black"}, **look)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(title=kind, ylim=(-CUT, CUT), xlim=(-0.6, len(gpus) - 0.4))
        axes.set_xticks(range(len(gpus)), labels=gpus, rotation=90, fontsize=SMALL)
        axes.tick_params(labelbottom=axes in panels[-3:])
        axes.grid(axis="y", linewidth=0.3)
    figure.supylabel("signed error, %", fontsize=10)
    return figure


def _box(quantiles: Sequence[float]) -> dict[str, float]:
    return dict(zip(("whislo", "q1", "med", "q3", "whishi"), quantiles, strict=True))


def predicted(results: Results) -> Figure:
    """Predicted against measured, logarithmic, of the kept sample: a panel a kind of kernel, a colour a GPU."""
    rows = results["kernels"]["sample"]
    kinds, gpus = kinds_in(rows), _gpus(results, rows)
    figure, panels = canvas(len(kinds), 3)
    for axes, kind in zip(panels, kinds, strict=True):
        part = [row for row in rows if row["kind"] == kind]
        for place, gpu in enumerate(gpus):
            own = [row for row in part if row["gpu"] == gpu]
            x, y = [measured_ms(row) for row in own], [row["predicted_ms"] for row in own]
            axes.plot(x, y, label=gpu, linestyle="", markersize=2.5, markeredgewidth=0, alpha=0.7, **style(place))
        _diagonal(axes, [ms for row in part for ms in (measured_ms(row), row["predicted_ms"])])
        axes.set_title(kind)
    figure.supylabel("predicted, ms", fontsize=10)
    figure.supxlabel("measured, ms", fontsize=10)
    legend(figure, panels, scale=2.5)
    return figure


def _diagonal(axes: Axes, values: Sequence[float]) -> None:
    """Both axes alike, whole decades, with the line of perfect predictions and two that are off by ``MARGIN``."""
    ends = 10.0 ** np.array([np.floor(np.log10(min(values))), np.ceil(np.log10(max(values)))])
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
        x, y = [row["nominal"] for row in part], [row["found"] for row in part]
        axes.plot(x, y, label=kind, markersize=4, linewidth=1, **style(place))
    axes.set(xlabel="interval, %", ylabel="measurements within it, %", xlim=(0, 100), ylim=(0, 102))
    axes.grid(linewidth=0.3)
    legend(figure, [axes])
    return figure


def roofline(results: Results) -> Figure:
    """FLOP/s against FLOP a byte, measured and predicted, under each GPU's roof: a panel a GPU."""
    rows = results["kernels"]["sample"]
    gpus = _gpus(results, rows)
    figure, panels = canvas(len(gpus), 4, 10 if len(gpus) > 1 else 5.2, 2.4 if len(gpus) > 1 else 3.6)
    for axes, gpu in zip(panels, gpus, strict=True):
        _under_roof(axes, gpu, [row for row in rows if row["gpu"] == gpu])
    figure.supylabel("TFLOP/s", fontsize=10)
    figure.supxlabel("FLOP/byte", fontsize=10)
    legend(figure, panels, scale=3)
    return figure


def _under_roof(axes: Axes, gpu: str, rows: Rows) -> None:
    from neusight.devices import load_device

    device, intensity = load_device(gpu), np.array([row["flops"] / row["bytes"] for row in rows])
    for label, colour, times_ms in (
        ("measured", GREY, [measured_ms(row) for row in rows]),
        ("predicted", COLOURS[0], [row["predicted_ms"] for row in rows]),
    ):
        speed = [1e-9 * row["flops"] / ms for row, ms in zip(rows, times_ms, strict=True)]
        axes.plot(intensity, speed, "o", markersize=1.8, color=colour, markeredgewidth=0, alpha=0.7, label=label)
    reach = np.geomspace(intensity.min(), max(intensity.max(), 100), 50)
    peak = 1e-12 * device.gemm_flops_per_s("float32")
    roof = np.minimum(peak, 1e-12 * device.dram_bandwidth_bytes_per_s * reach)
    axes.plot(reach, roof, color="black", linewidth=0.8, label="datasheet")
    axes.set(xscale="log", yscale="log", title=gpu)
    axes.set_ylim(top=4 * peak)


def few_shot(results: Results) -> Figure:
    """Mean error against measured kernels of the GPU: a panel a kind of kernel, a line a GPU, means in black."""
    curve = results["few_shot_curve"]
    cells = [cell for cell in curve["cells"] if cell["design"] == PLANNED]
    kinds, gpus = kinds_in(cells), _gpus(results, cells)
    points = sorted({cell["points"] for cell in cells})
    figure, panels = canvas(len(kinds), 3)
    for axes, kind in zip(panels, kinds, strict=True):
        for place, gpu in enumerate(gpus):
            errors = {cell["points"]: cell["mape"] for cell in cells if (cell["kind"], cell["gpu"]) == (kind, gpu)}
            at = [points.index(p) for p in errors]
            axes.plot(at, list(errors.values()), label=gpu, linewidth=0.8, markersize=3, **style(place))
        for design, line in (("plan", "k-"), ("random", "k:")):
            mean = [row for row in curve["by_kind"] if (row["kind"], row["design"]) == (kind, design)]
            label = f"mean, {'planned' if design == PLANNED else 'drawn at random'}"
            at = [points.index(row["points"]) for row in mean]
            axes.plot(at, [row["mean"] for row in mean], line, linewidth=2, label=label)
        axes.set(title=kind, ylim=(0, None))
        axes.set_xticks(range(len(points)), labels=[str(p) for p in points])
        axes.grid(axis="y", linewidth=0.3)
    figure.supylabel("mean error, %", fontsize=10)
    figure.supxlabel("measured kernels of the GPU", fontsize=10)
    legend(figure, panels)
    return figure


def predictors(results: Results) -> Figure:
    """Mean error by predictor, held-out GPUs counted alike: a panel a kind of kernel; a line is the spread of seeds."""
    names, by_kind = titles(results), results["kernels"]["by_kind"]
    rows = [row for row in by_kind if row["group"] == main_group(by_kind)]
    kinds, shown = kinds_in(rows), list(dict.fromkeys(row["predictor"] for row in rows))
    figure, panels = canvas(len(kinds), len(kinds), 11, 0.9 + 0.2 * len(shown), sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        part = [row for row in rows if row["kind"] == kind]
        at, most = [shown.index(row["predictor"]) for row in part], min(2 * CUT, max(r["spread"][1] for r in part))
        axes.barh(at, [min(row["mean"], most) for row in part], color=[_colour(row, results) for row in part])
        for y, row in zip(at, part, strict=True):
            ends = np.minimum(row["spread"], most)
            axes.plot(ends, [y, y], color="black", linewidth=1)
            axes.text(ends[1] + 0.03 * most, y, f"{row['mean']:.1f}", va="center", fontsize=SMALL)
        axes.set(title=kind, xlim=(0, 1.45 * most))
        axes.set_yticks(range(len(shown)), labels=[names[name] for name in shown], fontsize=SMALL)
    panels[0].invert_yaxis()
    figure.supxlabel("mean error, %", fontsize=10)
    return figure


def _colour(row: Mapping[str, Any], results: Results) -> str:
    return "#7fb0d8" if row["predictor"] == judged(results) else "#cccccc"


def models(results: Results) -> Figure:
    """Every predictor's ratio to the measured step along the judged prediction: a panel a group of GPUs."""
    rows, names = results["models"]["rows"], titles(results)
    own = {_step(row): row["predicted_ms"] for row in rows if row["predictor"] == judged(results)}
    groups = [group for group in PANELS if any(row["group"] == group for row in rows)]
    figure, panels = canvas(len(groups), 3, 5.5 if len(groups) == 1 else 11, 3.6, sharey=True)
    for axes, group in zip(panels, groups, strict=True):
        part = [{**row, "along_ms": own[_step(row)]} for row in rows if row["group"] == group]
        for place, name in enumerate(names):
            _points(axes, [row for row in part if row["predictor"] == name], place, names[name])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", title=PANELS[group])
        ticks = _round_numbers([row["along_ms"] for row in part])
        axes.set_xticks(ticks, labels=[f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(linewidth=0.3)
    panels[0].set(**_ratio_axis([1 + row["error"] / 100 for row in rows]))
    figure.supylabel("predicted / measured", fontsize=10)
    figure.supxlabel(f"predicted by {names[judged(results)]}, ms", fontsize=10)
    legend(figure, panels)
    return figure


def _ratio_axis(ratios: Sequence[float]) -> dict[str, Any]:
    """Limits and ticks that hold all ratios, and factors of 2 in any case."""
    low, high = min(0.5, *ratios) / 1.1, 1.1 * max(2.0, *ratios)
    ticks = [tick for tick in RATIOS if low <= tick <= high]
    return {"ylim": (low, high), "yticks": ticks, "yticklabels": [f"{tick:g}" for tick in ticks]}


def _step(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["fold"], *step_of(row)


def _round_numbers(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around values."""
    steps = [step * 10.0**power for power in range(-4, 8) for step in (1, 2, 5)]
    near = [step for step in steps if min(values) / 2 <= step <= 2 * max(values)]
    return near if len(near) <= TICKS else [step for step in near if np.log10(step).is_integer()]


def _points(axes: Axes, rows: Rows, place: int, title: str) -> None:
    """A point a step; of several trainings their mean."""
    errors: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        errors.setdefault((*_step(row), row["along_ms"]), []).append(row["error"])
    ratios = [1 + float(np.mean(part)) / 100 for part in errors.values()]
    look: dict[str, Any] = {"markersize": 4.5 if place == 0 else 3.2, "zorder": 3 - 0.1 * place, **style(place)}
    axes.plot([key[-1] for key in errors], ratios, linestyle="", label=title, **look)


def gpus(results: Results) -> Figure:
    """Mean error of whole models by GPU and predictor; a dash is the worst row."""
    rows, names = results["models"]["by_gpu"], titles(results)
    order = _gpus(results, rows)
    figure, (axes,) = canvas(1, 1, max(5.2, 1.3 * len(order)), 3.6)
    width = 0.84 / len(names)
    for place, (name, title) in enumerate(names.items()):
        shift = width * (place - (len(names) - 1) / 2)
        places = [(order.index(row["gpu"]) + shift, row) for row in rows if row["predictor"] == name]
        _bars(axes, places, 0.92 * width, COLOURS[place % len(COLOURS)], title)
    held = {gpu for fold in results["declared"]["folds"] for gpu in fold["held_out"]}
    labels = [f"{gpu}\n({'held out' if gpu in held else 'trained'})" for gpu in order]
    axes.set_xticks(range(len(order)), labels=labels, fontsize=SMALL)
    axes.set(ylabel="mean error of whole models, %", xlim=(-0.6, len(order) - 0.4))
    axes.set_ylim(0, 1.15 * min(CUT, max(row["worst"] for row in rows)))
    legend(figure, [axes])
    return figure


def _bars(
    axes: Axes, places: Sequence[tuple[float, Mapping[str, float]]], width: float, colour: str, title: str
) -> None:
    """Means as bars, worst steps as dashes; what lies beyond the axis is written out."""
    means = [min(error["mean"], CUT) for _, error in places]
    axes.bar([x for x, _ in places], means, width, color=colour, label=title)
    for x, error in places:
        if error["worst"] <= CUT:
            axes.plot([x], [error["worst"]], "_", color=colour, markersize=6)
        if error["mean"] > CUT:
            axes.text(x, CUT, f" {error['mean']:.0f}", ha="center", va="bottom", fontsize=SMALL, rotation=90)


FIGURES = {
    "errors.png": Drawing(
        errors,
        "Signed errors of single kernels on held-out GPUs: half of the rows lie in the box, nine tenths between the "
        "whiskers, both cut off at 60 %. No box: no rows.",
        "kernels",
        "kernels.cells",
    ),
    "predictors.png": Drawing(
        predictors,
        "Mean error of single kernels on held-out GPUs, each GPU counted once; a line is the spread over seeds. Bars "
        "end at the axis, their figures do not.",
        "kernels",
        "kernels.by_kind",
    ),
    "predicted.png": Drawing(
        predicted,
        "Predicted against measured, a sample of kernels on held-out GPUs; thin lines are 20 % off.",
        "kernels",
        "kernels.sample",
    ),
    "calibration.png": Drawing(
        calibration,
        "How many measurements lie within intervals. 90 % is what predictions state; other levels are that interval "
        "scaled as a normal distribution's would be. Grey: 85 to 95 %.",
        "kernels",
        "kernels.calibration",
    ),
    "roofline.png": Drawing(
        roofline,
        "The same sample under each held-out GPU's datasheet roofline (float32), measured and predicted. FLOP: the "
        "least that do the work, Winograd's of convolutions that it can compute.",
        "kernels",
        "kernels.sample",
    ),
    "few-shot.png": Drawing(
        few_shot,
        "Mean error after some kernels of the held-out GPU were measured and made known. Colours: planned.",
        "few_shot_curve",
        "few_shot_curve",
    ),
    "gpus.png": Drawing(
        gpus,
        "Mean error of whole models by GPU; a dash is the worst row; bars beyond the axis carry their figure.",
        "models",
        "models.by_gpu",
    ),
    "models.png": Drawing(
        models,
        "Whole models: every predictor over what was measured, along the first one's prediction.",
        "models",
        "models.rows",
    ),
}
"""In the order of the report, by file name. A figure of one predictor alone is not among those of ``predictors``."""
