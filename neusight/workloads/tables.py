"""What the entries of a parametric trace refer to by number, each written once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from neusight.errors import ModelError
from neusight.workloads.fitting import Fit


class NotPolynomialError(ModelError):
    """A workload that no parametric trace describes."""


class Tables:
    """What entries of a file refer to by number: polynomials, operators, and kernels without their varying sizes."""

    def __init__(self) -> None:
        self.polynomials: dict[tuple[int, ...], int] = {}
        self.operators: dict[str, int] = {}
        self.templates: dict[str, int] = {}

    def polynomial(self, fit: Fit, values: Sequence[int], what: str) -> int:
        """The number of the polynomial through values."""
        found = fit.coefficients(values)
        if found is None:
            raise NotPolynomialError(f"{what} is no polynomial of batch and sequence length: {list(values)}")
        return self.polynomials.setdefault(tuple(found), len(self.polynomials))

    def constant(self, value: int) -> int:
        """The number of a polynomial that is the same everywhere."""
        return self.polynomials.setdefault((1, value), len(self.polynomials))

    def content(self) -> dict[str, Any]:
        """The tables as lists, in the order of their numbers."""
        return {
            "polynomials": [list(p) for p in self.polynomials],
            "operators": list(self.operators),
            "templates": [json.loads(t) for t in self.templates],
        }
