"""``neusight fit training``: what kernels take in training steps, over what they take by themselves.

A measured step is a sum of what its critical path has of each kind of kernel and collective, each with a factor. What a
path has comes from a simulation with the factors so far; simulation and fit are repeated, since slower kernels hide
more collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from neusight.api import Predictor
from neusight.distributed.factors import FIRST, PRIOR, TERMS, Factors, kind_of, names_of, shipped_factors
from neusight.distributed.step import TimedStep
from neusight.distributed.training_run import TrainingRun
from neusight.laws.constants import priors, values
from neusight.laws.training_constants import StepPhysics
from neusight.learn.evidence import ConstantsFit, Errors, Evidence, FitOptions, Report, SolvedFold, ask_each
from neusight.learn.sums import SumObservation, fit_sums, log_errors, robust_spread
from neusight.measured.folder import rows_to_fit

KINDS = {kind: names_of(kind, False) for kind in TERMS} | {FIRST[kind]: names_of(kind, True) for kind in FIRST}
"""Factors of each kind of part, those of the first FlashAttention by the name of its factor."""
PRIORS = {f"step.{name}": priors(StepPhysics())[f"step.{name}"] for name in KINDS}
PLACES = np.array([[name in names for name in KINDS] for names in KINDS.values()], dtype=float)
"""Which factors, the columns, multiply each kind, the rows."""
TRAITS = ("gpu", "engine", "source")
"""Traits of steps that are left out in turn."""
PASSES = ("forward", "backward", "weights", "recompute")
ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step that was measured: where it is published, what it took [s], and what was run."""

    source: str
    seconds: float
    run: TrainingRun

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return self.run.cluster.device.id


Timer = Callable[[TrainingRun, Factors], TimedStep]
"""What gives a run its times, with some factors."""


@dataclass(frozen=True, kw_only=True)
class StepObservation(SumObservation):
    """A measured step [s], whose terms are by ``KINDS`` what the critical path has of each kind, without factors;
    ``engine`` is the name of the trainer.
    """

    engine: str


def read_training(options: FitOptions, report: Report | None = None) -> Evidence[StepObservation]:
    """Observations of a folder's training steps, simulated with the factors that they give.

    Raises:
        DataError: no steps there.
    """
    skipped: Counter[str] = Counter()
    steps = Evidence.of(rows_to_fit(options.data, "training", skipped, "step_ms"), _measured, skipped)
    timer = Predictor.load().timed
    observations = observe(steps, timer, shipped_factors() if options.again else PRIOR, report)
    for _ in range(0 if options.again else ROUNDS - 1):
        observations = observe(steps, timer, fitted(observations.rows), report)
    return observations


def _measured(row: Mapping[Any, Any], question: Any) -> MeasuredStep:
    # A page in all of its revisions.
    page = str(row.get("origin") or row.get("source")).partition("@")[0].strip()
    return MeasuredStep(source=page, seconds=row["step_ms"] / 1e3, run=question.resolve())


def solve_training(evidence: Evidence[StepObservation], options: FitOptions, report: Report | None = None) -> Factors:
    """All factors."""
    return replace(fitted(evidence.rows), **evidence.about())


def errors_of(observations: Sequence[StepObservation], factors: Factors) -> Errors:
    """Errors by GPU, trainer and source."""
    for o, off in zip(observations, log_errors(observations, _logs(factors), PLACES), strict=True):
        yield {"gpu": o.gpu, "engine": o.engine, "source": o.source}, off


def with_spread(factors: Factors, folds: Sequence[SolvedFold]) -> Factors:
    """With the mean spread of errors where GPUs, trainers or sources were left out, the largest of the three."""
    spreads: dict[str, list[float]] = {trait: [] for trait in TRAITS}
    for fold in folds:
        spreads[fold.trait].append(robust_spread(log_errors(fold.held, _logs(fold.fitted), PLACES)))
    return replace(factors, spread=round(max(map(mean, spreads.values())), 4))


def observe(
    steps: Evidence[MeasuredStep], timer: Timer, factors: Factors, report: Report | None = None
) -> Evidence[StepObservation]:
    """What measured steps tell, simulated with some factors."""
    skipped = Counter(steps.skipped)
    observed = ask_each(
        steps.rows, lambda step: _observed(step, timer(step.run, factors), factors), skipped, report, "steps"
    )
    return Evidence(rows=list(observed), files=steps.files, skipped=skipped)


def _observed(measured: MeasuredStep, timed: TimedStep, factors: Factors) -> StepObservation:
    """Seconds on the critical path by kind, divided by the factors that are in them."""
    run, schedule = measured.run, timed.schedule
    first = run.engine.attention_generation == 1
    inside = dict.fromkeys(KINDS, 0.0)
    for part, part_s in zip(timed.parts.parts, (timed.runs * timed.parts.latency_s).tolist(), strict=True):
        kind = kind_of(part)
        if part.phase != "step" and kind != "exchanges":
            inside[FIRST.get(kind, kind) if first else kind] += part_s
    path = sum(schedule.path_s[name] for name in PASSES)
    total = sum(inside.values())
    terms = {kind: path * value / total for kind, value in inside.items()}
    terms["rest"] += schedule.path_s["optimizer"]
    terms["exchanges"] = schedule.step_s - path - schedule.path_s["optimizer"]
    return StepObservation(
        gpu=measured.gpu,
        source=measured.source,
        alike=f"{measured.source} {run.decoder.name} {measured.gpu}",
        measured=measured.seconds,
        terms=np.array([*terms.values()]) / np.exp(PLACES @ _logs(factors)),
        engine=run.engine.name,
    )


def _logs(factors: Factors) -> np.ndarray:
    known = values(factors.physics)
    return np.log([known[name] for name in PRIORS])


def fitted(observations: Sequence[StepObservation]) -> Factors:
    """Factors by all of some observations."""
    fit = fit_sums(observations, {name: (known.value, known.spread) for name, known in PRIORS.items()}, PLACES)
    return replace(PRIOR, **fit.found())


TRAINING = ConstantsFit(
    read=read_training,
    solve=solve_training,
    errors=errors_of,
    traits=TRAITS,
    finish=with_spread,
    kept=("spread",),
    unfitted=PRIOR,
)
