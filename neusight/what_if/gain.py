"""``Gain``: how much better an answer is than another, with the interval of the ratio.

Doubts that both answers share cancel, key by key: the same kernel on the same device is as much too slow before as
after. So a gain is more certain than either time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, hypot, log
from statistics import NormalDist
from typing import Any

from neusight.distributed.estimate import TrainingEstimate
from neusight.estimates import Estimate
from neusight.estimates.core import MEMORY
from neusight.laws.doubts import NORMAL_90, Doubts, spread, weighed
from neusight.questions.what_if import MetricName
from neusight.serving.estimate import ServingEstimate
from neusight.units import chance

Answer = Estimate | TrainingEstimate | ServingEstimate


@dataclass(frozen=True)
class Unexplained:
    """Standard deviation of the logarithm of a ratio beyond the doubts of both answers.

    Attributes:
        effect: share of the logarithm of the ratio: an optimisation does more or less than its mechanism predicts.
        floor: deviation of any change.
    """

    effect: float
    floor: float

    def deviation(self, ratio: float) -> float:
        """Standard deviation of the logarithm of a ratio."""
        return hypot(self.effect * log(ratio), self.floor)


GUESS = 2 / 3
"""Probability below which it is no more than a guess which of two answers is faster: 2 to 1 (definition)."""
OF_TIME = Unexplained(effect=0.274, floor=0.151)
OF_MEMORY = Unexplained(effect=0.183, floor=0.0976)
"""Fitted as ``neusight fit gains`` does, to at most 20 pairs of each set that public projects measured, so that nine of
ten are inside where every set has equal weight; with a set left out, 62 to 100 % of its pairs."""


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
        beyond = 0.0 if before is after else (OF_MEMORY if metric in MEMORY else OF_TIME).deviation(ratio)
        factor = exp(NORMAL_90 * hypot(spread(ratio_doubts(before, after, metric)), beyond))
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
        # Engines fill the rest of the memory with cache, even if they need less.
        return float(sum(size for name, size in answer.memory_terms.items() if name != "kv_cache"))
    if metric == "throughput":
        if isinstance(answer, Estimate):
            return answer.samples_per_s
        return answer.tokens_per_s if isinstance(answer, TrainingEstimate) else answer.output_tokens_per_s.mean
    if isinstance(answer, ServingEstimate):
        return (answer.ttft_s if metric == "ttft" else answer.tpot_s).mean
    raise ValueError(f"{metric} is of served models")


def faster_probability(first: Answer, second: Answer) -> float:
    """Probability that the first of two answers has the larger throughput, as far as their doubts are not one and the
    same.

    Unlike gains, it is of what is compared as it is: no error of an optimisation adds to the doubts of both.
    """
    width = spread(ratio_doubts(first, second, "throughput"))
    return NormalDist().cdf(log(figure(first, "throughput") / figure(second, "throughput")) / width) if width else 0.5


def ranking(answers: Mapping[str, Answer]) -> str:
    """How probable it is that each of several named answers is faster than the next one, in words."""
    texts = []
    for first, second in pairwise(sorted(answers, key=lambda name: -figure(answers[name], "throughput"))):
        probability = faster_probability(answers[first], answers[second])
        guess = ", no more than a guess" if probability < GUESS else ""
        texts.append(f"{first} faster than {second}: {chance(probability)}{guess}")
    return "; ".join(texts)


def ratio_doubts(before: Answer, after: Answer, metric: MetricName) -> Doubts:
    """Doubts of the logarithm of a metric after over that before: what both have in common cancels."""
    return weighed(((1.0, after.doubts_of(metric)), (-1.0, before.doubts_of(metric))))
