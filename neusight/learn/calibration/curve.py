"""Error on one GPU against the number of its kernels that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import to_batches
from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.calibration.inputs import points_of
from neusight.executors.gpu.calibration.prior import Prior
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.learn.calibration.design import informative
from neusight.learn.calibration.fit import fit_calibration, timings_of, usable

if TYPE_CHECKING:
    import pandas as pd

COUNTS = (0, 10, 20, 50, 100, 200)
POOL = 150
"""Rows of each kind among which a design chooses."""


def few_shot_curve(
    predictor: KernelPredictor,
    device: DeviceSpec,
    pool: pd.DataFrame,
    test: pd.DataFrame,
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
    prior: Prior | None = None,
) -> list[dict[str, Any]]:
    """Errors after calibrating with some rows of a GPU, on others of it.

    Args:
        predictor: with tile models that have not seen the GPU, for a curve that means anything.
        device: the GPU.
        pool: rows of ``load_kernels`` to draw from, once by the criterion of a plan, all kinds counting alike, and once
            at random.
        test: rows to evaluate on; a row of the same index as one that a design drew is left out for all its counts.
        counts: how many rows are drawn, of all families together; each draw holds the smaller ones.
        seed: of the random draw, and of the sample that the design chooses from.
        prior: of the corrections, chosen without the GPU; default the one that ships.

    Returns:
        A row for each design (``plan``, ``random``), count and kind: gpu, design, count, family (the op of products and
        row-wise kernels), drawn (of that kind), rows (evaluated), mape, and inside (share within the 90 % interval) and
        width (median of high / low) of the intervals; figures in percent but for the width.
    """
    pool, test = usable(pool, device), test[(test["gpu"] == device.id).to_numpy()]
    rows = []
    for design, drawn in _draws(predictor, device, pool, max(counts), seed, prior or Prior()).items():
        left = test[~test.index.isin(drawn)]
        for count in counts:
            calibration = fit_calibration(predictor, device, pool.loc[drawn[:count]], prior)
            errors = _errors(replace(predictor, corrections={device.id: calibration}), device, left)
            known = calibration.observations.points.kind
            for family, figures in errors.items():
                about = {"gpu": device.id, "design": design, "count": count, "family": family}
                rows.append({**about, "drawn": int((known == family).sum()), **figures})
    return rows


def _draws(
    predictor: KernelPredictor, device: DeviceSpec, pool: pd.DataFrame, count: int, seed: int, prior: Prior
) -> dict[str, list[Any]]:
    """Index labels of the rows that each design draws, in order."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(pool))
    timings = timings_of(predictor, device, pool.iloc[shuffled])
    kind = timings.points.kind
    some = np.concatenate([np.sort(np.flatnonzero(kind == name))[:POOL] for name in np.unique(kind)])
    balanced = 1.0 / np.array([(kind[some] == name).sum() for name in kind[some]])
    planned = timings.kernel[some][informative(timings.take(some), count, prior, balanced)]
    chosen = {"plan": shuffled[planned], "random": shuffled[:count]}
    return {design: pool.index[positions].tolist() for design, positions in chosen.items()}


def _errors(predictor: KernelPredictor, device: DeviceSpec, frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Figures by kind of kernel."""
    measured_s = frame["latency_ms"].to_numpy(dtype=float) * 1e-3
    by_kind: dict[str, list[np.ndarray]] = {}
    for batch, rows in to_batches(frame):
        found, kind = predictor.predict(batch, device), points_of(predictor.situate(batch, device)).kind
        error = np.abs(found.latency_s / measured_s[rows] - 1.0)
        inside = (found.low_s <= measured_s[rows]) & (measured_s[rows] <= found.high_s)
        columns = np.stack([error, inside, found.high_s / found.low_s])
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
