"""The oracle: whole models summed from operators that were measured alone, on the same GPU.

It tells what a kernel predictor without any error of its own would reach, since kernels behave otherwise in a row
than alone. Models of identical layers had one layer measured, so its operators count once a layer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.experiments.model_step import STEP, Rows, error_summary, signed_error, step_of

if TYPE_CHECKING:
    import pandas as pd

    from neusight.experiments.declare import Split

_LAYER = re.compile(r"(?:^|\.)0\.")
_NO_KERNEL = ("<built-in function getitem>", "<built-in function getattr>", "size")
_TIMES = ["forward_ms", "backward_ms", "accumulate_ms"]


def summed_operators(operators: Path, latency: Path, configs: Path, split: Split) -> Rows:
    """One row a step whose operators were measured layer by layer: gpu … seq_len, and in errors the sum's, in percent.

    Raises:
        DataError: a file is missing or foreign, or nothing can be summed.
    """
    import pandas as pd

    from neusight.datasets import load_models

    try:
        frame = pd.read_parquet(operators)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read operators from {operators}: {' '.join(str(error).split())}") from None
    steps = {step: part.sort_values("index") for step, part in frame.groupby(list(STEP))}
    measured = load_models(latency)
    measured = measured[(measured["option"] == "") & measured["gpu"].isin([*split.training, *split.held_out])]
    rows = []
    for record in measured.to_dict("records"):
        step = step_of(record)
        layers = layer_count(configs / f"{record['model']}.json")
        if step in steps and layers:
            missed = signed_error(sum_of_step(steps[step], layers), record["e2e_ms"])
            rows.append({**{key: record[key] for key in STEP}, "errors": {"operators": missed}})
    if not rows:
        raise DataError(f"{operators} has no step of {latency} whose layers can be counted")
    return sorted(rows, key=step_of)


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


def summarise_operators(rows: Rows, estimates: Rows = ()) -> dict[str, Any]:
    """Errors in percent of the sums, over all steps, by mode and by GPU, and of our estimates of the same steps.

    Args:
        rows: what ``summed_operators`` found.
        estimates: rows with our errors; a group that they do not cover wholly has None for ours.
    """
    ours = {step_of(row): row["errors"]["ours"] for row in estimates}
    joined = [{**row, "errors": {**row["errors"], "ours": ours.get(step_of(row))}} for row in rows]
    groups = {"all": joined}
    for key in ("mode", "gpu"):
        for name in dict.fromkeys(row[key] for row in joined):
            groups[name] = [row for row in joined if row[key] == name]
    return {"rows": list(rows), "groups": {name: _both(part) for name, part in groups.items()}}


def _both(rows: Rows) -> dict[str, Any]:
    covered = all(row["errors"]["ours"] is not None for row in rows)
    ours = error_summary(rows, "ours") if covered else None
    return {"count": len(rows), "operators": error_summary(rows, "operators"), "ours": ours}
