"""``ServingEstimate``: what a deployment gives under a load, with intervals, memory, cost and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from neusight.executors.costs import NORMAL_90
from neusight.serving.deployment import Deployment
from neusight.serving.load import Closed, Load, Offline, Open, Static, Trace
from neusight.serving.memory import ServingMemory
from neusight.serving.run import Run, Spread
from neusight.serving.served import PassCosts
from neusight.serving.simulate import Chunks, StepTimes, simulate

SAMPLED = 96
"""Rows of a run that are looked at part by part, for intervals, limiters and energy."""
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

    @property
    def output_tokens_per_s_per_device(self) -> float:
        """Output tokens a second of each device."""
        return self.output_tokens_per_s.mean / self.devices

    @property
    def output_tokens_per_s_per_user(self) -> float | None:
        """How fast an answer comes once it has begun; None where answers have one token."""
        return 1.0 / self.tpot_s.mean if self.tpot_s.mean > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rates = ("output_tokens_per_s_per_device", "output_tokens_per_s_per_user")
        memory = asdict(self.memory) | {"fits": self.memory.fits}
        return asdict(self) | {name: getattr(self, name) for name in rates} | {"memory": memory}


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
    run = simulate(share, limits, times, deployment.engine.request_s)
    passes = sampled(deployment, run)
    factor = passes.doubt
    opened = isinstance(share, Open | Trace)
    ends = [simulate(share, limits, Scaled(times, f)) for f in (1 / factor, factor)] if opened else None
    return _estimate(deployment, load, run, _Ends(run, factor, ends), passes)


@dataclass(frozen=True)
class _Ends:
    """A run with its interval: times of all passes move together, which moves all times of a load that does not come
    by itself alike; one that does is simulated at both ends.
    """

    run: Run
    factor: float
    ends: list[Run] | None

    def time(self, of: Callable[[Run], Spread], added_s: float = 0.0) -> Figure:
        """A time, of the run by a function, and what a server adds to it, as doubtful as the passes."""
        found, f = of(self.run), self.factor
        ends = (of(r).mean for r in self.ends) if self.ends else (found.mean / f, found.mean * f)
        low, high = (end + added_s * by for end, by in zip(ends, (1 / f, f), strict=True))
        mean = found.mean + added_s
        percentiles = {p.name: getattr(found, p.name) + added_s for p in fields(Spread) if p.name != "mean"}
        return Figure(mean=mean, low=min(low, mean), high=max(high, mean), **percentiles)

    def rate(self, of: Callable[[Run], float], groups: float) -> Figure:
        """A rate of so many groups that share a load."""
        found = groups * of(self.run)
        fast, slow = (groups * of(r) for r in self.ends) if self.ends else (found * self.factor, found / self.factor)
        return Figure(mean=found, low=min(slow, found), high=max(fast, found))


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Some passes of a run part by part, with how much of its time [s] each stands for, and for how many passes."""

    costs: PassCosts
    seconds: np.ndarray
    counts: np.ndarray

    @property
    def prompted(self) -> np.ndarray:
        """Which have prompts."""
        return np.asarray(self.costs.groups_s["context"] > 0)

    @property
    def doubt(self) -> float:
        """Factor of the 90 % interval of all passes together: what errors they have, they have in common."""
        return float(np.exp(NORMAL_90 * (self.seconds @ self.costs.spread) / self.seconds.sum()))

    @property
    def watts(self) -> float:
        """Of each board, while passes run; NaN where it is not known."""
        return float(self.counts @ self.costs.energy_j / self.seconds.sum())

    @property
    def kernels_w(self) -> float:
        """Of a board's kernels alone, by the power law."""
        return float(self.counts @ self.costs.kernels_j / self.seconds.sum())

    def limiter(self, mask: np.ndarray) -> Limiter | None:
        """Of some rows."""
        weight = self.counts * mask
        total = float(weight @ self.costs.latency_s)
        if not total:
            return None
        parts = {what: float(weight @ part_s) / total for what, part_s in self.costs.parts_s.items()}
        parts["host"] = float(weight @ self.costs.host_s) / total
        parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
        first = next(iter(parts))
        longest = int(np.argmax(self.seconds * mask))
        resource = "host" if first == "host" else str(self.costs.limiters[first][longest])
        return Limiter(part=first, share=parts[first], resource=resource, parts=parts)


def sampled(deployment: Deployment, run: Run) -> Sampled:
    """Some passes of a run, spread evenly over its time."""
    passes = run.passes
    lasts_s = passes.lasts_s
    ends = np.cumsum(lasts_s)
    picked = np.unique(np.searchsorted(ends, (np.arange(SAMPLED) + 0.5) / SAMPLED * ends[-1]))
    seconds = np.bincount(np.searchsorted(ends[picked], ends, side="left").clip(max=len(picked) - 1), lasts_s)
    counts = seconds / lasts_s[picked] * passes.count[picked]
    return Sampled(costs=deployment.glance(passes.steps(picked)), seconds=seconds, counts=counts)


def _estimate(deployment: Deployment, load: Load, run: Run, ends: _Ends, passes: Sampled) -> ServingEstimate:
    served, groups = deployment.served, deployment.shares(load)
    request_s = 0.0 if _one_batch(load) else deployment.engine.request_s
    rate = ends.rate(lambda r: r.output_tokens_per_s, groups)
    per_token = float(run.prompt_tokens.sum() / run.output_tokens.sum())
    power_w = _power_w(deployment, passes.watts, (1.0 - run.time_shares["idle"]) * groups / deployment.groups)
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
        ttft_s=ends.time(lambda r: r.ttft_s, request_s),
        tpot_s=ends.time(lambda r: r.tpot_s),
        itl_s=ends.time(lambda r: r.itl_s),
        e2e_s=ends.time(lambda r: r.e2e_s, request_s),
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
        joule_per_output_token=None if power_w is None else power_w / rate.mean,
        power_w=power_w,
        preempted=round(groups * run.preempted.sum()),
        diverges=run.diverges,
        warnings=(*served.decoder.notes, *_assumed(deployment, load, run)),
    )


def _power_w(deployment: Deployment, watts: float, busy: float) -> float | None:
    """Of all boards on average [W], which draw ``watts`` for the share ``busy`` of the time; None where no one knows.

    Beside that a board draws what it draws whatever it does: it keeps its clocks between two requests.
    """
    idle_w = deployment.served.idle_w
    return None if np.isnan(watts) else float(deployment.devices * (busy * watts + (1.0 - busy) * idle_w))


def _one_batch(load: Load) -> bool:
    """Whether all requests are there when the engine starts: their client is the program that runs it."""
    return isinstance(load, Static | Offline) or (isinstance(load, Trace) and not np.any(load.arrival_s))


def _assumed(deployment: Deployment, load: Load, run: Run) -> Iterator[str]:
    """What an answer leans on."""
    if not run.settled and not run.diverges:
        yield "the load ended before the deployment had filled: with more requests all means move"
    engine = deployment.engine
    if not engine.pass_s:
        yield f"no constants of {engine.era or engine.name} are fitted: its own time in each pass counts as none"
    if engine.scheduler.reserved_output not in (0.0, 1.0):
        yield f"{engine.name} is taken to reserve room for {engine.scheduler.reserved_output:.0%} of each answer"
    if deployment.shares(load) < deployment.groups and isinstance(load, Static | Closed):
        what = f"a batch of {load.batch}" if isinstance(load, Static) else f"a concurrency of {load.concurrency}"
        yield f"{what} does not divide by {deployment.groups} schedulers: times are of those that get the most"


def _told(load: Load) -> dict[str, Any]:
    """Numbers of a load; of a trace how many requests it has."""
    if isinstance(load, Trace):
        return {"requests": len(load.arrival_s)}
    return {f.name: v for f in fields(load) if isinstance(v := getattr(load, f.name), int | float | str)}
