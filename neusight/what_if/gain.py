"""``Gain``: how much better an answer is than another, with the interval of the ratio.

Errors that both answers share cancel: the same kernel on the same device is as much too slow before as after. So a gain
is more certain than either time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from typing import Any

from neusight.distributed.estimate import TrainingEstimate
from neusight.estimates import Estimate
from neusight.estimates.core import summed
from neusight.executors.costs import NORMAL_90
from neusight.questions.what_if import MetricName
from neusight.serving.estimate import ServingEstimate

Answer = Estimate | TrainingEstimate | ServingEstimate
_OF_MEMORY = ("memory", "peak")
ALIKE = 0.8
"""Correlation of one source's error between kernels that are not the same."""
OWN = "kernel"
"""Source of each kernel's independent error."""


@dataclass(frozen=True)
class Doubt:
    """Standard deviation of the logarithm of a ratio, by its causes.

    Attributes:
        scale: factor on the deviation that remains after errors common to both answers cancel.
        effect: share of the logarithm of the ratio: an optimisation does more or less than its mechanism predicts.
        floor: deviation of any change.
    """

    scale: float
    effect: float
    floor: float

    def deviation(self, sources: float, ratio: float) -> float:
        """Standard deviation of the logarithm of a ratio whose sources leave a deviation of ``sources``."""
        return hypot(self.scale * sources, self.effect * log(ratio), self.floor)


OF_TIME = Doubt(scale=1.42, effect=0.272, floor=0.094)
OF_MEMORY = Doubt(scale=1.64, effect=0.288, floor=0.075)
"""Found by ``neusight fit gains`` to pairs that public projects measured, so that nine of ten
are inside where every set has equal weight; with a set left out, 71 to 100 % of its pairs."""


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
        """The gain from one answer to another.

        Raises:
            ValueError: a metric that answers of this kind don't have.
        """
        first, second = figure(before, metric), figure(after, metric)
        ratio = second / first if metric == "throughput" else first / second
        deviation = 0.0 if before is after else _deviation(before, after, metric, ratio)
        factor = exp(NORMAL_90 * deviation)
        return cls(metric=metric, before=first, after=second, ratio=ratio, low=ratio / factor, high=ratio * factor)

    @property
    def known(self) -> bool:
        """True if the interval excludes a ratio of 1."""
        return self.low > 1.0 or self.high < 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def figure(answer: Answer, metric: MetricName) -> float:
    """A metric of an answer: ``time`` of a step or a whole answer [s], ``memory`` that a device must have and the
    ``peak`` of tensors in it, of a deployment without its cache [B], ``throughput`` in samples or tokens a second,
    ``ttft`` and ``tpot`` [s].
    """
    if metric == "time":
        return answer.latency_s
    if metric == "memory":
        return answer.needed_bytes
    if metric == "peak":
        return _peak_bytes(answer)
    if metric == "throughput":
        return _throughput(answer)
    if isinstance(answer, ServingEstimate):
        return (answer.ttft_s if metric == "ttft" else answer.tpot_s).mean
    raise ValueError(f"{metric} is of served models")


def _peak_bytes(answer: Answer) -> float:
    # Engines fill the rest of the memory with cache, even if they need less.
    return float(sum(size for name, size in answer.memory_terms.items() if name != "kv_cache"))


def _throughput(answer: Answer) -> float:
    if isinstance(answer, Estimate):
        return answer.samples_per_s
    return answer.tokens_per_s if isinstance(answer, TrainingEstimate) else answer.output_tokens_per_s.mean


def _deviation(before: Answer, after: Answer, metric: MetricName, ratio: float) -> float:
    doubt = OF_MEMORY if metric in _OF_MEMORY else OF_TIME
    return doubt.deviation(known_doubt(before, after, metric), ratio)


def known_doubt(before: Answer, after: Answer, metric: MetricName) -> float:
    """Standard deviation of the logarithm of the ratio of two answers that their named sources leave."""
    if metric in _OF_MEMORY:
        return _memory_sources(before, after)
    same = shared_time(before, after)
    alike = ALIKE + (1.0 - ALIKE) * same
    sources = before.errors.keys() | after.errors.keys()
    errors = {s: (before.errors.get(s, 0.0), after.errors.get(s, 0.0)) for s in sources}
    independent = errors.pop(OWN, (0.0, 0.0))
    squares = [_difference(a, b, alike) for a, b in errors.values()]
    return sqrt(sum(squares) + _difference(independent[0], independent[1], same))


def _difference(first: float, second: float, correlation: float) -> float:
    """Variance of the difference of two errors."""
    return max(0.0, first**2 + second**2 - 2.0 * correlation * first * second)


def shared_time(before: Answer, after: Answer) -> float:
    """Share of both answers' time that is spent in the same parts, from 0 to 1."""
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


def _memory_sources(before: Answer, after: Answer) -> float:
    """Standard deviation of the logarithm of the ratio of two peaks: terms of the same size have the same error."""
    first, second = before.memory_terms, after.memory_terms
    spreads = []
    for answer in (before, after):
        low, high = answer.fit.interval
        spreads.append(log(max(high, 1.0) / max(low, 1.0)) / (2 * NORMAL_90))
    total = max(sum(first.values()), sum(second.values()), 1.0)
    same = sum(min(size, second.get(name, 0.0)) for name, size in first.items()) / total
    return sqrt(_difference(spreads[0], spreads[1], ALIKE + (1.0 - ALIKE) * same))
