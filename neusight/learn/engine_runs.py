"""What measured runs tell of their engine: a time, and what each of the engine's constants is multiplied with in it.

What a run is made of comes from a simulation of it. ``EngineObservation.terms`` times the constants that it ran with is
what the simulation took, as a prediction would say it: rounds of pipelines, clients that wait and all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.engines.server import GROUPS, HOST
from neusight.serving.cells import ServingCase
from neusight.serving.deployment import Deployment
from neusight.serving.passes import PassCosts
from neusight.serving.run import ServingRun
from neusight.serving.serve import sampled
from neusight.serving.simulate import simulate
from neusight.workloads.decoders.shares import Steps

NAMES = (*HOST, *GROUPS)
ROWS = 48
"""Passes of a run that are priced part by part, for the sums over all of them."""
WAITING_SHARE = 0.2
"""Of the time to the first token: where requests wait longer, that tells more of the queue than of the server."""


@dataclass(frozen=True, kw_only=True)
class EngineObservation:
    """A measured time [s], and by ``NAMES`` what each constant is multiplied with in it: ``terms @ constants`` is it.

    ``alike`` are cells that share what no constant explains: a model on a GPU. ``era`` is the engine's.
    """

    cell: str
    era: str
    gpu: str
    alike: str
    seconds: float
    terms: np.ndarray
    late_s: float = np.nan
    """By how much the first token came later than simulated, where requests hardly wait; else NaN."""
    watts: tuple[float, float, float] | None = None
    """Of each GPU its limit, what its kernels ask for by the power law, and what was measured [W]; None where not."""


def observed(case: ServingCase, deployment: Deployment) -> EngineObservation | None:
    """What a cell tells of its engine, by a simulation of it: the time of a batch or of all requests, of a token where
    clients wait for answers or arrive by themselves; None where it measured neither.

    Raises:
        LoadError: a load that cannot run.
    """
    share = deployment.share_of(case.load)
    run = simulate(share, deployment.limits, deployment.tables, deployment.server.request_s)
    seconds, weight = _timed(case, run, deployment.shares(case.load))
    if not seconds:
        return None
    return EngineObservation(
        cell=case.cell.name,
        era=deployment.server.era,
        gpu=case.cell.gpu,
        alike=f"{case.cell.source} {case.cell.model} {case.cell.weights} {case.cell.gpu} {case.cell.n_gpus}",
        seconds=seconds,
        terms=summed(deployment, run, weight),
        late_s=_late_s(case, run),
        watts=_watts(case, deployment, run),
    )


def _timed(case: ServingCase, run: ServingRun, shares: float) -> tuple[float, np.ndarray]:
    """The time that a cell measured [s], and how often each row of passes stands in it; 0 where it measured none.

    Args:
        case: with what was measured.
        run: of one group's share of the load.
        shares: that the whole load is.
    """
    measured, passes = case.cell.measured, run.passes
    every = passes.count.astype(float)
    if case.cell.mode in ("closed", "rate") and "tpot_ms" in measured:
        return measured["tpot_ms"] / 1e3, _of_a_token(run, case.cell.median)
    if case.cell.mode == "static" and "e2e_ms" in measured:
        return measured["e2e_ms"] / 1e3, every
    if case.cell.mode == "static" and ("prefill_ms" in measured or "ttft_ms" in measured):
        return measured.get("prefill_ms", measured.get("ttft_ms", 0.0)) / 1e3, every * (passes.prompts > 0)
    if case.cell.mode != "rate" and "tokens_per_s" in measured:
        whole_s = float(run.output_tokens.sum()) * shares / measured["tokens_per_s"]
        # Between passes clients wait for their server, which is no constant of a pass.
        return whole_s * _busy(run), every
    return 0.0, every


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


def _late_s(case: ServingCase, run: ServingRun) -> float:
    if case.cell.mode not in ("closed", "rate") or "ttft_ms" not in case.cell.measured:
        return np.nan
    waiting = run.queue_s.mean > WAITING_SHARE * run.ttft_s.mean
    return np.nan if waiting else case.cell.measured["ttft_ms"] / 1e3 - run.ttft_s.mean


def _watts(case: ServingCase, deployment: Deployment, run: ServingRun) -> tuple[float, float, float] | None:
    """As ``EngineObservation``: kernels of boards that wait for requests, or have no share of them, ask for nothing."""
    if case.cell.power_w is None:
        return None
    busy = _busy(run) * deployment.shares(case.load) / deployment.groups
    kernels_w = busy * sampled(deployment, run).kernels_w
    return deployment.replica.device.tdp_w, kernels_w, case.cell.power_w / case.cell.n_gpus


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
    """Terms of the passes that rounds of the scheduler take as long as, shape (n, constants); ``costs`` are theirs."""
    steps = deployment.in_flight(rounds)
    ones = np.ones(len(steps))
    ranks, mixtures = deployment.replica.plan.world, deployment.replica.mixtures
    host = {
        "pass_s": ones,
        "rank_s": ones * (ranks > 1),
        "sequence_s": ones * steps.sequences,
        "mixture_s": ones * mixtures,
    }
    return np.stack([*(host[name] for name in HOST), *(costs.groups_s[group] for group in GROUPS)], axis=1)
