"""What a planner asks of deployments: throughput against latency with more and more clients (``frontier``), and the
cheapest that holds a service level (``Slo``, ``cheapest``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from neusight.errors import LoadError, NeusightError, UnitError, nearest, shown
from neusight.serving.deployment import Deployment
from neusight.serving.estimate import LATENCIES, ServingEstimate
from neusight.serving.load import Closed, Load, Offline, Open, TokenCounts
from neusight.serving.serve import serve
from neusight.units import milliseconds, parse

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
FINENESS = 32
"""The largest load is found to one part in as many."""
MOST_REPLICAS = 4096
"""More are not looked at."""
ARRIVALS = 512
"""Requests that each scheduler gets of a load that comes at a rate, at least: enough for a percentile of 99."""
WAVES = 4
"""Times that a load fills a deployment with other requests, so that most of it is served by a full one."""
PER_CLIENT = 10
"""Requests of each client of a closed load, as benchmarks of engines have them (``--num-prompts`` ten times
``--max-concurrency``): the times in which an engine fills and empties are a small part of the whole."""
LEAST_REQUESTS = 32
"""Requests of a closed load at least."""
STILL_GROWS = 1.01
"""Factor of throughput below which twice the clients count as no gain (assumption)."""


def closed(concurrency: int, isl: TokenCounts, osl: TokenCounts, *, number: int | None = None, seed: int = 0) -> Closed:
    """Clients with ten requests each, unless ``number`` says how many in all."""
    most = max(LEAST_REQUESTS, PER_CLIENT * concurrency)
    return Closed(concurrency=concurrency, number=number or most, isl=isl, osl=osl, seed=seed)


def frontier(
    deployment: Deployment,
    isl: TokenCounts,
    osl: TokenCounts,
    *,
    concurrencies: Sequence[int] | None = None,
    seed: int = 0,
) -> list[ServingEstimate]:
    """Answers with more and more clients.

    Args:
        deployment: what serves them.
        isl: tokens of prompts.
        osl: tokens of answers.
        concurrencies: how many clients; else 1, 2, 4, … until throughput grows by less than ``STILL_GROWS`` or as many
            as the engine runs together.
        seed: of what is drawn.

    Raises:
        ModelError: the model does not fit. LoadError: a request that cannot run.
    """
    if concurrencies is not None:
        return [serve(deployment, closed(n, isl, osl, seed=seed)) for n in concurrencies]
    estimates: list[ServingEstimate] = []
    for n in _doubled(most_clients(deployment)):
        estimates.append(serve(deployment, closed(n, isl, osl, seed=seed)))
        rates = [each.output_tokens_per_s.mean for each in estimates[-2:]]
        if len(rates) > 1 and rates[1] < STILL_GROWS * rates[0]:
            break
    return estimates


def most_clients(deployment: Deployment) -> int:
    """Whose requests the engines' limits let run together."""
    return deployment.groups * deployment.limits.max_num_seqs


def pareto_front(estimates: Sequence[ServingEstimate]) -> list[bool]:
    """Which are not beaten by another in both output tokens a second of each device and of each user."""
    points = [(e.output_tokens_per_s_per_device, e.output_tokens_per_s_per_user or 0.0) for e in estimates]
    return [not any(_beats(other, own) for other in points) for own in points]


def _beats(other: tuple[float, float], own: tuple[float, float]) -> bool:
    return other != own and other[0] >= own[0] and other[1] >= own[1]


def _doubled(end: int) -> Iterator[int]:
    n = 1
    while n < end:
        yield n
        n *= 2
    yield end


@dataclass(frozen=True, kw_only=True)
class SloBound:
    """A statistic of a time that may not exceed a limit."""

    time: str
    statistic: str
    limit_s: float

    def missed(self, estimate: ServingEstimate, *, slow: bool = False) -> str:
        """In words, by how much an answer misses it; "" where it does not. ``slow``: at that end of the interval."""
        metric = estimate.latency(self.time)
        time_s = getattr(metric, self.statistic)
        if slow and metric.mean:
            time_s *= metric.high / metric.mean
        return f"{self} takes {milliseconds(time_s)}" if time_s > self.limit_s else ""

    def __str__(self) -> str:
        return self.time if self.statistic == "mean" else f"{self.time}_{self.statistic}"


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Bounds that all must hold."""

    bounds: tuple[SloBound, ...]

    @classmethod
    def named(cls, text: str) -> Slo:
        """Of ``ttft=500ms,tpot=30ms,e2e_p99=20s``: means, or percentiles by their names.

        Raises:
            LoadError: an unknown time or statistic, one given twice, or a limit that is no time above 0.
        """
        bounds = [_bound(part.strip()) for part in text.split(",") if part.strip()]
        if not bounds:
            raise LoadError(f"'{shown(text)}' bounds nothing: write it like ttft=500ms,tpot=30ms")
        if twice := {str(b) for b in bounds if [str(each) for each in bounds].count(str(b)) > 1}:
            raise LoadError(f"{', '.join(sorted(twice))} is bounded twice: leave out one of them")
        return cls(bounds=tuple(bounds))

    def missed(self, estimate: ServingEstimate, *, slow: bool = False) -> str:
        """In words, the bounds that an answer misses, or that its queue grows; "" where it holds all."""
        missed = [bound.missed(estimate, slow=slow) for bound in self.bounds]
        return ", ".join(text for text in (*missed, estimate.diverges) if text)


def _bound(text: str) -> SloBound:
    name, equals, limit = (part.strip() for part in text.partition("="))
    time, _, statistic = name.lower().partition("_")
    if not equals or time not in LATENCIES or (statistic or "mean") not in STATISTICS:
        known = [*LATENCIES, *(f"{t}_{s}" for t in LATENCIES for s in STATISTICS)]
        hint = nearest(name, known) or f": one of {', '.join(LATENCIES)}, or with _p50, _p90, _p95, _p99"
        raise LoadError(f"'{shown(text)}' is no bound such as ttft=500ms{hint}")
    try:
        limit_s = parse(limit, "s")
    except UnitError:
        raise LoadError(f"{name}: '{shown(limit)}' is no time: write it like 500ms or 2s") from None
    if not limit_s > 0:
        raise LoadError(f"{name} = {limit}: give more than 0")
    return SloBound(time=time, statistic=statistic or "mean", limit_s=limit_s)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is to be served within an ``slo``: at a rate [requests/s] of all replicas together, or as much as holds.

    Bounds may be given as text, see ``Slo.named``.
    """

    slo: Slo
    isl: TokenCounts
    osl: TokenCounts
    rate_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.slo, str):
            object.__setattr__(self, "slo", Slo.named(self.slo))


CHOICE = ("gpu", "tp", "holds", "holds_when_slow", "usd_per_hour", "reason")
"""Keys of the row of a ``Choice`` whether it holds or not."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A deployment with the largest load that it holds, or with what a rate takes; ``reason`` says why it does not.

    ``holds_when_slow``: at the slow end of the interval too.
    """

    gpu: str
    tp: int
    estimate: ServingEstimate | None = None
    reason: str = ""
    holds_when_slow: bool = False
    price_usd_per_hour: float | None = None

    @property
    def holds(self) -> bool:
        """Whether there is a load that it holds."""
        return self.estimate is not None

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices."""
        if self.estimate is None or self.price_usd_per_hour is None:
            return None
        return self.estimate.devices * self.price_usd_per_hour

    def row(self) -> dict[str, Any]:
        """One flat row for tables and CSV, with the figures of what it holds."""
        row = {name: getattr(self, name) for name in CHOICE}
        return row if self.estimate is None else self.estimate.row() | row


Deploy = Callable[[str, int], Deployment]
"""A deployment on a GPU with a degree of tensor parallelism."""


def cheapest(deploy: Deploy, gpus: Iterable[str], tps: Iterable[int], demand: Demand) -> list[Choice]:
    """Every GPU and degree with the largest load that holds, the cheapest first, those that do not at the end.

    Cheapest are the fewest USD a million output tokens, of a rate the fewest USD an hour; where a GPU that holds has no
    price, the fewest devices, then the most tokens of each.

    Args:
        deploy: makes a deployment with one replica.
        gpus: ids.
        tps: degrees of tensor parallelism.
        demand: what is to be served.
    """
    degrees = sorted(set(tps))
    choices = [_choice(deploy, gpu, tp, demand) for gpu in gpus for tp in degrees]
    held = [choice for choice in choices if choice.estimate is not None]
    priced = all(choice.price_usd_per_hour is not None for choice in held)
    held.sort(key=lambda choice: _rank(choice, priced, demand.rate_per_s is not None))
    return held + [choice for choice in choices if choice.estimate is None]


def _rank(choice: Choice, priced: bool, at_rate: bool) -> tuple[float, ...]:
    e = choice.estimate
    assert e is not None
    if not priced:
        return (e.devices, -e.output_tokens_per_s_per_device)
    return ((choice.usd_per_hour if at_rate else e.usd_per_million_output_tokens) or 0.0, e.devices)


def _choice(deploy: Deploy, gpu: str, tp: int, demand: Demand) -> Choice:
    try:
        deployment = deploy(gpu, tp)
        search = _most_clients if demand.rate_per_s is None else _fewest_replicas
        estimate, reason = search(deployment, demand)
    except NeusightError as error:
        return Choice(gpu=gpu, tp=tp, reason=str(error))
    price = deployment.replica.device.price_usd_per_hour
    slow = estimate is not None and not demand.slo.missed(estimate, slow=True)
    return Choice(gpu=gpu, tp=tp, estimate=estimate, reason=reason, holds_when_slow=slow, price_usd_per_hour=price)


def _most_clients(deployment: Deployment, demand: Demand) -> tuple[ServingEstimate | None, str]:
    """The answer with the most clients that hold, or why not one does."""

    def at(n: int) -> ServingEstimate:
        return serve(deployment, closed(n, demand.isl, demand.osl, seed=demand.seed))

    best = at(1)
    if missed := demand.slo.missed(best):
        return None, f"too slow: {missed} with one client"
    low, high, most = 1, 2, most_clients(deployment)
    while high <= most and not demand.slo.missed(candidate := at(high)):
        best, low, high = candidate, high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // FINENESS):
        middle = (low + high) // 2
        if demand.slo.missed(candidate := at(middle)):
            high = middle
        else:
            best, low = candidate, middle
    return best, ""


def _fewest_replicas(deployment: Deployment, demand: Demand) -> tuple[ServingEstimate | None, str]:
    """The answer with the fewest replicas that hold a rate, or why none do.

    Fewer than serve the rate when all are full cannot, however long their queues take to show it.
    """
    assert demand.rate_per_s is not None
    if missed := demand.slo.missed(serve(deployment, closed(1, demand.isl, demand.osl, seed=demand.seed))):
        return None, f"too slow: {missed} with one client"
    full = serve(deployment, _saturating(deployment, demand))
    each = max(ARRIVALS, ceil(WAVES * full.mean_batch)) if full.mean_batch > 0 else ARRIVALS

    def at(n: int) -> ServingEstimate:
        return serve(replace(deployment, replicas=n), arriving(demand, n * deployment.groups, each))

    high = ceil(demand.rate_per_s / _served_per_s(full))
    low = high - 1
    if high > MOST_REPLICAS:
        return (
            None,
            f"too slow: {demand.rate_per_s:g} requests/s take {high:,} replicas, and {MOST_REPLICAS:,} are looked at",
        )
    while missed := demand.slo.missed(best := at(high)):
        low, high = high, 2 * high
        if high > MOST_REPLICAS:
            return None, f"too slow: {missed} with {low} replicas"
    while high - low > 1:
        middle = (low + high) // 2
        if demand.slo.missed(candidate := at(middle)):
            low = middle
        else:
            best, high = candidate, middle
    return best, ""


def _saturating(deployment: Deployment, demand: Demand) -> Load:
    number = WAVES * most_clients(deployment)
    return Offline(number=number, isl=demand.isl, osl=demand.osl, seed=demand.seed)


def _served_per_s(estimate: ServingEstimate) -> float:
    """Requests a second in steady state."""
    tokens = estimate.output_tokens_per_s.mean / estimate.requests_per_s
    return estimate.steady_output_tokens_per_s.mean / tokens


def arriving(demand: Demand, schedulers: int, each: int = ARRIVALS) -> Load:
    """A load at the demand's rate that lasts for so many requests of each scheduler.

    Raises:
        LoadError: a demand without a rate.
    """
    if demand.rate_per_s is None:
        raise LoadError("no rate is demanded: give rate_per_s")
    number = each * schedulers
    return Open(rate_per_s=demand.rate_per_s, number=number, isl=demand.isl, osl=demand.osl, seed=demand.seed)
