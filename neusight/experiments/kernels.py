"""Single kernels of held-out GPUs: what every predictor says of every measured row, and its errors in few figures.

By GPU and kind, averaged over GPUs, calibration, a sample to keep, and errors after some kernels were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import to_batches
from neusight.datasets.conditions import conditions_of
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.evaluation.kernels import without_drift
from neusight.evaluation.scored import Scored, joined
from neusight.experiments.baselines import roofline_s
from neusight.experiments.entrants import Entrant, TileModelEntrant
from neusight.kernels.work import work_of

if TYPE_CHECKING:
    import pandas as pd

    from neusight.devices import DeviceSpec
    from neusight.experiments.declare import Declaration, FewShot
    from neusight.experiments.folds import Round
    from neusight.kernels import KernelBatch
    from neusight.kernels.conditions import Conditions

BY_OP = ("gemm", "row_reduction")
"""Families whose operators are different programs; the operators of others differ in their arithmetic alone."""
ID_DIGITS = 12
SAMPLED = 2000
"""Single predictions that results keep, at most."""
QUANTILES = (5, 25, 50, 75, 95)
NOMINAL = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
STATED = 90
"""The interval that predictors state, in percent."""
Cells = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Tested:
    """Measured rows of one GPU as kernels: ``facts`` has a row a measurement, ``batches`` with their positions in it
    and the conditions under which they were measured.

    Columns of ``facts``: gpu, family, op, kind, id (of the kernel), flops, bytes, roofline and measured (both ms).
    """

    device: DeviceSpec
    facts: pd.DataFrame
    batches: Sequence[tuple[KernelBatch, np.ndarray, Conditions]]


def tested_rows(frame: pd.DataFrame, gpu: str, split: str, families: Sequence[str]) -> Tested:
    """The rows of a GPU that are tested.

    Args:
        frame: of ``load_kernels``.
        gpu: id of the catalogue.
        split: as ``rows_of_split``.
        families: keep these; none given keeps all.

    Raises:
        DataError: no row is left.
    """
    keep = frame["gpu"] == gpu
    if families:
        keep &= frame["family"].isin(list(families))
    rows = rows_of_split(frame[keep], split)
    if rows.empty:
        raise DataError(f"no row of {gpu} in split '{split or 'any'}': hold out GPUs that the data have")
    device = load_device(gpu)
    batches = [(b, where, conditions_of(rows.iloc[where], b, device)) for b, where in to_batches(rows)]
    facts = rows[["gpu", "family", "op"]].assign(measured=rows["latency_ms"].to_numpy(float))
    facts["kind"] = np.where(facts["family"].isin(BY_OP), facts["op"], facts["family"])
    for batch, positions, _ in batches:
        for name, values in _facts(batch, device).items():
            facts.loc[positions, name] = values
    facts["id"] = _unique(facts["id"])
    return Tested(device, facts, batches)


def rows_of_split(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """Rows of a split, none if there are none; of families that were never split (no row of them is in it, though some
    of others are) all; "" keeps all rows.
    """
    chosen = frame["split"] == split
    whole = ~frame["family"].isin(frame.loc[chosen, "family"].unique()) & chosen.any()
    return (frame[chosen | whole] if split else frame).reset_index(drop=True)


def _facts(batch: KernelBatch, device: DeviceSpec) -> dict[str, Any]:
    work = work_of(batch)
    roofline_ms = 1e3 * roofline_s(batch, device)
    return {"id": kernel_ids(batch), "flops": work.flops, "bytes": work.bytes, "roofline": roofline_ms}


def kernel_ids(batch: KernelBatch) -> list[str]:
    """A short hash of each kernel: the same kernel has the same, in any run and on any GPU."""
    columns = [batch[name].astype(str) for name in sorted(batch.columns)]
    texts = (" ".join((batch.family, *fields)) for fields in zip(*columns, strict=True))
    return [sha256(text.encode()).hexdigest()[:ID_DIGITS] for text in texts]


def _unique(ids: pd.Series) -> pd.Series:
    """A kernel that was measured again has its turn behind its hash."""
    turn = ids.groupby(ids).cumcount()
    return ids.where(turn == 0, ids + "-" + (turn + 1).astype(str))


def predicted_rows(tested: Tested, entrant: Entrant, fold: str) -> Scored:
    """What a predictor says of measured rows, in ms. Keys are the facts with fold, predictor and seed, and without the
    launch ``execution`` and, measured, ``executed`` (NaN but where launches grew along the table).
    """
    parts = []
    for batch, positions, conditions in tested.batches:
        keys = tested.facts.iloc[positions].assign(fold=fold, predictor=entrant.name, seed=entrant.seed)
        forecast, measured = entrant.kernels(batch, tested.device, conditions), keys["measured"].to_numpy(float)
        keys = keys.assign(execution=np.nan, executed=np.nan)
        if forecast.execution_s is not None and forecast.bound_s is not None:
            alone = np.where(conditions.timing == "stream", measured, np.nan)
            executed = without_drift(batch["op"], positions, alone, 1e3 * forecast.bound_s)
            keys = keys.assign(execution=1e3 * forecast.execution_s, executed=executed)
        parts.append(forecast.scored(keys.reset_index(drop=True), 1e-3 * measured))
    return joined(parts)


def kernel_cells(rows: Scored, groups: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """One entry a fold, predictor, GPU and kind of kernel; errors in percent.

    Args:
        rows: of ``predicted_rows``.
        groups: by fold and GPU ``held_out`` or ``other_vendor``.

    Returns:
        fold, gpu, group, kind, predictor, count, mape, median_ape, bias, quantiles (of signed errors, at
        ``QUANTILES``), roofline_mape, inside (percent of rows within the 90 % interval), width (median of its width
        over the prediction, in percent), grown_mape (with each row's own launch, where launches grew
        along the table; None where none did); of several trainings all pooled, and spread (least and largest mape).
    """
    return [
        {**names, "group": groups[names["fold"], names["gpu"]], **kernel_errors(part)}
        for names, part in rows.groups("fold", "gpu", "kind", "predictor", ordered=False)
    ]


def kernel_errors(rows: Scored) -> dict[str, Any]:
    """Errors in percent of one group of rows of one predictor."""
    figures, by_seed = rows.figures(), [part["mean"] for part in rows.summary("seed")]
    return {
        "count": len(rows) // len(by_seed),
        "mape": figures["mean"],
        "median_ape": figures["median"],
        "bias": figures["bias"],
        "quantiles": [float(q) for q in np.percentile(rows.bias, QUANTILES)],
        "roofline_mape": float(100 * np.abs(rows.keys["roofline"].to_numpy(float) / rows.measured - 1).mean()),
        "spread": [min(by_seed), max(by_seed)],
        "grown_mape": _grown_mape(rows),
        "inside": figures.get("inside"),
        "width": figures.get("width"),
    }


def _grown_mape(rows: Scored) -> float | None:
    """Error of executions with the launch that each row had, as in cards of tile models."""
    execution, executed = (rows.keys[name].to_numpy(float) for name in ("execution", "executed"))
    if np.isnan(executed).all():
        return None
    error = np.abs((execution + rows.measured - executed) / rows.measured - 1)
    return float(100 * np.nanmean(error))


def averaged(cells: Cells) -> list[dict[str, Any]]:
    """By group, predictor and kind: every GPU counts once, however many rows it has.

    Returns:
        group, predictor, kind, gpus (how many), mean, worst, worst_gpu, roofline, inside (over all rows) and width.
    """
    by_kind: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        by_kind.setdefault((cell["group"], cell["predictor"], cell["kind"]), []).append(cell)
    keys = ("group", "predictor", "kind")
    return [{**dict(zip(keys, names, strict=True)), **_over_gpus(part)} for names, part in by_kind.items()]


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


def calibration(rows: Scored) -> list[dict[str, Any]]:
    """Share of rows within intervals of other levels, in percent: kind, nominal, found. Rows have intervals.

    Predictors state one interval. Those of other levels are taken to be as much narrower or wider, in the logarithm and
    on each side, as a normal distribution's would be.
    """
    return [
        {"kind": names["kind"], "nominal": level, "found": float(100 * (interval_use(part) <= _scale(level)).mean())}
        for names, part in rows.groups("kind")
        for level in NOMINAL
    ]


def interval_use(rows: Scored) -> np.ndarray:
    """How far a measurement lies from the prediction, over how far the interval reaches on that side (logarithms)."""
    missed = np.log(rows.measured / rows.predicted)
    reach = np.abs(np.log(np.where(missed > 0, rows.high, rows.low) / rows.predicted))
    return np.asarray(np.abs(missed) / np.maximum(reach, 1e-9))


def _scale(level: float) -> float:
    normal = NormalDist()
    return normal.inv_cdf(0.5 + level / 200) / normal.inv_cdf(0.5 + STATED / 200)


def sample(rows: Scored) -> list[dict[str, Any]]:
    """Single predictions to keep, without what was measured: of every fold, GPU and kind alike many, chosen by the
    kernel's hash.

    The same kernels are chosen again in any later run, so that runs can be compared row by row.
    """
    groups = rows.groups("fold", "gpu", "kind", ordered=False)
    each, kept = max(1, SAMPLED // len(groups)), []
    for _, part in groups:
        chosen = part.take(np.argsort(part.keys["id"].to_numpy(str), kind="stable")[:each])
        names = ("fold", "gpu", "kind", "op", "id", "flops", "bytes")
        figures = zip(chosen.predicted, chosen.low, chosen.high, chosen.bias, strict=True)
        for keys, (predicted, low, high, error) in zip(
            chosen.keys[list(names)].to_dict("records"), figures, strict=True
        ):
            times = {"predicted_ms": float(predicted), "low_ms": float(low), "high_ms": float(high)}
            kept.append({**keys, **times, "error": float(error)})
    return kept


def few_shot_of(declared: Declaration, rounds: Sequence[Round], frame: pd.DataFrame) -> dict[str, Any]:
    """The curve of every held-out GPU, with the tile models that the targets judge.

    Kernels are drawn from the tested rows, and errors are those of the tested rows that no draw holds.

    Args:
        declared: the experiment, with ``few_shot``.
        rounds: its folds.
        frame: of ``load_kernels``.

    Returns:
        ``cells``: fold, gpu, design (plan or random), kind, points (measured kernels of all kinds together), rows,
        mape, inside and width (in percent of the prediction's lower end), means over seeds. ``by_kind``: design, kind,
        points, mean over GPUs, worst.
    """
    assert declared.few_shot is not None
    cells = []
    for r in rounds:
        entrant = r.entrants[0]
        assert isinstance(entrant, TileModelEntrant)
        for gpu in r.fold.held_out:
            rows = rows_of_split(frame[frame["gpu"] == gpu], declared.data.tested_split)
            cells += [{"fold": r.fold.name, **cell} for cell in _curve(entrant, gpu, rows, declared.few_shot)]
    return {"cells": cells, "by_kind": _by_kind(cells)}


def _curve(entrant: TileModelEntrant, gpu: str, rows: pd.DataFrame, few_shot: FewShot) -> list[dict[str, Any]]:
    """Cells of one GPU: means over seeds."""
    from neusight.learn.calibration import few_shot_curve

    curves: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for seed in few_shot.seeds:
        predictor = entrant.predictor.kernel_predictor
        for row in few_shot_curve(predictor, load_device(gpu), rows, rows, few_shot.points, seed=seed):
            curves.setdefault((row["design"], row["family"], row["count"]), []).append(row)
    return [
        {"gpu": gpu, "design": design, "kind": kind, "points": points, **_means(part)}
        for (design, kind, points), part in curves.items()
    ]


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("mape", "inside")}
    return {"rows": rows[0]["rows"], **means, "width": 100 * (float(np.mean([row["width"] for row in rows])) - 1)}


def _by_kind(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    errors_by_kind: dict[tuple[str, str, int], list[float]] = {}
    for cell in cells:
        errors_by_kind.setdefault((cell["design"], cell["kind"], cell["points"]), []).append(cell["mape"])
    return [
        {"design": design, "kind": kind, "points": points, "mean": float(np.mean(errors)), "worst": max(errors)}
        for (design, kind, points), errors in errors_by_kind.items()
    ]
