"""Robust non-linear least squares in log time, with priors and crossed random effects, such as devices and sources.

The model of a row is ``log t = f(constants, row) + e(device, kind) + e(source, kind) + … + noise``: constants are the
same for all rows, each ``e`` is what a device (or source) has of its own, normal around zero with a spread that is
estimated. A device that nobody measured has effect 0, give or take that spread. Outliers count by the pseudo-Huber loss
(Charbonnier et al. 1997). Levenberg-Marquardt; the spreads are re-estimated after each step (EM for variance
components, Laird and Ware 1982).
Every fit of constants is a call of ``solve``, or of ``solve_alone`` where devices are too few to have effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

NOISE = 0.12
"""Scale of the residuals beyond which a row counts as an outlier (assumption; repeated measurements differ by 2 to
18 %)."""
STEP = 1e-3
"""Of a constant on its scale, for its derivative."""
SMALL_STEP, MOST_STEPS, CONVERGED = 1e-5, 100, 1e-12
"""The same where no choice is held, most steps, and share of the loss at which those end."""
LONGEST_STEP, TRIES = 0.5, 8
"""Of a constant on its scale, and dampings that are tried for one."""
SEARCH = (1.0, 0.5, 0.25)
"""Steps, as shares of its prior's spread, by which a constant is sought that choices alone depend on."""
USUAL_SPREAD, USUAL_COUNT = 0.1, 4.0
"""Of random effects, before any is seen, and the number of devices that this counts as (assumption: datasheets tell a
device's speed within some ten percent, two boards of one kind differ by a few)."""
UNBIASED = 0.1
"""How far the mean effect of a kind may be from none: what all devices have in common is the constants' to explain."""

Evaluate = Callable[[np.ndarray], np.ndarray]
"""Predicted log times of all rows from the constants on their scales, all choices remade."""


@dataclass(frozen=True)
class Rows:
    """``target`` log times, ``weight`` of each, ``effect`` the number of its effect by each factor, shape (factors,
    rows), and ``kind_of_effect`` the number of each effect's kind; effects of a kind share their spread. ``noise`` is
    the scale of residuals; those of more than ``outlier`` times it count as outliers. ``usual`` is the spread of
    effects before any is seen, of all kinds or of each.
    """

    target: np.ndarray
    weight: np.ndarray
    effect: np.ndarray
    kind_of_effect: np.ndarray
    noise: float = NOISE
    outlier: float = 1.0
    usual: np.ndarray | float = USUAL_SPREAD

    def of_effects(self, values: np.ndarray) -> np.ndarray:
        """The sum of each row's effects."""
        return np.asarray(values[self.effect].sum(axis=0))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums of the rows' values (or vectors of them) over each effect, shape (effects, …)."""
        totals = np.zeros((len(self.kind_of_effect), *values.shape[1:]))
        for numbers in self.effect:
            np.add.at(totals, numbers, values)
        return totals

    def shared(self, weight: np.ndarray) -> np.ndarray:
        """Sums of the weights of rows that two effects have in common, shape (effects, effects)."""
        totals = np.zeros((len(self.kind_of_effect),) * 2)
        for pair in product(self.effect, repeat=2):
            np.add.at(totals, pair, weight)
        return totals


@dataclass(frozen=True)
class Solution:
    """Constants on their scales with covariance, effects with their variances, and spreads by number of kind."""

    place: np.ndarray
    covariance: np.ndarray
    effects: np.ndarray
    variance: np.ndarray
    spread: np.ndarray
    error: float
    """Weighted mean of |predicted / measured - 1| with the effects."""
    loss: float
    """Of rows and priors."""

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviations of the constants."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))


@dataclass(frozen=True)
class _Known:
    """What is known before any row: ``centre`` and ``width`` of constants, ``means`` as of ``_mean_precision``."""

    centre: np.ndarray
    width: np.ndarray
    means: np.ndarray

    def loss(self, place: np.ndarray, effects: np.ndarray, spread: np.ndarray) -> float:
        """Of constants at a place, and of effects that have these spreads."""
        constants = (((place - self.centre) / self.width) ** 2).sum()
        return float(constants + ((effects / spread) ** 2).sum() + effects @ self.means @ effects)


def solve(
    rows: Rows,
    evaluate: Evaluate,
    jacobian: Callable[[np.ndarray], np.ndarray],
    prior: Mapping[str, np.ndarray],
    *,
    steps: int = 12,
    report: Callable[[int, float], None] | None = None,
    start: np.ndarray | None = None,
    tolerance: float = 1e-4,
) -> Solution:
    """Estimate constants, effects and spreads.

    Args:
        rows: what was measured.
        evaluate: see ``Evaluate``.
        jacobian: derivatives of the log times, shape (rows, constants), choices held.
        prior: ``centre`` and ``spread`` of the constants on their scales, and optionally ``sought``, which of them may
            be sought.
        steps: of Levenberg-Marquardt, at most.
        report: called with (step, error).
        start: constants on their scales to set out from; default: the centres of the priors. Constants that choices
            alone depend on are sought where none is given, else taken from there or from their centres.
        tolerance: share of the loss by which a step lowers it, from which on more follow.
    """
    known = _Known(prior["centre"], prior["spread"], _mean_precision(rows.kind_of_effect))
    first = known.centre if start is None else start
    at = _Place(first.copy(), np.zeros(len(rows.kind_of_effect)), evaluate(first))
    spread = np.full(int(rows.kind_of_effect.max(initial=-1)) + 1, rows.usual)
    damping, inverse, count = 1e-2, np.eye(len(at.constants) + len(at.effects)), len(at.constants)
    for step in range(steps):
        own, slopes = spread[rows.kind_of_effect], jacobian(at.constants)
        loss = at.loss(rows, known, own)
        normal, gradient = _system(rows, slopes, at, known, own)
        unseen = np.flatnonzero(~slopes.any(axis=0))
        gradient[unseen] = 0.0
        inverse = np.linalg.inv(normal) if step == 0 else inverse
        loss_of = partial(_Place.loss, rows=rows, known=known, spread=own)
        tried, damping = _improved(evaluate, at, (normal, gradient, damping), loss_of)
        if tried is None:
            break
        at, damping = tried, max(damping / 5.0, 1e-7)
        inverse = np.linalg.inv(normal)
        new_loss = at.loss(rows, known, own)
        spread = _spreads(rows, at.effects, np.diag(inverse)[count:], len(spread))
        if report:
            report(step + 1, _error(at.residual(rows), rows.weight))
        if loss - new_loss < tolerance * loss:
            break
    loss_of = partial(_Place.loss, rows=rows, known=known, spread=spread[rows.kind_of_effect])
    may = prior.get("sought", np.ones(count, dtype=bool))
    unseen, shares = unseen[may[unseen]], SEARCH if start is None else ()
    sought, deviation = _sought(evaluate, at, unseen, known, loss_of, shares=shares)
    error, variance = _error(at.residual(rows), rows.weight), np.diag(inverse)[count:]
    found = Solution(at.constants, inverse[:count, :count], at.effects, variance, spread, error, loss_of(at))
    if loss_of(at) - loss_of(sought) > tolerance * loss_of(at):
        further = partial(solve, steps=steps, report=report, tolerance=tolerance, start=sought.constants)
        found = further(rows, evaluate, jacobian, prior)
    found.covariance[unseen, unseen] = deviation**2
    return found


def solve_alone(
    target: np.ndarray,
    evaluate: Evaluate,
    prior: Mapping[str, np.ndarray],
    *,
    noise: float,
    outlier: float = 1.0,
    start: np.ndarray | None = None,
) -> Solution:
    """Estimate constants of rows without effects, to convergence, by differences; arguments as of ``solve``."""
    effect, kinds = np.zeros((0, len(target)), dtype=int), np.zeros(0, dtype=int)
    rows = Rows(target, np.ones(len(target)), effect, kinds, noise, outlier)

    def jacobian(place: np.ndarray) -> np.ndarray:
        moves = SMALL_STEP * np.eye(len(place))
        return np.stack([(evaluate(place + m) - evaluate(place - m)) / (2.0 * SMALL_STEP) for m in moves], axis=1)

    return solve(rows, evaluate, jacobian, prior, steps=MOST_STEPS, start=start, tolerance=CONVERGED)


def likeliest(surprise: Callable[[np.ndarray], float], start: Sequence[float]) -> np.ndarray:
    """Positive figures, such as spreads, of least surprise (minus the logarithm of a likelihood), shape (n,): each in
    turn is changed by a factor that shrinks to 1 (pattern search, Hooke and Jeeves 1961).
    """
    at, factor = np.array(start, dtype=float), 2.0
    least = surprise(at)
    while factor > 1.0 + 1e-4:
        moves = [at * factor**move for move in (*np.eye(len(at)), *-np.eye(len(at)))]
        best = min(moves, key=surprise)
        if surprise(best) < least:
            at, least = best, surprise(best)
        else:
            factor = factor**0.5
    return at


@dataclass(frozen=True)
class _Place:
    """Constants on their scales, effects, and the log times predicted with those constants."""

    constants: np.ndarray
    effects: np.ndarray
    predicted: np.ndarray

    def residual(self, rows: Rows) -> np.ndarray:
        return np.asarray(rows.target - self.predicted - rows.of_effects(self.effects))

    def moved(self, constant: int, value: float, evaluate: Evaluate) -> _Place:
        """With another value of one of the constants."""
        constants = self.constants.copy()
        constants[constant] = value
        return replace(self, constants=constants, predicted=evaluate(constants))

    def loss(self, rows: Rows, known: _Known, spread: np.ndarray) -> float:
        return _misfit(self.residual(rows), rows) + known.loss(self.constants, self.effects, spread)


def _system(
    rows: Rows, slopes: np.ndarray, at: _Place, known: _Known, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Normal matrix and gradient of rows and priors at a place, over constants, then effects (columns of ones)."""
    count, residual = len(at.constants), at.residual(rows)
    weight = rows.weight / np.sqrt(1.0 + (residual / rows.noise / rows.outlier) ** 2) / rows.noise**2
    weighted = slopes * weight[:, None]
    across = rows.sums(weighted)
    normal = np.block([[weighted.T @ slopes, across.T], [across, rows.shared(weight)]])
    gradient = np.concatenate([weighted.T @ residual, rows.sums(weight * residual)])
    precision = np.concatenate([known.width**-2.0, spread**-2.0])
    normal[np.diag_indices_from(normal)] += precision
    normal[count:, count:] += known.means
    gradient -= precision * np.concatenate([at.constants - known.centre, at.effects])
    gradient[count:] -= known.means @ at.effects
    return normal, gradient


def _improved(
    evaluate: Evaluate,
    at: _Place,
    system: tuple[np.ndarray, np.ndarray, float],
    loss_of: Callable[[_Place], float],
) -> tuple[_Place | None, float]:
    """A place of less loss and the damping that led there; None where no damping does."""
    normal, gradient, damping = system
    loss, count = loss_of(at), len(at.constants)
    for _ in range(TRIES):
        damped = normal.copy()
        damped[np.diag_indices_from(damped)] *= 1.0 + damping
        move = np.clip(np.linalg.solve(damped, gradient), -LONGEST_STEP, LONGEST_STEP)
        constants = at.constants + move[:count]
        tried = _Place(constants, at.effects + move[count:], evaluate(constants))
        if loss_of(tried) < loss:
            return tried, damping
        damping *= 5.0
    return None, damping


def _sought(
    evaluate: Evaluate,
    at: _Place,
    unseen: np.ndarray,
    known: _Known,
    loss_of: Callable[[_Place], float],
    *,
    shares: Sequence[float],
) -> tuple[_Place, np.ndarray]:
    """A place of no more loss, and standard deviations from the curvature of the loss, of ``unseen`` constants that no
    derivative shows while choices are held, each sought at its prior's centre and in steps of some ``shares`` of its
    prior's spread.
    """
    deviation = []
    for constant in unseen:
        centre, own = known.centre[constant], known.width[constant]
        home = at if at.constants[constant] == centre else at.moved(constant, centre, evaluate)
        at, curvature = home if loss_of(home) <= loss_of(at) else at, own**-2.0
        for share in shares:
            moves = [at.moved(constant, at.constants[constant] + end * share * own, evaluate) for end in (-1.0, 1.0)]
            if all(np.array_equal(move.predicted, at.predicted) for move in moves):
                break
            ends, middle = [loss_of(move) for move in moves], loss_of(at)
            curvature = max((sum(ends) - 2.0 * middle) / 2.0 / (share * own) ** 2, own**-2.0)
            at = moves[int(np.argmin(ends))] if min(ends) < middle else at
        deviation.append(curvature**-0.5)
    return at, np.array(deviation)


def _misfit(residual: np.ndarray, rows: Rows) -> float:
    """Pseudo-Huber loss of the rows."""
    squares = (residual / rows.noise) ** 2
    return float((rows.weight * 2.0 * squares / (1.0 + np.sqrt(1.0 + squares / rows.outlier**2))).sum())


def _spreads(rows: Rows, effects: np.ndarray, variance: np.ndarray, kinds: int) -> np.ndarray:
    """Standard deviation of the effects of each kind: root of the mean of squares and posterior variances."""
    second = effects**2 + variance
    sums, counts = (np.bincount(rows.kind_of_effect, v, kinds) for v in (second, np.ones_like(second)))
    return np.sqrt((sums + USUAL_COUNT * rows.usual**2) / (counts + USUAL_COUNT))


def _mean_precision(kinds: np.ndarray) -> np.ndarray:
    """What holds the mean effect of each kind near none, as a matrix over effects."""
    same = kinds[:, None] == kinds[None, :]
    return same / same.sum(axis=1)[:, None] ** 2 / UNBIASED**2


def _error(residual: np.ndarray, weight: np.ndarray) -> float:
    return float((np.abs(np.expm1(-residual)) * weight).sum() / weight.sum())
