"""``serve``: a deployment under a load, with intervals, memory, cost and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from math import hypot, sqrt
from operator import add
from types import MappingProxyType
from typing import Any

import numpy as np

from neusight.estimates.core import largest
from neusight.estimates.energy import BoardEnergy, around
from neusight.kernels.schemes import with_kernels_for
from neusight.laws.doubts import NORMAL_90, Doubts, spread, weighed
from neusight.laws.fitted import with_sources
from neusight.laws.source_doubts import KINDS
from neusight.serving.batching import Chunks, PassTimes
from neusight.serving.deployment import Deployment
from neusight.serving.disaggregated import ApartRun, simulate_apart
from neusight.serving.estimate import DEGREES, Limiter, Metric, ServingEstimate
from neusight.serving.launch import launch_command
from neusight.serving.load import Closed, Load, Offline, Open, Static, Trace, checked, mean_tokens
from neusight.serving.passes import PassCosts
from neusight.serving.run import ServingRun, Spread
from neusight.serving.simulate import ALONE, simulate
from neusight.serving.versions import UNSET, OpenVersion, in_words, open_version

SAMPLED = 96
"""Rows of a run that are looked at part by part, for intervals, limiters and energy."""
HOUR_S, MILLION = 3600.0, 1e6
NO_DOUBTS: Doubts = MappingProxyType({})


@dataclass(frozen=True)
class ScaledTimes:
    """Times of passes, all longer or shorter by a factor, those with prompts by another if any is given."""

    times: PassTimes
    factor: float
    with_prompts: float | None = None

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """As ``PassTimes``."""
        factor = self.with_prompts if chunks and self.with_prompts else self.factor
        return factor * self.times.pass_s(new_tokens, chunks, decodes, decode_cached_sum)


def serve(deployment: Deployment, load: Load) -> ServingEstimate:
    """Serve a load and say how.

    Raises:
        ModelError: the model does not fit. LoadError: what is no load or makes no sense, or a request that cannot run.
    """
    checked(load)
    if deployment.prefill:
        return _serve_apart(deployment, deployment.prefill, load)
    deployment = deployment.called_with(load)
    share, times = deployment.share_of(load), deployment.tables
    simulated = partial(simulate, limits=deployment.limits, between_s=deployment.server.request_s)
    routing = ALONE if deployment.routing.apart else deployment.routing
    run = simulated(share, times=times, routing=routing)
    passes = sampled(deployment, run)
    if deployment.setup.versions:
        times = passes.at_mean(times)
        run = simulated(share, times=times, routing=routing)
        passes = sampled(deployment, run)
    busy = (1.0 - run.time_shares["idle"]) * deployment.shares(load) * run.schedulers / deployment.groups
    factors, ends = passes.factors, None
    if isinstance(share, Open | Trace):
        # What one scheduler gets in turn is as sensitive as all of them together.
        one = deployment.in_turn(load)
        fast, slow = (simulated(one, times=ScaledTimes(times, f)) for f in factors)
        ends = (run if routing is ALONE else simulated(one, times=times), fast, slow)
    pool = UsedPool(deployment=deployment, passes=passes, busy=busy)
    return _estimate([pool], load, run, _RunInterval(run, factors, ends))


def _serve_apart(decode: Deployment, prefill: Deployment, load: Load) -> ServingEstimate:
    """Of prompts and answers on devices of their own."""
    pools = [prefill.pool, decode.pool]

    def at(factor: float) -> ApartRun:
        prompts, answers = (replace(pool, times=ScaledTimes(pool.times, factor)) for pool in pools)
        return simulate_apart(load, prompts, answers, decode.transfer, decode.server.request_s)

    run = at(1.0)
    if decode.setup.versions:
        parts = (prefill, run.prefill), (decode, run.decode)
        pools = [
            replace(pool, times=sampled(*part).at_mean(pool.times)) for pool, part in zip(pools, parts, strict=True)
        ]
        run = at(1.0)
    used = [
        UsedPool(deployment=deployment, passes=sampled(deployment, part), busy=part.busy_s / run.whole.makespan_s)
        for deployment, part in ((prefill, run.prefill), (decode, run.decode))
    ]
    # Both run the same kernels of the same laws: their errors go together.
    weights = np.array([pool.passes.seconds.sum() for pool in used])
    fast, slow = np.exp(weights @ np.log([pool.passes.factors for pool in used]) / weights.sum()).tolist()
    opened = isinstance(load, Open | Trace)
    ends = (run.whole, at(fast).whole, at(slow).whole) if opened else None
    estimate = _estimate(used, load, run.whole, _RunInterval(run.whole, (fast, slow), ends))
    prompts = {"gpu": prefill.replica.device.id, "replicas": prefill.setup.replicas, "devices": prefill.devices}
    return replace(estimate, prefill_pool=prompts | _degrees(prefill), transfer_s=float(run.transfer_s.mean()))


@dataclass(frozen=True)
class _RunInterval:
    """A run with its interval: times of all passes move together, which moves all times of a load that does not come
    by itself alike; one that does, or a scheduler's part of it, is simulated as it is and at both ends.
    """

    run: ServingRun
    at_ends: tuple[float, float]
    ends: tuple[ServingRun, ServingRun, ServingRun] | None

    def time(self, of: Callable[[ServingRun], Spread], server_s: float = 0.0, beside: float = 0.0) -> Metric:
        """A time, of the run by a function, and what a server adds to it, as uncertain as the passes; ``beside`` is the
        standard deviation of its logarithm by what has nothing to do with them.
        """
        spread, (fast, slow) = of(self.run), self.at_ends
        low, high = (spread.mean * by for by in self.factors(lambda run: of(run).mean))
        low, high = low + server_s * fast, high + server_s * slow
        low, high = (_widened(end, spread.mean + server_s, beside) for end in (low, high))
        mean = spread.mean + server_s
        percentiles = {p.name: getattr(spread, p.name) + server_s for p in fields(Spread) if p.name != "mean"}
        return Metric(mean=mean, low=min(low, mean), high=max(high, mean), **percentiles)

    def factors(self, of: Callable[[ServingRun], float]) -> tuple[float, float]:
        """Of a figure at the fast and at the slow end."""
        if self.ends is None:
            return self.at_ends
        one, *ends = map(of, self.ends)
        return (ends[0] / one, ends[1] / one) if one else (1.0, 1.0)

    def rate(self, of: Callable[[ServingRun], float], groups: float) -> Metric:
        """A rate of so many groups that share a load."""
        mean = groups * of(self.run)
        fast, slow = (mean * by for by in self.factors(of)) if self.ends else tuple(mean / by for by in self.at_ends)
        return Metric(mean=mean, low=min(slow, mean), high=max(fast, mean))


def _widened(end: float, mean: float, beside: float) -> float:
    """The end of a 90 % interval around a mean, farther by another error of its logarithm."""
    if not (end and mean):
        return end
    distance = float(np.log(end / mean))
    return mean * float(np.exp(np.copysign(hypot(distance, NORMAL_90 * beside), distance)))


def _of_sources(
    metric: Metric, doubts: Doubts, name: str, what: str, ends: tuple[float, float]
) -> tuple[Metric, Doubts]:
    """A metric by name and its doubts with those between sources: its interval grows or shrinks as they do, within
    ``ends`` as shares of the mean.
    """
    if not (metric.low and spread(doubts)):
        return metric, doubts
    sign = 1.0 if name in KINDS else -1.0  # Rates are the higher, the shorter times are.
    found = weighed([(sign, with_sources(weighed([(sign, doubts)]), KINDS.get(name, "throughput"), what))])
    by = spread(found) / spread(doubts)
    low, high = (metric.mean * (end / metric.mean) ** by for end in (metric.low, metric.high))
    return replace(metric, low=max(low, ends[0] * metric.mean), high=min(high, ends[1] * metric.mean)), found


@dataclass(frozen=True, kw_only=True)
class SampledPasses:
    """Some passes of a run part by part, with how much of its time [s] each stands for, and for how many passes;
    ``with_prompts`` are those that have any.
    """

    costs: PassCosts
    seconds: np.ndarray
    counts: np.ndarray
    with_prompts: np.ndarray
    version: OpenVersion | None = None

    def at_mean(self, times: PassTimes) -> PassTimes:
        """Times of passes at the mean over the versions of the engine that people run."""
        assert self.version is not None
        weights = [self.seconds * mask for mask in (~self.with_prompts, self.with_prompts)]
        factors = [float(np.exp(weight @ self.version.mean / (weight.sum() or 1.0))) for weight in weights]
        return ScaledTimes(times, *factors)

    @property
    def factors(self) -> tuple[float, float]:
        """Factors to the ends of the 90 % interval of all passes together: what errors they have, they have in common,
        and none is faster than its bound.
        """
        slow = float(np.exp(NORMAL_90 * (self.seconds @ self.costs.spread) / self.seconds.sum()))
        return max(1.0 / slow, self.bound_share), slow

    @property
    def bound_share(self) -> float:
        """Share of their time that no passes can beat."""
        return float(self.seconds @ (self.costs.bound_s / self.costs.latency_s) / self.seconds.sum())

    def doubts(self, metric: Metric, sign: float = 1.0, apart: Doubts = NO_DOUBTS) -> Doubts:
        """Doubts of a metric by key, which make up its interval: those of all passes, beside some ``apart`` of them."""
        width = float(np.log(metric.high / metric.low) / (2 * NORMAL_90)) if metric.low else 0.0
        means = {key: float(self.seconds @ size) for key, size in self.costs.doubts.items()}
        of_passes = sqrt(max(width**2 - spread(apart) ** 2, 0.0)) / (spread(means) or 1.0)
        return {key: size for key, size in weighed([(sign * of_passes, means), (sign, apart)]).items() if size}

    @property
    def resource(self) -> str:
        """That most of the time is limited by: of kernels, or the host."""
        seconds = {"host": float(self.counts @ self.costs.host_s)}
        for part, part_s in self.costs.parts_s.items():
            for resource in np.unique(self.costs.limiters[part]):
                mask = self.costs.limiters[part] == resource
                seconds[str(resource)] = seconds.get(str(resource), 0.0) + float((self.counts * part_s)[mask].sum())
        return largest(seconds)

    @property
    def power_w(self) -> float:
        """Of each board, while passes run."""
        return float(self.counts @ self.costs.energy_j / self.seconds.sum())

    @property
    def drawn_w(self) -> tuple[float, float]:
        """What arithmetic and traffic of a board's kernels add to it."""
        drawn = self.costs.drawn
        compute_w, traffic_w = (float(self.counts @ j / self.seconds.sum()) for j in (drawn.compute_j, drawn.traffic_j))
        return compute_w, traffic_w

    def limiter(self, mask: np.ndarray) -> Limiter | None:
        """Of some rows."""
        weight = self.counts * mask
        total = float(weight @ self.costs.latency_s)
        if not total:
            return None
        parts = {name: float(weight @ part_s) / total for name, part_s in self.costs.parts_s.items()}
        parts["host"] = float(weight @ self.costs.host_s) / total
        parts = dict(sorted(parts.items(), key=lambda item: -item[1]))
        first = next(iter(parts))
        longest = int(np.argmax(self.seconds * mask))
        resource = "host" if first == "host" else str(self.costs.limiters[first][longest])
        return Limiter(part=first, share=parts[first], resource=resource, parts=parts)


def sampled(deployment: Deployment, run: ServingRun) -> SampledPasses:
    """Some passes of a run, spread evenly over its time; those with prompts, and those without, are never left out."""
    passes = run.passes
    lasts_s, with_prompts = passes.lasts_s, passes.prompts > 0
    picked, seconds = _spread(lasts_s)
    for rare in (with_prompts, ~with_prompts):
        if rare.any() and not rare[picked].any():
            groups = [_spread(np.where(mask, lasts_s, 0.0)) for mask in (rare, ~rare)]
            picked, seconds = (np.concatenate(columns) for columns in zip(*groups, strict=True))
    counts = seconds / lasts_s[picked] * passes.count[picked]
    steps = passes.steps(picked)
    costs = deployment.interpolate(steps)
    version = open_version(deployment, steps, costs.groups_s)
    costs = costs.with_doubt(UNSET, version.spread) if version else costs
    return SampledPasses(
        costs=costs, seconds=seconds, counts=counts, with_prompts=with_prompts[picked], version=version
    )


def _spread(lasts_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Passes at even distances in time, and the time [s] that each stands for: that since the one before it."""
    ends = np.cumsum(lasts_s)
    picked = np.unique(np.searchsorted(ends, (np.arange(SAMPLED) + 0.5) / SAMPLED * ends[-1]))
    return picked, np.bincount(np.searchsorted(ends[picked], ends, side="left").clip(max=len(picked) - 1), lasts_s)


@dataclass(frozen=True, kw_only=True)
class UsedPool:
    """A deployment with some of the passes that it ran, for a share ``busy`` of the time."""

    deployment: Deployment
    passes: SampledPasses
    busy: float

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices."""
        price = self.deployment.replica.device.price_usd_per_hour
        return None if price is None else self.deployment.devices * price

    @property
    def power_w(self) -> float:
        """Of all boards on average [W]. Between two requests a board keeps its clocks: it draws what it draws whatever
        it does.
        """
        idle_w = (1.0 - self.busy) * self.deployment.replica.idle_w
        return float(self.deployment.devices * (self.busy * self.passes.power_w + idle_w))

    def token_energy(self, rate: Metric) -> BoardEnergy:
        """Of all boards for an output token."""
        devices, times_s = self.deployment.devices, (1.0 / rate.high, 1.0 / rate.mean, 1.0 / rate.low)
        return around(self.deployment.replica.device, self.power_w / devices / rate.mean, times_s) * devices


def _estimate(pools: Sequence[UsedPool], load: Load, run: ServingRun, interval: _RunInterval) -> ServingEstimate:
    """Figures of a run on one pool, or on one of prompts and one of answers."""
    deployment, passes = pools[-1].deployment, pools[-1].passes
    replica, groups = deployment.replica, deployment.shares(load)
    request_s = 0.0 if _all_at_start(load) else deployment.server.request_s
    per_token = float(run.prompt_tokens.sum() / run.output_tokens.sum())
    first = deployment.server.first_spread if request_s else 0.0
    times = {
        "ttft": interval.time(lambda r: r.ttft_s, request_s, first),
        "tpot": interval.time(lambda r: r.tpot_s),
        "itl": interval.time(lambda r: r.itl_s),
        "e2e": interval.time(lambda r: r.e2e_s, request_s),
    }
    doubts = {name: passes.doubts(time) for name, time in times.items()}
    doubts["ttft"] = pools[0].passes.doubts(times["ttft"], apart={f"first:{deployment.server.era}": first})
    rates = {
        "throughput": interval.rate(lambda r: r.output_tokens_per_s, groups),
        "steady": interval.rate(lambda r: r.steady_output_tokens_per_s, groups),
    }
    doubts |= {name: passes.doubts(one, -1.0) for name, one in rates.items()}
    what, least = f"{replica.decoder.name} {replica.device.id}", passes.bound_share
    found = {name: _of_sources(time, doubts[name], name, what, (least, np.inf)) for name, time in times.items()}
    found |= {name: _of_sources(one, doubts[name], name, what, (0.0, 1.0 / least)) for name, one in rates.items()}
    rate = found["throughput"][0]
    figures: dict[str, Any] = {f"{name}_s": found[name][0] for name in times}
    return ServingEstimate(
        model=replica.decoder.name, gpu=replica.device.id, engine=deployment.server.era, plan=_degrees(deployment),
        precision=replica.precision.quantisation.method or replica.precision.dtype, kv_dtype=replica.precision.kv_cache,
        replicas=deployment.setup.replicas, devices=sum(pool.deployment.devices for pool in pools), **figures,
        load={"kind": type(load).__name__.lower()} | _load_figures(load), limiter=passes.resource, kv_use=run.kv_use,
        metric_doubts={name: doubt for name, (_, doubt) in found.items()}, output_tokens_per_s=rate,
        steady_output_tokens_per_s=found["steady"][0], requests_per_s=groups * run.requests_per_s,
        total_tokens_per_s=rate.mean * (1.0 + per_token), mean_batch=run.mean_batch, time_shares=run.time_shares,
        prefill=pools[0].passes.limiter(pools[0].passes.with_prompts), decode=passes.limiter(~passes.with_prompts),
        memory=deployment.memory, **_costs(pools, rate), power_w=sum(pool.power_w for pool in pools),
        token_energy=reduce(add, (pool.token_energy(rate) for pool in pools)), diverges=run.diverges,
        prefix_hit=float(run.cached_tokens.sum() / run.prompt_tokens.sum()), launch=launch_command(deployment),
        preempted=round(groups * run.preempted.sum()),
        warnings=(*replica.decoder.notes, *replica.device.likeness, *_assumptions(deployment, load, run)),
        assumed=deployment.assumed | in_words(deployment, abs(found["throughput"][1].get(UNSET, 0.0))),
    )  # fmt: skip


def _degrees(deployment: Deployment) -> dict[str, int]:
    return {name: getattr(deployment.replica.plan, name) for name in DEGREES}


def _costs(pools: Sequence[UsedPool], rate: Metric) -> dict[str, Any]:
    """Figures of an estimate about prices; of several kinds of devices the mean."""
    devices = [pool.deployment.replica.device for pool in pools]
    usd = [pool.usd_per_hour for pool in pools if pool.usd_per_hour is not None]
    figures = {
        "price_source": " and ".join(dict.fromkeys(device.price_source for device in devices)),
        "unpriced": tuple(dict.fromkeys(device.id for device in devices if not device.price_usd_per_hour)),
    }
    if len(usd) < len(pools):
        return figures | {"usd_per_hour": None, "usd_per_million_output_tokens": None}
    mean = sum(usd) / sum(pool.deployment.devices for pool in pools)
    return figures | {
        "usd_per_hour": mean if len(pools) > 1 else devices[0].price_usd_per_hour,
        "usd_per_million_output_tokens": sum(usd) / HOUR_S / rate.mean * MILLION,
    }


def _all_at_start(load: Load) -> bool:
    """Whether all requests are there when the engine starts: their client is the program that runs it."""
    return isinstance(load, Static | Offline) or (isinstance(load, Trace) and not np.any(load.arrival_s))


def _assumptions(deployment: Deployment, load: Load, run: ServingRun) -> Iterator[str]:
    """What an answer leans on."""
    if not run.settled and not run.diverges:
        yield "the load ended before the deployment reached a steady state: with more requests all means move"
    if (cluster := deployment.replica.cluster) and cluster.network is None:
        nodes = f"{cluster.nodes} nodes of {cluster.per_node} devices"
        yield f"a replica spans {nodes}, whose network is unknown: it exchanges as over measured ones; give network"
    scheme = deployment.replica.precision.quantisation
    if other := with_kernels_for(scheme):
        yield f"{scheme.method} is unpacked before each product, for want of kernels that read it: {other} has some"
    server, name = deployment.server, deployment.replica.engine.name
    if measured := server.unmeasured_version:
        yield f"version {server.version} of {name} is none that was measured, {measured}: its interval is wider"
    if not server.pass_s:
        yield f"no constants of {server.era} are fitted: its own time in each pass counts as none"
    elif server.fitted_to != server.era:
        yield f"no constants of {server.era} are fitted: those of {server.fitted_to} hold, as uncertain as all engines'"
    if server.scheduler.reserved_output not in (0.0, 1.0):
        yield f"{name} is taken to reserve room for {server.scheduler.reserved_output:.0%} of each answer"
    if deployment.apart and deployment.shares(load) < deployment.groups and isinstance(load, Static | Closed):
        size = f"a batch of {load.batch}" if isinstance(load, Static) else f"a concurrency of {load.concurrency}"
        yield f"{size} does not divide by {deployment.groups} schedulers: times are of those that get the most"


def _load_figures(load: Load) -> dict[str, Any]:
    """Numbers of a load, means of lengths; of a trace how many requests it has."""
    if isinstance(load, Trace):
        return {"requests": len(load.arrival_s)}
    figures = {f.name: v for f in fields(load) if isinstance(v := getattr(load, f.name), int | float | str)}
    return {name: mean_tokens(getattr(load, name)) for name in ("isl", "osl")} | figures
