"""Whole models: our estimates beside published predictions for the same measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.experiments.declare import Split

STEP = ("gpu", "model", "mode", "batch", "seq_len")
PREDICTORS = {
    "ours": "this project",
    "neusight": "NeuSight",
    "habitat": "Habitat",
    "li": "Li et al.",
    "roofline": "roofline",
}
"""Columns of predictions and their names; all but ours as published with the measurements."""

Rows = Sequence[Mapping[str, Any]]


def compared_models(latency: Path, configs: Path, published: Path, split: Split, predictor: Predictor) -> Rows:
    """One row a measured step on a single GPU of the split that the published file covers.

    Returns:
        gpu, model, mode, batch, seq_len, group (training, held_out or other_vendor), and milliseconds: measured, low,
        high, and one a predictor, None where it says nothing.

    Raises:
        DataError: a file is missing or foreign, or no row is covered.
    """
    from neusight.evaluation import evaluate_models

    said = read_published(published)
    group = {gpu: name for name in ("training", "held_out", "other_vendor") for gpu in getattr(split, name)}
    found = evaluate_models(latency, configs, predictor, gpus=tuple(group))["rows"]
    rows = [
        {**{key: row[key] for key in STEP}, "group": group[row["gpu"]], **_figures(row, said[step])}
        for row in found
        if (step := tuple(row[key] for key in STEP)) in said
    ]
    if not rows:
        raise DataError(f"{published} covers no row of {latency}: give the predictions for those measurements")
    return sorted(rows, key=lambda row: tuple(row[key] for key in STEP))


def read_published(path: Path) -> dict[tuple[Any, ...], dict[str, float | None]]:
    """Published predictions [ms] of single-GPU eager steps, by (gpu, model, mode, batch, seq_len).

    Raises:
        DataError: no such file, or columns are missing.
    """
    import pandas as pd

    columns = [f"{name}_ms" for name in PREDICTORS if name != "ours"]
    try:
        frame = pd.read_parquet(path, columns=[*STEP, "option", *columns])
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read published predictions from {path}: {' '.join(str(error).split())}") from None
    single = frame[frame["option"].fillna("") == ""]
    return {
        tuple(row[key] for key in STEP): {name: _number(row[name]) for name in columns}
        for row in single.to_dict("records")
    }


def _number(value: Any) -> float | None:
    return float(value) if value == value else None


def _figures(row: Mapping[str, Any], said: Mapping[str, float | None]) -> dict[str, float | None]:
    low, high = row["interval_ms"]
    return {"measured_ms": row["measured_ms"], "low_ms": low, "high_ms": high, "ours_ms": row["predicted_ms"], **said}


def summarise_models(rows: Rows, split: Split) -> dict[str, Any]:
    """Errors in percent of every predictor: ``all`` but the other vendor's, ``held_out``, ``training``, by GPU."""
    ours = [row for row in rows if row["group"] != "other_vendor"]
    groups: dict[str, Rows] = {"all": ours}
    groups |= {name: [r for r in rows if r["group"] == name] for name in ("held_out", "training", "other_vendor")}
    gpus = [*split.training, *split.held_out, *split.other_vendor]
    by_gpu = {gpu: [row for row in rows if row["gpu"] == gpu] for gpu in gpus}
    return {
        "rows": list(rows),
        "groups": {name: model_errors(part) for name, part in groups.items() if part},
        "by_gpu": {name: model_errors(part) for name, part in by_gpu.items() if part},
    }


def model_errors(rows: Rows) -> dict[str, Any]:
    """Mean, worst and mean signed error in percent of each predictor over the rows that it covers, and ``inside``:
    share of rows within our 90 % interval.
    """
    inside = [row["low_ms"] <= row["measured_ms"] <= row["high_ms"] for row in rows]
    found = {name: signed_errors(rows, f"{name}_ms") for name in PREDICTORS}
    return {"count": len(rows), "inside": 100 * float(np.mean(inside)), "predictors": found}


def signed_errors(rows: Rows, column: str) -> dict[str, Any] | None:
    """count, mean, worst and bias (mean signed error) in percent of rows that ``column`` predicts; None without any."""
    signed = [100 * (row[column] / row["measured_ms"] - 1) for row in rows if row[column] is not None]
    if not signed:
        return None
    return {
        "count": len(signed),
        "mean": float(np.mean(np.abs(signed))),
        "worst": float(np.max(np.abs(signed))),
        "bias": float(np.mean(signed)),
    }
