"""Whole models: every predictor's errors on the same measured steps, beside those of published predictions.

Rows say how far predictions miss, in percent: neither what was measured nor what others predicted goes any further.

The oracle sums operators that were measured alone, on the same GPU: what a kernel predictor without any error would
reach, since kernels behave otherwise in a row than alone. Models of identical layers had one layer measured, so
that its operators count once a layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.evaluation.as_measured import changed_s, changes
from neusight.experiments.entrants import program_of
from neusight.kernels.conditions import Conditions

if TYPE_CHECKING:
    import pandas as pd

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

_LAYER = re.compile(r"(?:^|\.)0\.")
_NO_KERNEL = ("<built-in function getitem>", "<built-in function getattr>", "size")
_TIMES = ["forward_ms", "backward_ms", "accumulate_ms"]
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
        lies between those), added (percent of the prediction that steps of attention as measured add), and errors:
        signed, in percent, by label, None where a predictor says nothing.

    Raises:
        DataError: as ``measured_steps``.
    """
    published = read_published(data.path("published")) if data.published is not None else {}
    rows = []
    for record in measured_steps(data, tuple(groups)):
        added_ms = {entrant.label: _added_ms(data, record, entrant) for entrant in entrants}
        forecasts = {e.label: e.step(record, config_of(data, record)).longer_by(added_ms[e.label]) for e in entrants}
        first, measured = forecasts[entrants[0].label], float(record["e2e_ms"])
        predicted = {name: forecast.latency_ms for name, forecast in forecasts.items()} | published.get(
            step_of(record), {}
        )
        row = {**{key: record[key] for key in STEP}, "group": groups[record["gpu"]]}
        row |= {"predicted_ms": first.latency_ms, "low_ms": first.low_ms, "high_ms": first.high_ms}
        row["inside"] = None if first.low_ms is None else first.low_ms <= measured <= (first.high_ms or np.inf)
        row["errors"] = {n: None if ms is None else signed_error(ms, measured) for n, ms in predicted.items()}
        row["added"] = 100 * added_ms[entrants[0].label] / first.latency_ms
        rows.append(row)
    return rows


def _added_ms(data: Data, record: Record, entrant: Entrant) -> float:
    """What it predicts of steps of attention that were measured and that today's libraries lack, less of those that
    only today's have; see ``evaluation.as_measured``.
    """
    if data.operators is None:
        return 0.0
    device = load_device(record["gpu"])
    added = changes(data.path("operators"), record, program_of(record, config_of(data, record)).launches)
    alone = Conditions.requested(1)
    return 1e3 * sum(changed_s(added, lambda batch: entrant.kernels(batch, device, alone).latency_s).values())


def signed_error(predicted: float, measured: float) -> float:
    """By how many percent a prediction misses: below zero where it is too fast."""
    return 100 * (predicted / measured - 1)


def summarise_models(rows: Rows) -> dict[str, Any]:
    """Errors in percent of every predictor.

    Returns:
        ``groups``: ``all`` but another vendor's, ``held_out``, ``training``, ``other_vendor``; ``by_gpu``; and
        ``by_model``: model, mode and errors over all but another vendor's, unless there is nothing else;
        ``adapted``: in how many rows steps of attention as measured change the prediction, and by what mean share.
    """
    alike = [row for row in rows if row["group"] != "other_vendor"]
    groups: dict[str, Rows] = {"all": alike}
    groups |= {name: [r for r in rows if r["group"] == name] for name in ("held_out", "training", "other_vendor")}
    kinds = sorted({(row["model"], row["mode"]) for row in alike or rows})
    by_model = {kind: [row for row in alike or rows if (row["model"], row["mode"]) == kind] for kind in kinds}
    by_gpu = {gpu: [row for row in rows if row["gpu"] == gpu] for gpu in dict.fromkeys(row["gpu"] for row in rows)}
    return {
        "groups": {name: model_errors(part) for name, part in groups.items() if part},
        "by_gpu": {name: model_errors(part) for name, part in by_gpu.items()},
        "adapted": _changed(rows),
        "by_model": [{"model": m, "mode": mode, **model_errors(part)} for (m, mode), part in by_model.items()],
    }


def _changed(rows: Rows) -> dict[str, Any]:
    shares = [abs(row["added"]) for row in rows if row.get("added")]
    return {"rows": len(shares), "share": float(np.mean(shares)) if shares else 0.0}


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
    by_label = [[row["errors"].get(label) for row in rows] for label in _labels(rows, name)]
    trainings = [[error for error in errors if error is not None] for errors in by_label]
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


def oracle_errors(data: Data) -> dict[tuple[Any, ...], float]:
    """By how many percent the sum of a step's measured operators misses the measured step, by ``step_of``.

    Raises:
        DataError: a file is missing or foreign, or nothing can be summed.
    """
    import pandas as pd

    from neusight.datasets import load_models

    path = data.path("operators")
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read operators from {path}: {' '.join(str(error).split())}") from None
    steps = {step: part.sort_values("index") for step, part in frame.groupby(list(STEP))}
    measured = load_models(data.path("latency"))
    sums = {}
    for record in measured[measured["option"] == ""].to_dict("records"):
        step, layers = step_of(record), layer_count(config_of(data, record))
        if step in steps and layers:
            sums[step] = signed_error(sum_of_step(steps[step], layers), record["e2e_ms"])
    if not sums:
        raise DataError(f"{path} has no step of {data.path('latency')} whose layers can be counted: drop 'operators'")
    return sums


def layer_count(config: Path) -> int | None:
    """How many identical layers a model has; None where it is unknown or they differ (mixtures of experts)."""
    if not config.is_file():
        return None
    content = json.loads(config.read_text(encoding="utf-8"))
    if "num_sparse_encoder_layers" in content:
        return None
    return content.get("n_layer") or content.get("num_hidden_layers")


def sum_of_step(operators: pd.DataFrame, layers: int) -> float:
    """Milliseconds of a step: head and tail once, the measured layer ``layers`` times.

    An operator that runs no kernel (indexing, sizes) still shows the time of its call; that much is taken off every
    operator, since calls run ahead of the GPU.
    """
    call_ms = operators.loc[operators["target"].isin(_NO_KERNEL), "forward_ms"].median()
    beyond_ms = (operators[_TIMES].fillna(0.0) - (call_ms if call_ms == call_ms else 0.0)).clip(lower=0.0)
    times = np.where(_in_layer(operators), layers, 1)
    return float((beyond_ms.sum(axis=1).to_numpy() * times).sum())


def _in_layer(operators: pd.DataFrame) -> np.ndarray:
    """From the first operator of module 0 to the one before the next module outside of it, shape (n,)."""
    modules = operators["kind"].isin(["call_module", "get_attr"]).to_numpy()
    inside = modules & operators["target"].str.contains(_LAYER).to_numpy(bool)
    if not inside.any():
        return inside
    first, last = np.flatnonzero(inside)[[0, -1]]
    after = np.flatnonzero(modules & ~inside & (np.arange(len(inside)) > last))
    end = after[0] if len(after) else len(inside)
    positions = np.arange(len(inside))
    return (positions >= first) & (positions < end)


def with_oracle(rows: Rows, oracle: Mapping[tuple[Any, ...], float], label: str) -> list[dict[str, Any]]:
    """Rows of ``model_rows`` with ``parts``: how the error of a predictor comes about, in percent; None without oracle.

    operators is the prediction over the sum of measured operators, composition that sum over the measured step:
    ``1 + error = (1 + operators) (1 + composition)``.
    """
    return [{**row, "parts": _parts(row["errors"][label], oracle.get(step_of(row)))} for row in rows]


def _parts(error: float, composition: float | None) -> dict[str, float] | None:
    if composition is None:
        return None
    return {"operators": 100 * ((1 + error / 100) / (1 + composition / 100) - 1), "composition": composition}


def summarise_oracle(rows: Rows, label: str) -> list[dict[str, Any]]:
    """Mean, worst and mean signed error in percent of the prediction and of both its parts, on the steps that have
    them: an entry each for all but another vendor's, and by group, mode and GPU.
    """
    covered = [row for row in rows if row["parts"]]
    alike = [row for row in covered if row["group"] != "other_vendor"]
    summaries = [{"by": "group", "name": "all", **_parts_summary(alike, label)}] if alike else []
    for key, part in (("group", covered), ("mode", alike), ("gpu", covered)):
        for name in dict.fromkeys(row[key] for row in part):
            chosen = [row for row in part if row[key] == name]
            summaries.append({"by": key, "name": name, **_parts_summary(chosen, label)})
    return summaries


def _parts_summary(rows: Rows, label: str) -> dict[str, Any]:
    series = {"total": [row["errors"][label] for row in rows]}
    series |= {part: [row["parts"][part] for row in rows] for part in ("operators", "composition")}
    return {"count": len(rows), **{name: _errors(errors) for name, errors in series.items()}}


def _errors(signed: list[float]) -> dict[str, float]:
    size = np.abs(signed)
    return {"mean": float(size.mean()), "worst": float(size.max()), "bias": float(np.mean(signed))}
