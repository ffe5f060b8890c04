"""How far memory may be from what is predicted, term by term, and how likely it is enough.

Sizes of states are known; what a step keeps depends on versions of libraries and, with experts, on where tokens go;
workspaces and fragments are hardly known. Terms of one source err together, sources by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import erf, hypot, sqrt
from types import MappingProxyType
from typing import Any

from neusight.plans.allocator import ALLOCATOR_SHARE, CONTEXT_BYTES
from neusight.quick_dataclasses import dataclass
from neusight.units import gib

_QUANTILE_95 = 1.6448536269514715
"""Of the standard normal distribution."""
KEPT, LIBRARIES = 0.024, 0.18
"""Standard deviations of what a step keeps, and of libraries' workspaces, as shares: fitted by
``neusight fit memory`` to peaks of Megatron-LM, so that 90 % of them lie inside."""
SOURCES: dict[str, tuple[float, tuple[str, ...]]] = {
    "states": (0.004, ("weights", "gradients", "optimizer")),
    "kept": (KEPT, ("activations", "loss", "temporary", "communication")),
    "libraries": (LIBRARIES, ("workspaces", "buffers")),
    "context": (0.2, ("context",)),
    "fragments": (1.0, ("fragments",)),
}
"""Standard deviation of each source as a share of its terms. Assumptions: of states, that buffers are padded; of the
context, 300 to 600 MiB where ``CONTEXT_BYTES`` is taken; of fragments, all of them, but no more than is usual: what ten
runs of torchtitan reserved lies 3 % of their peak around what is predicted."""
TRAINER = "trainer"
"""Name of what trainers have of their own, as a share of all tensors: buckets, copies and what no description tells
(``Engine.memory_spread``)."""
_LIKELY = 0.95
"""From which on a step is said to fit, or below one less it not to, without a word of doubt."""


_NONE: Mapping[str, float] = MappingProxyType({})


def spread_bytes(terms: Mapping[str, float], shares: Mapping[str, float] = _NONE) -> float:
    """Standard deviation of the sum of terms [B], with the ``shares`` of sources where they are others."""
    spreads = {
        source: shares.get(source, share) * sum(terms.get(each, 0.0) for each in names)
        for source, (share, names) in SOURCES.items()
    }
    tensors = sum(size for name, size in terms.items() if name not in ("context", "fragments"))
    if tensors:
        spreads["fragments"] = min(spreads["fragments"], ALLOCATOR_SHARE * tensors)
        spreads[TRAINER] = shares.get(TRAINER, 0.0) * tensors
    return hypot(*spreads.values())


def interval_bytes(terms: Mapping[str, float], shares: Mapping[str, float] = _NONE) -> tuple[float, float]:
    """The 90 % interval (low, high) of the sum of terms [B]; as ``spread_bytes``."""
    total, margin = sum(terms.values()), _QUANTILE_95 * spread_bytes(terms, shares)
    return max(total - margin, 0.0), total + margin


def reserved(terms: Mapping[str, float], reserve: float | None = None) -> dict[str, float]:
    """Terms of tensors with what a process takes beside them: its context and its allocator's fragments [B].

    Args:
        terms: by name.
        reserve: both together, where that is known; else as usual.
    """
    usual = CONTEXT_BYTES + ALLOCATOR_SHARE * sum(terms.values())
    beside = usual if reserve is None else reserve
    context = min(float(CONTEXT_BYTES), beside)
    return {**terms, "context": context, "fragments": beside - context}


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """What a device needs, by ``terms``, against what a process may allocate there [B]; ``rank`` names the device,
    ``memory`` one of several memories of it, and ``shares`` are deviations of sources that differ from those of
    ``SOURCES``.
    """

    terms: Mapping[str, float]
    usable_bytes: float
    rank: str = ""
    memory: str = ""
    shares: Mapping[str, float] = field(default_factory=lambda: _NONE)

    @property
    def needed_bytes(self) -> float:
        """The sum."""
        return sum(self.terms.values())

    @property
    def spare_bytes(self) -> float:
        """What is left, below 0 where that is too little."""
        return self.usable_bytes - self.needed_bytes

    @property
    def interval(self) -> tuple[float, float]:
        """What encloses ``needed_bytes`` with 90 % [B]."""
        return interval_bytes(self.terms, self.shares)

    @property
    def fits(self) -> bool:
        """Whether there is room, which is likelier than not."""
        return bool(self.needed_bytes <= self.usable_bytes)

    @property
    def probability(self) -> float:
        """That there is room."""
        spread = spread_bytes(self.terms, self.shares)
        return 0.5 * (1.0 + erf(self.spare_bytes / spread / sqrt(2.0))) if spread else float(self.fits)

    @property
    def words(self) -> str:
        """``fits``, ``probably fits (80 %)``, ``probably does not fit (20 % that it does)`` or ``does not fit``."""
        likely = self.probability
        if self.fits:
            return "fits" if likely >= _LIKELY else f"probably fits ({likely:.0%})"
        return "does not fit" if likely <= 1.0 - _LIKELY else f"probably does not fit ({likely:.0%} that it does)"

    def __str__(self) -> str:
        """One sentence."""
        low, high = self.interval
        who = f"the {self.rank} rank needs" if self.rank else "needs"
        left = f"{gib(self.spare_bytes)} to spare" if self.fits else f"{gib(-self.spare_bytes)} too much"
        needs = f"{gib(self.needed_bytes)} (90 %: {gib(low)} to {gib(high)}) of {gib(self.usable_bytes)}"
        needs += f" of {self.memory}" if self.memory else ""
        return f"{self.words}: {who} {needs}, {left}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: needs with the ends of their interval, as a whole and by term, and the probability of room."""
        low, high = self.interval
        ends = {name: interval_bytes({name: size}, self.shares) for name, size in self.terms.items()}
        return {
            "needed_bytes": self.needed_bytes,
            "needed_low_bytes": low,
            "needed_high_bytes": high,
            "usable_bytes": self.usable_bytes,
            "fits_probability": self.probability,
            "memory_intervals": {
                name: {"low_bytes": ends[name][0], "high_bytes": ends[name][1]} for name in self.terms
            },
        }
