"""``neusight fit training``: what kernels take in training steps, over what they take by themselves.

A measured step is a sum of what its critical path has of each kind of kernel and collective, each with a factor. What a
path has comes from a simulation with the factors so far; simulation and fit are repeated, since slower kernels hide
more collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from neusight.distributed.factors import FIRST, PRIOR, TERMS, Factors, kind_of, names_of
from neusight.distributed.step import TimedStep
from neusight.distributed.training_run import TrainingRun
from neusight.errors import NeusightError
from neusight.laws.constants import priors
from neusight.laws.training_constants import StepPhysics
from neusight.learn import Report
from neusight.learn.served import resolved_rows
from neusight.learn.sums import fit_sums, folds, robust_spread
from neusight.measured.folder import hashes, rows_to_fit

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
class StepObservation:
    """A measured step [s], and by ``TERMS`` what the critical path has of each kind by itself, without factors.

    ``first``: attention is of the first FlashAttention. ``alike`` are rows that share what no factor explains.
    """

    gpu: str
    source: str
    alike: str
    seconds: float
    terms: np.ndarray
    first: bool


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


def fit_training(data: Path, timer: Timer, report: Report | None = None) -> Factors:
    """Factors from measured steps, and their errors on each GPU by a fit without its steps.

    Args:
        data: folder of measured rows.
        timer: gives runs their times.
        report: called with progress.

    Raises:
        DataError: no steps there.
    """
    skipped: Counter[str] = Counter()
    steps, files = read_steps(data, skipped)
    factors = PRIOR
    observations: list[StepObservation] = []
    left_out: Counter[str] = Counter()
    for number in range(ROUNDS):
        observations, left_out = observe(steps, timer, factors, report)
        factors = fitted(observations)
        if report:
            report(f"round {number + 1}: fitted", len(observations), len(steps), factors.error)
    by_gpu = {gpu: _left_out(kept, own) for gpu, kept, own in folds(observations, lambda one: one.gpu)}
    spread = float(np.mean([errors["spread"] for errors in by_gpu.values()]))
    return replace(factors, left_out=by_gpu, spread=spread, data=hashes(files), skipped=dict(left_out + skipped))


def observe(
    steps: Sequence[MeasuredStep], timer: Timer, factors: Factors, report: Report | None = None
) -> tuple[list[StepObservation], Counter[str]]:
    """What measured steps tell, simulated with some factors, and why others tell nothing, each reason with their
    number.
    """
    observations: list[StepObservation] = []
    left_out: Counter[str] = Counter()
    for done, step in enumerate(steps, start=1):
        try:
            observations.append(_observed(step, timer(step.run, factors), factors))
        except NeusightError as error:
            left_out[str(error)] += 1
        if report and done % 20 == 0:
            report("steps", done, len(steps), float("nan"))
    return observations, left_out


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
        seconds=measured.seconds,
        terms=np.array([terms[name] / _factor(step, name, first) for name in TERMS]),
        first=first,
    )


def _factor(step: object, name: str, first: bool) -> float:
    return prod(float(getattr(step, factor)) for factor in names_of(name, first))


def fitted(observations: Sequence[StepObservation]) -> Factors:
    """Factors by all of some observations."""
    known = priors(StepPhysics())
    prior = [known[f"step.{name}"] for name in NAMES]
    middle, width = np.log([p.value for p in prior]), np.array([p.spread for p in prior])
    fit = fit_sums(
        np.array([o.seconds for o in observations]),
        np.stack([o.terms for o in observations]),
        [o.alike for o in observations],
        {"centre": middle, "spread": width},
        _places(observations),
    )
    names = [f"step.{name}" for name in NAMES]
    return replace(
        PRIOR,
        values={name: round(value, 4) for name, value in fit.values(names).items()},
        deviations={name: round(deviation, 4) for name, deviation in fit.deviations(names).items()},
        gpus=sorted({o.gpu for o in observations}),
        rows=len(observations),
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
    return np.array(predicted) / [o.seconds for o in observations] - 1.0


def _left_out(kept: Sequence[StepObservation], own: Sequence[StepObservation]) -> dict[str, float]:
    """Mean error on a GPU's steps by factors that were fitted to all others, the worst source, and the spread."""
    errors = errors_with(fitted(kept) if kept else PRIOR, own)
    by_source = [errors[[o.source == source for o in own]] for source in {o.source for o in own}]
    figures = {
        "mean": float(np.mean(np.abs(errors))),
        "worst_source": max(float(np.mean(np.abs(some))) for some in by_source),
        "spread": robust_spread(np.log1p(errors)),
        "rows": float(len(own)),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def factors_without(observations: Sequence[StepObservation], gpus: Collection[str]) -> Factors:
    """Factors by the steps of all other GPUs."""
    kept = [o for o in observations if o.gpu not in gpus]
    return fitted(kept) if kept else PRIOR
