"""``neusight fit --training``: what kernels take in training steps, over what they take by themselves.

A measured step is a sum of what its critical path has of each kind of kernel and collective, each with a factor. What a
path has comes from a simulation with the factors so far; simulation and fit are repeated, since slower kernels hide
more collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neusight.distributed.estimate import counted
from neusight.distributed.factors import FIRST, PRIOR, TERMS, Factors, kind_of, names_of
from neusight.distributed.step import TimedStep
from neusight.distributed.training_run import TrainingRun
from neusight.errors import NeusightError
from neusight.laws.constants import priors
from neusight.laws.training_constants import StepPhysics
from neusight.learn.physics.solve import Rows, solve
from neusight.schedule.run import simulate

NAMES = (*TERMS, *FIRST.values())
PASSES = ("forward", "backward", "weights", "recompute")
GROUP_WEIGHT = 6.0
"""Rows that a model of a source on a GPU counts as: more of them differ in batch or scale alone."""
ROUNDS = 2
MOST_STEPS = 40
Report = Callable[[str, int, int, float], None]


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step that was measured: by which source, what it took [s], and what was run."""

    source: str
    seconds: float
    run: TrainingRun


Timer = Callable[[TrainingRun, Factors], TimedStep]
"""What gives a run its times, with some factors."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A measured step [s], and by ``TERMS`` what the critical path has of each kind by itself, without factors.

    ``first``: attention is of the first FlashAttention. ``alike`` are rows that share what no factor explains.
    """

    gpu: str
    source: str
    alike: str
    seconds: float
    terms: np.ndarray
    first: bool


def fit_training(
    steps: Sequence[MeasuredStep], timer: Timer, data: Mapping[str, str], report: Report | None = None
) -> Factors:
    """Factors from measured steps, and their errors on each GPU by a fit without its steps.

    Args:
        steps: that were measured.
        timer: gives runs their times.
        data: hashes of the files that the steps come from.
        report: called with progress.
    """
    factors = PRIOR
    observations: list[Observation] = []
    for number in range(ROUNDS):
        observations = observe(steps, timer, factors, report)
        factors = fitted(observations)
        if report:
            report(f"round {number + 1}: fitted", len(observations), len(steps), factors.error)
    left_out = {gpu: _without(observations, gpu) for gpu in sorted({o.gpu for o in observations})}
    spread = float(np.mean([found["spread"] for found in left_out.values()]))
    return replace(factors, left_out=left_out, spread=spread, data=dict(data))


def observe(
    steps: Sequence[MeasuredStep], timer: Timer, factors: Factors, report: Report | None = None
) -> list[Observation]:
    """What measured steps tell, simulated with some factors. Runs that cannot be simulated tell nothing."""
    found = []
    for done, step in enumerate(steps, start=1):
        try:
            found.append(_observed(step, timer(step.run, factors), factors))
        except NeusightError:
            continue
        if report and done % 20 == 0:
            report("steps", done, len(steps), float("nan"))
    return found


def _observed(measured: MeasuredStep, made: TimedStep, factors: Factors) -> Observation:
    """Seconds on the critical path by kind, divided by the factors that are in them."""
    asked = measured.run
    schedule = simulate(made.pipeline, made.times, made.contention)
    inside = dict.fromkeys(TERMS, 0.0)
    for time, runs in counted(made):
        kind = kind_of(time.part)
        if time.part.phase != "step" and kind != "exchanges":
            inside[kind] += runs * time.latency_s
    path = sum(schedule.path_s[name] for name in PASSES)
    total = sum(inside.values())
    terms = {kind: path * value / total for kind, value in inside.items()}
    terms["rest"] += schedule.path_s["optimizer"]
    terms["exchanges"] = schedule.step_s - path - schedule.path_s["optimizer"]
    step, first = factors.physics.step, asked.engine.attention_generation == 1
    device = asked.cluster.device.id
    return Observation(
        gpu=device,
        source=measured.source,
        alike=f"{measured.source} {asked.decoder.name} {device}",
        seconds=measured.seconds,
        terms=np.array([terms[name] / _factor(step, name, first) for name in TERMS]),
        first=first,
    )


def _factor(step: object, name: str, first: bool) -> float:
    return prod(float(getattr(step, factor)) for factor in names_of(name, first))


def fitted(observations: Sequence[Observation]) -> Factors:
    """Factors by all of some observations."""
    known = priors(StepPhysics())
    prior = [known[f"step.{name}"] for name in NAMES]
    middle, width = np.log([p.value for p in prior]), np.array([p.spread for p in prior])
    places = _places(observations)
    terms = np.stack([o.terms for o in observations])

    def evaluate(place: np.ndarray) -> np.ndarray:
        return np.log((terms * np.exp(places @ place)).sum(axis=1))

    def jacobian(place: np.ndarray) -> np.ndarray:
        parts = terms * np.exp(places @ place)
        shares = parts / parts.sum(axis=1, keepdims=True)
        return np.einsum("nk,nkc->nc", shares, places)

    rows = _rows(observations)
    found = solve(rows, evaluate, jacobian, {"centre": middle, "spread": width}, steps=MOST_STEPS)
    names = [f"step.{name}" for name in NAMES]
    return replace(
        PRIOR,
        values=dict(zip(names, np.round(np.exp(found.place), 4).tolist(), strict=True)),
        deviations=dict(zip(names, np.round(np.sqrt(np.diag(found.covariance)), 4).tolist(), strict=True)),
        gpus=sorted({o.gpu for o in observations}),
        rows=len(observations),
        error=round(float(np.mean(np.abs(np.expm1(evaluate(found.place) - rows.target)))), 4),
    )


def _places(observations: Sequence[Observation]) -> np.ndarray:
    """Which constants multiply each term of each observation, shape (n, terms, constants)."""
    places = np.zeros((len(observations), len(TERMS), len(NAMES)))
    for at, o in enumerate(observations):
        for term, kind in enumerate(TERMS):
            places[at, term, [NAMES.index(name) for name in names_of(kind, o.first)]] = 1.0
    return places


def _rows(observations: Sequence[Observation]) -> Rows:
    names = sorted({o.alike for o in observations})
    effect = np.array([names.index(o.alike) for o in observations])
    weight = GROUP_WEIGHT / np.maximum(np.bincount(effect)[effect], GROUP_WEIGHT)
    target = np.log([o.seconds for o in observations])
    return Rows(target=target, weight=weight, effect=effect, kind_of_effect=np.zeros(len(names), dtype=int))


def errors_with(factors: Factors, observations: Sequence[Observation]) -> np.ndarray:
    """Signed relative errors of steps with some factors, their paths as they are; shape (n,)."""
    step = factors.physics.step
    predicted = [
        sum(t * _factor(step, name, o.first) for t, name in zip(o.terms, TERMS, strict=True)) for o in observations
    ]
    return np.array(predicted) / [o.seconds for o in observations] - 1.0


def _without(observations: Sequence[Observation], gpu: str) -> dict[str, float]:
    """Mean error on a GPU's steps by factors that were fitted without them, the worst source, and the spread."""
    kept = [o for o in observations if o.gpu != gpu]
    own = [o for o in observations if o.gpu == gpu]
    factors = fitted(kept) if kept else PRIOR
    errors = errors_with(factors, own)
    sources = {o.source for o in own}
    worst = max(float(np.mean(np.abs(errors[[o.source == s for o in own]]))) for s in sources)
    spread = float(np.quantile(np.abs(np.log1p(errors)), 0.9) / 1.645)
    found = {"mean": float(np.mean(np.abs(errors))), "worst_source": worst, "spread": spread, "rows": float(len(own))}
    return {name: round(value, 4) for name, value in found.items()}


def factors_without(observations: Sequence[Observation], gpus: Collection[str]) -> Factors:
    """Factors by the steps of all other GPUs."""
    kept = [o for o in observations if o.gpu not in gpus]
    return fitted(kept) if kept else PRIOR
