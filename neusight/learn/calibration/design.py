"""Which kernels to measure: those whose times would tell most about all the others (greedy Bayesian design)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.executors.gpu.calibration.prior import Prior
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Kernel, group_by_family
from neusight.learn.calibration.fit import joined_timings, predicted
from neusight.learn.calibration.observe import Timings, linearised

FEW = 3
"""Rows of each family with which a design begins where they are no more than half of it, so that one outlier among
them is seen as one."""


def calibration_plan(
    predictor: KernelPredictor, device: DeviceSpec, kernels: Sequence[Kernel], count: int, prior: Prior | None = None
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
        parts.append(predicted(predictor, device, batch, np.ones(len(batch)), rows))
    timings = joined_timings(parts)
    return timings.kernel[informative(timings, count, prior or Prior())].tolist()


def informative(timings: Timings, count: int, prior: Prior, weight: np.ndarray | None = None) -> list[int]:
    """Rows in the order in which measuring them lowers the expected errors most.

    The expected error of a kind of kernels (``Points.kind``, in one dtype) is the root mean square, over its rows, of
    what is not known of the correction and of the noise; each choice lowers the weighted sum over kinds most, given
    those before. Every family comes once before any comes twice, up to ``FEW``.

    Args:
        timings: the rows; what was measured does not matter.
        count: how many to choose.
        prior: of the corrections.
        weight: of each row, and by their sum of its kind; default all alike.
    """
    weight = np.ones(len(timings)) if weight is None else weight
    kind = np.unique(np.char.add(timings.points.kind, timings.points.dtype), return_inverse=True)[1]
    family = np.unique(timings.points.family, return_inverse=True)[1]
    few = min(FEW, max(1, count // (2 * (int(family.max()) + 1))))
    observations = linearised(timings, prior)
    left, noise = observations.covariance(prior), observations.noise**2
    chosen: list[int] = []
    free, taken = np.ones(len(timings), dtype=bool), np.zeros(int(family.max()) + 1, dtype=int)
    while len(chosen) < min(count, len(timings)):
        gain = _weights(kind, weight, np.diag(left) + noise) @ np.square(left) / (np.diag(left) + noise)
        behind = free & (taken[family] <= min(few - 1, taken[family[free]].min()))
        best = int(np.argmax(np.where(behind if behind.any() else free, gain, -1.0)))
        chosen.append(best)
        free[best] = False
        taken[family[best]] += 1
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + noise[best])
    return chosen


def _weights(kind: np.ndarray, weight: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """What a little less variance of each row lowers the sum of errors by: its weight over its kind's error."""
    error = np.sqrt(np.bincount(kind, weight * variance) / np.bincount(kind, weight))
    return weight / error[kind]
