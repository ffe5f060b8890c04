"""Doubts between sources, beyond those that answers state: hosts, versions, clocks, ways of measuring and counting.

The log error of a figure whose stated doubts have the standard deviation s has the variance
``(stated s)² + between² + within²``: all numbers of a source share ``between``, each has ``within`` by itself
(components of variance; Searle, Casella and McCulloch 1992, chapter 3).
"""

from __future__ import annotations

from neusight.laws.constants import constant, group
from neusight.laws.doubts import Doubts
from neusight.quick_dataclasses import dataclass

KINDS = {
    "latency": "step", "step": "training", "ttft": "ttft", "tpot": "tpot", "itl": "tpot", "e2e": "throughput",
    "tokens_per_s": "throughput", "steady_tokens_per_s": "throughput",
}  # fmt: skip
"""Kinds of figures by the name of a measured column without statistic and milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Components:
    """Standard deviations of the logarithm of a kind of figure, as wide as the 90 % interval is over 1.645."""

    between: float = constant(0.1, 1.0, "guess of the magnitude: hosts, versions, clocks and networks of sources")
    """What all numbers of a source share."""
    within: float = constant(0.1, 1.0, "guess of the magnitude: repeated measurements differ by 2 to 18 %")
    """What each number has by itself."""
    stated: float = constant(0.7, 0.7, "stated doubts hold what devices and engines that were left out missed by")
    """Share of stated doubts that is left beside the others."""

    def beside(self, doubts: Doubts, kind: str, what: str) -> dict[str, float]:
        """Doubts of a figure of a kind, of ``what`` in words, with these."""
        sizes = {key: self.stated * size for key, size in doubts.items()}
        beyond = {f"source:{kind}": self.between, f"composition:{kind}/{what}": self.within}
        return sizes | {key: size for key, size in beyond.items() if size}


ALONE = Components(between=0.0, within=0.0, stated=1.0)
"""Of kinds whose stated doubts hold on numbers of unknown sources (definition)."""
_ROWS = "evaluated rows of five sources or more"


@dataclass(frozen=True, kw_only=True)
class SourceDoubts:
    """Components of all kinds of figures."""

    step: Components = group(Components, _ROWS)
    """Time of a step on one device."""
    training: Components = group(Components, _ROWS)
    """Time of a training step under a trainer that the question leaves open or no measured steps were of."""
    trained: Components = group(Components, _ROWS)
    """The same under a given trainer, of which steps on devices of the same vendor were measured."""
    ttft: Components = group(Components, _ROWS)
    """Time to a first token."""
    tpot: Components = group(Components, _ROWS)
    """Time per output token."""
    throughput: Components = group(Components, _ROWS)
    """Rates and whole answers of served models."""
    memory: Components = group(Components, _ROWS)
    """Peak of memory."""
