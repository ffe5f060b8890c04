"""Robust least squares around what is known of constants beforehand, for laws that have no derivatives by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Solved(NamedTuple):
    """Constants, each on its scale, the matrix of second derivatives of half the squares there, and ``cost``, those."""

    place: np.ndarray
    precision: np.ndarray
    cost: float

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviations of the constants."""
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(self.precision))))


def solve_around(
    centre: np.ndarray,
    spread: np.ndarray | float,
    residuals: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray | None = None,
) -> Solved:
    """The constants of least squares of residuals and of their distances from the centres of their priors.

    Args:
        centre: of the priors.
        spread: their standard deviations.
        residuals: of measurements in standard deviations, by constants.
        start: constants to set out from; default the centres.
    """
    from scipy.optimize import least_squares

    found = least_squares(
        lambda place: np.concatenate([residuals(place), (place - centre) / spread]),
        centre if start is None else start,
    )
    return Solved(found.x, found.jac.T @ found.jac, float(found.cost))


def robust(off: np.ndarray) -> np.ndarray:
    """Residuals whose squares are twice the pseudo-Huber loss: large ones count by their size, not by its square
    (Charbonnier et al. 1997).
    """
    return np.asarray(np.sign(off) * np.sqrt(2.0 * (np.sqrt(1.0 + off**2) - 1.0)))
