"""``neusight fit engines``: what serving engines add to their kernels, from measured runs.

A measured time is a sum over the passes of a run: kernels by group, each with the engine's factor, and host time by the
pass, the sequence and the kernel; the time to a first token is one over the passes that requests wait for, and what a
server adds. A pass takes the longer of what its kernels and its host say, which is solved for in turns: constants by
the side that is longer, sides by the constants. What a run is made of comes from a simulation with constants so far;
``EngineObservation.terms`` times those constants is what the simulation took, rounds of pipelines, clients that wait
and all. Simulation and fit are repeated, since faster passes run with fewer sequences.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices import load_device
from neusight.engines.server import COMMON, GROUPS, HOST, ROCM
from neusight.errors import DataError
from neusight.laws.doubts import OWN
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, significant
from neusight.learn.served import ServedRow, ServedRows, read_served
from neusight.learn.sums import GROUP_WEIGHT, SumFit, SumObservation, fit_sums, share_of, spread_beyond
from neusight.serving.deployment import Deployment
from neusight.serving.load import Closed, Open, Trace
from neusight.serving.passes import PassCosts
from neusight.serving.run import ServingRun
from neusight.workloads.decoders.shares import Steps

NAMES = (*HOST, *GROUPS)
REQUEST = "request_s"
ROUNDS = 2
"""Of simulation and fit; the first runs with the constants that ship."""
EACH = round(GROUP_WEIGHT)
"""Rows of a deployment that are simulated: more count no more."""
ROWS = 48
"""Passes of a run that are priced part by part, for the sums over all of them."""
WAITING_SHARE = 0.5
"""Share of the time to the first token: where requests that arrive by themselves wait longer, it tells more of the
queue than of the server."""


@dataclass(frozen=True, kw_only=True)
class EngineObservation:
    """A measured time [s] of passes by an engine of an ``era``; a model on a GPU shares what no constant explains.

    ``sides`` are terms by ``NAMES`` of each pass if its kernels decide, and if its host does, shape (p, 2, constants).
    ``first``: it is the time to a first token, to which a server adds ``REQUEST``. ``doubt`` is the standard deviation
    of its logarithm by what kernels of these passes state of theirs.
    """

    era: str
    gpu: str
    alike: str
    measured: float
    sides: np.ndarray
    first: bool = False
    source: str = ""
    doubt: float = 0.0

    def predicted(self, constants: Mapping[str, float]) -> float:
        """The time [s] with these constants."""
        passes_s = float(self.terms(constants) @ [constants[name] for name in NAMES])
        return passes_s + self.first * constants.get(REQUEST, 0.0)

    def terms(self, constants: Mapping[str, float]) -> np.ndarray:
        """Terms of the sum over all passes, each with the side that takes longer with these constants."""
        longer = (self.sides @ [constants[name] for name in NAMES]).argmax(axis=1)
        return np.asarray(self.sides[np.arange(len(longer)), longer].sum(axis=0))


def observed(served: ServedRow) -> list[EngineObservation]:
    """Observations of a row, by a simulation of it: the time of a batch or of all requests, or of a token where clients
    wait for answers or requests arrive by themselves, and of these the time to the first token.

    Raises:
        LoadError: a load that cannot run. DataError: neither was measured.
    """
    run = served.simulated()
    times = [(*_timed(served, run), False)]
    if first_ms := _first_ms(served, run):
        times.append((first_ms / 1e3, _of_a_first_token(run), True))
    return [_observation(served, run, *each) for each in times]


def _observation(
    served: ServedRow, run: ServingRun, seconds: float, weight: np.ndarray, first: bool
) -> EngineObservation:
    row, deployment = served.row, served.deployment
    alike = f"{row['source']} {row['model']} {row.get('dtype')} {row['gpu']} {deployment.devices}"
    sides, doubt = summed(deployment, run, weight)
    return EngineObservation(
        era=deployment.server.era,
        gpu=row["gpu"],
        alike=alike + " first" * first,
        measured=seconds,
        sides=sides,
        first=first,
        source=row["source"],
        doubt=doubt,
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
        delayed = (passes.running - passes.prompts) * passes.count
        return np.asarray(np.where(passes.decodes > 0, decoding, delayed) / decoding.sum())
    decoding_alone = np.where(passes.prompts > 0, 0.0, decoding)
    return np.asarray((decoding_alone if decoding_alone.any() else decoding) / (decoding_alone.sum() or decoding.sum()))


def _first_ms(served: ServedRow, run: ServingRun) -> float | None:
    """Measured time to the first token [ms] that lasts as much longer as passes do."""
    if isinstance(served.load, Closed):
        return served.measured("ttft_ms")
    waiting = run.queue_s.mean > WAITING_SHARE * run.ttft_s.mean
    return None if waiting or not isinstance(served.load, Open) else served.measured("ttft_ms", "ttft_p50_ms")


def _of_a_first_token(run: ServingRun) -> np.ndarray:
    """How often each row of passes is waited for by a request without a token, on average."""
    passes = run.passes

    def waited_s(at_s: np.ndarray) -> np.ndarray:
        return _elapsed_s(run.arrival_s, at_s) - _elapsed_s(run.first_token_s, at_s)

    present = (waited_s(passes.end_s) - waited_s(passes.start_s)) / passes.lasts_s
    return np.asarray(present * passes.count / len(run.arrival_s))


def _elapsed_s(since_s: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Sum of the times that have elapsed since each of many instants, at others [s], shape (n,)."""
    ordered_s = np.sort(since_s)
    past = np.searchsorted(ordered_s, at_s, side="right")
    return np.asarray(past * at_s - np.append(0.0, np.cumsum(ordered_s))[past])


KERNELS = ("device:", "links:", OWN)
"""Begins of keys of doubts of kernels."""


def summed(deployment: Deployment, run: ServingRun, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """``EngineObservation.sides`` of some rows of a run's passes, for all of them, ``weight`` of each, shape (m,), and
    their ``doubt``: kernels of all passes err together.
    """
    lasts_s = run.passes.lasts_s * weight / np.maximum(run.passes.count, 1)
    ends_s = np.cumsum(lasts_s)
    picked = np.unique(np.searchsorted(ends_s, (np.arange(ROWS) + 0.5) / ROWS * ends_s[-1]))
    standing = np.searchsorted(ends_s[picked], ends_s).clip(max=len(picked) - 1)
    rounds = run.passes.steps(picked)
    costs = deployment.interpolate(rounds)
    # A picked pass stands for the time of its neighbours, however many they are.
    seconds = np.bincount(standing, lasts_s)
    kernels = [size for key, size in costs.doubts.items() if key.startswith(KERNELS)]
    doubts = np.sqrt(np.sum(np.square(kernels), axis=0)) / deployment.server.doubt_share
    doubt = seconds @ doubts / seconds.sum()
    return (seconds / costs.latency_s)[:, None, None] * sides_of(deployment, rounds, costs), float(doubt)


def terms_of(deployment: Deployment, rounds: Steps, costs: PassCosts) -> np.ndarray:
    """Terms of the passes that rounds of the scheduler take as long as, with the constants of their ``costs``, shape
    (n, constants).
    """
    return np.asarray(sides_of(deployment, rounds, costs)[np.arange(len(rounds)), (costs.waits_s > 0).astype(int)])


def sides_of(deployment: Deployment, rounds: Steps, costs: PassCosts) -> np.ndarray:
    """Terms of the passes that rounds of the scheduler take as long as, if their kernels decide and if their host does,
    shape (n, 2, constants); ``costs`` are theirs.
    """
    steps, server = deployment.in_flight(rounds), deployment.server
    ones, zeros, dispatches = np.ones(len(steps)), np.zeros(len(steps)), deployment.replica.dispatches(steps)
    prepares = {
        "pass_s": ones,
        "rank_s": ones * (deployment.replica.plan.world > 1),
        "sequence_s": ones * steps.sequences,
    }
    launches = {
        "mixture_s": server.interpreted(dispatches, deployment.replica.mixtures),
        "operator_s": dispatches,
    }
    rests = {"gap_s": ones} if server.overlapped else prepares
    either = (costs.groups_s | rests, prepares | launches | rests)
    return np.stack([np.stack([side.get(name, zeros) for name in NAMES], axis=1) for side in either], axis=1)


PRIORS: dict[str, tuple[float, float]] = {
    "pass_s": (1e-3, 1.5),
    "rank_s": (5e-4, 1.5),
    "sequence_s": (2e-5, 1.5),
    "mixture_s": (2e-3, 1.0),
    "operator_s": (9.8e-6, 0.41),
    "gap_s": (2e-4, 0.5),
    "products": (1.0, 0.1),
    "experts": (1.0, 0.2),
    "context": (1.0, 0.1),
    "decode": (1.0, 0.3),
    "collectives": (1.0, 0.3),
    "rest": (1.0, 0.1),
    REQUEST: (2e-2, 0.5),
}
"""Centre and spread of the logarithm. Host times: orders of magnitude of a Python loop, of a process that waits for
others, of the bookkeeping of a request, of two hundred launches, of copies between two passes, of a request over
HTTP and its tokens. Factors: kernels were timed by themselves in graphs of the same engines. Versions differ most in
decode attention and in ranks that wait for each other; of prompts' attention and of small kernels runs tell little,
so that those stay near what was measured. An operator takes what it takes on the hosts of programs
(``Engine.host_s_per_operator``)."""
FIRST = ("mixture_s", "operator_s", REQUEST)
"""Constants that first tokens tell of, beside what times of passes tell."""
HELD = 1e-3
"""Spread of the logarithm of a constant that a fit is to leave where it is."""
TURNS, BEGIN_S = 10, 5e-3
"""Of sides and constants, and what launches in a layer of experts take at first: more than any was seen to, so that it
shows where they decide."""
OWN_HOST, OWN_FACTORS = 0.5, 1 / 3
"""Share of the spreads of priors that eras keep about what all have in common: hosts differ more than kernels do."""


def read_engines(options: FitOptions, report: Report | None = None) -> Evidence[EngineObservation]:
    """Observations of a folder's served models, simulated with the constants that they give.

    Raises:
        DataError: no served models there.
    """
    from neusight.api import Predictor

    rows = _evenly(read_served(options.data, Predictor.load()))
    observations, left_out = observe(rows, {}, report, 1)
    for number in range(1, 1 if options.again else ROUNDS):
        observations, left_out = observe(rows, fit_eras(observations), report, number + 1)
    return Evidence(rows=observations, files=rows.files, skipped=left_out)


def _evenly(rows: ServedRows) -> ServedRows:
    """At most ``EACH`` rows of each deployment, at even distances in its table."""
    places = ((group, np.linspace(0, len(group) - 1, min(EACH, len(group))).astype(int)) for group in rows.groups)
    return replace(rows, groups=[[group[place] for place in each] for group, each in places])


def solve_engines(
    evidence: Evidence[EngineObservation], options: FitOptions, report: Report | None = None
) -> EngineFit:
    """Constants of every era that was observed, those that are left out included."""
    fitted, common = fit_eras(evidence.rows), fit_era(evidence.rows)
    eras = sorted({o.era for o in (*evidence.rows, *evidence.held)})
    about = {name: evidence.about()[name] for name in ("data", "skipped")}
    return EngineFit(engines={era: constants_for(era, fitted, common) for era in eras}, common=common, **about)


def observe(
    rows: ServedRows, fitted: Mapping[str, FittedEngine], report: Report | None, number: int
) -> tuple[list[EngineObservation], Counter[str]]:
    """What rows tell, simulated with constants that were fitted before, and why others tell nothing, each reason with
    the number of rows.
    """
    observations: list[EngineObservation] = []
    left_out = Counter(rows.left_out)
    for several in rows.answers(observed, left_out, lambda deployment: with_fitted(deployment, fitted)):
        observations += several
        if report:
            report(f"round {number}: rows", len(observations), 0, float("nan"))
    return observations, left_out


def with_fitted(deployment: Deployment, fitted: Mapping[str, FittedEngine]) -> Deployment:
    """The same with constants of its engine's era, where they were fitted."""
    constants = fitted.get(deployment.server.era)
    return deployment.with_constants(constants.values) if constants else deployment


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
    """Constants of an era with deviations of their logarithms; ``spread`` of what they leave unexplained of rows whose
    source was left out, beyond what kernels state: the mean of a model on a GPU and a cell beside it, in one.
    """

    values: dict[str, float]
    deviations: dict[str, float]
    spread: float
    cells: int
    gpus: list[str]
    error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rounded."""
        values = significant(self.values) | significant({"spread": self.spread}, 3)
        about = {"cells": self.cells, "gpus": self.gpus, "error": round(self.error, 4)}
        return {"values": values, "deviations": significant(self.deviations, 3)} | about


def priors_around(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Priors of one era, or of one server, around what others have in common."""
    shares = {name: OWN_FACTORS if name in GROUPS else OWN_HOST for name in PRIORS if name in constants}
    shares |= {"mixture_s": 1.0}
    return {name: (constants[name], share * PRIORS[name][1]) for name, share in shares.items()}


def fit_era(observations: Sequence[EngineObservation], centre: Mapping[str, float] | None = None) -> FittedEngine:
    """Constants of one era.

    Args:
        observations: of it.
        centre: where priors are centred, as what all eras have in common; their spreads are then smaller.
    """
    priors = priors_around(centre) if centre else PRIORS
    passes, firsts = ([o for o in observations if o.first is first] for first in (False, True))
    fit = _solve(passes, priors)
    values, deviations = fit.values, fit.deviations
    spread, share = _beyond(passes, fit, priors, np.array([o.doubt for o in passes]))
    values = values | {"doubt_share": share}
    if firsts:
        first_priors = _of_first_tokens(fit, priors)
        first = _solve(firsts, first_priors)
        # Of the times of passes first tokens have their share already.
        stated = np.hypot([share * o.doubt for o in firsts], spread)
        beyond, _ = _beyond(firsts, first, first_priors, stated)
        values = values | {name: first.values[name] for name in FIRST} | {"first_spread": beyond}
        deviations = deviations | {name: first.deviations[name] for name in FIRST}
    cells, gpus = len(observations), sorted({o.gpu for o in observations})
    return FittedEngine(values=values, deviations=deviations, spread=spread, cells=cells, gpus=gpus, error=fit.error)


def _beyond(
    observations: Sequence[EngineObservation],
    fit: SumFit,
    priors: Mapping[str, tuple[float, float]],
    stated: np.ndarray,
) -> tuple[float, float]:
    """The spread of errors beyond deviations that are ``stated``, and the share of those that holds without: the larger
    of where sources and where dies are left out.
    """
    sources = np.array([o.source for o in observations])
    dies = np.array(_dies(o.gpu for o in observations))
    errors = [_errors_left_out(observations, names, fit, priors) for names in (sources, dies)]
    return max(spread_beyond(each, stated) for each in errors), max(share_of(each, stated) for each in errors)


def _errors_left_out(
    observations: Sequence[EngineObservation], names: np.ndarray, fit: SumFit, priors: Mapping[str, tuple[float, float]]
) -> np.ndarray:
    """Logarithms of predicted over measured times by constants that are fitted without all of the name of each, or by
    those of ``fit``, of all, where there is one name; shape (n,).
    """
    errors = fit.log_error.copy()
    for name in sorted({*names}) if len({*names}) > 1 else ():
        rest = [o for o, other in zip(observations, names, strict=True) if other != name]
        values, held = _solve(rest, priors).values, np.flatnonzero(names == name)
        errors[held] = [np.log(observations[at].predicted(values) / observations[at].measured) for at in held.tolist()]
    return errors


def _of_first_tokens(fit: SumFit, priors: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Priors of what first tokens tell, around what times of passes have told; all else is held there."""
    told = {name: (fit.values[name], fit.deviations[name] if name in FIRST else HELD) for name in NAMES}
    return told | {REQUEST: priors[REQUEST]}


def _solve(observations: Sequence[EngineObservation], priors: Mapping[str, tuple[float, float]]) -> SumFit:
    """Constants of sums of passes, beginning where the host decides; half of each turn's change is taken, since a side
    that no pass is on any more has nothing to tell.
    """
    values = {name: centre for name, (centre, _) in priors.items()}
    values["mixture_s"] = max(values["mixture_s"], BEGIN_S)
    for _ in range(TURNS):
        sums = [
            SumObservation(gpu=o.gpu, alike=o.alike, measured=o.measured, terms=np.append(o.terms(values), o.first))
            for o in observations
        ]
        fit = fit_sums(sums, {name: priors.get(name, PRIORS[name]) for name in PRIORS})
        values = {name: (values.get(name, value) * value) ** 0.5 for name, value in fit.values.items()}
    return fit


def fit_eras(observations: Sequence[EngineObservation]) -> dict[str, FittedEngine]:
    """Every era by itself, drawn towards what all have in common: eras whose first tokens nobody timed towards what
    passes alone tell of hosts, since first tokens put on launches what else they wait for, and towards what servers of
    other versions of the engine add.
    """
    common, passes = fit_era(observations), fit_era([o for o in observations if not o.first])
    by_era = {era: [o for o in observations if o.era == era] for era in sorted({o.era for o in observations})}
    timed = [era for era, rows in by_era.items() if any(o.first for o in rows)]
    fitted = {era: fit_era(by_era[era], common.values) for era in timed}
    for era in by_era.keys() - fitted.keys():
        servers = [fitted[other].values[REQUEST] for other in timed if _engine(other) == _engine(era)]
        request_s = float(np.exp(np.mean(np.log(servers or [common.values[REQUEST]]))))
        fitted[era] = fit_era(by_era[era], passes.values | {REQUEST: request_s})
    # What an era of one die misses elsewhere is what others miss on dies that they are fitted without.
    several = [each.spread for each in fitted.values() if len(set(_dies(each.gpus))) > 1] or [common.spread]
    usual = {"first_spread": common.values.get("first_spread", 0.0)}
    pooled = float(np.sqrt(np.mean(np.square(several))))
    for era, each in fitted.items():
        if len(set(_dies(each.gpus))) == 1:
            each = replace(each, values=each.values | {"doubt_share": 1.0}, spread=max(each.spread, pooled))
        fitted[era] = replace(each, values=usual | each.values)
    return fitted


def _dies(gpus: Iterable[str]) -> list[str]:
    return [load_device(gpu).die or gpu for gpu in gpus]


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
