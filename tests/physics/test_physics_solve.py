"""The solver on data whose constants, effects and spreads are known."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.learn.physics.solve import Rows, Solution, likeliest, solve, solve_alone

TRUTH = np.array([0.4, -0.7])
DEVICES, EACH = 12, 40
SPREAD = 0.15


def planted(seed: int, outliers: float = 0.0) -> tuple[Rows, np.ndarray, np.ndarray]:
    """Rows of a law that is exponential in one constant and linear in the other, inputs, and the effects of devices."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, (DEVICES * EACH, 2))
    effects = rng.normal(0, SPREAD, DEVICES)
    effects -= effects.mean()
    effect = np.repeat(np.arange(DEVICES), EACH)
    target = law(TRUTH, inputs) + effects[effect] + rng.normal(0, 0.03, len(inputs))
    target[rng.random(len(inputs)) < outliers] += 3.0
    rows = Rows(target, np.full(len(inputs), 0.25), effect, np.zeros(DEVICES, dtype=int))
    return rows, inputs, effects


def law(place: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(place[0]) * inputs[:, 0] + place[1] * inputs[:, 1])


def slopes(place: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    return np.stack([np.exp(place[0]) * inputs[:, 0], inputs[:, 1]], axis=1)


def solved(rows: Rows, inputs: np.ndarray, width: float = 1.0, centre: float = 0.0) -> Solution:
    prior = {"centre": np.full(2, centre), "spread": np.full(2, width)}
    return solve(rows, lambda p: law(p, inputs), lambda p: slopes(p, inputs), prior, steps=30)


def test_constants_and_effects_are_found_with_what_is_not_known_of_them() -> None:
    off = []
    for seed in range(5):
        rows, inputs, effects = planted(seed)
        found = solved(rows, inputs)
        assert found.place == pytest.approx(TRUTH, abs=0.05)
        assert found.effects == pytest.approx(effects, abs=0.05)
        assert found.spread == pytest.approx([SPREAD], rel=0.4)
        off.append((found.place - TRUTH) / np.sqrt(np.diag(found.covariance)))
    assert np.abs(off).max() < 3.5


def test_outliers_pull_little() -> None:
    rows, inputs, _ = planted(1, outliers=0.05)
    found = solved(rows, inputs)
    assert found.place == pytest.approx(TRUTH, abs=0.08)
    design = np.column_stack([inputs, rows.effect[:, None] == np.arange(DEVICES)])
    squares = np.linalg.lstsq(design, rows.target, rcond=None)[0][:2]
    truth = np.array([np.exp(TRUTH[0]), TRUTH[1]])
    robust = np.array([np.exp(found.place[0]), found.place[1]])
    assert np.abs(robust - truth).max() < np.abs(squares - truth).max()


def test_without_data_of_weight_the_prior_stays() -> None:
    rows, inputs, _ = planted(2)
    silent = Rows(rows.target, np.full(len(inputs), 1e-9), rows.effect, rows.kind_of_effect)
    found = solved(silent, inputs, width=0.2, centre=0.1)
    assert found.place == pytest.approx([0.1, 0.1], abs=1e-3)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(0.2, rel=0.01)


def test_narrow_priors_hold_constants_where_they_are() -> None:
    rows, inputs, _ = planted(3)
    held, free = solved(rows, inputs, width=1e-4), solved(rows, inputs)
    assert held.place == pytest.approx([0.0, 0.0], abs=0.02)
    assert held.error > free.error


def test_solve_alone_without_outliers_is_ridge_regression() -> None:
    """With P = diag(spread^-2): x = (J'J / noise^2 + P)^-1 (J'y / noise^2 + P centre)."""
    rng = np.random.default_rng(4)
    slopes, target = rng.normal(size=(30, 3)), rng.normal(size=30)
    centre, spread, noise = np.array([0.3, -0.2, 1.0]), np.array([0.5, 0.1, 2.0]), 0.4
    prior = {"centre": centre, "spread": spread}
    found = solve_alone(target, lambda place: slopes @ place, prior, noise=noise, outlier=np.inf)
    precision = slopes.T @ slopes / noise**2 + np.diag(spread**-2.0)
    place = np.linalg.solve(precision, slopes.T @ target / noise**2 + centre / spread**2)
    assert found.place == pytest.approx(place, rel=1e-6)
    assert found.deviation == pytest.approx(np.sqrt(np.diag(np.linalg.inv(precision))), rel=1e-6)
    squares = (((target - slopes @ place) / noise) ** 2).sum() + (((place - centre) / spread) ** 2).sum()
    assert found.loss == pytest.approx(squares)


def test_a_start_that_no_step_improves_keeps_its_covariance() -> None:
    prior = {"centre": np.zeros(2), "spread": np.array([0.1, 0.2])}
    found = solve_alone(np.zeros(4), lambda place: np.zeros(4), prior, noise=1.0)
    assert found.deviation == pytest.approx([0.1, 0.2])


def test_likeliest_finds_the_spread_of_normal_errors() -> None:
    errors = np.random.default_rng(5).normal(0, 0.3, 400)
    (spread,) = likeliest(lambda s: len(errors) * np.log(s[0]) + (errors**2).sum() / (2 * s[0] ** 2), [5.0])
    assert spread == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-3)
