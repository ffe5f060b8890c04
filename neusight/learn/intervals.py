"""Intervals: factors on predicted execution time that enclose most rows, of held-out GPUs and of training GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet, utilisation

COVERAGE = 0.90
NORMAL_TAIL = 1.645
"""Standard deviations that enclose 90 % of a normal distribution, either way."""
UNKNOWN_FACTOR = 2.0
"""How far off, either way, a kernel may be of which nothing is known (assumption)."""
LEAST_ROWS = 20
"""Rows of which a tail of 5 % is one."""
UNSEEN_POWER = 2.0
"""What one GPU's own rows miss by, to this power, is taken for what another one's would (assumption)."""


def log_ratios(model: TileModel, data: TrainingSet, device_bias: np.ndarray | float = 0.0) -> np.ndarray:
    """log(measured / predicted) execution time of each row."""
    execution_s = data.bound_s / utilisation(model.logits(data.features, data.prior), device_bias)
    return np.log(np.maximum(data.latency_s - data.floor_s, data.bound_s) / execution_s)


def quantiles(values: np.ndarray, weight: np.ndarray) -> list[float]:
    """Weighted quantiles at 0, 1, … 100 %: a device's residuals in little space."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    grid = np.linspace(0, 1, 101) * cumulated[-1]
    return [float(v) for v in np.interp(grid, cumulated, values[order])]


def seen_ratios(
    model: TileModel, data: TrainingSet, names: Sequence[str], device_bias: Mapping[str, float]
) -> list[list[float]]:
    """Quantiles of ``log_ratios`` of each group of the training devices, with their biases; a name without has none."""
    own = np.array([device_bias.get(name, 0.0) for name in names])[data.group]
    ratios = log_ratios(model, data, own)
    groups = (np.flatnonzero(data.group == number) for number in range(len(names)))
    return [quantiles(ratios[rows], data.weight[rows]) for rows in groups]


def interval(ratios: Sequence[list[float]]) -> list[float]:
    """Factors on execution time that enclose the middle 90 % of rows, each entry of ``ratios`` counting once."""
    pooled = np.concatenate(ratios)
    tail = (1 - COVERAGE) / 2
    low, high = np.exp(np.quantile(pooled, [tail, 1 - tail]))
    return [round(float(min(low, 1.0)), 4), round(float(max(high, 1.0)), 4)]


def op_intervals(folds: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """Factors for each op, from the quantiles of every device that was left out."""
    return {op: interval([f[op] for f in folds if op in f]) for op in sorted({op for f in folds for op in f})}


def op_spreads(folds: Sequence[Mapping[str, list[float]]]) -> dict[str, float]:
    """Standard deviation, in log time, of what all rows of an op have in common on a device that was left out.

    The devices' mean errors around none; few of them tell little, so that it is widened until 1.645 of it reach where
    Student's t has 90 % (prediction of one more value, DeGroot and Schervish 2012, section 8.6).
    """
    from scipy.stats import t as student

    spreads = {}
    for op in sorted({op for f in folds for op in f}):
        means = np.array([np.mean(f[op]) for f in folds if op in f])
        n = len(means)
        widened = np.sqrt(1 + 1 / n) * student.ppf(1 - (1 - COVERAGE) / 2, n) / NORMAL_TAIL
        spreads[op] = round(float(np.sqrt((means**2).mean()) * widened), 4)
    return spreads


def seen_interval(ratios: Sequence[list[float]], rows: int) -> list[float]:
    """Factors for the training GPUs; of too few rows to have tails, a factor of two either way at least."""
    low, high = interval(ratios)
    return [low, high] if rows >= LEAST_ROWS else _at_least_unknown(low, high)


def unseen_interval(ratios: Sequence[list[float]]) -> list[float]:
    """Factors for GPUs that were not seen, where only one was: those of its own rows widened, and no narrower than a
    factor of two either way, since nothing tells how GPUs differ.
    """
    low, high = interval(ratios)
    return _at_least_unknown(low**UNSEEN_POWER, high**UNSEEN_POWER)


def _at_least_unknown(low: float, high: float) -> list[float]:
    return [round(min(low, 1 / UNKNOWN_FACTOR), 4), round(max(high, UNKNOWN_FACTOR), 4)]
