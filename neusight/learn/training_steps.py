"""``neusight fit training``: what kernels take in training steps, over what they take by themselves.

A measured step is a sum of what its critical path has of each kind of kernel and collective, each with a factor. What a
path has comes from a simulation with the factors so far; simulation and fit are repeated, since slower kernels hide
more collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from pathlib import Path

import numpy as np

from neusight.distributed.factors import FIRST, PRIOR, TERMS, Factors, kind_of, names_of, shipped_factors
from neusight.distributed.step import TimedStep
from neusight.distributed.training_run import TrainingRun
from neusight.laws.constants import priors
from neusight.laws.training_constants import StepPhysics
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, ask_each
from neusight.learn.served import resolved_rows
from neusight.learn.sums import SumObservation, fit_sums, robust_spread
from neusight.measured.folder import rows_to_fit

NAMES = (*TERMS, *FIRST.values())
PASSES = ("forward", "backward", "weights", "recompute")
ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step that was measured: where it is published, what it took [s], and what was run."""

    source: str
    seconds: float
    run: TrainingRun


Timer = Callable[[TrainingRun, Factors], TimedStep]
"""What gives a run its times, with some factors."""


@dataclass(frozen=True, kw_only=True)
class StepObservation(SumObservation):
    """A measured step [s], whose terms are by ``TERMS`` what the critical path has of each kind, without factors.

    ``first``: attention is of the first FlashAttention; ``engine``: the name of the trainer.
    """

    first: bool
    engine: str


def read_steps(data: Path, left_out: Counter[str]) -> tuple[list[MeasuredStep], list[Path]]:
    """Training steps in a folder of measured rows that constants learn from, and the files that they come from.

    Args:
        data: the folder.
        left_out: gets the number of rows that are no question, by reason.

    Raises:
        DataError: none there.
    """
    tables = rows_to_fit(data, "training", left_out, "step_ms")
    steps = []
    for row, run in resolved_rows(tables, left_out):
        # A page in all of its revisions.
        page = str(row.get("origin") or row.get("source")).partition("@")[0].strip()
        steps.append(MeasuredStep(source=page, seconds=row["step_ms"] / 1e3, run=run))
    return steps, [table.path for table in tables]


def read_training(options: FitOptions, report: Report | None = None) -> Evidence[StepObservation]:
    """Observations of a folder's training steps, simulated with the factors that they give.

    Raises:
        DataError: no steps there.
    """
    from neusight.api import Predictor

    skipped: Counter[str] = Counter()
    steps, files = read_steps(options.data, skipped)
    timer = Predictor.load().timed
    observations, left_out = observe(steps, timer, shipped_factors() if options.again else PRIOR, report)
    for _ in range(0 if options.again else ROUNDS - 1):
        observations, left_out = observe(steps, timer, fitted(observations), report)
    return Evidence(rows=observations, files=files, skipped=left_out + skipped)


def solve_training(evidence: Evidence[StepObservation], options: FitOptions, report: Report | None = None) -> Factors:
    """All factors."""
    return replace(fitted(evidence.rows), **evidence.about())


def judge_training(
    evidence: Evidence[StepObservation], factors: Factors, options: FitOptions, report: Report | None = None
) -> Factors:
    """The same with errors on each GPU, of each trainer and of each source by a fit without its steps, and the spread
    of those: that of whichever of the three tells least of one another.
    """
    kinds = map(attrgetter, ("gpu", "engine", "source"))
    by_kind = [{name: _left_out(rest) for name, rest in evidence.folds(kind)} for kind in kinds]
    spread = max(float(np.mean([each["spread"] for each in errors.values()])) for errors in by_kind)
    left_out = {name: each for errors in by_kind for name, each in errors.items()}
    return replace(factors, left_out=left_out, spread=round(spread, 4))


def observe(
    steps: Sequence[MeasuredStep], timer: Timer, factors: Factors, report: Report | None = None
) -> tuple[list[StepObservation], Counter[str]]:
    """What measured steps tell, simulated with some factors, and why others tell nothing, each reason with their
    number.
    """
    left_out: Counter[str] = Counter()

    def observed(step: MeasuredStep) -> StepObservation:
        return _observed(step, timer(step.run, factors), factors)

    return list(ask_each(steps, observed, left_out, report, "steps")), left_out


def _observed(measured: MeasuredStep, timed: TimedStep, factors: Factors) -> StepObservation:
    """Seconds on the critical path by kind, divided by the factors that are in them."""
    run = measured.run
    schedule = timed.schedule
    inside = dict.fromkeys(TERMS, 0.0)
    for part, part_s in zip(timed.parts.parts, (timed.runs * timed.parts.latency_s).tolist(), strict=True):
        kind = kind_of(part)
        if part.phase != "step" and kind != "exchanges":
            inside[kind] += part_s
    path = sum(schedule.path_s[name] for name in PASSES)
    total = sum(inside.values())
    terms = {kind: path * value / total for kind, value in inside.items()}
    terms["rest"] += schedule.path_s["optimizer"]
    terms["exchanges"] = schedule.step_s - path - schedule.path_s["optimizer"]
    step, first = factors.physics.step, run.engine.attention_generation == 1
    device = run.cluster.device.id
    return StepObservation(
        gpu=device,
        source=measured.source,
        alike=f"{measured.source} {run.decoder.name} {device}",
        measured=measured.seconds,
        terms=np.array([terms[name] / _factor(step, name, first) for name in TERMS]),
        first=first,
        engine=run.engine.name,
    )


def _factor(step: object, name: str, first: bool) -> float:
    return prod(float(getattr(step, factor)) for factor in names_of(name, first))


def fitted(observations: Sequence[StepObservation]) -> Factors:
    """Factors by all of some observations."""
    known = priors(StepPhysics())
    prior = {name: (known[name].value, known[name].spread) for name in (f"step.{name}" for name in NAMES)}
    fit = fit_sums(observations, prior, _places(observations))
    return replace(
        PRIOR,
        values={name: round(value, 4) for name, value in fit.values.items()},
        deviations={name: round(deviation, 4) for name, deviation in fit.deviations.items()},
        error=round(fit.error, 4),
    )


def _places(observations: Sequence[StepObservation]) -> np.ndarray:
    """Which constants multiply each term of each observation, shape (n, terms, constants)."""
    places = np.zeros((len(observations), len(TERMS), len(NAMES)))
    for at, o in enumerate(observations):
        for term, kind in enumerate(TERMS):
            places[at, term, [NAMES.index(name) for name in names_of(kind, o.first)]] = 1.0
    return places


def errors_with(factors: Factors, observations: Sequence[StepObservation]) -> np.ndarray:
    """Signed relative errors of steps with some factors, their paths as they are; shape (n,)."""
    step = factors.physics.step
    predicted = [
        sum(t * _factor(step, name, o.first) for t, name in zip(o.terms, TERMS, strict=True)) for o in observations
    ]
    return np.array(predicted) / [o.measured for o in observations] - 1.0


def _left_out(others: Evidence[StepObservation]) -> dict[str, float]:
    """Mean error of steps by factors that were fitted to all others, the spread, and how many they are."""
    errors = errors_with(fitted(others.rows) if others.rows else PRIOR, others.held)
    figures = {"mean": np.mean(np.abs(errors)), "spread": robust_spread(np.log1p(errors)), "rows": len(errors)}
    return {name: round(float(value), 4) for name, value in figures.items()}


TRAINING = ConstantsFit(
    read=read_training, solve=solve_training, judge=judge_training, kept=("spread",), unfitted=PRIOR
)
