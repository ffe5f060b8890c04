"""Launches that grew while a GPU was measured: a host that keeps something for every new shape slows down.

The rows of such a table lie in an order that has nothing to do with their shapes, and the shortest latencies among
neighbours rise along it. Eager convolutions of neusight-fp32 start at 70 microseconds a launch and end, 5,000 shapes
later, at 340 to 840: a fifth of the median row, on five GPUs alike.
"""

from __future__ import annotations

import numpy as np

LEAST_ROWS = 1000
"""Fewer rows tell no drift from chance (assumption)."""
LEAST_GROWTH = 2.0
"""By which a floor grows at least to count as drifting (assumption)."""
UNORDERED = 0.05
"""Rank correlation of work with place, at most: in tables that are sorted by shape the work itself rises."""
SHORT_SHARE, QUANTILE = 0.1, 0.1
"""Rows with the least work that show the launch, and how many of them lie below the floor (assumption)."""
STEPS = 100
"""Of reweighting, at most."""


def drifting_floor_s(place: np.ndarray, latency_s: np.ndarray, least_s: np.ndarray) -> np.ndarray | None:
    r"""Launch of each row [s], a parabola in its place, or None where it does not drift.

    .. math:: f(x) = a + b x + c x^2,\quad \text{the 10 % quantile of } t - t_{least}

    Args:
        place: where the row lies in its table, which is the order of measuring.
        latency_s: t, with launch [s].
        least_s: what the work takes at least [s].

    Source: quantile regression (Koenker and Bassett 1978) by reweighted least squares.
    Validity: a thousand rows and more of one operator on one GPU, timed by single launches.
    """
    if len(place) < LEAST_ROWS or abs(_rank_correlation(place, least_s)) > UNORDERED:
        return None
    low, high = place.min(), place.max()
    powers = np.vander((place - low) / max(high - low, 1), 3)
    short = least_s <= np.quantile(least_s, SHORT_SHARE)
    floor_s = powers @ _quantile_fit(powers[short], (latency_s - least_s)[short])
    grown = floor_s[np.argmax(place)] >= LEAST_GROWTH * floor_s[np.argmin(place)]
    return floor_s if grown and floor_s.min() > 0 else None


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


def _quantile_fit(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Coefficients of least asymmetric absolute error."""
    weight = np.ones(len(target))
    for _ in range(STEPS):
        weighted = columns * weight[:, None]
        coefficients = np.linalg.solve(weighted.T @ columns, weighted.T @ target)
        residual = target - columns @ coefficients
        # Below a microsecond every error counts the same, lest a row be met exactly and keep the others out.
        weight = np.where(residual > 0, QUANTILE, 1.0 - QUANTILE) / np.maximum(np.abs(residual), 1e-6)
    return coefficients
