"""The oracle: whole models summed from operators that were measured alone, on the same GPU.

It tells what a kernel predictor without any error of its own would reach, since kernels behave otherwise in a row
than alone. Models of identical layers had one layer measured, so its operators count once a layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.experiments.model_rows import STEP, Record, Rows, config_of, signed_error, step_of

if TYPE_CHECKING:
    import pandas as pd

    from neusight.experiments.declare import Data

_LAYER = re.compile(r"(?:^|\.)0\.")
_NO_KERNEL = ("<built-in function getitem>", "<built-in function getattr>", "size")
_TIMES = ["forward_ms", "backward_ms", "accumulate_ms"]


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
    found = {}
    for record in measured[measured["option"] == ""].to_dict("records"):
        step, layers = step_of(record), _layers(data, record)
        if step in steps and layers:
            found[step] = signed_error(sum_of_step(steps[step], layers), record["e2e_ms"])
    if not found:
        raise DataError(f"{path} has no step of {data.path('latency')} whose layers can be counted: drop 'operators'")
    return found


def _layers(data: Data, record: Record) -> int | None:
    return layer_count(config_of(data, record))


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
    found = [{"by": "group", "name": "all", **_parts_summary(alike, label)}] if alike else []
    for key, part in (("group", covered), ("mode", alike), ("gpu", covered)):
        for name in dict.fromkeys(row[key] for row in part):
            chosen = [row for row in part if row[key] == name]
            found.append({"by": key, "name": name, **_parts_summary(chosen, label)})
    return found


def _parts_summary(rows: Rows, label: str) -> dict[str, Any]:
    series = {"total": [row["errors"][label] for row in rows]}
    series |= {part: [row["parts"][part] for row in rows] for part in ("operators", "composition")}
    return {"count": len(rows), **{name: _errors(errors) for name, errors in series.items()}}


def _errors(signed: list[float]) -> dict[str, float]:
    size = np.abs(signed)
    return {"mean": float(size.mean()), "worst": float(size.max()), "bias": float(np.mean(signed))}
