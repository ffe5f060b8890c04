"""Single kernels of held-out GPUs: what every predictor says of every measured row, and its errors in few figures.

By GPU and kind, averaged over GPUs, calibration, a sample to keep, and errors after some kernels were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import to_batches
from neusight.datasets.conditions import conditions_of
from neusight.devices import load_gpu
from neusight.errors import DataError
from neusight.evaluation.kernels import without_drift
from neusight.executors.gpu.tile_models.artifact import sm_kind
from neusight.experiments.baselines import roofline_s
from neusight.experiments.entrants import Entrant, TileModelEntrant
from neusight.kernels.work import work_of
from neusight.measured.score import Scored, joined

if TYPE_CHECKING:
    import pandas as pd

    from neusight.devices import GpuSpec
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

    Columns of ``facts``: gpu, family, op, kind, id (of the kernel), flops (the least that do its work), bytes, roofline
    and measured (both ms).
    ``in_order`` are rows that stand as they were measured, so that launches that grew along the table show.
    """

    device: GpuSpec
    facts: pd.DataFrame
    batches: Sequence[tuple[KernelBatch, np.ndarray, Conditions]]
    in_order: bool = True


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
    device = load_gpu(gpu)
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


def _facts(batch: KernelBatch, device: GpuSpec) -> dict[str, Any]:
    work = work_of(batch)
    roofline_ms = 1e3 * roofline_s(batch, device)
    return {"id": kernel_ids(batch), "flops": work.least_flops, "bytes": work.bytes, "roofline": roofline_ms}


def kernel_ids(batch: KernelBatch) -> list[str]:
    """A short hash of each kernel: the same kernel has the same, in any run and on any GPU."""
    columns = [batch[name].astype(str) for name in sorted(batch.columns)]
    texts = (" ".join((batch.family, *fields)) for fields in zip(*columns, strict=True))
    return [sha256(text.encode()).hexdigest()[:ID_DIGITS] for text in texts]


def _unique(ids: pd.Series) -> pd.Series:
    """A kernel that was measured again has its turn behind its hash."""
    turn = ids.groupby(ids).cumcount()
    return ids.where(turn == 0, ids + "-" + (turn + 1).astype(str))


def kinship(gpu: str, trained: Collection[str], die: Collection[str]) -> str:
    """What a predictor that learned from some GPUs knows of another: ``own`` where it learned from that one too,
    ``sibling`` from another board of its die, ``kin`` from SMs of its kind, else it is a ``stranger``.
    """
    if gpu in trained:
        return "own"
    kinds = {sm_kind(load_gpu(other)) for other in trained}
    return "sibling" if set(die) & set(trained) else "kin" if sm_kind(load_gpu(gpu)) in kinds else "stranger"


def predicted_rows(tested: Tested, entrant: Entrant, r: Round) -> Scored:
    """What a predictor says of measured rows, in ms. Keys are the facts with fold, group (of what is left out),
    kinship, predictor and seed, and without the launch ``execution`` and, measured, ``executed`` (NaN but where
    launches grew along the table).
    """
    gpu, fold = tested.device.id, r.fold
    known = kinship(gpu, entrant.provenance()["training_gpus"], fold.die or fold.held_out)
    names = {"fold": fold.name, "group": r.groups[gpu], "kinship": known}
    parts = []
    for batch, positions, conditions in tested.batches:
        keys = tested.facts.iloc[positions]
        keys = keys.assign(**names, predictor=entrant.name, seed=entrant.seed)
        forecast, measured = entrant.kernels(batch, tested.device, conditions), keys["measured"].to_numpy(float)
        keys = keys.assign(execution=np.nan, executed=np.nan)
        if tested.in_order and forecast.execution_s is not None and forecast.bound_s is not None:
            alone = np.where(conditions.timing == "stream", measured, np.nan)
            executed = without_drift(batch["op"], positions, alone, 1e3 * forecast.bound_s)
            keys = keys.assign(execution=1e3 * forecast.execution_s, executed=executed)
        parts.append(forecast.scored(keys.reset_index(drop=True), 1e-3 * measured))
    return joined(parts)


def scores(rows: Scored, *keys: str, more: Callable[[Scored], Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """``figures`` of rows that share the values of keys, in the order in which they come; of several trainings all
    pooled, with ``count`` the rows of one and spread the least and the largest of their means.

    Args:
        rows: of one predictor a group, with key ``seed``.
        keys: to group by.
        more: further figures of a group.
    """
    return [
        {**names, **_pooled(part), **(more(part) if more else {})} for names, part in rows.groups(*keys, ordered=False)
    ]


def _pooled(rows: Scored) -> dict[str, Any]:
    means = [part["mean"] for part in rows.summary("seed")]
    return {**rows.figures(), "count": len(rows) // len(means), "spread": [min(means), max(means)]}


def kernel_cells(rows: Scored) -> list[dict[str, Any]]:
    """``scores`` of ``predicted_rows`` by fold, GPU, group, kind of kernel and predictor, with quantiles (of signed
    errors, at ``QUANTILES``), the roofline's mean error, and grown: the mean error with each row's own launch, where
    launches grew along the table (None where none did).
    """

    def more(part: Scored) -> dict[str, Any]:
        return {
            "quantiles": [float(q) for q in np.percentile(part.bias, QUANTILES)],
            "roofline": float(100 * np.abs(part.keys["roofline"].to_numpy(float) / part.measured - 1).mean()),
            "grown": _grown(part),
        }

    return scores(rows, "fold", "gpu", "group", "kind", "predictor", more=more)


def _grown(rows: Scored) -> float | None:
    """Error of executions with the launch that each row had, as in cards of tile models."""
    execution, executed = (rows.keys[name].to_numpy(float) for name in ("execution", "executed"))
    if np.isnan(executed).all():
        return None
    error = np.abs((execution + rows.measured - executed) / rows.measured - 1)
    return float(100 * np.nanmean(error))


def averaged(cells: Cells, *keys: str) -> list[dict[str, Any]]:
    """Cells that share the values of keys: every GPU counts once, however many rows it has.

    Returns:
        The keys, count, gpus (how many), mean, bias, worst, worst_gpu, roofline, spread, inside (over all rows) and
        width.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    return [{**dict(zip(keys, names, strict=True)), **_over_gpus(part)} for names, part in groups.items()]


def _over_gpus(cells: Cells) -> dict[str, Any]:
    worst = max(cells, key=lambda cell: cell["mean"])
    figures: dict[str, Any] = {n: float(np.mean([cell[n] for cell in cells])) for n in ("mean", "bias", "roofline")}
    figures |= {"count": sum(cell["count"] for cell in cells), "gpus": len(cells)}
    figures |= {"worst": worst["mean"], "worst_gpu": worst["gpu"]}
    figures["spread"] = [float(np.mean([cell["spread"][end] for cell in cells])) for end in (0, 1)]
    if all("inside" in cell for cell in cells):
        figures |= {"inside": _weighted(cells, "inside"), "width": float(np.median([cell["width"] for cell in cells]))}
    return figures


def _weighted(cells: Cells, key: str) -> float:
    return float(np.average([cell[key] for cell in cells], weights=[cell["count"] for cell in cells]))


def main_group(cells: Cells) -> str:
    """What is held out, or ``other_vendor`` where all of it is another vendor's; of dies and siblings the dies."""
    groups = {cell["group"] for cell in cells}
    return next((group for group in ("held_out", "die", "sibling") if group in groups), "other_vendor")


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


def by_kinship(rows: Scored) -> list[dict[str, Any]]:
    """``scores`` by predictor, kind of kernel and kinship; where intervals are stated also ``crps`` and ``stretch``:
    how many times as far intervals would have to reach (in the logarithm) to hold 90 % of the rows.
    """

    def more(part: Scored) -> dict[str, Any]:
        if np.isnan(part.inside).any():
            return {}
        stretch = float(np.percentile(interval_use(part), STATED))
        return {"crps": 100 * float(crps(part).mean()), "stretch": stretch}

    return scores(rows, "predictor", "kind", "kinship", more=more)


def crps(rows: Scored) -> np.ndarray:
    """Continuous ranked probability score of log times, shape (n,), for a normal distribution around the prediction
    whose 90 % interval is as wide as the one stated: ``σ (z (2 Φ(z) - 1) + 2 φ(z) - 1/√π)`` with ``z`` the error over
    ``σ`` (Gneiting and Raftery 2007, equation 21). Smaller is better; it is ``|error|`` where ``σ`` is zero.
    """
    from scipy.stats import norm

    sigma = np.maximum(np.log(rows.high / rows.low) / (2 * NormalDist().inv_cdf(0.5 + STATED / 200)), 1e-9)
    z = np.log(rows.measured / rows.predicted) / sigma
    return np.asarray(sigma * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)))


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
        for row in few_shot_curve(predictor, load_gpu(gpu), rows, rows, few_shot.points, seed=seed):
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
