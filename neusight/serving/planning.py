"""What a planner asks of deployments: throughput against latency with more and more clients (``frontier``), and the
cheapest that holds a service level (``Slo``, ``cheapest``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from neusight.devices.spec import DeviceSpec
from neusight.errors import LoadError, NeusightError, nearest, shown
from neusight.serving.deployment import Deployment, share_prices
from neusight.serving.estimate import DEGREES, ServingEstimate
from neusight.serving.load import Closed, Load, Offline, Open, TokenCounts, whole
from neusight.serving.serve import serve
from neusight.serving.setup import Setup
from neusight.serving.slo import Slo
from neusight.units import gib

PREFERENCES = ("cost", "gpus")
"""What the best deployment has least of."""
FINENESS = 32
"""The largest load is found to one part in as many."""
MOST_REPLICAS = 4096
"""More are not looked at."""
EXCESS = 3.0
"""Times the best's cost beyond which more replicas are not looked at."""
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


def closed(
    concurrency: int, isl: TokenCounts, osl: TokenCounts, *, num_prompts: int | None = None, seed: int = 0
) -> Closed:
    """Clients with ten requests each, unless ``num_prompts`` says how many in all."""
    most = max(LEAST_REQUESTS, PER_CLIENT * concurrency)
    return Closed(concurrency=concurrency, num_prompts=num_prompts or most, isl=isl, osl=osl, seed=seed)


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
    n, most = 1, most_clients(deployment)
    estimates = [serve(deployment, closed(n, isl, osl, seed=seed))]
    while n < most:
        n = min(2 * n, most)
        estimates.append(serve(deployment, closed(n, isl, osl, seed=seed)))
        before, rate = (each.output_tokens_per_s.mean for each in estimates[-2:])
        if rate < STILL_GROWS * before:
            break
    return estimates


def most_clients(deployment: Deployment) -> int:
    """Whose requests the engines' limits let run together."""
    return deployment.groups * deployment.limits.max_num_seqs


def pareto_front(estimates: Sequence[ServingEstimate]) -> list[bool]:
    """Which are not beaten by another in both output tokens a second of each device and of each user."""
    points = [(e.output_tokens_per_s_per_device, e.output_tokens_per_s_per_user or 0.0) for e in estimates]
    return [not any(o != own and o[0] >= own[0] and o[1] >= own[1] for o in points) for own in points]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is to be served within an ``slo``, whose bounds expected times are within and which holds with a probability
    of ``slo_confidence``, in a memory that is enough with one of ``must_fit``: a rate [requests/s] or ``concurrency``
    clients of all replicas together, or as much as holds.

    Bounds may be given as text, see ``Slo.named``.
    """

    slo: Slo
    isl: TokenCounts
    osl: TokenCounts
    request_rate: float | None = None
    concurrency: int | None = None
    slo_confidence: float = 0.0
    must_fit: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises:
        LoadError: a rate and clients, clients that are no number, or a probability that is none.
        """
        if isinstance(self.slo, str):
            object.__setattr__(self, "slo", Slo.named(self.slo))
        if self.request_rate is not None and self.concurrency is not None:
            raise LoadError("a rate and clients are two loads: give one of request_rate and concurrency")
        if self.concurrency is not None:
            whole("concurrency", self.concurrency)
        if not (0 <= self.slo_confidence < 1 and 0 < self.must_fit < 1):
            given = f"slo_confidence = {self.slo_confidence:g}, must_fit = {self.must_fit:g}"
            raise LoadError(f"{given}: give a probability between 0 and 1, such as 0.9")

    def clients(self, number: int) -> Closed:
        """A load of so many clients."""
        return closed(number, self.isl, self.osl, seed=self.seed)

    @property
    def is_fixed(self) -> bool:
        """Whether the load is stated, so that replicas are looked for."""
        return self.request_rate is not None or self.concurrency is not None

    def missed(self, estimate: ServingEstimate) -> str:
        """In words, why an answer is not good enough; "" where it is."""
        return self.slo.missed(estimate, self.slo_confidence)


_OF_SETUP = ("dtype", *DEGREES, "max_num_batched_tokens")
CHOICE = ("gpu", *_OF_SETUP, "holds", "probability", "excess", "usd_per_hour", "reason")
"""Keys of the row of a ``Choice`` whether it holds or not."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A deployment with the largest load that it holds, or with what a stated one takes; ``reason`` says why it does
    not.

    ``probability`` that the service level holds under it; ``excess`` by which it costs, or has devices, more than the
    best, as a share.
    """

    gpu: str
    setup: Setup
    estimate: ServingEstimate | None = None
    reason: str = ""
    probability: float = 0.0
    excess: float | None = None
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

    @property
    def words(self) -> str:
        """``fp8 tp2``: dtype and degrees above 1."""
        degrees = [f"{name}{getattr(self.setup, name)}" for name in DEGREES if getattr(self.setup, name) > 1]
        return " ".join(filter(None, (self.setup.dtype, *degrees)))

    @property
    def described(self) -> str:
        """``4 x l4, fp8 tp2``: its devices and ``words``."""
        devices = self.estimate.devices if self.estimate else self.setup.replicas
        return ", ".join(filter(None, (f"{devices} x {self.gpu}", self.words)))

    def row(self) -> dict[str, Any]:
        """One flat row for tables and CSV, with the figures of what it holds."""
        row = {name: getattr(self.setup if name in _OF_SETUP else self, name) for name in CHOICE}
        return row if self.estimate is None else self.estimate.row() | row


Deploy = Callable[[DeviceSpec, Setup], Deployment]
"""A deployment on a GPU."""


def cheapest(
    deploy: Deploy,
    setups: Sequence[tuple[DeviceSpec, Sequence[Setup]]],
    demand: Demand,
    *,
    prefer: str = "cost",
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Choice]:
    """Every setup with the largest load that holds, the best first, those that do not at the end.

    Least cost is the fewest USD a million output tokens, of a stated load the fewest USD an hour. Where a GPU has no
    price, or ``prefer`` is ``gpus``, the fewest devices come first, then the most tokens of each.

    Args:
        deploy: makes a deployment.
        setups: with their GPU, of one replica each; of several that differ in limits alone the best counts.
        demand: what is to be served.
        prefer: one of ``PREFERENCES``.
        progress: called with (done, of, the best so far in words) before each setup.

    Raises:
        LoadError: an unknown preference.
    """
    if prefer not in PREFERENCES:
        hint = nearest(prefer, PREFERENCES)
        raise LoadError(f"unknown preference '{shown(prefer)}'{hint}: one of {', '.join(PREFERENCES)}")
    by_cost = prefer == "cost" and all(device.price_usd_per_hour is not None for device, _ in setups)
    search = _Search(deploy=deploy, demand=demand, by_cost=by_cost)
    # The likeliest first: what costs far more than the best so far is looked at no further.
    order = sorted(range(len(setups)), key=lambda place: search.cost_of_bandwidth(setups[place][0]))
    looked: dict[int, Choice] = {}
    for done, place in enumerate(order):
        if progress:
            held = [choice for choice in looked.values() if choice.holds]
            progress(done, len(setups), min(held, key=search.rank).described if held else "")
        looked[place] = search.best(*setups[place])
    choices = [looked[place] for place in range(len(setups))]
    held = sorted((choice for choice in choices if choice.holds), key=search.rank)
    ranked = [replace(choice, excess=search.rank(choice)[0] / search.rank(held[0])[0] - 1) for choice in held]
    return ranked + [choice for choice in choices if not choice.holds]


@dataclass(kw_only=True)
class _Search:
    """Of setups one after the other: those that cost far more than the best so far are not looked at any further."""

    deploy: Deploy
    demand: Demand
    by_cost: bool
    least: float = inf

    def rank(self, choice: Choice) -> tuple[float, ...]:
        """What the best has least of, first USD or devices."""
        e, fixed = choice.estimate, self.demand.is_fixed
        assert e is not None
        costs = ((choice.usd_per_hour if fixed else e.usd_per_million_output_tokens) or 0.0,) if self.by_cost else ()
        return (*costs, e.devices, -choice.probability if fixed else -e.output_tokens_per_s_per_device)

    def cost_of_bandwidth(self, device: DeviceSpec) -> float:
        """USD, or devices, for a byte/s of memory bandwidth, which generating tokens is mostly limited by."""
        return ((device.price_usd_per_hour or 0.0) if self.by_cost else 1.0) / device.dram_bandwidth_bytes_per_s

    def best(self, device: DeviceSpec, setups: Sequence[Setup]) -> Choice:
        """What the best of some setups holds; why none does by the first of them."""
        refused = Choice(gpu=device.id, setup=setups[0])
        try:
            deployments = [self.deploy(device, setup) for setup in setups]
            distinct = {d.max_num_batched_tokens: d for d in reversed(deployments)}
            least = self.demand.must_fit
            fitting = [d for d in reversed(distinct.values()) if d.memory.fits and d.memory.fit.fits_with(least)]
            if not fitting:
                fit, missing = deployments[0].memory.fit, gib(deployments[0].missing_bytes)
                return replace(refused, reason=fit.words if fit.fits else f"does not fit by {missing} a GPU")
            deployments = share_prices(fitting) if len(fitting) > 1 else fitting
        except NeusightError as error:
            return replace(refused, reason=str(error))
        choices = [self._choice(deployment) for deployment in deployments]
        held = [choice for choice in choices if choice.holds]
        return min(held, key=self.rank) if held else choices[0]

    def _choice(self, deployment: Deployment) -> Choice:
        device, demand = deployment.replica.device, self.demand
        price = device.price_usd_per_hour
        choice = Choice(gpu=device.id, setup=deployment.setup, price_usd_per_hour=price)
        try:
            if demand.is_fixed:
                each = deployment.replica.plan.world * ((price or 0.0) if self.by_cost else 1.0)
                beyond = "too expensive" if self.by_cost else "too many devices"
                estimate, reason = _fewest_replicas(deployment, demand, EXCESS * self.least / each, beyond)
            else:
                estimate, reason = _most_clients(deployment, demand)
        except NeusightError as error:
            return replace(choice, reason=str(error))
        if estimate is None:
            return replace(choice, reason=reason)
        probability = demand.slo.probability(estimate)
        choice = replace(choice, estimate=replace(estimate, slo_probability=probability), probability=probability)
        self.least = min(self.least, self.rank(choice)[0])
        return choice


def _too_slow_for_one(deployment: Deployment, demand: Demand) -> tuple[ServingEstimate, str]:
    """The answer with one client, and why that fails already."""
    alone = serve(deployment, demand.clients(1))
    missed = demand.missed(alone)
    return alone, f"too slow: with one client {missed}" if missed else ""


def _most_clients(deployment: Deployment, demand: Demand) -> tuple[ServingEstimate | None, str]:
    """The answer with the most clients that hold, or why not one does."""

    def at(n: int) -> ServingEstimate:
        return serve(deployment, demand.clients(n))

    best, reason = _too_slow_for_one(deployment, demand)
    if reason:
        return None, reason
    low, high, most = 1, 2, most_clients(deployment)
    while high <= most and not demand.missed(candidate := at(high)):
        best, low, high = candidate, high, 2 * high
    return _last_that_holds(demand, at, best, low, min(high, most + 1)), ""


def _fewest_replicas(
    deployment: Deployment, demand: Demand, most: float, beyond: str
) -> tuple[ServingEstimate | None, str]:
    """The answer with the fewest replicas that hold a stated load, or why not as many as ``most`` do.

    ``beyond`` says what is wrong with more than ``most``.
    """
    _, reason = _too_slow_for_one(deployment, demand)
    if reason:
        return None, reason
    high, load = _stated_load(deployment, demand)

    def at(n: int) -> ServingEstimate:
        return serve(deployment.with_setup(replicas=n), load(n))

    low, missed = high - 1, "it cannot serve so much"
    while high <= min(most, MOST_REPLICAS) and (missed := demand.missed(best := at(high))):
        low, high = high, 2 * high
    if missed:
        # More than ``low`` are needed, which cost more than as many of them do.
        times = EXCESS if low + 1 > most else EXCESS * low / most
        kind = f"{beyond}: more than {times:.2g} times the best" if high > most else "too slow"
        few = f"with {low:,} replica{'' if low == 1 else 's'} {missed}" if low else ""
        return None, "; ".join(filter(None, (kind, few)))
    return _last_that_holds(demand, at, best, high, low, fineness=MOST_REPLICAS), ""


def _last_that_holds(
    demand: Demand, at: Callable[[int], ServingEstimate], best: ServingEstimate, holds: int, misses: int, *,
    fineness: int = FINENESS,
) -> ServingEstimate:  # fmt: skip
    """The answer of the number next to those that miss, between one that holds, whose answer is ``best``, and one that
    does not; to one part in ``fineness``.
    """
    while abs(holds - misses) > max(1, min(holds, misses) // fineness):
        middle = (holds + misses) // 2
        if demand.missed(candidate := at(middle)):
            misses = middle
        else:
            best, holds = candidate, middle
    return best


def _stated_load(deployment: Deployment, demand: Demand) -> tuple[int, Callable[[int], Load]]:
    """The fewest replicas that may hold a load, and the load of so many: fewer than serve a rate when all are full
    cannot, however long their queues take to show it.
    """
    if demand.concurrency is not None:
        clients = demand.clients(demand.concurrency)
        return 1, lambda n: clients
    lengths: dict[str, Any] = {name: getattr(demand, name) for name in ("isl", "osl", "seed")}
    full = serve(deployment, Offline(num_prompts=WAVES * most_clients(deployment), **lengths))
    each = max(ARRIVALS, ceil(WAVES * full.mean_batch)) if full.mean_batch > 0 else ARRIVALS
    rate, tokens = demand.request_rate or 0.0, full.output_tokens_per_s.mean / full.requests_per_s

    def arriving(n: int) -> Load:
        return Open(request_rate=rate, num_prompts=each * n * deployment.groups, **lengths)

    return ceil(rate / (full.steady_output_tokens_per_s.mean / tokens)), arriving
