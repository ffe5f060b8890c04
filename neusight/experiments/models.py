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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_gpu
from neusight.errors import DataError
from neusight.evaluation.as_measured import changed_s, changes
from neusight.experiments.entrants import program_of
from neusight.experiments.kernels import scores
from neusight.kernels.conditions import Conditions
from neusight.measured.score import Scored

if TYPE_CHECKING:
    import pandas as pd

    from neusight.experiments.declare import Data
    from neusight.experiments.entrants import Entrant

STEP = ("gpu", "model", "mode", "batch", "seq_len")
COLUMNS = ("predicted", "low", "high", "measured")
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


def predicted_steps(data: Data, groups: Mapping[str, str], entrants: Sequence[Entrant], fold: str = "") -> Scored:
    """What every predictor says of every measured step, published ones too, in ms.

    Keys are those of ``STEP`` with fold, group, predictor, seed, and added: what steps of attention as measured add to
    the prediction, in percent of it (NaN of published predictions).

    Args:
        data: where the measurements lie.
        groups: GPU to its group: training, held_out or other_vendor.
        entrants: who predicts.
        fold: its name.

    Raises:
        DataError: as ``measured_steps``.
    """
    import pandas as pd

    published = read_published(data.path("published")) if data.published is not None else {}
    rows: list[dict[str, Any]] = []
    for record in measured_steps(data, tuple(groups)):
        keys = {key: record[key] for key in STEP} | {"fold": fold, "group": groups[record["gpu"]]}
        keys["measured"] = record["e2e_ms"]
        for entrant in entrants:
            added_ms = _added_ms(data, record, entrant)
            forecast = entrant.step(record, config_of(data, record)).longer_by(added_ms)
            ends = {"predicted": forecast.latency_ms, "low": forecast.low_ms, "high": forecast.high_ms}
            added = 100 * added_ms / forecast.latency_ms
            rows.append(keys | ends | {"predictor": entrant.name, "seed": entrant.seed, "added": added})
        rows += [
            keys | {"predictor": name, "seed": 0, "predicted": ms}
            for name, ms in published.get(step_of(record), {}).items()
            if ms is not None
        ]
    frame = pd.DataFrame(rows, columns=["fold", *STEP, "group", "predictor", "seed", "added", *COLUMNS])
    return Scored(frame.drop(columns=list(COLUMNS)), *(frame[name].to_numpy(float) for name in COLUMNS))


def _added_ms(data: Data, record: Record, entrant: Entrant) -> float:
    """What it predicts of steps of attention that were measured and that today's libraries lack, less of those that
    only today's have; see ``evaluation.as_measured``.
    """
    if data.operators is None:
        return 0.0
    device = load_gpu(record["gpu"])
    added = changes(data.path("operators"), record, program_of(record, config_of(data, record)).launches)
    alone = Conditions.requested(1)
    return 1e3 * sum(changed_s(added, lambda batch: entrant.kernels(batch, device, alone).latency_s).values())


def summarise_models(steps: Scored, judged: str) -> dict[str, Any]:
    """Errors of every predictor: ``scores`` by ``groups`` (``all`` but another vendor's, ``held_out``, ``training``,
    ``other_vendor``), ``by_gpu``, and ``by_model`` and mode over all but another vendor's, unless there is nothing
    else; ``adapted``: in how many steps attention as measured changes the judged prediction, and by what mean share.
    """
    alike = steps.where(group=("held_out", "training"))
    own = steps.where(predictor=judged)
    shares = np.abs(own.keys["added"].to_numpy(float))
    changed = shares[shares > 0]
    return {
        "groups": [{"group": "all", **row} for row in scores(alike, "predictor")] + scores(steps, "group", "predictor"),
        "by_gpu": scores(steps, "gpu", "predictor"),
        "adapted": {"rows": len(changed), "share": float(changed.mean()) if len(changed) else 0.0},
        "by_model": scores(alike if len(alike) else steps, "model", "mode", "predictor"),
    }


def kept_steps(steps: Scored, judged: str) -> list[dict[str, Any]]:
    """A row a prediction, without what was measured; what was predicted, its interval and whether that holds the
    measurement are those of the judged predictor alone.
    """
    names = ["fold", *STEP, "group", "predictor", "seed"]
    figures = zip(steps.predicted, steps.low, steps.high, steps.inside, steps.keys["added"], strict=True)
    rows = []
    for keys, error, (predicted, low, high, inside, added) in zip(
        steps.keys[names].to_dict("records"), steps.bias, figures, strict=True
    ):
        rows.append({**keys, "error": float(error)})
        if keys["predictor"] == judged:
            rows[-1] |= {"predicted_ms": float(predicted), "low_ms": float(low), "high_ms": float(high)}
            rows[-1] |= {"inside": None if np.isnan(inside) else bool(inside), "added": float(added)}
    return rows


def operator_sums(data: Data) -> dict[tuple[Any, ...], float]:
    """Milliseconds of the sum of a step's measured operators, by ``step_of``.

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
            sums[step] = sum_of_step(steps[step], layers)
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


def summarise_oracle(steps: Scored, sums: Mapping[tuple[Any, ...], float]) -> list[dict[str, Any]]:
    """How the error of a prediction comes about: ``total``, of ``operators`` (the prediction over the sum of measured
    operators) and of their ``composition`` (that sum over the measured step); a step's errors multiply:
    ``1 + total = (1 + operators) (1 + composition)``.

    Args:
        steps: one prediction a step.
        sums: of measured operators in ms, by ``step_of``.

    Returns:
        Mean, worst and mean signed error in percent of each on the steps that have a sum: an entry each for all but
        another vendor's, and by group, mode and GPU.
    """
    keys = [step_of(row) for row in steps.keys.to_dict("records")]
    covered = steps.take(np.array([key in sums for key in keys], dtype=bool))
    alike = covered.where(group=("held_out", "training"))
    groups = [("group", "all", alike)] if len(alike) else []
    for by, part in (("group", covered), ("mode", alike), ("gpu", covered)):
        groups += [(by, names[by], each) for names, each in part.groups(by, ordered=False)]
    return [{"by": by, "name": name, "count": len(part), **_parts(part, sums)} for by, name, part in groups]


def _parts(steps: Scored, sums: Mapping[tuple[Any, ...], float]) -> dict[str, dict[str, float]]:
    summed = np.array([sums[step_of(row)] for row in steps.keys.to_dict("records")])
    operators, composition = replace(steps, measured=summed), replace(steps, predicted=summed)
    parts = {"total": steps, "operators": operators, "composition": composition}
    return {
        name: {key: value for key, value in part.figures().items() if key in ("mean", "worst", "bias")}
        for name, part in parts.items()
    }
