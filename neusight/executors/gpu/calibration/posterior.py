"""What measurements leave of the prior: mean and variance of the corrections of any kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neusight.executors.gpu.calibration.inputs import Points
from neusight.executors.gpu.calibration.prior import Prior


@dataclass(frozen=True)
class Observations:
    """Measured corrections, as a linear model sees them; every column has n rows.

    ``log_ratio = on_execution * g + on_launch * h + noise``, where g and h are the corrections of the execution and of
    the launch of that kernel, and ``noise`` is the standard deviation of what is neither.
    """

    points: Points
    on_execution: np.ndarray
    on_launch: np.ndarray
    log_ratio: np.ndarray
    noise: np.ndarray

    def __len__(self) -> int:
        return len(self.log_ratio)

    def covariance(self, prior: Prior) -> np.ndarray:
        """Of the observations under a prior, without their noise, shape (n, n)."""
        execution = prior.of_execution(self.points, self.points) * np.outer(self.on_execution, self.on_execution)
        return execution + prior.of_launch(self.points, self.points) * np.outer(self.on_launch, self.on_launch)


@dataclass(frozen=True)
class Posterior:
    """A prior with what was observed of it (Rasmussen and Williams 2006, algorithm 2.1)."""

    prior: Prior
    observations: Observations

    @cached_property
    def _root(self) -> np.ndarray:
        """Inverse of the Cholesky factor of the observations' covariance."""
        o = self.observations
        factor = np.linalg.cholesky(o.covariance(self.prior) + np.diag(o.noise**2))
        return np.linalg.solve(factor, np.eye(len(o)))

    @cached_property
    def _weights(self) -> np.ndarray:
        return self._root.T @ (self._root @ self.observations.log_ratio)

    def execution(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance) of the correction of log execution time, each of shape (n,)."""
        o = self.observations
        shared = self.prior.of_execution(points, o.points) * o.on_execution
        left = self.prior.variance(points) - np.square(shared @ self._root.T).sum(axis=1)
        return shared @ self._weights, np.maximum(left, 0.0)

    def launch(self, points: Points) -> np.ndarray:
        """Mean of the correction of log launch time, shape (n,)."""
        o = self.observations
        return (self.prior.of_launch(points, o.points) * o.on_launch) @ self._weights

    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance, noise included) of each observation from the others alone, each of shape (n,)
        (section 5.4.2 there).
        """
        variance = 1.0 / np.square(self._root).sum(axis=0)
        return self.observations.log_ratio - self._weights * variance, variance


def evidence(covariance: np.ndarray, log_ratio: np.ndarray) -> float:
    """Log of the probability of observations with a covariance, noise included, but for a constant."""
    factor = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(factor, log_ratio)
    return float(-np.log(np.diag(factor)).sum() - 0.5 * scaled @ scaled)
