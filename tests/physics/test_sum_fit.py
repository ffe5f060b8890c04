"""Fits of sums: constants found again, effects of what is alike, and what was left out."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neusight.errors import DataError, LoadError
from neusight.learn import served, training_steps
from neusight.learn.sums import fit_sums, most_common, robust_spread

TRUE = np.array([2e-3, 1.3, 0.8])


def sums(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Terms, and the times that they add up to with ``TRUE``."""
    terms = np.random.default_rng(seed).lognormal([2.0, -4.0, -4.0], 1.0, (n, 3))
    return terms, terms @ TRUE


def prior(width: float = 2.0) -> dict[str, np.ndarray]:
    return {"centre": np.log([1e-3, 1.0, 1.0]), "spread": np.full(3, width)}


def test_constants_of_sums_are_found_again() -> None:
    terms, seconds = sums()
    fit = fit_sums(seconds, terms, [str(n % 9) for n in range(len(seconds))], prior())
    assert np.exp(fit.place) == pytest.approx(TRUE, rel=0.02)
    assert fit.error < 0.01 and fit.spread < 0.01
    assert list(fit.values(("a", "b", "c"))) == ["a", "b", "c"]


def test_a_constant_of_two_terms_is_one_and_products_of_constants_multiply() -> None:
    """log t = log(T0 exp(x0) + T1 exp(x0 + x1) + T2 exp(x2))."""
    terms = np.random.default_rng(0).lognormal([2.0, 2.0, -4.0], 1.0, (90, 3))
    places = np.broadcast_to([[1.0, 0, 0], [1.0, 1.0, 0], [0, 0, 1.0]], (len(terms), 3, 3))
    seconds = (terms * [2e-3, 2e-3 * 1.5, 0.8]).sum(axis=1)
    fit = fit_sums(seconds, terms, ["one"] * len(terms), prior(), places)
    assert np.exp(fit.place) == pytest.approx([2e-3, 1.5, 0.8], rel=0.05)


def test_the_spread_is_that_of_a_normal_error() -> None:
    assert robust_spread(np.random.default_rng(1).normal(0, 0.2, 100_000)) == pytest.approx(0.2, rel=0.02)


def test_reasons_are_told_the_commonest_first() -> None:
    assert most_common(Counter({"a": 1, "b": 1200})) == "b (1,200); a (1)"
    assert most_common(Counter("abcd")).endswith("; …")
    assert most_common(Counter()) == ""


def test_rows_that_cannot_be_simulated_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(number: int) -> str:
        if number < 2:
            raise LoadError("too long")
        return "seen"

    monkeypatch.setattr(served, "share_prices", lambda deployments: deployments)
    monkeypatch.setattr(served, "replace", lambda row, deployment: deployment)
    groups: Any = [[SimpleNamespace(deployment=number) for number in range(3)]]
    left_out: Counter[str] = Counter()
    assert list(served.ServedRows(groups=groups, files=[]).answers(answer, left_out)) == ["seen"]  # type: ignore[arg-type]
    assert left_out == {"too long": 2}


def test_steps_that_cannot_be_simulated_are_counted() -> None:
    def timer(*_: Any) -> Any:
        raise DataError("no such run")

    step: Any = training_steps.MeasuredStep(source="a", seconds=1.0, run=None)  # type: ignore[arg-type]
    observations, left_out = training_steps.observe([step, step], timer, training_steps.PRIOR)
    assert observations == [] and left_out == {"no such run": 2}
