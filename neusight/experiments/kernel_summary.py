"""Errors of single kernels in few figures: by GPU and kind, averaged over GPUs, calibration, and a sample to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

SAMPLED = 2000
"""Single predictions that results keep, at most."""
QUANTILES = (5, 25, 50, 75, 95)
NOMINAL = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
STATED = 90
"""The interval that predictors state, in percent."""
Cells = Sequence[Mapping[str, Any]]


def kernel_cells(rows: pd.DataFrame, groups: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """One entry a fold, predictor, GPU and kind of kernel; errors in percent.

    Args:
        rows: of ``predicted_rows``, with ``fold``.
        groups: by fold and GPU ``held_out`` or ``other_vendor``.

    Returns:
        fold, gpu, group, kind, predictor, count, mape, median_ape, bias, quantiles (of signed errors, at
        ``QUANTILES``), roofline_mape, inside (percent of rows within the 90 % interval), width (median of its width
        over the prediction, in percent); of several trainings all pooled, and spread (least and largest mape).
    """
    keys = ["fold", "gpu", "kind", "predictor"]
    found = []
    for names, part in rows.groupby(keys, sort=False):
        said = dict(zip(keys, names, strict=True))
        found.append({**said, "group": groups[said["fold"], said["gpu"]], **kernel_errors(part)})
    return found


def kernel_errors(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors in percent of one group of rows of one predictor."""
    signed = 100 * (rows["predicted"] / rows["measured"] - 1)
    by_seed = signed.abs().groupby(rows["seed"]).mean()
    return {
        "count": len(rows) // len(by_seed),
        "mape": float(signed.abs().mean()),
        "median_ape": float(signed.abs().median()),
        "bias": float(signed.mean()),
        "quantiles": [float(q) for q in np.percentile(signed, QUANTILES)],
        "roofline_mape": float(100 * (rows["roofline"] / rows["measured"] - 1).abs().mean()),
        "spread": [float(by_seed.min()), float(by_seed.max())],
        **_interval(rows),
    }


def _interval(rows: pd.DataFrame) -> dict[str, float | None]:
    if rows["low"].isna().any():
        return {"inside": None, "width": None}
    inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
    width = (rows["high"] - rows["low"]) / rows["predicted"]
    return {"inside": float(100 * inside.mean()), "width": float(100 * width.median())}


def averaged(cells: Cells) -> list[dict[str, Any]]:
    """By group, predictor and kind: every GPU counts once, however many rows it has.

    Returns:
        group, predictor, kind, gpus (how many), mean, worst, worst_gpu, roofline, inside (over all rows) and width.
    """
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        found.setdefault((cell["group"], cell["predictor"], cell["kind"]), []).append(cell)
    keys = ("group", "predictor", "kind")
    return [{**dict(zip(keys, names, strict=True)), **_over_gpus(part)} for names, part in found.items()]


def _over_gpus(cells: Cells) -> dict[str, Any]:
    worst = max(cells, key=lambda cell: cell["mape"])
    stated = all(cell["inside"] is not None for cell in cells)
    return {
        "gpus": len(cells),
        "mean": float(np.mean([cell["mape"] for cell in cells])),
        "worst": worst["mape"],
        "worst_gpu": worst["gpu"],
        "roofline": float(np.mean([cell["roofline_mape"] for cell in cells])),
        "spread": [float(np.mean([cell["spread"][end] for cell in cells])) for end in (0, 1)],
        "inside": _weighted(cells, "inside") if stated else None,
        "width": float(np.median([cell["width"] for cell in cells])) if stated else None,
    }


def _weighted(cells: Cells, key: str) -> float:
    return float(np.average([cell[key] for cell in cells], weights=[cell["count"] for cell in cells]))


def main_group(cells: Cells) -> str:
    """``held_out``, or ``other_vendor`` where all held-out GPUs are another vendor's."""
    return "held_out" if any(cell["group"] == "held_out" for cell in cells) else "other_vendor"


def calibration(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Share of rows within intervals of other levels, in percent: kind, nominal, found. Rows have intervals.

    Predictors state one interval. Those of other levels are taken to be as much narrower or wider, in the logarithm and
    on each side, as a normal distribution's would be.
    """
    return [
        {"kind": kind, "nominal": level, "found": float(100 * (part <= _scale(level)).mean())}
        for kind, part in interval_use(rows).groupby(rows["kind"])
        for level in NOMINAL
    ]


def interval_use(rows: pd.DataFrame) -> pd.Series:
    """How far a measurement lies from the prediction, over how far the interval reaches on that side (logarithms)."""
    missed = np.log(rows["measured"] / rows["predicted"])
    reach = np.log(rows["high"].where(missed > 0, rows["low"]) / rows["predicted"]).abs()
    return missed.abs() / reach.clip(lower=1e-9)


def _scale(level: float) -> float:
    normal = NormalDist()
    return normal.inv_cdf(0.5 + level / 200) / normal.inv_cdf(0.5 + STATED / 200)


def sample(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Single predictions to keep: of every fold, GPU and kind alike many, chosen by the kernel's hash.

    The same kernels are chosen again in any later run, so that runs can be compared row by row.
    """
    groups = rows.groupby(["fold", "gpu", "kind"], sort=False)
    each = max(1, SAMPLED // groups.ngroups)
    chosen = (row for _, part in groups for row in part.sort_values("id").head(each).to_dict("records"))
    return [_kept(row) for row in chosen]


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """What results hold of a row: no latency that was measured."""
    return {
        **{key: row[key] for key in ("fold", "gpu", "kind", "op", "id", "flops", "bytes")},
        **{f"{key}_ms": row[key] for key in ("predicted", "low", "high")},
        "error": 100 * (row["predicted"] / row["measured"] - 1),
    }
