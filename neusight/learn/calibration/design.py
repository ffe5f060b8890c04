"""Which kernels to measure: those whose times would tell most about all the others (greedy Bayesian design).

How many are worth it is told by the error on one GPU against the number of its kernels that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.calibration.corrections import CorrectionPrior
from neusight.executors.gpu.calibration.inputs import kinds_of
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Kernel, group_by_family
from neusight.kernels.conditions import Conditions
from neusight.learn.calibration.fit import (
    Timings,
    fit_calibration,
    joined_timings,
    linearised,
    parts_of,
    predicted,
    timings_of,
    usable,
)

if TYPE_CHECKING:
    import pandas as pd

FEW = 4
"""Rows of each tile model with which a design begins, or as many as there is room for of all of them: one outlier among
them is then seen as one."""
COUNTS = (0, 10, 20, 50, 100, 200)
POOL = 150
"""Rows of each kind among which a design chooses."""


def calibration_plan(
    predictor: KernelPredictor,
    device: GpuSpec,
    kernels: Sequence[Kernel],
    count: int,
    prior: CorrectionPrior | None = None,
) -> list[int]:
    """Positions of the kernels to measure, the most informative first; the same for the same arguments.

    Kinds of kernels weigh by their share of those to choose from.

    Args:
        predictor: whose errors are to be found.
        device: the GPU that is to be calibrated.
        kernels: to choose from, and to be predicted well in the end.
        count: how many to choose; all where there are no more.
        prior: of the corrections; default the one that ships.
    """
    parts = []
    for batch, rows in group_by_family(kernels):
        parts.append(
            predicted(predictor, device, batch, np.ones(len(batch)), rows, conditions=Conditions.requested(len(batch)))
        )
    timings = joined_timings(parts)
    return timings.kernel[informative(timings, count, prior or CorrectionPrior())].tolist()


def informative(timings: Timings, count: int, prior: CorrectionPrior, weight: np.ndarray | None = None) -> list[int]:
    """Rows in the order in which measuring them lowers the expected errors most.

    The expected error of a kind of kernels (``Points.kind``) is the root mean square, over its rows, of
    what is not known of the correction and of the noise; each choice lowers the weighted sum over kinds most, given
    those before. Every tile model comes once before any comes twice, up to ``FEW``.

    Args:
        timings: the rows; what was measured does not matter.
        count: how many to choose.
        prior: of the corrections.
        weight: of each row, and by their sum of its kind; default all alike.
    """
    weight = np.ones(len(timings)) if weight is None else weight
    kind = np.unique(timings.points.kind, return_inverse=True)[1]
    model = np.unique(timings.points.model, return_inverse=True)[1]
    few = min(FEW, max(1, count // (int(model.max()) + 1)))
    observations = linearised(timings, prior)
    left, noise = observations.covariance(prior), observations.noise**2
    chosen: list[int] = []
    free, chosen_of = np.ones(len(timings), dtype=bool), np.zeros(int(model.max()) + 1, dtype=int)
    while len(chosen) < min(count, len(timings)):
        gain = _weights(kind, weight, np.diag(left) + noise) @ np.square(left) / (np.diag(left) + noise)
        behind = free & (chosen_of[model] <= min(few - 1, chosen_of[model[free]].min()))
        best = int(np.argmax(np.where(behind if behind.any() else free, gain, -1.0)))
        chosen.append(best)
        free[best] = False
        chosen_of[model[best]] += 1
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + noise[best])
    return chosen


def _weights(kind: np.ndarray, weight: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """What a little less variance of each row lowers the sum of errors by: its weight over its kind's error."""
    error = np.sqrt(np.bincount(kind, weight * variance) / np.bincount(kind, weight))
    return weight / error[kind]


def few_shot_curve(
    predictor: KernelPredictor,
    device: GpuSpec,
    pool: pd.DataFrame,
    test: pd.DataFrame,
    counts: Sequence[int] = COUNTS,
    *,
    seed: int = 0,
    prior: CorrectionPrior | None = None,
) -> list[dict[str, Any]]:
    """Errors after calibrating with some rows of a GPU, on others of it.

    Args:
        predictor: with tile models that have not seen the GPU, for a curve that means anything.
        device: the GPU.
        pool: rows of kernels to draw from, once by the criterion of a plan, all kinds counting alike, and once
            at random.
        test: rows to evaluate on; a row of the same index as one that a design drew is left out for all its counts.
        counts: how many rows are drawn, of all families together; each draw holds the smaller ones.
        seed: of the random draw, and of the sample that the design chooses from.
        prior: of the corrections, chosen without the GPU; default the one that ships.

    Returns:
        A row for each design (``plan``, ``random``), count and kind: gpu, design, count, family (the kind, see
        ``kinds_of``), drawn (of that kind), rows (evaluated), mape, and inside (share within the 90 % interval) and
        width (median of high / low) of the intervals; figures in percent but for the width.
    """
    pool, test = usable(pool, device)[0], test[(test["gpu"] == device.id).to_numpy()]
    pool = pool.iloc[np.random.default_rng(seed).permutation(len(pool))]
    rows = []
    for design, positions in _draws(
        timings_of(predictor, device, pool), max(counts), prior or CorrectionPrior()
    ).items():
        drawn = pool.index[positions]
        left = test[~test.index.isin(drawn)]
        for count in counts:
            calibration = fit_calibration(predictor, device, pool.loc[drawn[:count]], prior)
            errors = _errors(replace(predictor, corrections={device.id: calibration}), device, left)
            known = calibration.observations.points.kind
            for family, figures in errors.items():
                about = {"gpu": device.id, "design": design, "count": count, "family": family}
                rows.append({**about, "drawn": int((known == family).sum()), **figures})
    return rows


def _draws(timings: Timings, count: int, prior: CorrectionPrior) -> dict[str, np.ndarray]:
    """Positions, in the shuffled frame of the timings, of the rows that each design draws, in order."""
    kind = timings.points.kind
    some = np.concatenate([np.sort(np.flatnonzero(kind == name))[:POOL] for name in np.unique(kind)])
    balanced = 1.0 / np.array([(kind[some] == name).sum() for name in kind[some]])
    planned = timings.kernel[some][informative(timings.take(some), count, prior, balanced)]
    return {"plan": planned, "random": np.arange(min(count, len(timings)))}


def _errors(predictor: KernelPredictor, device: GpuSpec, frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Figures by kind of kernel."""
    measured_s = frame["latency_ms"].to_numpy(dtype=float) * 1e-3
    by_kind: dict[str, list[np.ndarray]] = {}
    for part in parts_of(frame, device):
        prediction, rows = predictor.predict(part.batch, device, part.conditions), part.rows
        kind = kinds_of(part.batch)
        error = np.abs(prediction.latency_s / measured_s[rows] - 1.0)
        inside = (prediction.low_s <= measured_s[rows]) & (measured_s[rows] <= prediction.high_s)
        columns = np.stack([error, inside, prediction.high_s / prediction.low_s])
        for name in np.unique(kind):
            by_kind.setdefault(str(name), []).append(columns[:, kind == name])
    return {name: _figures(np.concatenate(parts, axis=1)) for name, parts in sorted(by_kind.items())}


def _figures(columns: np.ndarray) -> dict[str, float]:
    error, inside, width = columns
    return {
        "rows": len(error),
        "mape": 100 * float(error.mean()),
        "inside": 100 * float(inside.mean()),
        "width": float(np.median(width)),
    }
