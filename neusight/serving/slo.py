"""``Slo``: bounds on times of a served model, which of them an answer misses, and how probable it is that all hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, log

import numpy as np

from neusight.errors import LoadError, UnitError, nearest, shown
from neusight.laws.doubts import NORMAL_90, Doubts, spread, weighed
from neusight.serving.estimate import LATENCIES, ServingEstimate
from neusight.units import chance, decimal, milliseconds, parse

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_POINTS = 4096
"""Points of the lattice over which probabilities are integrated (numerics: one part in 10,000)."""
_TINY = 1e-12
"""Least variance and probability that count (numerics)."""


@dataclass(frozen=True, kw_only=True)
class SloBound:
    """A statistic of a time that may not exceed a limit."""

    time: str
    statistic: str
    limit_s: float

    def missed(self, estimate: ServingEstimate) -> str:
        """In words, by how much an answer misses it; "" where it does not."""
        time_s = self._time_s(estimate)
        if not time_s > self.limit_s:
            return ""
        return f"{self} takes {milliseconds(time_s)}, {_over(time_s / self.limit_s)} {milliseconds(self.limit_s)}"

    def score(self, estimate: ServingEstimate) -> float:
        """Standard deviations from the time to the limit: percentiles move with the mean, whose logarithm is normal on
        either side of it.
        """
        metric, time_s = estimate.latency(self.time), self._time_s(estimate)
        margin = log(self.limit_s / time_s) if time_s > 0 else inf
        width = log(metric.high / metric.mean) if margin >= 0 else log(metric.mean / metric.low)
        return NORMAL_90 * margin / max(width, _TINY)

    def _time_s(self, estimate: ServingEstimate) -> float:
        return float(getattr(estimate.latency(self.time), self.statistic))

    def __str__(self) -> str:
        return self.time if self.statistic == "mean" else f"{self.time}_{self.statistic}"


def _over(ratio: float) -> str:
    return f"{ratio - 1:.0%} above" if ratio < 2 else f"{decimal(ratio)} times"


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

    def missed(self, estimate: ServingEstimate, confidence: float = 0.0) -> str:
        """In words, the bounds that an answer misses, that its queue grows, or that all hold with a smaller probability
        than ``confidence``; "" where none of that.
        """
        missed = [bound.missed(estimate) for bound in self.bounds]
        if texts := [text for text in (*missed, estimate.diverges) if text]:
            return ", ".join(texts)
        probability = self.probability(estimate)
        return "" if probability >= confidence else f"it holds with a probability of only {chance(probability)}"

    def probability(self, estimate: ServingEstimate) -> float:
        """Probability that all bounds hold, 0 where the queue grows: times of one answer are long or short together as
        far as they share doubts by key.
        """
        scores: dict[str, float] = {}
        for bound in self.bounds:
            scores[bound.time] = min(scores.get(bound.time, inf), bound.score(estimate))
        return 0.0 if estimate.diverges else _probability_below([*scores.values()], [*map(estimate.doubts_of, scores)])


def _probability_below(scores: Sequence[float], doubts: Sequence[Doubts]) -> float:
    """Probability that normal log errors with these doubts are all below their scores, in standard deviations of each.

    Each is integrated given those before it, over the points of a lattice (Genz 1992, "Numerical computation of
    multivariate normal probabilities").
    """
    from scipy.special import ndtr, ndtri

    correlation, count = (1.0 + _TINY) * np.eye(len(scores)), np.arange(1, _POINTS + 1)
    for (column, one), (row, other) in combinations(enumerate(doubts), 2):
        # Of two normal values of variance 1, whose sum has the variance 2 + 2 correlation.
        total = spread(weighed((1.0 / max(spread(each), _TINY), each) for each in (one, other)))
        correlation[row, column] = total**2 / 2.0 - 1.0
    root, drawn, chance = np.linalg.cholesky(correlation), np.zeros((_POINTS, len(scores))), np.ones(_POINTS)
    for row, score in enumerate(scores):
        share = ndtr((score - drawn @ root[row]) / root[row, row])
        drawn[:, row] = ndtri(np.maximum(share * (count * np.sqrt(row + 2) % 1.0), _TINY))
        chance *= share
    return float(chance.mean())


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
