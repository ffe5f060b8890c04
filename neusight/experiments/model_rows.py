"""Whole models: every predictor's errors on the same measured steps, beside those of published predictions.

Rows say how far predictions miss, in percent: neither what was measured nor what others predicted goes any further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError

if TYPE_CHECKING:
    from neusight.experiments.declare import Data
    from neusight.experiments.entrants import Entrant

STEP = ("gpu", "model", "mode", "batch", "seq_len")
PUBLISHED = {
    "published:neusight": "NeuSight (published)",
    "published:habitat": "Habitat (published)",
    "published:li": "Li et al. (published)",
    "published:roofline": "roofline (published)",
}
"""Predictors whose figures came with the measurements, and their names."""

Rows = Sequence[Mapping[str, Any]]
Record = Mapping[Any, Any]


def measured_steps(data: Data, gpus: Sequence[str]) -> list[Record]:
    """Rows of ``load_models`` on a single GPU, eager, of models with a configuration; of those, where predictions were
    published, the ones that they cover.

    Raises:
        DataError: a file is missing or foreign, or no row is left.
    """
    from neusight.datasets import load_models

    frame = load_models(data.path("latency"))
    frame = frame[(frame["option"] == "") & frame["gpu"].isin(list(gpus))]
    records = [r for r in frame.to_dict("records") if config_of(data, r).is_file()]
    if data.published is not None:
        covered = read_published(data.path("published"))
        records = [r for r in records if step_of(r) in covered]
    if not records:
        raise DataError(
            f"{data.path('latency')} has no step on {', '.join(gpus)} to compare: correct gpus or published"
        )
    return sorted(records, key=step_of)


def config_of(data: Data, record: Record) -> Path:
    """The configuration of a row's model."""
    return data.path("configs") / f"{record['model']}.json"


def step_of(row: Record) -> tuple[Any, ...]:
    """What identifies a step: gpu, model, mode, batch, seq_len."""
    return tuple(row[key] for key in STEP)


def read_published(path: Path) -> dict[tuple[Any, ...], dict[str, float | None]]:
    """Published predictions [ms] of single-GPU eager steps, by ``step_of``, then by predictor.

    Raises:
        DataError: no such file, or columns are missing.
    """
    import pandas as pd

    columns = {name: f"{name.removeprefix('published:')}_ms" for name in PUBLISHED}
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


def model_rows(data: Data, groups: Mapping[str, str], entrants: Sequence[Entrant]) -> list[dict[str, Any]]:
    """One row a measured step.

    Args:
        data: where the measurements lie.
        groups: GPU to its group: training, held_out or other_vendor.
        entrants: who predicts; the first one's prediction and interval are kept.

    Returns:
        gpu, model, mode, batch, seq_len, group, predicted_ms, low_ms, high_ms, inside (whether the measured latency
        lies between those), and errors: signed, in percent, by label, None where a predictor says nothing.

    Raises:
        DataError: as ``measured_steps``.
    """
    said = read_published(data.path("published")) if data.published is not None else {}
    rows = []
    for record in measured_steps(data, tuple(groups)):
        forecasts = {entrant.label: entrant.step(record, config_of(data, record)) for entrant in entrants}
        first, measured = forecasts[entrants[0].label], float(record["e2e_ms"])
        predicted = {name: forecast.latency_ms for name, forecast in forecasts.items()} | said.get(step_of(record), {})
        row = {**{key: record[key] for key in STEP}, "group": groups[record["gpu"]]}
        row |= {"predicted_ms": first.latency_ms, "low_ms": first.low_ms, "high_ms": first.high_ms}
        row["inside"] = None if first.low_ms is None else first.low_ms <= measured <= (first.high_ms or np.inf)
        row["errors"] = {n: None if ms is None else signed_error(ms, measured) for n, ms in predicted.items()}
        rows.append(row)
    return rows


def signed_error(predicted: float, measured: float) -> float:
    """By how many percent a prediction misses: below zero where it is too fast."""
    return 100 * (predicted / measured - 1)


def summarise_models(rows: Rows) -> dict[str, Any]:
    """Errors in percent of every predictor: ``all`` but another vendor's, ``held_out``, ``training``, by GPU."""
    groups: dict[str, Rows] = {"all": [row for row in rows if row["group"] != "other_vendor"]}
    groups |= {name: [r for r in rows if r["group"] == name] for name in ("held_out", "training", "other_vendor")}
    by_gpu = {gpu: [row for row in rows if row["gpu"] == gpu] for gpu in dict.fromkeys(row["gpu"] for row in rows)}
    return {
        "groups": {name: model_errors(part) for name, part in groups.items() if part},
        "by_gpu": {name: model_errors(part) for name, part in by_gpu.items()},
    }


def model_errors(rows: Rows) -> dict[str, Any]:
    """count, ``inside`` (percent of rows within the interval of the first predictor), width (median of the interval
    over the prediction, in percent), and by predictor its errors: of several trainings all together, with their spread.
    """
    stated = [row for row in rows if row["inside"] is not None]
    widths = [100 * (row["high_ms"] - row["low_ms"]) / row["predicted_ms"] for row in stated]
    return {
        "count": len(rows),
        "inside": 100 * float(np.mean([row["inside"] for row in stated])) if stated else None,
        "width": float(np.median(widths)) if stated else None,
        "predictors": {name: error_summary(rows, name) for name in names_in(rows)},
    }


def names_in(rows: Rows) -> list[str]:
    """Names of the predictors that have errors in rows, in their order; labels of several trainings are one name."""
    return list(dict.fromkeys(name_of(label) for row in rows for label in row["errors"]))


def name_of(label: str) -> str:
    """A predictor's name from the label of one of its trainings: ``neusight-paper/3`` is of ``neusight-paper``."""
    return label.partition("/")[0]


def errors_of(row: Mapping[str, Any], name: str) -> list[float]:
    """Errors of all trainings of a predictor in a row."""
    return [error for label, error in row["errors"].items() if name_of(label) == name and error is not None]


def error_summary(rows: Rows, name: str) -> dict[str, Any] | None:
    """count, mean, worst, bias (mean signed error) in percent of a predictor, and spread (least and largest mean of its
    trainings); None where it has no errors.
    """
    found = [[row["errors"].get(label) for row in rows] for label in _labels(rows, name)]
    trainings = [[error for error in errors if error is not None] for errors in found]
    means = [float(np.mean(np.abs(errors))) for errors in trainings if errors]
    if not means:
        return None
    signed = [error for errors in trainings for error in errors]
    return {
        "count": len(trainings[0]),
        "mean": float(np.mean(np.abs(signed))),
        "worst": float(np.max(np.abs(signed))),
        "bias": float(np.mean(signed)),
        "spread": [min(means), max(means)],
    }


def _labels(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(label for row in rows for label in row["errors"] if name_of(label) == name))
