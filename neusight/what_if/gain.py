"""``Gain``: how much better an answer is than another, with the interval of the ratio.

Errors that both answers share cancel: the same kernel on the same device is as much too slow before as after. So a gain
is better known than either time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from typing import Any, Literal

from neusight.distributed.estimate import TrainingEstimate
from neusight.estimates import Estimate
from neusight.estimates.core import summed
from neusight.executors.costs import NORMAL_90
from neusight.serving.estimate import ServingEstimate

Answer = Estimate | TrainingEstimate | ServingEstimate
MetricName = Literal["time", "memory", "throughput", "ttft", "tpot"]
METRICS: tuple[MetricName, ...] = ("time", "memory", "throughput", "ttft", "tpot")
ALIKE = 0.8
"""Correlation of one source's error between kernels that are not the same."""
OWN = "kernel"
"""Source of what each kernel errs by itself."""
CHANGE = 0.06
"""Standard deviation of the logarithm of what a change of everything adds that no source of either answer tells."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """``ratio``: above 1 where the second answer is better, in a 90 % interval from ``low`` to ``high``; ``before`` and
    ``after`` are of the ``metric``: seconds, bytes, or samples, tokens or requests a second.
    """

    metric: MetricName
    before: float
    after: float
    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, before: Answer, after: Answer, metric: MetricName = "time") -> Gain:
        """From one answer to another.

        Raises:
            ValueError: a metric that answers of this kind don't have.
        """
        first, second = figure(before, metric), figure(after, metric)
        ratio = second / first if metric == "throughput" else first / second
        deviation = _memory_deviation(before, after) if metric == "memory" else _time_deviation(before, after)
        factor = exp(NORMAL_90 * deviation)
        return cls(metric=metric, before=first, after=second, ratio=ratio, low=ratio / factor, high=ratio * factor)

    @property
    def known(self) -> bool:
        """Whether the interval lies on one side of no gain at all."""
        return self.low > 1.0 or self.high < 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def figure(answer: Answer, metric: MetricName) -> float:
    """A metric of an answer: ``time`` of a step or a whole answer [s], ``memory`` at its peak, of a deployment without
    its cache [B], ``throughput`` in samples or tokens a second, ``ttft`` and ``tpot`` [s].
    """
    if metric == "time":
        return answer.latency_s
    if metric == "memory":
        return _terms_bytes(answer)
    if metric == "throughput":
        return _throughput(answer)
    if isinstance(answer, ServingEstimate):
        return (answer.ttft_s if metric == "ttft" else answer.tpot_s).mean
    raise ValueError(f"{metric} is of served models")


def _terms_bytes(answer: Answer) -> float:
    # Engines fill what is left with cache, whatever they need.
    terms = answer.fit.terms if isinstance(answer, ServingEstimate) else answer.memory_terms
    return float(sum(terms.values()))


def _throughput(answer: Answer) -> float:
    if isinstance(answer, Estimate):
        return answer.samples_per_s
    return answer.tokens_per_s if isinstance(answer, TrainingEstimate) else answer.output_tokens_per_s.mean


def _time_deviation(before: Answer, after: Answer) -> float:
    """Standard deviation of the logarithm of the ratio of two times."""
    same = shared_time(before, after)
    alike = ALIKE + (1.0 - ALIKE) * same
    sources = before.errors.keys() | after.errors.keys()
    errors = {s: (before.errors.get(s, 0.0), after.errors.get(s, 0.0)) for s in sources}
    own = errors.pop(OWN, (0.0, 0.0))
    squares = [_difference(a, b, alike) for a, b in errors.values()]
    squares.append(_difference(own[0], own[1], same))
    squares.append((CHANGE * (1.0 - same)) ** 2)
    return sqrt(sum(squares))


def _difference(first: float, second: float, correlation: float) -> float:
    """Variance of the difference of two errors."""
    return max(0.0, first**2 + second**2 - 2.0 * correlation * first * second)


def shared_time(before: Answer, after: Answer) -> float:
    """Share of both answers' time that is of the same parts, from 0 to 1."""
    first, second = parts_s(before), parts_s(after)
    total = max(sum(first.values()), sum(second.values()))
    return sum(min(time_s, second.get(part, 0.0)) for part, time_s in first.items()) / total if total else 1.0


def parts_s(answer: Answer) -> Mapping[Any, float]:
    """Seconds of each part that can be the same in another answer."""
    if isinstance(answer, Estimate):
        return summed(((row.kernel, row.phase), row.total_s) for row in answer.by_kernel)
    if isinstance(answer, TrainingEstimate):
        return answer.parts_s
    return {name: share * answer.latency_s for name, share in answer.time_shares.items()}


def _memory_deviation(before: Answer, after: Answer) -> float:
    """Standard deviation of the logarithm of the ratio of two peaks: terms of the same size err alike."""
    first, second = before.memory_terms, after.memory_terms
    spreads = []
    for answer in (before, after):
        low, high = answer.fit.interval
        spreads.append(log(max(high, 1.0) / max(low, 1.0)) / (2 * NORMAL_90))
    total = max(sum(first.values()), sum(second.values()), 1.0)
    same = sum(min(size, second.get(name, 0.0)) for name, size in first.items()) / total
    return hypot(sqrt(_difference(spreads[0], spreads[1], ALIKE + (1.0 - ALIKE) * same)), CHANGE * (1.0 - same))
