"""``ServingEstimate``: what a deployment gives under a load, with intervals, memory, cost and what limits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from neusight.executors.costs import NORMAL_90
from neusight.serving.deployment import Deployment
from neusight.serving.load import Load, Open, Trace
from neusight.serving.memory import ServingMemory
from neusight.serving.run import Run, Spread
from neusight.serving.served import PassCosts
from neusight.serving.simulate import Chunks, StepTimes, simulate
from neusight.workloads.decoders.steps import Steps

SAMPLED = 96
"""Rows of a run that are priced again, kernel by kernel, for intervals and limiters."""
HOUR_S, MILLION = 3600.0, 1e6


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean with its 90 % interval, and percentiles over requests or tokens."""

    mean: float
    low: float
    high: float
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True)
class Limiter:
    """What a kind of pass spends its time on: the largest part, its share, and what bounds its kernels."""

    part: str
    share: float
    resource: str
    parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ServingEstimate:
    """The answer. Times in seconds; rates are of all replicas together, those over the whole load with its ramps, and
    ``steady`` of the middle half of its output.

    ``prefill`` and ``decode`` tell what passes with prompts and passes that only generate are limited by. ``diverges``
    says in words that the load outgrows the deployment, ``warnings`` what was assumed.
    """

    model: str
    gpu: str
    engine: str
    precision: str
    kv_dtype: str
    sharding: dict[str, int]
    replicas: int
    devices: int
    load: dict[str, Any]
    ttft_s: Figure
    tpot_s: Figure
    itl_s: Figure
    e2e_s: Figure
    output_tokens_per_s: Figure
    steady_output_tokens_per_s: Figure
    requests_per_s: float
    total_tokens_per_s: float
    mean_batch: float
    kv_use: float
    time_shares: dict[str, float]
    prefill: Limiter | None
    decode: Limiter | None
    memory: ServingMemory
    usd_per_million_output_tokens: float | None
    joule_per_output_token: float | None
    power_w: float | None
    preempted: int
    diverges: str
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"memory": asdict(self.memory) | {"fits": self.memory.fits}}


@dataclass(frozen=True)
class Scaled:
    """Times of passes, all longer or shorter by a factor."""

    times: StepTimes
    factor: float

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """As ``StepTimes``."""
        return self.factor * self.times.pass_s(new_tokens, chunks, decodes, decode_cached_sum)


def answer(deployment: Deployment, load: Load) -> ServingEstimate:
    """Serve a load and say how.

    Raises:
        ModelError: the model does not fit. LoadError: a load that makes no sense, or a request that cannot run.
    """
    share, limits, times = deployment.share_of(load), deployment.limits, deployment.tables
    run = simulate(share, limits, times)
    costs, seconds = sampled(deployment, run)
    factor = _doubt(costs, seconds)
    opened = isinstance(share, Open | Trace)
    ends = [simulate(share, limits, Scaled(times, f)) for f in (1 / factor, factor)] if opened else None
    return _estimate(deployment, load, run, _Ends(run, factor, ends), _Passes(costs, seconds, _prompted(costs)))


@dataclass(frozen=True)
class _Ends:
    """A run with its interval: times of all passes move together, which moves all times of a load that does not come
    by itself alike; one that does is simulated at both ends.
    """

    run: Run
    factor: float
    ends: list[Run] | None

    def time(self, of: Callable[[Run], Spread]) -> Figure:
        """A time, of the run by a function."""
        found = of(self.run)
        low, high = (
            (of(r).mean for r in self.ends) if self.ends else (found.mean / self.factor, found.mean * self.factor)
        )
        percentiles = {f.name: getattr(found, f.name) for f in fields(Spread) if f.name != "mean"}
        return Figure(mean=found.mean, low=min(low, found.mean), high=max(high, found.mean), **percentiles)

    def rate(self, of: Callable[[Run], float], groups: int) -> Figure:
        """A rate of all groups."""
        found = groups * of(self.run)
        fast, slow = (groups * of(r) for r in self.ends) if self.ends else (found * self.factor, found / self.factor)
        return Figure(mean=found, low=min(slow, found), high=max(fast, found))


@dataclass(frozen=True)
class _Passes:
    costs: PassCosts
    seconds: np.ndarray
    prompted: np.ndarray

    def limiter(self, mask: np.ndarray) -> Limiter | None:
        """Of some rows."""
        weight = (self.seconds / self.costs.latency_s) * mask
        total = float((weight * self.costs.latency_s).sum())
        if not total:
            return None
        parts = {what: float((weight * part).sum()) / total for what, part in self.costs.parts_s.items()}
        parts["host"] = float((weight * self.costs.host_s).sum()) / total
        parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
        first = next(iter(parts))
        resource = "host" if first == "host" else str(self.costs.limiters[first][int(np.argmax(weight))])
        return Limiter(part=first, share=parts[first], resource=resource, parts=parts)


def sampled(deployment: Deployment, run: Run) -> tuple[PassCosts, np.ndarray]:
    """Some passes of a run kernel by kernel, and how much of the run's time each stands for [s]."""
    passes = run.passes
    lasts_s = passes.lasts_s
    ends = np.cumsum(lasts_s)
    picked = np.unique(np.searchsorted(ends, (np.arange(SAMPLED) + 0.5) / SAMPLED * ends[-1]))
    counted = np.bincount(np.searchsorted(ends[picked], ends, side="left").clip(max=len(picked) - 1), lasts_s)
    running = np.maximum(passes.running[picked], 1)
    steps = Steps.of(
        prompts=passes.prompts[picked],
        prompt_tokens=-(-passes.prompt_tokens[picked] // np.maximum(passes.prompts[picked], 1)),
        prompt_cached=np.zeros(len(picked), dtype=np.int64),
        decodes=passes.decodes[picked],
        decode_cached=passes.kv_tokens[picked] // running,
    )
    return deployment.served.predict(steps, energy=True), counted


def _doubt(costs: PassCosts, seconds: np.ndarray) -> float:
    """Factor of the 90 % interval of all passes together: what errors they have, they have in common."""
    return float(np.exp(NORMAL_90 * (seconds @ costs.spread) / seconds.sum()))


def _prompted(costs: PassCosts) -> np.ndarray:
    return costs.groups_s["context"] > 0


def _estimate(deployment: Deployment, load: Load, run: Run, ends: _Ends, passes: _Passes) -> ServingEstimate:
    served, groups = deployment.served, deployment.groups
    rate = ends.rate(lambda r: r.output_tokens_per_s, groups)
    per_token = float(run.prompt_tokens.sum() / run.output_tokens.sum())
    watts = float((passes.seconds / passes.costs.latency_s) @ passes.costs.energy_j / passes.seconds.sum())
    busy_w = deployment.devices * watts * (1.0 - run.time_shares["idle"])
    price = served.device.price_usd_per_hour
    usd = None if price is None else deployment.devices * price / HOUR_S / rate.mean * MILLION
    return ServingEstimate(
        model=served.decoder.name,
        gpu=served.device.id,
        engine=served.engine.era or served.engine.name,
        precision=served.precision.quantisation.method or served.precision.dtype,
        kv_dtype=served.precision.kv_cache,
        sharding=asdict(served.sharding),
        replicas=deployment.replicas,
        devices=deployment.devices,
        load={"kind": type(load).__name__.lower()} | _told(load),
        ttft_s=ends.time(lambda r: r.ttft_s),
        tpot_s=ends.time(lambda r: r.tpot_s),
        itl_s=ends.time(lambda r: r.itl_s),
        e2e_s=ends.time(lambda r: r.e2e_s),
        output_tokens_per_s=rate,
        steady_output_tokens_per_s=ends.rate(lambda r: r.steady_output_tokens_per_s, groups),
        requests_per_s=groups * run.requests_per_s,
        total_tokens_per_s=rate.mean * (1.0 + per_token),
        mean_batch=run.mean_batch,
        kv_use=run.kv_use[1],
        time_shares=run.time_shares,
        prefill=passes.limiter(passes.prompted),
        decode=passes.limiter(~passes.prompted),
        memory=deployment.memory,
        usd_per_million_output_tokens=usd,
        joule_per_output_token=busy_w / rate.mean if busy_w else None,
        power_w=busy_w or None,
        preempted=int(run.preempted.sum()),
        diverges=run.diverges,
        warnings=served.decoder.notes,
    )


def _told(load: Load) -> dict[str, Any]:
    """Numbers of a load; of a trace how many requests it has."""
    if isinstance(load, Trace):
        return {"requests": len(load.arrival_s)}
    return {f.name: v for f in fields(load) if isinstance(v := getattr(load, f.name), int | float | str)}
