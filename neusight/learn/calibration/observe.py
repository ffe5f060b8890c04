"""From measured times to observations of corrections: linearised where launch and execution mix, robust to outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from neusight.executors.costs import NORMAL_90
from neusight.executors.gpu.calibration.corrections import Observations, Posterior, Prior, evidence
from neusight.executors.gpu.calibration.inputs import Points

FREEDOM = 4.0
"""Degrees of freedom of Student's t, the distribution of single errors: a row far off pulls little (assumption)."""
SCALES = (1.0, 2.0, 4.0, 8.0)
"""How much noisier than the prior says a GPU may be in a kind of kernels: cards that change their clocks are."""
LAUNCH_JITTER = 0.1
"""Spread of single launches (assumption)."""
START_S = 2e-6
"""What blocks may take to start (assumption): of an execution that is timed as this short, little is known."""
ROUNDS = 6
COVERAGE = 0.90
ENOUGH = 10
"""Rows of which nine tenths mean something."""


@dataclass(frozen=True)
class Timings:
    """Measured kernels beside what was predicted of them; every column has n rows.

    ``measured_s`` is about ``overhead_s + execution_s``. Where a launch was measured apart from its execution, both are
    rows, one without overhead and one without execution. ``kernel`` numbers what was measured.
    """

    points: Points
    kernel: np.ndarray
    execution_s: np.ndarray
    overhead_s: np.ndarray
    measured_s: np.ndarray

    def __len__(self) -> int:
        return len(self.measured_s)

    def take(self, index: np.ndarray) -> Timings:
        """The rows that ``index`` (integers or a mask) selects."""
        columns = [f.name for f in fields(Timings) if f.name != "points"]
        return Timings(self.points.take(index), *(getattr(self, name)[index] for name in columns))


def observe(timings: Timings, prior: Prior) -> tuple[Observations, dict[str, float]]:
    """Observations of the corrections with the noise that each row turns out to have, and the noise to expect of others
    by kind.

    Gauss-Newton steps linearise the logarithm of the sum of launch and execution; at the same time rows are reweighted
    as errors with Student's t distribution ask for (Lange et al. 1989).
    """
    observations = linearised(timings, prior)
    scales, _ = noise_scales(observations, prior)
    noise, weight = observations.noise * _by_kind(timings.points, scales), np.ones(len(timings))
    for _ in range(ROUNDS):
        posterior = Posterior(prior, replace(observations, noise=noise / np.sqrt(weight)))
        execution, launch = posterior.execution(timings.points)[0], posterior.launch(timings.points)
        missed = observations.log_ratio - observations.on_execution * execution - observations.on_launch * launch
        weight = (FREEDOM + 1.0) / (FREEDOM + np.square(missed / noise))
        observations = linearised(timings, prior, execution, launch)
    noisy = replace(observations, noise=noise / np.sqrt(weight))
    stretch, kinds = (
        _stretch(Posterior(prior, noisy), noise),
        dict(zip(timings.points.kind, prior.noise(timings.points), strict=True)),
    )
    return noisy, {name: scale * float(kinds[name]) * stretch[name] for name, scale in scales.items()}


def linearised(
    t: Timings, prior: Prior, execution: np.ndarray | float = 0.0, launch: np.ndarray | float = 0.0
) -> Observations:
    """The logarithm of a sum of two times around corrections of both, with the noise that the prior expects."""
    execution_s, launch_s = t.execution_s * np.exp(execution), t.overhead_s * np.exp(launch)
    share = execution_s / (execution_s + launch_s)
    log_ratio = np.log(t.measured_s / (execution_s + launch_s)) + share * execution + (1.0 - share) * launch
    return Observations(t.points, share, 1.0 - share, log_ratio, _noise(t, prior))


def noise_scales(observations: Observations, prior: Prior) -> tuple[dict[str, float], float]:
    """The scale of each kind's noise under which all observations are most probable, kind by kind, and the log of that
    probability.

    Doubling the noise counts as one standard deviation of what is believed of it.
    """
    scales, best = dict.fromkeys(map(str, np.unique(observations.points.kind)), 1.0), -np.inf
    covariance = observations.covariance(prior)

    def probability(tried: dict[str, float]) -> float:
        noise = observations.noise * _by_kind(observations.points, tried)
        believed = -0.5 * sum(np.log2(scale) ** 2 for scale in tried.values())
        return believed + evidence(covariance + np.diag(noise**2), observations.log_ratio)

    for kind in scales:
        probabilities = {value: probability(scales | {kind: value}) for value in SCALES}
        scales[kind] = max(probabilities, key=lambda value: probabilities[value])
        best = probabilities[scales[kind]]
    return scales, best


def _stretch(posterior: Posterior, noise: np.ndarray) -> dict[str, float]:
    """By how much the noise of each kind must grow for nine of ten rows to lie within the 90 % interval that all
    others give them; at least 1.
    """
    observations = posterior.observations
    expected, variance = posterior.left_out()
    off = np.abs(observations.log_ratio - expected) / np.sqrt(variance - observations.noise**2 + noise**2)
    stretch = {}
    for kind in np.unique(observations.points.kind):
        own = off[observations.points.kind == kind]
        stretch[str(kind)] = max(1.0, float(np.quantile(own, COVERAGE)) / NORMAL_90) if len(own) >= ENOUGH else 1.0
    return stretch


def _noise(t: Timings, prior: Prior) -> np.ndarray:
    """Standard deviation of each row's log: that of its execution and of its launch, by their shares."""
    total_s = t.overhead_s + t.execution_s
    start = np.where(t.overhead_s == 0, START_S / t.measured_s, 0.0)
    execution = np.hypot(prior.noise(t.points), start)
    return np.hypot(execution * t.execution_s, LAUNCH_JITTER * t.overhead_s) / total_s


def _by_kind(points: Points, values: Mapping[str, float]) -> np.ndarray:
    return np.array([values[str(kind)] for kind in points.kind])
