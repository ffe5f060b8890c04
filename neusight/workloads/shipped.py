"""Workloads that ship: every number of a step as a polynomial in batch and sequence length.

For a fixed model and fixed options a step always runs the same operators; sizes of their kernels and tensors are
polynomials of the batch b and the sequence length s in the monomials 1, b, s, bs, s² and bs² (attention's scores are
bs²), and r and br, where r is s rounded up to a multiple of 32, as memory-efficient attention pads its row sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

from neusight.errors import DataError
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.packing import DAMAGE, split, unpack
from neusight.workloads.serialise import VERSION, workload_of
from neusight.workloads.workload import Workload

_FOLDER = Path(__file__).with_name("traces")


def monomials(batch: int, seq_len: int) -> tuple[int, ...]:
    """1, b, s, bs, s², bs², r and br; with ``seq_len`` 0, for images, only the first two are not zero."""
    square, padded = seq_len * seq_len, -(-seq_len // 32) * 32
    return 1, batch, seq_len, batch * seq_len, square, batch * square, padded, batch * padded


def polynomial_value(coefficients: Sequence[int], powers: Sequence[int]) -> int:
    """A polynomial with integer coefficients over a common denominator, at one point.

    Args:
        coefficients: the denominator, then one coefficient a monomial; zeros at the end may be missing.
        powers: the monomials' values.

    Raises:
        DataError: the value is no integer, so that the point lies outside what the polynomial describes.
    """
    value, rest = divmod(sum(c * p for c, p in zip(coefficients[1:], powers, strict=False)), coefficients[0])
    if rest:
        raise DataError(f"a shipped trace gives no whole number at batch {powers[1]}, sequence length {powers[2]}")
    return value


class _Values(dict[str, int]):
    """Values of a file's polynomials at one point, by name, each computed when it is first asked for."""

    def __init__(self, polynomials: Sequence[Sequence[int]], request: Request) -> None:
        super().__init__()
        self.polynomials = polynomials
        self.powers = monomials(request.batch, request.seq_len or 0)

    def __missing__(self, name: str) -> int:
        value = self[name] = polynomial_value(self.polynomials[int(name)], self.powers)
        return value


@dataclass(frozen=True)
class ShippedWorkload:
    """The steps of one ready workload: what they share, and ``pieces`` as ``packing.unpack`` takes them.

    ``variants`` maps ``dtype/attention/mode`` to a variant, or to the name of an equal one. A variant is in pieces,
    since a batch of one needs fewer copies than a larger one: of each, the least batch and its place. A piece has
    tensors and nodes up to the optimizer's update, and those of the update for each choice of optimizer.
    """

    name: str
    content: Mapping[str, Any]
    pieces: Sequence[bytes]

    @classmethod
    def read(cls, name: str, data: bytes) -> ShippedWorkload:
        """Read the content of a file.

        Raises:
            DataError: the file is damaged.
        """
        try:
            return cls(name, *split(data))
        except DAMAGE as error:
            raise _damage_error(name, error) from None

    def evaluate(self, request: Request) -> Workload | None:
        """The workload of a step, or None when this file does not hold for it.

        Raises:
            DataError: the file is damaged.
        """
        piece = self._piece(request)
        if piece is None:
            return None
        tables = {name: self.content[name] for name in ("operators", "layers", "kernels", "shapes")}
        parts = {name: piece[name] for name in ("tensors", "nodes")}
        if request.mode == "training":
            update = piece["updates"][request.optimizer]
            parts = {name: rows + update[name] for name, rows in parts.items()}
        head = {"parameters": piece["parameters"], "uncovered": (), "warnings": ()}
        return workload_of({**tables, **parts, **head}, request, _Values(self.content["polynomials"], request))

    def _piece(self, request: Request) -> Mapping[str, Any] | None:
        """The piece for a step; None outside of its domain."""
        variants = self.content["variants"]
        dtype = self.content["dtypes"].get(request.dtype)
        variant = variants.get(f"{dtype}/{request.attention}/{request.mode}")
        if isinstance(variant, str):
            variant = variants[variant]
        if variant is None or (request.seq_len is not None and request.seq_len < self.content["min_seq_len"]):
            return None
        place = next(place for least, place in reversed(variant) if least <= request.batch)
        try:
            piece = _unpack(self.pieces[place])
        except DAMAGE as error:
            raise _damage_error(self.name, error) from None
        if request.mode == "training" and request.optimizer not in piece["updates"]:
            return None
        return piece


@lru_cache(maxsize=256)
def _unpack(piece: bytes) -> Mapping[str, Any]:
    return unpack(piece)


def _damage_error(name: str, error: Exception) -> DataError:
    return DataError(f"the shipped trace of {name} is damaged ({error}): reinstall neusight")


@lru_cache(maxsize=64)
def shipped_workload(name: str) -> ShippedWorkload | None:
    """The shipped steps of a ready workload, or None when it has none.

    Raises:
        DataError: the file is damaged.
    """
    file = _FOLDER / f"{name}.json.gz"
    if not file.is_file():
        return None
    shipped = ShippedWorkload.read(name, file.read_bytes())
    return shipped if shipped.content.get("version") == VERSION else None


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
        polynomial = [self.denominator // shared, *(c // shared for c in top)]
        while len(polynomial) > 2 and polynomial[-1] == 0:
            polynomial.pop()
        exact = all(self._holds(polynomial, row, value) for row, value in zip(self.powers, values, strict=True))
        return [int(c) for c in polynomial] if exact else None

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
