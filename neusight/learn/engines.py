"""``neusight fit engines``: what serving engines add to their kernels, from measured runs.

A measured time is a sum over the passes of a run: kernels by group, each with the engine's factor, and host time by the
pass, the sequence and the layer of experts. What a run is made of comes from a simulation with the constants so far;
``EngineObservation.terms`` times those constants is what the simulation took, rounds of pipelines, clients that wait
and all. Simulation and fit are repeated, since faster passes run with fewer sequences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.engines.server import COMMON, GROUPS, HOST, ROCM
from neusight.errors import DataError
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions
from neusight.learn.served import ServedRow, ServedRows, read_served
from neusight.learn.sums import SumObservation, fit_sums
from neusight.serving.deployment import Deployment
from neusight.serving.load import Open, Trace
from neusight.serving.passes import PassCosts
from neusight.serving.run import ServingRun
from neusight.workloads.decoders.shares import Steps

NAMES = (*HOST, *GROUPS)
ROUNDS = 2
"""Of simulation and fit; the first runs with the constants that ship."""
ROWS = 48
"""Passes of a run that are priced part by part, for the sums over all of them."""
WAITING_SHARE = 0.2
"""Of the time to the first token: where requests wait longer, that tells more of the queue than of the server."""


@dataclass(frozen=True, kw_only=True)
class EngineObservation(SumObservation):
    """A measured time [s] whose terms are by ``NAMES``; a model on a GPU shares what no constant explains. ``era`` is
    the engine's.
    """

    era: str
    late_s: float = np.nan
    """By how much the first token came later than simulated, where requests hardly wait; else NaN."""


def observed(served: ServedRow) -> EngineObservation:
    """What a row tells of its engine, by a simulation of it: the time of a batch or of all requests, or of a token
    where clients wait for answers or arrive by themselves.

    Raises:
        LoadError: a load that cannot run. DataError: neither was measured.
    """
    row, deployment, run = served.row, served.deployment, served.simulated()
    seconds, weight = _timed(served, run)
    return EngineObservation(
        era=deployment.server.era,
        gpu=row["gpu"],
        alike=f"{row['source']} {row['model']} {row.get('dtype')} {row['gpu']} {deployment.devices}",
        measured=seconds,
        terms=summed(deployment, run, weight),
        late_s=_late_s(served, run),
    )


def _timed(served: ServedRow, run: ServingRun) -> tuple[float, np.ndarray]:
    """The time that a row measured [s], and how often each row of passes stands in it."""
    passes, measured = run.passes, served.measured
    every = passes.count.astype(float)
    if batch_ms := measured("e2e_max_ms"):
        return batch_ms / 1e3, every
    if prompts_ms := measured("ttft_max_ms"):
        return prompts_ms / 1e3, every * (passes.prompts > 0)
    if token_ms := measured("itl_p50_ms", "tpot_ms", "tpot_p50_ms"):
        return token_ms / 1e3, _of_a_token(run, bool(measured("itl_p50_ms")))
    tokens_per_s = measured("tokens_per_s", "steady_tokens_per_s")
    if not tokens_per_s or isinstance(served.load, Open | Trace):
        raise DataError("neither a time of all requests nor one of a token was measured")
    # Between passes clients wait for their server, which is no constant of a pass.
    return float(run.output_tokens.sum()) * served.shares / tokens_per_s * _busy(run), every


def _busy(run: ServingRun) -> float:
    """Share of the makespan in passes."""
    return 1.0 - run.time_shares["idle"]


def _of_a_token(run: ServingRun, median: bool) -> np.ndarray:
    """How often each row of passes stands between two tokens of a sequence on average, or in the middle of all."""
    passes = run.passes
    decoding = (passes.decodes * passes.count).astype(float)
    if not median:
        # Passes for prompts alone delay all that generate.
        return np.asarray(np.where(passes.decodes > 0, decoding, passes.running * passes.count) / decoding.sum())
    decoding_alone = np.where(passes.prompts > 0, 0.0, decoding)
    return np.asarray((decoding_alone if decoding_alone.any() else decoding) / (decoding_alone.sum() or decoding.sum()))


def _late_s(served: ServedRow, run: ServingRun) -> float:
    first_ms = served.measured("ttft_ms", "ttft_p50_ms")
    waiting = run.queue_s.mean > WAITING_SHARE * run.ttft_s.mean
    return np.nan if first_ms is None or waiting else first_ms / 1e3 - run.ttft_s.mean


def summed(deployment: Deployment, run: ServingRun, weight: np.ndarray) -> np.ndarray:
    """Terms of the sum over a run's rows of passes, ``weight`` of each, shape (m,); by ``NAMES``."""
    lasts_s = run.passes.lasts_s * weight / np.maximum(run.passes.count, 1)
    ends_s = np.cumsum(lasts_s)
    picked = np.unique(np.searchsorted(ends_s, (np.arange(ROWS) + 0.5) / ROWS * ends_s[-1]))
    standing = np.searchsorted(ends_s[picked], ends_s).clip(max=len(picked) - 1)
    rounds = run.passes.steps(picked)
    costs = deployment.interpolate(rounds)
    # A picked pass stands for the time of its neighbours, however many they are.
    return np.bincount(standing, lasts_s) / costs.latency_s @ terms_of(deployment, rounds, costs)


def terms_of(deployment: Deployment, rounds: Steps, costs: PassCosts) -> np.ndarray:
    """Terms of the passes that rounds of the scheduler take as long as, shape (n, constants); ``costs`` are theirs. A
    pass that waits for its host takes what the host does; where scheduling is overlapped, any other takes its kernels.
    """
    steps, server = deployment.in_flight(rounds), deployment.server
    ones = np.ones(len(steps))
    decides = np.where(server.overlapped, costs.waits_s > 0, True)
    ranks, mixtures = deployment.replica.plan.world, deployment.replica.mixtures
    host = {
        "pass_s": decides,
        "rank_s": decides * (ranks > 1),
        "sequence_s": decides * steps.sequences,
        "mixture_s": decides * mixtures,
        "operator_s": deployment.replica.dispatches(steps) * (costs.waits_s > 0),
        "gap_s": ones * server.overlapped,
    }
    kernels_s = (np.where(costs.waits_s > 0, 0.0, costs.groups_s[group]) for group in GROUPS)
    return np.stack([*(host[name] for name in HOST), *kernels_s], axis=1)


PRIORS: dict[str, tuple[float, float]] = {
    "pass_s": (1e-3, 1.5),
    "rank_s": (5e-4, 1.5),
    "sequence_s": (2e-5, 1.5),
    "mixture_s": (5e-5, 1.5),
    "operator_s": (9.8e-6, 0.41),
    "gap_s": (2e-4, 1.0),
    "products": (1.0, 0.1),
    "experts": (1.0, 0.2),
    "context": (1.0, 0.1),
    "decode": (1.0, 0.3),
    "collectives": (1.0, 0.3),
    "rest": (1.0, 0.1),
}
"""Centre and spread of the logarithm. Host times: orders of magnitude of a Python loop, of a process that waits for
others, of the bookkeeping of a request, of a few launches. Factors: kernels were timed by themselves in graphs of the
same engines. Versions differ most in decode attention and in ranks that wait for each other; of prompts' attention and
of small kernels runs tell little, so that those stay near what was measured. An operator takes what it takes on the
hosts of programs (``Engine.host_s_per_operator``)."""
OWN_HOST, OWN_FACTORS = 0.5, 1 / 3
"""Share of the spreads of priors that eras keep about what all have in common: hosts differ more than kernels do."""


def read_engines(options: FitOptions, report: Report | None = None) -> Evidence[EngineObservation]:
    """Observations of a folder's served models, simulated with the constants that they give.

    Raises:
        DataError: no served models there.
    """
    from neusight.api import Predictor

    rows = read_served(options.data, Predictor.load())
    observations, left_out = observe(rows, {}, report, 1)
    for number in range(1, 1 if options.again else ROUNDS):
        observations, left_out = observe(rows, fit_eras(observations), report, number + 1)
    return Evidence(rows=observations, files=rows.files, skipped=left_out)


def solve_engines(
    evidence: Evidence[EngineObservation], options: FitOptions, report: Report | None = None
) -> EngineFit:
    """Constants of every era that was observed, those that are left out included."""
    fitted, common = fit_eras(evidence.rows), fit_era(evidence.rows)
    eras = sorted({o.era for o in (*evidence.rows, *evidence.held)})
    about = evidence.about()
    return EngineFit(
        engines={era: constants_for(era, fitted, common) for era in eras},
        common=common,
        data=about["data"],
        skipped=about["skipped"],
    )


def observe(
    rows: ServedRows, fitted: Mapping[str, FittedEngine], report: Report | None, number: int
) -> tuple[list[EngineObservation], Counter[str]]:
    """What rows tell, simulated with constants that were fitted before, and why others tell nothing, each reason with
    the number of rows.
    """
    observations, left_out = [], Counter(rows.left_out)
    for observation in rows.answers(observed, left_out, lambda deployment: with_fitted(deployment, fitted)):
        observations.append(observation)
        if report:
            report(f"round {number}: rows", len(observations), 0, float("nan"))
    return observations, left_out


def with_fitted(deployment: Deployment, fitted: Mapping[str, FittedEngine]) -> Deployment:
    """The same with constants of its engine's era, where they were fitted."""
    constants = fitted.get(deployment.server.era)
    if constants is None:
        return deployment
    return deployment.with_constants(constants.values)


@dataclass(frozen=True, kw_only=True)
class EngineFit:
    """Constants by era and of all, hashes of the files that they come from, and why rows were left out."""

    engines: dict[str, FittedEngine]
    common: FittedEngine
    data: Mapping[str, str]
    skipped: Mapping[str, int]

    def save(self, file: Path) -> None:
        """Write as JSON."""
        engines = {era: fitted.to_dict() for era, fitted in self.engines.items()}
        content = {"engines": engines, COMMON: self.common.to_dict(), "data": self.data, "skipped": self.skipped}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class FittedEngine:
    """Constants of an era with deviations of their logarithms; ``spread`` of what they leave unexplained: the mean of a
    model on a GPU and a cell beside it, in one.
    """

    values: dict[str, float]
    deviations: dict[str, float]
    spread: float
    cells: int
    gpus: list[str]
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rounded."""
        return {
            "values": {name: float(f"{value:.4g}") for name, value in self.values.items()}
            | {"spread": float(f"{self.spread:.3g}")},
            "deviations": {name: float(f"{d:.3g}") for name, d in self.deviations.items()},
            "cells": self.cells,
            "gpus": self.gpus,
            "error": round(self.error, 4),
        }


def priors_around(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Priors of one era, or of one server, around what others have in common."""
    shares = {name: OWN_HOST if name in HOST else OWN_FACTORS for name in NAMES}
    return {name: (constants[name], share * PRIORS[name][1]) for name, share in shares.items()}


def fit_era(observations: Sequence[EngineObservation], centre: Mapping[str, float] | None = None) -> FittedEngine:
    """Constants of one era.

    Args:
        observations: of it.
        centre: where priors are centred, as what all eras have in common; their spreads are then smaller.
    """
    fit = fit_sums(observations, priors_around(centre) if centre else PRIORS)
    return FittedEngine(
        values=fit.values | {"request_s": _request_s(observations)},
        deviations=fit.deviations,
        spread=fit.spread,
        cells=len(observations),
        gpus=sorted({o.gpu for o in observations}),
        error=fit.error,
    )


def _request_s(observations: Sequence[EngineObservation]) -> float:
    """The middle of what first tokens came late; 0 where none tells."""
    late = [o.late_s for o in observations if not np.isnan(o.late_s)]
    return max(0.0, float(np.median(late))) if late else 0.0


def fit_eras(observations: Sequence[EngineObservation]) -> dict[str, FittedEngine]:
    """Every era by itself, drawn towards what all have in common."""
    common = fit_era(observations).values
    eras = sorted({o.era for o in observations})
    fitted = {era: fit_era([o for o in observations if o.era == era], common) for era in eras}
    return {era: _with_request(each, era, observations) for era, each in fitted.items()}


def _with_request(fitted: FittedEngine, era: str, observations: Sequence[EngineObservation]) -> FittedEngine:
    """With what first tokens come late by in its era, else with the same engine, else with all that tell."""
    tells = [o for o in observations if not np.isnan(o.late_s)]
    alike = ([o for o in tells if o.era == era], [o for o in tells if _engine(o.era) == _engine(era)], tells)
    chosen = next((each for each in alike if each), tells)
    return replace(fitted, values=fitted.values | {"request_s": _request_s(chosen)})


def _engine(era: str) -> str:
    return era.removesuffix(ROCM).split(" before")[0]


def constants_for(era: str, fitted: Mapping[str, FittedEngine], common: FittedEngine) -> FittedEngine:
    """Constants of an era; where it was not met, of the same on other GPUs, of another of the same engine, or of all,
    as uncertain as those are.
    """
    if era in fitted:
        return fitted[era]
    kin = [era.removesuffix(ROCM), *(name for name in fitted if _engine(name) == _engine(era))]
    chosen = next((fitted[name] for name in kin if name in fitted), common)
    return replace(chosen, spread=max(chosen.spread, common.spread))


ENGINES = ConstantsFit(read=read_engines, solve=solve_engines)
