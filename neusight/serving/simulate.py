"""Loads served by one engine, or by several behind a router, until the last request is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from neusight.errors import LoadError, nearest, shown
from neusight.serving.batching import BatchingEngine, PassTimes, RequestLedger
from neusight.serving.limits import EngineLimits
from neusight.serving.load import Load
from neusight.serving.run import ServingRun

ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE = ROUTERS = ("round-robin", "least-loaded", "prefix-aware")
"""Which replica gets a request: in turn; that with the fewest requests; that which has most of its session, unless
loads are uneven."""
UNEVEN_BY, UNEVEN_TIMES = 64, 1.5
"""More requests than the least loaded has, and times as many, from which a load is uneven: then the least loaded gets
the next (SGLang's router, ``--balance-abs-threshold`` and ``--balance-rel-threshold``)."""


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How ``schedulers`` share a load. ``policy`` is one of ``ROUTERS``; of more than ``admitted`` requests at a
    scheduler the others wait at the router, None for any number.
    """

    schedulers: int = 1
    policy: str = ROUND_ROBIN
    admitted: int | None = None

    def __post_init__(self) -> None:
        """Raises:
        LoadError: an unknown policy.
        """
        if self.policy not in ROUTERS:
            raise LoadError(
                f"unknown router '{shown(self.policy)}'{nearest(self.policy, ROUTERS)}: {', '.join(ROUTERS)}"
            )

    @property
    def apart(self) -> bool:
        """Whether what each scheduler gets hangs on nothing that happens."""
        return self.admitted is None and (self.policy == ROUND_ROBIN or self.schedulers == 1)


ALONE = Routing()


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Engines that share a load, or a part of its work."""

    limits: EngineLimits
    times: PassTimes
    routing: Routing = ALONE


def simulate(
    load: Load, limits: EngineLimits, times: PassTimes, between_s: float = 0.0, routing: Routing = ALONE
) -> ServingRun:
    """Serve a load until the last request is done.

    Args:
        load: what is served.
        limits: of each engine.
        times: of its passes.
        between_s: from the end of an answer until the next request of its client is there [s].
        routing: how several engines share the load.

    Raises:
        LoadError: a load that makes no sense, or a request that the engine cannot run even alone.
    """
    requests = load.requests()
    limits.check(requests)
    engines = RoutedEngines(
        RequestLedger(requests, limits), Pool(limits=limits, times=times, routing=routing), between_s
    )
    engines.serve()
    return engines.run()


class RoutedEngines:
    """Engines and a router in front of them: what ends or arrives first happens first.

    Clients that wait for an answer send their next request then: what is known of arrivals grows as it goes.
    """

    def __init__(self, ledger: RequestLedger, pool: Pool, between_s: float = 0.0) -> None:
        self.ledger, self.routing, self.between_s = ledger, pool.routing, between_s
        self.engines = [BatchingEngine(ledger, pool.limits, pool.times) for _ in range(pool.routing.schedulers)]
        self.number = len(ledger.requests)
        self.arrival_s: list[float] = ledger.requests.arrival_s[: ledger.requests.concurrency].tolist()
        self.turn = 0
        self.loads = [0] * len(self.engines)
        self.held: deque[int] = deque()
        self.changed: set[int] = set()
        self.ends: list[tuple[float, int]] = []
        self.arrivals: list[tuple[float, int]] = []

    def run(self) -> ServingRun:
        """What came of it."""
        return self.ledger.run(self.arrival_s, self.engines)

    def serve(self) -> None:
        """Until nothing is left."""
        if len(self.engines) == 1 and self.routing.apart:
            self.serve_alone(self.engines[0])
        else:
            self.serve_together()

    def serve_alone(self, engine: BatchingEngine) -> None:
        """One engine knows of all arrivals."""
        for request, arrival_s in enumerate(self.arrival_s):
            engine.enqueue(request, arrival_s)
        while engine.plan() < inf:
            engine.commit()
            for _ in engine.finished[: self.number - len(self.arrival_s)]:
                self.arrival_s.append(engine.time_s + self.between_s)
                engine.enqueue(len(self.arrival_s) - 1, self.arrival_s[-1])

    def serve_together(self) -> None:
        """Passes are committed when they end, so that what arrives before can still change what follows."""
        for request, arrival_s in enumerate(self.arrival_s):
            self.expect(request, arrival_s)
        while self.next_s() < inf:
            self.step(self.answered)

    def answered(self, request: int, end_s: float, at: int) -> None:
        """A client whose answer ends sends its next request."""
        if len(self.arrival_s) < self.number:
            self.arrival_s.append(end_s + self.between_s)
            self.expect(len(self.arrival_s) - 1, self.arrival_s[-1])

    def expect(self, request: int, arrival_s: float) -> None:
        """A request will come, not before what has happened."""
        heappush(self.arrivals, (arrival_s, request))

    def next_s(self) -> float:
        """When something happens next; infinity when there is nothing left."""
        return min(self.first_end_s(), self.arrivals[0][0] if self.arrivals else inf)

    def step(self, ended: Callable[[int, float, int], None]) -> None:
        """What happens next: passes of an engine end, or requests come.

        Args:
            ended: called with each request that ends, when, and by which engine.
        """
        now_s = self.next_s()
        if not (self.arrivals and self.arrivals[0][0] == now_s):
            at = heappop(self.ends)[1]
            for request in self.commit(at):
                ended(request, now_s, at)
        # All that come at the same time are there before anything is planned.
        while self.arrivals and self.arrivals[0][0] <= now_s:
            self.held.append(heappop(self.arrivals)[1])
        self.send_held(now_s)
        for at in self.changed:
            self.plan(at)
        self.changed.clear()

    def first_end_s(self) -> float:
        """When the first of what is planned ends; what was planned anew since stands in the list too."""
        while self.ends and self.ends[0][0] != self.engines[self.ends[0][1]].end_s:
            heappop(self.ends)
        return self.ends[0][0] if self.ends else inf

    def commit(self, at: int) -> list[int]:
        """An engine runs what was planned; the requests that it ends."""
        engine = self.engines[at]
        engine.commit()
        engine.end_s = inf
        self.changed.add(at)
        self.loads[at] -= len(engine.finished)
        return engine.finished

    def send_held(self, now_s: float) -> None:
        """Those at the router to engines, as long as they admit any; passes that only generate end before it starts."""
        while self.held and (to := self.choice(self.held[0])) >= 0:
            engine = self.engines[to]
            engine.enqueue(self.held.popleft(), now_s)
            self.loads[to] += 1
            if engine.end_s == inf or isinstance(engine.planned, int):
                self.changed.add(to)

    def plan(self, at: int) -> None:
        """What an engine runs next, as far as is known."""
        end_s = self.engines[at].plan()
        if end_s < inf:
            heappush(self.ends, (end_s, at))

    def choice(self, request: int) -> int:
        """The engine that gets a request, -1 where all have as many as they may."""
        policy, most = self.routing.policy, self.routing.admitted
        free = [at for at, load in enumerate(self.loads) if most is None or load < most]
        if not free:
            return -1
        self.turn += 1
        if policy == ROUND_ROBIN:
            return min(free, key=lambda at: (at - self.turn + 1) % len(self.loads))
        # Of equals the one whose turn it is, so that none is preferred.
        least = min(free, key=lambda at: (self.loads[at], (at - self.turn) % len(self.loads)))
        if policy == LEAST_LOADED or (session := self.ledger.sessions[request]) < 0:
            return least
        most_loaded = max(self.loads)
        if most_loaded > self.loads[least] + UNEVEN_BY and most_loaded > UNEVEN_TIMES * self.loads[least]:
            return least
        known = max(free, key=lambda at: self.engines[at].kept.get(session, 0))
        return known if self.engines[known].kept.get(session, 0) else least
