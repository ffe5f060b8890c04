"""Whole models: our estimates beside published predictions for the same measured steps.

Rows say how far predictions miss, in percent: neither what was measured nor what others predicted goes any further.
"""

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
        gpu, model, mode, batch, seq_len, group (training, held_out or other_vendor), our prediction and interval
        (ours_ms, low_ms, high_ms), inside (whether the measured latency lies in it), and errors: signed, in percent,
        one a predictor, None where it says nothing.

    Raises:
        DataError: a file is missing or foreign, or no row is covered.
    """
    from neusight.evaluation import evaluate_models

    said = read_published(published)
    group = {gpu: name for name in ("training", "held_out", "other_vendor") for gpu in getattr(split, name)}
    found = evaluate_models(latency, configs, predictor, gpus=tuple(group))["rows"]
    rows = [
        {**{key: row[key] for key in STEP}, "group": group[row["gpu"]], **_judged(row, said[step_of(row)])}
        for row in found
        if step_of(row) in said
    ]
    if not rows:
        raise DataError(f"{published} covers no row of {latency}: give the predictions for those measurements")
    return sorted(rows, key=step_of)


def step_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What identifies a step: gpu, model, mode, batch, seq_len."""
    return tuple(row[key] for key in STEP)


def read_published(path: Path) -> dict[tuple[Any, ...], dict[str, float | None]]:
    """Published predictions [ms] of single-GPU eager steps, by ``step_of``, then by predictor.

    Raises:
        DataError: no such file, or columns are missing.
    """
    import pandas as pd

    columns = {name: f"{name}_ms" for name in PREDICTORS if name != "ours"}
    try:
        frame = pd.read_parquet(path, columns=[*STEP, "option", *columns.values()])
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read published predictions from {path}: {' '.join(str(error).split())}") from None
    single = frame[frame["option"].fillna("") == ""]
    return {
        step_of(row): {name: _number(row[column]) for name, column in columns.items()}
        for row in single.to_dict("records")
    }


def _number(value: Any) -> float | None:
    return float(value) if value == value else None


def _judged(row: Mapping[str, Any], said: Mapping[str, float | None]) -> dict[str, Any]:
    (low, high), ours, measured = row["interval_ms"], row["predicted_ms"], row["measured_ms"]
    predicted = {"ours": ours, **said}
    errors = {name: None if ms is None else signed_error(ms, measured) for name, ms in predicted.items()}
    return {"ours_ms": ours, "low_ms": low, "high_ms": high, "inside": low <= measured <= high, "errors": errors}


def signed_error(predicted: float, measured: float) -> float:
    """By how many percent a prediction misses: below zero where it is too fast."""
    return 100 * (predicted / measured - 1)


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
    found = {name: error_summary(rows, name) for name in PREDICTORS}
    return {"count": len(rows), "inside": 100 * float(np.mean([row["inside"] for row in rows])), "predictors": found}


def error_summary(rows: Rows, name: str) -> dict[str, Any] | None:
    """count, mean, worst and bias (mean signed error) in percent of rows with an error ``name``; None without any."""
    signed = [row["errors"][name] for row in rows if row["errors"][name] is not None]
    if not signed:
        return None
    return {
        "count": len(signed),
        "mean": float(np.mean(np.abs(signed))),
        "worst": float(np.max(np.abs(signed))),
        "bias": float(np.mean(signed)),
    }
