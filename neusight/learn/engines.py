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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines.server import COMMON, GROUPS, HOST, ROCM
from neusight.errors import DataError
from neusight.laws.doubts import OWN
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, FoundConstants, Report, grouped, significant
from neusight.learn.served import ServedRow, answers, read_served
from neusight.learn.sums import GROUP_WEIGHT, SumFit, SumObservation, fit_sums, robust_spread, share_of
from neusight.quick_dataclasses import dataclass as quick_dataclass
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
class EngineObservation(SumObservation):
    """A measured time [s] of passes by an engine of an ``era``; a model on a GPU shares what no constant explains.

    ``sides`` are terms by ``NAMES`` of each pass if its kernels decide, and if its host does, shape (p, 2, constants).
    ``first``: it is the time to a first token, to which a server adds ``REQUEST``. ``doubt`` is the standard deviation
    of its logarithm by what kernels of these passes state of theirs.
    """

    era: str
    sides: np.ndarray
    terms: np.ndarray = field(default_factory=lambda: np.zeros(0))
    first: bool = False
    doubt: float = 0.0

    @property
    def die(self) -> str:
        """Die of the GPU, or itself where none is known."""
        return load_device(self.gpu).die or self.gpu

    def predicted(self, constants: Mapping[str, float]) -> float:
        """The time [s] with these constants."""
        passes_s = float(self.longer(constants) @ [constants[name] for name in NAMES])
        return passes_s + self.first * constants.get(REQUEST, 0.0)

    def longer(self, constants: Mapping[str, float]) -> np.ndarray:
        """Terms of the sum over all passes, each with the side that takes longer with these constants."""
        longer = (self.sides @ [constants[name] for name in NAMES]).argmax(axis=1)
        return np.asarray(self.sides[np.arange(len(longer)), longer].sum(axis=0))


def observed(served: ServedRow) -> list[EngineObservation]:
    """Observations of a row, by a simulation of it: the time of a batch or of all requests, or of a token where clients
    wait for answers or requests arrive by themselves, and of these the time to the first token.

    Raises:
        LoadError: a load that cannot run. DataError: neither was measured.
    """
    row, deployment, run = served.row, served.deployment, served.simulated()
    alike = f"{row['source']} {row['model']} {row.get('dtype')} {row['gpu']} {deployment.devices}"
    times = [(alike, *_timed(served, run))]
    if first_ms := _first_ms(served, run):
        times.append((f"{alike} first", first_ms / 1e3, _of_a_first_token(run)))
    observations = []
    for name, seconds, weight in times:
        sides, doubt = summed(deployment, run, weight)
        about = {"era": deployment.server.era, "gpu": row["gpu"], "source": row["source"], "first": name != alike}
        observations.append(EngineObservation(**about, alike=name, measured=seconds, sides=sides, doubt=doubt))
    return observations


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
    busy = 1.0 - run.time_shares["idle"]
    return float(run.output_tokens.sum()) * served.shares / tokens_per_s * busy, every


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
    served = read_served(options.data, Predictor.load())
    groups = grouped(served.rows, lambda row: row.prices).values()
    # At even distances in the table of a deployment.
    places = ((group, np.linspace(0, len(group) - 1, min(EACH, len(group))).astype(int)) for group in groups)
    served = replace(served, rows=[group[place] for group, some in places for place in some])
    evidence = observe(served, {}, report)
    for _ in range(0 if options.again else ROUNDS - 1):
        evidence = observe(served, fit_eras(evidence.rows), report)
    return evidence


def observe(
    served: Evidence[ServedRow], fitted: Mapping[str, FoundConstants], report: Report | None
) -> Evidence[EngineObservation]:
    """What rows tell, simulated with constants that were fitted before."""
    told = answers(served, observed, lambda deployment: with_fitted(deployment, fitted), report)
    return replace(told, rows=[each for several in told.rows for each in several])


def solve_engines(
    evidence: Evidence[EngineObservation], options: FitOptions, report: Report | None = None
) -> EngineFit:
    """Constants of every era that was observed, and those that all have in common."""
    engines = {era: _rounded(fit) for era, fit in sorted(fit_eras(evidence.rows).items())}
    eras = sorted(engines.keys() - {COMMON})
    values = {f"{era}: {name}": engines[era].values[name] for era in eras for name in engines[era].values}
    errors = [{"engine": era, "rows": engines[era].rows, "mean": round(100 * engines[era].error, 1)} for era in eras]
    found: dict[str, Any] = {"values": values, "error": engines[COMMON].error, "errors": errors, "engines": engines}
    return EngineFit(**evidence.about(), **found)


def _rounded(fit: FoundConstants) -> FoundConstants:
    deviations = significant(fit.deviations, 3)
    return replace(fit, values=significant(fit.values), deviations=deviations, error=round(fit.error, 4))


def with_fitted(deployment: Deployment, fitted: Mapping[str, FoundConstants]) -> Deployment:
    """The same with constants of its engine's era, where they were fitted."""
    constants = fitted.get(deployment.server.era)
    return deployment.with_constants(constants.values) if constants else deployment


@quick_dataclass(frozen=True, kw_only=True)
class EngineFit(FoundConstants):
    """Constants of ``engines`` by era and of all in common; in ``values`` of these that were measured."""

    engines: dict[str, FoundConstants]

    def save(self, path: Path) -> None:
        """Write as JSON."""
        names = ("values", "deviations", "rows", "gpus", "sources", "error")
        fits = {era: {name: getattr(each, name) for name in names} for era, each in self.engines.items()}
        content = {COMMON: fits.pop(COMMON), "engines": fits, "data": self.data, "skipped": self.skipped}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def priors_around(constants: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Priors of one era, or of one server, around what others have in common."""
    shares = {name: OWN_FACTORS if name in GROUPS else OWN_HOST for name in PRIORS if name in constants}
    shares |= {"mixture_s": 1.0}
    return {name: (constants[name], share * PRIORS[name][1]) for name, share in shares.items()}


def fit_era(observations: Sequence[EngineObservation], centre: Mapping[str, float] | None = None) -> FoundConstants:
    """Constants of one era, with the ``spread`` of what they leave unexplained of rows whose source was left out,
    beyond what kernels state: the mean of a model on a GPU and a cell beside it, in one.

    Args:
        observations: of it.
        centre: where priors are centred, as what all eras have in common; their spreads are then smaller.
    """
    priors = priors_around(centre) if centre else PRIORS
    passes, firsts = ([o for o in observations if o.first is first] for first in (False, True))
    fit = _solve(passes, priors)
    spread, share = _beyond(passes, fit, priors, lambda o: o.doubt)
    values, deviations = fit.values | {"doubt_share": share, "spread": spread}, fit.deviations
    if firsts:
        # What times of passes have told is kept there.
        first_priors = {name: (fit.values[name], fit.deviations[name] if name in FIRST else HELD) for name in NAMES}
        first_priors |= {REQUEST: priors[REQUEST]}
        first = _solve(firsts, first_priors)
        # Of the times of passes first tokens have their share already.
        beyond, _ = _beyond(firsts, first, first_priors, lambda o: np.hypot(share * o.doubt, spread))
        values |= {name: first.values[name] for name in FIRST} | {"first_spread": beyond}
        deviations = deviations | {name: first.deviations[name] for name in FIRST}
    about = Evidence(rows=observations, files=()).about() | {"sources": sorted({o.source for o in observations})}
    return FoundConstants(**about, values=values, deviations=deviations, error=fit.error)


def _beyond(
    rows: Sequence[EngineObservation],
    fit: SumFit,
    priors: Mapping[str, tuple[float, float]],
    stated: Callable[[EngineObservation], float],
) -> tuple[float, float]:
    """The spread of errors beyond deviations that are ``stated``, and the share of those that holds without: the larger
    of where sources and where dies are left out; of one source or die, by constants of all.
    """
    found = []
    for trait in ("source", "die"):
        misses = []
        for _, rest in Evidence(rows=rows, files=()).folds(trait):
            values = (_solve(rest.rows, priors) if rest.rows else fit).values
            misses += [(np.log(o.predicted(values) / o.measured), stated(o)) for o in rest.held]
        found.append((robust_spread(*np.transpose(misses)), share_of(*np.transpose(misses))))
    return tuple(np.max(found, axis=0).tolist())


def _solve(observations: Sequence[EngineObservation], priors: Mapping[str, tuple[float, float]]) -> SumFit:
    """Constants of sums of passes, beginning where the host decides; half of each turn's change is taken, since a side
    that no pass is on any more has nothing to tell.
    """
    values = {name: centre for name, (centre, _) in priors.items()}
    values["mixture_s"] = max(values["mixture_s"], BEGIN_S)
    for _ in range(TURNS):
        sums = [replace(o, terms=np.append(o.longer(values), o.first)) for o in observations]
        fit = fit_sums(sums, {name: priors.get(name, PRIORS[name]) for name in PRIORS})
        values = {name: (values.get(name, value) * value) ** 0.5 for name, value in fit.values.items()}
    return fit


def fit_eras(observations: Sequence[EngineObservation]) -> dict[str, FoundConstants]:
    """Every era by itself, drawn towards what all have in common, which is ``COMMON``: eras whose first tokens nobody
    timed towards what passes alone tell of hosts, since first tokens put on launches what else they wait for, and
    towards what servers of other versions of the engine add.
    """
    common, passes = fit_era(observations), fit_era([o for o in observations if not o.first])
    by_era = grouped(observations, lambda o: o.era)
    timed = sorted(era for era, rows in by_era.items() if any(o.first for o in rows))
    fitted = {era: fit_era(by_era[era], common.values) for era in timed}
    for era in by_era.keys() - fitted.keys():
        servers = [fitted[other].values[REQUEST] for other in timed if _engine(other) == _engine(era)]
        request_s = float(np.exp(np.mean(np.log(servers or [common.values[REQUEST]]))))
        fitted[era] = fit_era(by_era[era], passes.values | {REQUEST: request_s})
    # What an era of one die misses elsewhere is what others miss on dies that they are fitted without.
    of_one_die = {era for era, rows in by_era.items() if len({o.die for o in rows}) == 1}
    several = [each.values["spread"] for era, each in fitted.items() if era not in of_one_die]
    usual = {"first_spread": common.values.get("first_spread", 0.0)}
    pooled = float(np.sqrt(np.mean(np.square(several or [common.values["spread"]]))))
    for era, each in fitted.items():
        widened = {"spread": max(each.values["spread"], pooled), "doubt_share": 1.0} if era in of_one_die else {}
        fitted[era] = replace(each, values=usual | each.values | widened)
    return fitted | {COMMON: common}


def _engine(era: str) -> str:
    return era.removesuffix(ROCM).split(" before")[0]


ENGINES = ConstantsFit(read=read_engines, solve=solve_engines)
