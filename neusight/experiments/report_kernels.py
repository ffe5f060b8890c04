"""The report's words and tables on single kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neusight.experiments.canvas import gpus_in, judged, kinds_in, titles
from neusight.experiments.kernel_summary import main_group
from neusight.experiments.markdown import figure, table, wrapped

Results = Mapping[str, Any]
Cells = Sequence[Mapping[str, Any]]


def kernels(results: Results) -> list[str]:
    """Error, coverage and width by GPU and kind; beyond that every predictor by kind."""
    found = results["kernels"]
    cells = [cell for cell in found["cells"] if cell["predictor"] == judged(results)]
    own = [row for row in found["by_kind"] if row["predictor"] == judged(results)]
    main = main_group(cells)
    parts = [
        "## Single kernels",
        wrapped(
            f"Mean error of {titles(results)[judged(results)]} in percent, on rows of GPUs that were held out. "
            "mean: over those GPUs, each counted once; roofline: max(FLOP / peak, compulsory bytes / DRAM bandwidth) "
            "as prediction."
        ),
        _matrix(results, [cell for cell in cells if cell["group"] == main], _summaries(own, main)),
    ]
    if main == "held_out" and any(cell["group"] == "other_vendor" for cell in cells):
        others = [cell for cell in cells if cell["group"] == "other_vendor"]
        parts += ["Another vendor's:", _matrix(results, others, _summaries(own, "other_vendor"))]
    parts.append(_of_gpus(results, cells))
    if all(cell["inside"] is not None for cell in cells):
        parts += _intervals(results, cells)
    if len(results["predictors"]) > 1:
        parts += _predictors(results, main)
    return parts


def _matrix(results: Results, cells: Cells, summaries: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """A row a GPU, a column a kind, then rows of summaries."""
    kinds = kinds_in(cells)
    rows = [(gpu, *(_cell(cells, gpu, kind, "mape") for kind in kinds)) for gpu in gpus_in(results, cells)]
    rows += [(name, *(said.get(kind, "") for kind in kinds)) for name, said in summaries]
    return table(("gpu", *kinds), rows)


def _cell(cells: Cells, gpu: str, kind: str, key: str, form: str = ".1f") -> str:
    """The figure of a GPU and a kind; of several folds the first."""
    found = (cell[key] for cell in cells if (cell["gpu"], cell["kind"]) == (gpu, kind))
    return figure(next(found, None), form)


def _summaries(rows: Cells, group: str) -> list[tuple[str, dict[str, str]]]:
    """mean, worst and roofline of a group by kind."""
    part = [row for row in rows if row["group"] == group]
    lines = {"**mean**": "mean", "**worst GPU**": "worst", "roofline": "roofline"}
    if all(row["gpus"] == 1 for row in part):
        lines = {"roofline": "roofline"}
    return [(name, {row["kind"]: f"{row[key]:.1f}" for row in part}) for name, key in lines.items()]


def _of_gpus(results: Results, cells: Cells) -> str:
    """Rows, median error and bias, for whoever looks closer."""
    kinds = kinds_in(cells)
    rows = [(gpu, *(_shape(cells, gpu, kind) for kind in kinds)) for gpu in gpus_in(results, cells)]
    said = wrapped("Median error and, in brackets, mean signed error (below zero: predicted too fast), percent:")
    return f"{said}\n\n{table(('gpu', *kinds), rows)}"


def _shape(cells: Cells, gpu: str, kind: str) -> str:
    found = next((cell for cell in cells if (cell["gpu"], cell["kind"]) == (gpu, kind)), None)
    return f"{found['median_ape']:.1f} ({found['bias']:+.1f})" if found else ""


def _intervals(results: Results, cells: Cells) -> list[str]:
    kinds = kinds_in(cells)
    rows = [(gpu, *(_inside(cells, gpu, kind) for kind in kinds)) for gpu in gpus_in(results, cells)]
    text = (
        "Percent of rows within the 90 % interval and, in brackets, the median of its width (high less low, in percent "
        "of the prediction):"
    )
    return ["### Intervals", wrapped(text), table(("gpu", *kinds), rows)]


def _inside(cells: Cells, gpu: str, kind: str) -> str:
    found = next((cell for cell in cells if (cell["gpu"], cell["kind"]) == (gpu, kind)), None)
    return f"{found['inside']:.0f} ({found['width']:.0f})" if found else ""


def _predictors(results: Results, group: str) -> list[str]:
    """Every predictor by kind: mean over GPUs, its spread over seeds, and the worst GPU."""
    rows = [row for row in results["kernels"]["by_kind"] if row["group"] == group]
    kinds, names = kinds_in(rows), titles(results)
    shown = []
    for name in dict.fromkeys(row["predictor"] for row in rows):
        said = {row["kind"]: row for row in rows if row["predictor"] == name}
        shown.append((names[name], *(_spread(said[kind]) if kind in said else "" for kind in kinds)))
    text = (
        "Mean error over held-out GPUs in percent, in brackets the worst GPU's. Of several seeds: the mean of all, and "
        "from the least to the largest."
    )
    return ["### Every predictor", wrapped(text), table(("predictor", *kinds), shown)]


def _spread(row: Mapping[str, Any]) -> str:
    low, high = row["spread"]
    seeds = f", {low:.1f}–{high:.1f}" if high > low else ""
    return f"{row['mean']:.1f} ({row['worst']:.1f}{seeds})"


def few_shot(results: Results) -> list[str]:
    """Mean error by kind against measured kernels, over GPUs, with the worst GPU: a table a design."""
    found = results["few_shot_curve"]["by_kind"]
    parts = [
        "## With some kernels of the GPU measured",
        wrapped(
            "Mean error in percent after so many kernels of the held-out GPU, of all kinds together, were measured and "
            "made known, on its other rows; over GPUs, in brackets the worst. Intervals and single GPUs stand in "
            "`results.json`."
        ),
    ]
    for design, said in DESIGNS.items():
        rows = [row for row in found if row["design"] == design]
        if rows:
            parts += [said, _curve(rows)]
    return parts


DESIGNS = {
    "plan": "Kernels chosen by `neusight calibrate plan`, before any was measured:",
    "random": "Kernels drawn at random:",
}


def _curve(found: Cells) -> str:
    kinds = kinds_in(found)
    at = {(row["kind"], row["points"]): f"{row['mean']:.1f} ({row['worst']:.1f})" for row in found}
    rows = [(str(points), *(at[kind, points] for kind in kinds)) for points in sorted({p for _, p in at})]
    return table(("kernels", *kinds), rows)
