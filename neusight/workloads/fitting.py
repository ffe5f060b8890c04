"""Exact polynomials through integers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from neusight.workloads.shipped import monomials, polynomial_value


class Fit:
    """Interpolation over some of the monomials of ``shipped``, exact.

    Args:
        points: (batch, sequence length) pairs, sequence length 0 for images. The first ones, as many as there are
            terms, determine the polynomial; the others check it.
        terms: positions of the monomials used, such as (0, 1) for images.
    """

    def __init__(self, points: Sequence[tuple[int, int]], terms: Sequence[int]) -> None:
        self.powers = [monomials(*point) for point in points]
        self.terms = list(terms)
        determining = self.powers[: len(self.terms)]
        inverse = _inverse([[Fraction(row[t]) for t in self.terms] for row in determining])
        self.denominator = lcm(*(entry.denominator for row in inverse for entry in row))
        self.scaled = np.array([[int(entry * self.denominator) for entry in row] for row in inverse], dtype=object)

    def coefficients(self, values: Sequence[int]) -> list[int] | None:
        """Denominator and coefficients, zeros at the end left out; None when they miss one of the points."""
        top = [0] * (max(self.terms) + 1)
        for term, c in zip(self.terms, self.scaled @ np.array(values[: len(self.terms)], dtype=object), strict=True):
            top[term] = int(c)
        shared = np.gcd.reduce(np.array([self.denominator, *top], dtype=object))
        found = [self.denominator // shared, *(c // shared for c in top)]
        while len(found) > 2 and found[-1] == 0:
            found.pop()
        exact = all(self._holds(found, row, value) for row, value in zip(self.powers, values, strict=True))
        return [int(c) for c in found] if exact else None

    @staticmethod
    def _holds(coefficients: Sequence[int], powers: Sequence[int], value: int) -> bool:
        scaled = sum(c * p for c, p in zip(coefficients[1:], powers, strict=False))
        return scaled == value * coefficients[0] and polynomial_value(coefficients, powers) == value


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Gauss-Jordan elimination in exact arithmetic."""
    size = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [entry / rows[column][column] for entry in rows[column]]
        for i in range(size):
            if i != column and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]
