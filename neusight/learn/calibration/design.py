"""Which kernels to measure: those whose times would tell most about all the others (greedy Bayesian design)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Kernel, group_by_family
from neusight.kernels.conditions import Conditions
from neusight.learn.calibration.fit import Timings, linearised, predicted

FEW = 4
"""Rows of each tile model with which a design begins, or as many as there is room for of all of them: one outlier among
them is then seen as one."""


def calibration_plan(
    predictor: KernelPredictor,
    device: GpuSpec,
    kernels: Sequence[Kernel],
    count: int,
) -> list[int]:
    """Positions of the kernels to measure, the most informative first; the same for the same arguments.

    Kinds of kernels weigh by their share of those to choose from.

    Args:
        predictor: whose errors are to be found.
        device: the GPU that is to be calibrated.
        kernels: to choose from, and to be predicted well in the end.
        count: how many to choose; all where there are no more.
    """
    parts = []
    for batch, rows in group_by_family(kernels):
        parts.append(
            predicted(predictor, device, batch, np.ones(len(batch)), rows, conditions=Conditions.of(len(batch)))
        )
    timings = Timings.joined(parts)
    return timings.kernel[informative(timings, count)].tolist()


def informative(timings: Timings, count: int) -> list[int]:
    """Rows in the order in which measuring them lowers the expected errors most.

    The expected error of a kind of kernels (``Points.kind``) is the root mean square, over its rows, of
    what is not known of the correction and of the noise; each choice lowers the sum over kinds, weighted by their rows,
    most, given those before. Every tile model comes once before any comes twice, up to ``FEW``.

    Args:
        timings: the rows; what was measured does not matter.
        count: how many to choose.
    """
    kind = np.unique(timings.points.kind, return_inverse=True)[1]
    model = np.unique(timings.points.model, return_inverse=True)[1]
    few = min(FEW, max(1, count // (int(model.max()) + 1)))
    observations = linearised(timings)
    left, noise = observations.covariance, observations.noise**2
    chosen: list[int] = []
    free, chosen_of = np.ones(len(timings), dtype=bool), np.zeros(int(model.max()) + 1, dtype=int)
    while len(chosen) < min(count, len(timings)):
        gain = _weights(kind, np.diag(left) + noise) @ np.square(left) / (np.diag(left) + noise)
        behind = free & (chosen_of[model] <= min(few - 1, chosen_of[model[free]].min()))
        best = int(np.argmax(np.where(behind if behind.any() else free, gain, -1.0)))
        chosen.append(best)
        free[best] = False
        chosen_of[model[best]] += 1
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + noise[best])
    return chosen


def _weights(kind: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """What a little less variance of each row lowers the sum of errors by: one over its kind's error."""
    error = np.sqrt(np.bincount(kind, variance) / np.bincount(kind))
    return np.asarray(1.0 / error[kind])
