"""Fits of sums: constants found again, effects of what is alike, and what was left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neusight.errors import DataError, LoadError
from neusight.learn import served, training_steps
from neusight.learn.evidence import Evidence, FitOptions
from neusight.learn.sums import SumObservation, fit_sums, robust_spread, share_of

TRUE = np.array([2e-3, 1.3, 0.8])


PRIOR = {"a": (1e-3, 2.0), "b": (1.0, 2.0), "c": (1.0, 2.0)}


def sums(location: list[float], constants: np.ndarray) -> list[SumObservation]:
    """Terms, and the times that they add up to with their constants, nine of each of ten names."""
    terms = np.random.default_rng(0).lognormal(location, 1.0, (90, 3))
    return [
        SumObservation(gpu="l4", alike=str(n % 9), measured=float(row @ constants), terms=row)
        for n, row in enumerate(terms)
    ]


def test_constants_of_sums_are_found_again() -> None:
    fit = fit_sums(sums([2.0, -4.0, -4.0], TRUE), PRIOR)
    assert fit.values == pytest.approx(dict(zip("abc", TRUE, strict=True)), rel=0.02)
    assert fit.error < 0.01 and robust_spread(fit.log_error) < 0.01


def test_a_constant_of_two_terms_is_one_and_products_of_constants_multiply() -> None:
    """log t = log(T0 exp(x0) + T1 exp(x0 + x1) + T2 exp(x2))."""
    observations = sums([2.0, 2.0, -4.0], np.array([2e-3, 2e-3 * 1.5, 0.8]))
    places = np.array([[1.0, 0, 0], [1.0, 1.0, 0], [0, 0, 1.0]])
    fit = fit_sums(observations, PRIOR, places)
    assert fit.values == pytest.approx({"a": 2e-3, "b": 1.5, "c": 0.8}, rel=0.05)


def test_the_spread_is_that_of_a_normal_error() -> None:
    assert robust_spread(np.random.default_rng(1).normal(0, 0.2, 100_000)) == pytest.approx(0.2, rel=0.02)


def test_robust_spread_has_nine_of_ten_errors_within_their_intervals() -> None:
    random = np.random.default_rng(2)
    stated = random.uniform(0.02, 0.2, 100_000)
    errors = random.normal(0, np.hypot(stated, 0.15))
    assert robust_spread(errors, stated) == pytest.approx(0.15, rel=0.03)
    assert robust_spread(errors, np.full_like(stated, 0.5)) == 0.0
    assert share_of(errors, np.hypot(stated, 0.15) / 0.7) == pytest.approx(0.7, rel=0.03)
    assert share_of(errors, stated) == share_of(errors, np.zeros_like(stated)) == 1.0


def test_rows_that_cannot_be_simulated_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(number: int) -> str:
        if number < 2:
            raise LoadError("too long")
        return "seen"

    monkeypatch.setattr(served, "share_prices", lambda deployments: deployments)
    monkeypatch.setattr(served, "replace", lambda row, deployment: deployment)
    rows: Any = [SimpleNamespace(deployment=number, prices="") for number in range(3)]
    answered = served.answers(Evidence(rows=rows, files=[]), answer)  # type: ignore[arg-type]
    assert answered.rows == ["seen"] and answered.skipped == {"too long": 2}


def test_steps_that_cannot_be_simulated_are_counted() -> None:
    def timer(*_: Any) -> Any:
        raise DataError("no such run")

    step: Any = training_steps.MeasuredStep(source="a", seconds=1.0, run=None)  # type: ignore[arg-type]
    observed = training_steps.observe(Evidence(rows=[step, step], files=[]), timer, training_steps.PRIOR)
    assert observed.rows == [] and observed.skipped == {"no such run": 2}


def test_a_fit_of_training_leaves_out_gpus_trainers_and_sources() -> None:
    """Products of the second trainer take twice as long: where it is left out the spread is ln 2 over 1.645."""
    names = [(gpu, engine) for gpu in ("a100", "h100") for engine in ("one", "other")]
    rows = [
        training_steps.StepObservation(
            gpu=gpu, engine=engine, source=f"{gpu} {engine}", alike=f"{gpu} {engine} {n}",
            measured=2.0 if engine == "other" else 1.0, terms=np.eye(len(training_steps.KINDS))[0],
        )
        for gpu, engine in names for n in range(40)
    ]  # fmt: skip
    evidence = Evidence(rows=rows, files=())
    judged = training_steps.TRAINING.judged(evidence, training_steps.PRIOR, FitOptions(data=Path()))
    means = {(row["fit"], row["gpu"], row["engine"]): row["mean"] for row in judged.errors}
    fits = ("seen", *(f"left out by {trait}" for trait in training_steps.TRAITS))
    assert {*means} == {(fit, *name) for fit in fits for name in names}
    assert means["left out by engine", "a100", "other"] > 1.2 * means["left out by gpu", "a100", "other"]
    assert judged.spread == pytest.approx(np.log(2.0) / 1.645, rel=0.2)
