"""Corrections as a Gaussian process: what is believed before anything is measured (how large, between which kernels
alike), what was observed, and what that leaves: mean and variance of the corrections of any kernel.

The logarithm of measured over predicted execution time is a Gaussian process (Rasmussen and Williams 2006): a level of
the device, one of each tile model, op, kind and run, a smooth effect of every input alone, and one of all inputs
together.
The logarithm of the launch's measured over its expected time has a level of the device and one of each op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from neusight.executors.gpu.calibration.inputs import LENGTHS, Points
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelPrior:
    """Standard deviations of log execution time among the kernels of one tile model.

    ``model``, ``op``, ``kind`` and ``run`` are of levels; ``alone`` is of the effect of each input by itself and
    ``joint`` of all together, ``reach`` how far both extend in units of the inputs' lengths, and ``alike`` their
    correlation between two programs, of another op or kind or run by others; ``noise`` is of a single measurement.
    """

    model: float
    op: float
    kind: float
    run: float
    alone: float
    joint: float
    reach: float
    alike: float
    noise: float


_LANES = ModelPrior(model=0.035, op=0.06, kind=0.06, run=0.06, alone=0.11, joint=0.1, reach=1.0, alike=0.5, noise=0.05)
"""Of products in float32 (fitted: as ``MODELS``)."""
_FUSED = ModelPrior(model=0.05, op=0.05, kind=0.06, run=0.12, alone=0.16, joint=0.2, reach=2.0, alike=0.6, noise=0.04)
"""Of fused attention and layers of experts (fitted: as ``MODELS``)."""

MODELS: Mapping[str, ModelPrior] = MappingProxyType(
    {
        "gemm": _LANES,
        "conv2d": ModelPrior(
            model=0.1, op=0.1, kind=0.1, run=0.06, alone=0.4, joint=0.3, reach=2.5, alike=0.7, noise=0.12
        ),
        "matrix": ModelPrior(
            model=0.03, op=0.04, kind=0.04, run=0.03, alone=0.02, joint=0.22, reach=2.5, alike=0.4, noise=0.05
        ),
        "attention": _FUSED,
        "moe": _FUSED,
        "stream": ModelPrior(
            model=0.035, op=0.03, kind=0.15, run=0.05, alone=0.1, joint=0.1, reach=2.0, alike=0.7, noise=0.02
        ),
    }
)
"""Rounded figures under which errors of physics alone on other GPUs are most probable (fitted: by maximum likelihood):
``gemm``, ``conv2d`` and ``stream`` of the rows of seven to twelve GPUs, ``matrix`` and ``attention`` of six to nine;
``moe`` is assumed to be like attention."""


@dataclass(frozen=True, kw_only=True)
class CorrectionPrior:
    """All of it: ``device`` is the level that every kernel shares, ``launch`` and ``launch_op`` those of the launch."""

    device: float = 0.08
    launch: float = 0.2
    launch_op: float = 0.1
    models: Mapping[str, ModelPrior] = field(default_factory=lambda: MODELS)

    def of_execution(self, a: Points, b: Points) -> np.ndarray:
        """Covariance of the corrections of executions, shape (len(a), len(b))."""
        out = np.full((len(a), len(b)), self.device**2)
        for model in np.intersect1d(a.model, b.model):
            rows, columns = np.flatnonzero(a.model == model), np.flatnonzero(b.model == model)
            own = _within(a.take(rows), b.take(columns), str(model), self.models[str(model)])
            out[np.ix_(rows, columns)] += own
        return out

    def of_launch(self, a: Points, b: Points) -> np.ndarray:
        """Covariance of the corrections of launches, shape (len(a), len(b))."""
        return self.launch**2 + self.launch_op**2 * _same(_names(a), _names(b))

    def variance(self, points: Points) -> np.ndarray:
        """Of the correction of each execution, shape (n,)."""
        return self.device**2 + _by_model(points, {name: _total(name, p) for name, p in self.models.items()})

    def noise(self, points: Points) -> np.ndarray:
        """Standard deviation of one measurement of each, shape (n,)."""
        return _by_model(points, {name: p.noise for name, p in self.models.items()})

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back."""
        models = {name: asdict(p) for name, p in self.models.items()}
        return {"device": self.device, "launch": self.launch, "launch_op": self.launch_op, "models": models}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> CorrectionPrior:
        """Read what ``to_dict`` wrote; KeyError or TypeError where it is something else."""
        models = {name: ModelPrior(**p) for name, p in content["models"].items()}
        return CorrectionPrior(**{**content, "models": models})


def _within(a: Points, b: Points, model: str, p: ModelPrior) -> np.ndarray:
    """Covariance beyond the device's level, between kernels of one tile model."""
    op, kind, run = (_same(getattr(a, name), getattr(b, name)) for name in ("op", "kind", "run"))
    same = op * kind * run
    effects, distance = np.zeros_like(same), np.zeros_like(same)
    for place in range(len(LENGTHS[model])):
        apart = np.square((a.inputs[:, place, None] - b.inputs[None, :, place]) / p.reach)
        effects += p.alone**2 * np.exp(-0.5 * apart)
        distance += apart
    effects += p.joint**2 * np.exp(-0.5 * distance)
    levels = p.model**2 + p.op**2 * op + p.run**2 * run + p.kind**2 * kind
    return levels + effects * (p.alike + (1.0 - p.alike) * same)


def _total(model: str, p: ModelPrior) -> float:
    return p.model**2 + p.op**2 + p.kind**2 + p.run**2 + len(LENGTHS[model]) * p.alone**2 + p.joint**2


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a[:, None] == b[None, :]).astype(float)


def _names(points: Points) -> np.ndarray:
    return np.char.add(np.char.add(points.model.astype(str), "/"), points.op.astype(str))


def _by_model(points: Points, values: Mapping[str, float]) -> np.ndarray:
    names, codes = np.unique(points.model, return_inverse=True)
    return np.array([values[str(name)] for name in names])[codes]


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

    def covariance(self, prior: CorrectionPrior) -> np.ndarray:
        """Of the observations under a prior, without their noise, shape (n, n)."""
        execution = prior.of_execution(self.points, self.points) * np.outer(self.on_execution, self.on_execution)
        return execution + prior.of_launch(self.points, self.points) * np.outer(self.on_launch, self.on_launch)


@dataclass(frozen=True)
class Posterior:
    """A prior with what was observed of it (Rasmussen and Williams 2006, algorithm 2.1)."""

    prior: CorrectionPrior
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
