"""The solver on data whose constants, effects and spreads are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.laws.constants import Prior, decode
from neusight.learn.physics.solve import (
    NOISE,
    USUAL_COUNT,
    USUAL_SPREAD,
    Rows,
    Solution,
    likeliest,
    solve,
    solve_alone,
)

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
    rows = Rows(target, np.full(len(inputs), 0.25), effect[None], np.zeros(DEVICES, dtype=int))
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


def crossed(counts: tuple[int, ...], spreads: tuple[float, ...], each: int) -> Rows:
    """A balanced design of factors without interaction, whose noise is that of the solver."""
    rng = np.random.default_rng(7)
    levels = np.stack([axis.ravel() for axis in np.meshgrid(*map(np.arange, counts))]).repeat(each, axis=1)
    effects = [rng.normal(0, spread, count) for count, spread in zip(counts, spreads, strict=True)]
    target = 0.5 + sum(own[number] for own, number in zip(effects, levels, strict=True))
    noisy = target + rng.normal(0, NOISE, levels.shape[1])
    first = np.cumsum([0, *counts[:-1]])[:, None]
    kinds = np.repeat(np.arange(len(counts)), counts)
    return Rows(noisy, np.ones(len(noisy)), levels + first, kinds, outlier=np.inf)


@pytest.mark.parametrize(
    ("counts", "spreads", "each"),
    [
        ((60,), (0.2,), 40),
        ((60, 40), (0.1, 0.3), 2),
        ((12, 150), (0.3, 0.05), 8),
        ((20, 15, 30), (0.3, 0.1, 0.2), 2),
    ],
)
def test_solve_estimates_variances_of_crossed_factors_as_analysis_of_variance(
    counts: tuple[int, ...], spreads: tuple[float, ...], each: int
) -> None:
    """s^2 = (mean square of the factor - noise^2) / rows of a level (Searle et al. 1992), drawn to the usual spread."""
    rows = crossed(counts, spreads, each)
    found = solve(
        rows,
        lambda place: np.full(len(rows.target), place[0]),
        lambda place: np.ones((len(rows.target), 1)),
        {"centre": np.zeros(1), "spread": np.ones(1)},
        steps=200,
        tolerance=0.0,
    )
    for number, (count, effect, spread) in enumerate(zip(counts, rows.effect, found.spread, strict=True)):
        of_level = len(rows.target) / count
        means = rows.sums(rows.target)[rows.kind_of_effect == number] / of_level
        variance = np.var(means, ddof=1) - NOISE**2 / of_level
        usual = USUAL_COUNT * USUAL_SPREAD**2
        assert spread**2 == pytest.approx(((count - 1) * variance + usual) / (count - 1 + USUAL_COUNT), rel=0.02)
        assert found.effects[np.unique(effect)] == pytest.approx(means - means.mean(), abs=0.15 * spreads[number])


def test_outliers_pull_little() -> None:
    rows, inputs, _ = planted(1, outliers=0.05)
    found = solved(rows, inputs)
    assert found.place == pytest.approx(TRUTH, abs=0.08)
    design = np.column_stack([inputs, np.eye(DEVICES)[rows.effect[0]]])
    squares = np.linalg.lstsq(design, rows.target, rcond=None)[0][:2]
    truth = np.array([np.exp(TRUTH[0]), TRUTH[1]])
    robust = np.array([np.exp(found.place[0]), found.place[1]])
    assert np.abs(robust - truth).max() < np.abs(squares - truth).max()


def test_without_data_of_weight_the_prior_stays() -> None:
    rows, inputs, _ = planted(2)
    found = solved(replace(rows, weight=np.full(len(inputs), 1e-9)), inputs, width=0.2, centre=0.1)
    assert found.place == pytest.approx([0.1, 0.1], abs=1e-3)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(0.2, rel=0.01)


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


def test_solve_seeks_counts_over_whole_numbers() -> None:
    """Rounds of a few tiles each, so many at a time: 2 expected, 3 true."""
    tiles, count = np.arange(1.0, 41.0), Prior(2.0, 1.0, "", "count")

    def rounds(place: np.ndarray) -> np.ndarray:
        return np.log(np.ceil(tiles / decode(count, place[0])))

    prior = {"centre": np.array([2.0]), "spread": np.array([1.0])}
    found = solve_alone(rounds(np.array([3.0])), rounds, prior, noise=0.1)
    assert decode(count, found.place[0]) == 3.0
    assert found.deviation[0] < 0.5


def test_constant_that_choices_alone_depend_on_is_sought() -> None:
    rows, inputs, _ = planted(0)

    def chosen(place: np.ndarray) -> np.ndarray:
        # A threshold: it decides which rows take longer, and no derivative shows it while choices are held.
        return law(place[:2], inputs) + 0.5 * (inputs[:, 0] > place[2])

    target = rows.target + 0.5 * (inputs[:, 0] > 0.3)
    flat = np.zeros((len(inputs), 1))
    prior = {"centre": np.zeros(3), "spread": np.array([1.0, 1.0, 0.5])}
    found = solve(
        replace(rows, target=target), chosen, lambda p: np.hstack([slopes(p[:2], inputs), flat]), prior, steps=30
    )
    assert found.place == pytest.approx([*TRUTH, 0.3], abs=0.13)
    assert found.deviation[2] < 0.25
    without = solve(rows, lambda p: law(p[:2], inputs), lambda p: np.hstack([slopes(p[:2], inputs), flat]), prior)
    assert without.place[2] == 0.0
    assert without.deviation[2] == pytest.approx(0.5, rel=1e-3)
