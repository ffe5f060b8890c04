"""Corrections: what kernels that were measured on a board say of the doubts that every estimate for it states.

The logarithm of measured over predicted execution time has the variance that the estimate states, in three parts: a
level of the board in each kind of kernel (``Costs.spread``), correlated between kinds; of the kernel's own part
(``Costs.own_spread``) a share that varies smoothly with the inputs of its tile model; and noise. That of the launch has
a level. All are normal, so that measured kernels say of any other what normal conditioning does (Rasmussen and Williams
2006, equation A.6).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from neusight.executors.costs import LAUNCH_SPREAD, Costs
from neusight.executors.gpu.features import Situation, feature_matrix
from neusight.executors.gpu.tile_models.artifact import Artifact, kernel_kinds
from neusight.kernels.columns import ColumnRecord
from neusight.laws.doubts import COMMON
from neusight.quick_dataclasses import dataclass

WIDTH = 64
"""Most inputs of a tile model (definition)."""
SMOOTH = 0.6
"""Share of the variance of kernels' own errors that similar kernels have in common (assumption: with ``REACH`` near the
best of a few on kernels of A100, H100 and MI300X beside 20 and 100 others; boards of other dies would tell)."""
REACH = 0.6
"""Distance at which kernels say little of each other, in ranges of the inputs in training (assumption: as ``SMOOTH``;
the same boards would tell)."""
BEYOND = (-1.0, 2.0)
"""Where inputs beyond the range of training end, in ranges (assumption: that far says as little as any
farther; calibrated boards with larger kernels would tell)."""


@dataclass(frozen=True)
class Points(ColumnRecord):
    """Kernels as their corrections see them; every column has n rows.

    ``model`` is the tile model that answers them, ``kind`` that with the kind of kernel. ``inputs`` has shape (n,
    ``WIDTH``): the tile model's inputs from 0 to 1 over their range in training, and zeros after them. ``level`` and
    ``own`` are the standard deviations of the log error that the estimate states: shared by the kind, and own.
    """

    model: np.ndarray
    kind: np.ndarray
    inputs: np.ndarray
    level: np.ndarray
    own: np.ndarray

    @property
    def smooth(self) -> np.ndarray:
        """Standard deviation of what similar kernels have in common."""
        return SMOOTH**0.5 * self.own

    @property
    def noise(self) -> np.ndarray:
        """Standard deviation of what a kernel has in common with none."""
        return (1.0 - SMOOTH) ** 0.5 * self.own


def points_of(artifact: Artifact, s: Situation, costs: Costs) -> Points:
    """The kernels of a situation with the costs that their tile model states."""
    manifest = artifact.manifest
    low, high = (np.array(manifest.domain[end]) for end in ("low", "high"))
    inputs = (feature_matrix(s, manifest.contract.features) - low) / np.where(high > low, high - low, np.inf)
    padding = ((0, 0), (0, WIDTH - inputs.shape[1]))
    model = np.full(len(inputs), manifest.name)
    kind = np.char.add(f"{manifest.name}/", kernel_kinds(s.batch).astype(str))
    return Points(model, kind, np.pad(np.clip(inputs, *BEYOND), padding), costs.spread, costs.own_spread)


def covariances(a: Points, b: Points) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of the levels of executions and of the smooth parts of their errors, shape (len(a), len(b)) each."""
    alike = np.where(a.kind[:, None] == b.kind, 1.0, COMMON)
    apart = np.square(a.inputs).sum(axis=1)[:, None] + np.square(b.inputs).sum(axis=1) - 2.0 * a.inputs @ b.inputs.T
    near = np.exp(-0.5 * apart / REACH**2) * (a.model[:, None] == b.model)
    return alike * np.outer(a.level, b.level), near * np.outer(a.smooth, b.smooth)


@dataclass(frozen=True)
class Observations(ColumnRecord):
    """Measured corrections, as a linear model sees them; every column has n rows.

    ``log_ratio = share * g + (1 - share) * h + noise``, where g and h are the corrections of the execution and of the
    launch of that kernel, and ``noise`` is the standard deviation of what is neither.
    """

    points: Points
    share: np.ndarray
    log_ratio: np.ndarray
    noise: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the observations without their noise, shape (n, n)."""
        level, smooth = covariances(self.points, self.points)
        launch = LAUNCH_SPREAD**2 * np.outer(1.0 - self.share, 1.0 - self.share)
        return (level + smooth) * np.outer(self.share, self.share) + launch


@dataclass(frozen=True)
class Posterior:
    """Corrections given what was observed of them (Rasmussen and Williams 2006, algorithm 2.1)."""

    observations: Observations

    @cached_property
    def _root(self) -> np.ndarray:
        """Inverse of the Cholesky factor of the observations' covariance."""
        o = self.observations
        factor = np.linalg.cholesky(o.covariance + np.diag(o.noise**2))
        return np.linalg.solve(factor, np.eye(len(o)))

    @cached_property
    def _weights(self) -> np.ndarray:
        return self._root.T @ (self._root @ self.observations.log_ratio)

    def execution(self, points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(mean, variance, the part of the variance that is the level's) of the correction of log execution time
        without noise, each of shape (n,).
        """
        level, smooth = (each * self.observations.share for each in covariances(points, self.observations.points))
        learned = np.square((level + smooth) @ self._root.T).sum(axis=1)
        left = points.level**2 + points.smooth**2 - learned
        level_left = points.level**2 - np.square(level @ self._root.T).sum(axis=1)
        return (level + smooth) @ self._weights, np.maximum(left, 0.0), np.clip(level_left, 0.0, np.maximum(left, 0.0))

    @property
    def launch(self) -> float:
        """Mean of the correction of log launch time."""
        return float(LAUNCH_SPREAD**2 * (1.0 - self.observations.share) @ self._weights)

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance, noise included) of each observation from the others alone, each of shape (n,)
        (section 5.4.2 there).
        """
        variance = 1.0 / np.square(self._root).sum(axis=0)
        return self.observations.log_ratio - self._weights * variance, variance
