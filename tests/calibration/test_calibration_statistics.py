"""Corrections against plain formulas, and doubts that are learned against those that made the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.executors.gpu.calibration.calibration import with_scales
from neusight.executors.gpu.calibration.corrections import (
    LAUNCH_SPREAD,
    WIDTH,
    Observations,
    Points,
    Posterior,
    covariances,
)
from neusight.laws.doubts import COMMON
from neusight.learn.calibration.fit import Timings, linearised, observe


def points(count: int, model: str = "gemm", kinds: tuple[str, ...] = ("linear", "bmm"), seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    inputs = np.zeros((count, WIDTH))
    inputs[:, :6] = rng.uniform(0, 1, (count, 6))
    kind = np.array([f"{model}/{kind}" for kind in rng.choice(kinds, count)])
    return Points(np.full(count, model), kind, inputs, rng.uniform(0.05, 0.2, count), rng.uniform(0.05, 0.2, count))


def mixed(count: int) -> Points:
    return Points.joined([points(count), points(count, "stream", ("add", "gelu"), seed=1)])


def observations(where: Points, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    n = len(where)
    return Observations(where, rng.uniform(0.2, 1.0, n), rng.normal(0, 0.2, n), rng.uniform(0.02, 0.1, n))


def test_covariances_are_those_of_stated_doubts() -> None:
    where = mixed(40)
    level, smooth = covariances(where, where)
    for covariance in (level, smooth):
        np.testing.assert_allclose(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9
    np.testing.assert_allclose(np.diag(level), where.level**2)
    np.testing.assert_allclose(np.diag(smooth) + where.noise**2, where.own**2)
    # Kernels of another tile model share a part of the level alone.
    np.testing.assert_array_equal(smooth[:40, 40:], 0.0)
    np.testing.assert_allclose(level[:40, 40:], COMMON * np.outer(where.level[:40], where.level[40:]))


def test_mean_and_variance_are_those_of_the_joint_distribution() -> None:
    seen, unseen = mixed(10), points(5, seed=3)
    known = observations(seen)
    found = Posterior(known)
    covariance = known.covariance + np.diag(known.noise**2)
    level, smooth = (each * known.share for each in covariances(unseen, seen))
    mean, variance, of_level = found.execution(unseen)
    np.testing.assert_allclose(mean, (level + smooth) @ np.linalg.solve(covariance, known.log_ratio))
    left = sum(covariances(unseen, unseen)) - (level + smooth) @ np.linalg.solve(covariance, (level + smooth).T)
    np.testing.assert_allclose(variance, np.diag(left))
    level_left = unseen.level**2 - np.diag(level @ np.linalg.solve(covariance, level.T))
    np.testing.assert_allclose(of_level, np.minimum(level_left, variance))
    assert (variance < unseen.level**2 + unseen.smooth**2).all()
    launch = LAUNCH_SPREAD**2 * (1 - known.share) @ np.linalg.solve(covariance, known.log_ratio)
    assert found.launch == pytest.approx(launch)


def test_left_out_is_what_the_others_say() -> None:
    known = observations(mixed(8))
    mean, variance = Posterior(known).left_out()
    for row in range(len(known)):
        one, others = known.take(np.array([row])), Posterior(known.take(np.arange(len(known)) != row))
        execution = others.execution(one.points)[0][0]
        assert mean[row] == pytest.approx(float(one.share[0] * execution + (1 - one.share[0]) * others.launch))
    assert (variance > known.noise**2).all()


def planted(count: int, seed: int, *, scale: float = 1.0, outliers: int = 0) -> Timings:
    """Timings of kernels whose errors are drawn from their doubts, own ones times a scale."""
    rng = np.random.default_rng(seed)
    where = points(count, seed=seed)
    truth = with_scales(where, dict.fromkeys(where.kind.tolist(), scale))
    covariance = sum(covariances(truth, truth)) + np.diag(truth.noise**2)
    error = np.linalg.cholesky(covariance) @ rng.standard_normal(count)
    error[:outliers] += 2.0
    execution_s = np.full(count, 1e-3)
    return Timings(where, np.arange(count), execution_s, np.full(count, 1e-9), execution_s * np.exp(error))


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_observe_measures_how_much_kernels_differ(scale: float) -> None:
    found = observe(planted(160, seed=2, scale=scale))[1]
    assert found == pytest.approx({"gemm/linear": scale, "gemm/bmm": scale}, rel=0.3)


def test_observe_believes_stated_doubts_where_rows_are_few() -> None:
    few, many = (observe(planted(count, seed=1, scale=0.3))[1]["gemm/linear"] for count in (4, 160))
    assert many < few < 1.0


def test_nine_of_ten_further_measurements_lie_within_the_interval() -> None:
    inside = []
    for seed in range(8):
        everything = planted(160, seed, scale=1.5)
        seen, unseen = everything.take(np.arange(60)), everything.take(np.arange(60, 160))
        known, scale = observe(seen)
        where = with_scales(unseen.points, scale)
        mean, variance, _ = Posterior(known).execution(where)
        off = np.abs(np.log(unseen.measured_s / unseen.execution_s) - mean)
        inside.append((off < 1.645 * np.sqrt(variance + where.noise**2)).mean())
    assert 0.85 < np.mean(inside) < 0.97


def test_one_outlier_among_few_rows_is_judged_by_the_others() -> None:
    moved, trusted = [], []
    for seed in range(8):
        rows = planted(3, seed, outliers=1)
        rows, where = replace(rows, points=replace(rows.points, inputs=0.2 * rows.points.inputs)), points(50, seed=seed)
        robust, gaussian = (Posterior(known).execution(where)[0] for known in (observe(rows)[0], linearised(rows)))
        moved.append(np.abs(robust).mean())
        trusted.append(np.abs(gaussian).mean())
    assert np.mean(moved) < 0.25 * np.mean(trusted)
