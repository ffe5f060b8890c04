"""The Gaussian process against plain formulas, and a prior that is learned against the one that made the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.executors.gpu.calibration.corrections import MODELS, CorrectionPrior, Observations, Posterior
from neusight.executors.gpu.calibration.inputs import LENGTHS, WIDTH, Points
from neusight.learn.calibration.fit import Timings, linearised, observe
from neusight.learn.training_data import MODELS as TRAINED


def points(count: int, model: str = "gemm", ops: tuple[str, ...] = ("linear", "bmm"), seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    inputs = np.zeros((count, WIDTH))
    inputs[:, : len(LENGTHS[model])] = rng.uniform(-2, 2, (count, len(LENGTHS[model])))
    op, run = rng.choice(ops, count), rng.choice(["torch/", "vllm/triton"], count)
    return Points(np.full(count, model), op, op, run, inputs)


def mixed(count: int) -> Points:
    return Points.joined([points(count), points(count, "stream", ("add", "gelu"), seed=1)])


def observations(where: Points, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.2, 1.0, len(where))
    return Observations(where, share, 1 - share, rng.normal(0, 0.2, len(where)), rng.uniform(0.02, 0.1, len(where)))


def test_covariances_are_covariances() -> None:
    where, prior = mixed(40), CorrectionPrior()
    for covariance in (prior.of_execution(where, where), prior.of_launch(where, where)):
        np.testing.assert_allclose(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9
    np.testing.assert_allclose(np.diag(prior.of_execution(where, where)), prior.variance(where))
    between = prior.of_execution(where.take(np.arange(40)), where.take(np.arange(40, 80)))
    np.testing.assert_allclose(between, prior.device**2)


def test_every_tile_model_has_inputs_and_a_prior() -> None:
    assert set(LENGTHS) == set(MODELS) == set(TRAINED)


def test_mean_and_variance_are_those_of_the_joint_distribution() -> None:
    prior, seen, unseen = CorrectionPrior(), mixed(10), points(5, seed=3)
    known = observations(seen)
    found = Posterior(prior, known)
    covariance = known.covariance(prior) + np.diag(known.noise**2)
    shared = prior.of_execution(unseen, seen) * known.on_execution
    mean, variance = found.execution(unseen)
    np.testing.assert_allclose(mean, shared @ np.linalg.solve(covariance, known.log_ratio))
    left = prior.of_execution(unseen, unseen) - shared @ np.linalg.solve(covariance, shared.T)
    np.testing.assert_allclose(variance, np.diag(left))
    assert (variance < prior.variance(unseen)).all()


def test_left_out_is_what_the_others_say() -> None:
    prior, seen = CorrectionPrior(), mixed(8)
    known = observations(seen)
    mean, variance = Posterior(prior, known).left_out()
    for row in range(len(known)):
        rest = np.arange(len(known)) != row
        others = Observations(
            seen.take(rest), *(getattr(known, n)[rest] for n in ("on_execution", "on_launch", "log_ratio", "noise"))
        )
        one, posterior = seen.take(np.array([row])), Posterior(prior, others)
        execution, launch = posterior.execution(one)[0][0], posterior.launch(one)[0]
        assert mean[row] == pytest.approx(known.on_execution[row] * execution + known.on_launch[row] * launch)
    assert (variance > known.noise**2).all()


def planted(prior: CorrectionPrior, count: int, seed: int, outliers: int = 0) -> Timings:
    """Timings of kernels that are not far from each other, whose errors are drawn from a prior."""
    rng = np.random.default_rng(seed)
    where = near(count, seed)
    covariance = prior.of_execution(where, where) + 1e-9 * np.eye(count)
    error = np.linalg.cholesky(covariance) @ rng.standard_normal(count) + prior.noise(where) * rng.standard_normal(
        count
    )
    error[:outliers] += 2.0
    execution_s = np.full(count, 1e-3)
    return Timings(where, np.arange(count), execution_s, np.full(count, 1e-9), execution_s * np.exp(error))


def near(count: int, seed: int) -> Points:
    where = points(count, seed=seed)
    return replace(where, inputs=0.2 * where.inputs)


def changed(**figures: float) -> CorrectionPrior:
    return CorrectionPrior(models={**MODELS, "gemm": replace(MODELS["gemm"], **figures)})


def test_noise_is_measured_not_believed() -> None:
    for noise in (0.05, 0.2):
        _, found = observe(planted(changed(noise=noise), 120, seed=2), changed(noise=0.05))
        assert found == pytest.approx({"linear": noise, "bmm": noise}, rel=0.4)


def test_nine_of_ten_further_measurements_lie_within_the_interval() -> None:
    truth = changed(noise=0.08)
    inside = []
    for seed in range(8):
        everything = planted(truth, 160, seed)
        seen, unseen = everything.take(np.arange(60)), everything.take(np.arange(60, 160))
        known, noise = observe(seen, changed(noise=0.04))
        mean, variance = Posterior(truth, known).execution(unseen.points)
        off = np.abs(np.log(unseen.measured_s / unseen.execution_s) - mean)
        of_kind = np.array([noise[str(kind)] for kind in unseen.points.kind])
        inside.append((off < 1.645 * np.hypot(np.sqrt(variance), of_kind)).mean())
    assert 0.85 < np.mean(inside) < 0.97


def test_one_outlier_among_few_rows_is_judged_by_the_others() -> None:
    prior, moved, trusted = CorrectionPrior(), [], []
    for seed in range(8):
        rows, where = planted(prior, 3, seed, outliers=1), near(50, seed + 20)
        robust, gaussian = (known.execution(where)[0] for known in posteriors(rows, prior))
        moved.append(np.abs(robust).mean())
        trusted.append(np.abs(gaussian).mean())
    assert np.mean(moved) < 0.25 * np.mean(trusted)


def posteriors(rows: Timings, prior: CorrectionPrior) -> tuple[Posterior, Posterior]:
    return Posterior(prior, observe(rows, prior)[0]), Posterior(prior, linearised(rows, prior))
