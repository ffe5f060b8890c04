"""Error of predicted memory, term by term, and the probability that a device's memory is enough.

Sizes of states are known; kept activations depend on versions of libraries and, with experts, on the routing of tokens;
workspaces and fragments are hardly known. Terms of one source err together, sources independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

from neusight.laws.doubts import spread
from neusight.laws.fitted import with_sources
from neusight.plans.allocator import ALLOCATOR_SHARE, CONTEXT_BYTES
from neusight.quick_dataclasses import dataclass
from neusight.units import chance, gib

_NORMAL = NormalDist()
KEPT, LIBRARIES = 0.024, 0.18
"""Standard deviations of kept activations and of libraries' workspaces, as shares: fitted by
``neusight fit memory`` to peaks of Megatron-LM, so that 90 % of them are inside the interval."""
SOURCES: dict[str, tuple[float, tuple[str, ...]]] = {
    "states": (0.004, ("weights", "gradients", "optimizer")),
    "kept": (KEPT, ("activations", "loss", "temporary", "communication")),
    "libraries": (LIBRARIES, ("workspaces", "buffers")),
    "context": (0.2, ("context",)),
    "fragments": (1.0, ("fragments",)),
}
"""Standard deviation of each source as a share of its terms. Assumptions: of states, that buffers are padded; of the
context, 300 to 600 MiB where ``CONTEXT_BYTES`` is taken; of fragments, all of them, but no more than is usual: memory
reserved by ten runs of torchtitan is within 3 % of their peak around the prediction."""
MEMORY, TRAINER = "memory:", "trainer"
"""Source of trainer-specific memory, as a share of all tensors: buckets, copies and undocumented buffers
(``Engine.memory_spread``)."""
_PEAK = ("memory", "peak")
"""Kind and name of the doubts between sources, see ``laws.source_doubts``."""
_LIKELY = 0.95
"""Probability from which on a step is reported to fit without reservation; below one minus it, not to fit."""


_NONE: Mapping[str, float] = MappingProxyType({})


def doubts_of(terms: Mapping[str, float], shares: Mapping[str, float] = _NONE) -> dict[str, float]:
    """Doubts of the sum of terms [B] by key, as shares of it, with the ``shares`` of sources where they are others."""
    sizes = {
        source: shares.get(source, share) * sum(terms.get(name, 0.0) for name in names)
        for source, (share, names) in SOURCES.items()
    }
    tensors = sum(size for name, size in terms.items() if name not in ("context", "fragments"))
    if tensors:
        sizes["fragments"] = min(sizes["fragments"], ALLOCATOR_SHARE * tensors)
        sizes[TRAINER] = shares.get(TRAINER, 0.0) * tensors
    total = sum(terms.values())
    return {f"{MEMORY}{source}": size / total for source, size in sizes.items() if size}


def interval_bytes(terms: Mapping[str, float], shares: Mapping[str, float] = _NONE) -> tuple[float, float]:
    """The 90 % interval (low, high) of the sum of terms [B]; as ``doubts_of``."""
    total = sum(terms.values())
    margin = _NORMAL.inv_cdf(0.95) * spread(with_sources(doubts_of(terms, shares), *_PEAK))
    return total * max(1.0 - margin, 0.0), total * (1.0 + margin)


def reserved(terms: Mapping[str, float], reserve: float | None = None) -> dict[str, float]:
    """Terms of tensors with the process's context and its allocator's fragments [B].

    Args:
        terms: bytes of tensors by name.
        reserve: context and fragments together [B], where known; else the usual ones.
    """
    usual = CONTEXT_BYTES + ALLOCATOR_SHARE * sum(terms.values())
    reserve_bytes = usual if reserve is None else reserve
    context = min(float(CONTEXT_BYTES), reserve_bytes)
    return {**terms, "context": context, "fragments": reserve_bytes - context}


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """Memory needed, by ``terms``, against the bytes that a process may allocate on the device; ``rank`` names the
    device, ``memory`` one of several memories of it, and ``shares`` are deviations of sources that differ from those of
    ``SOURCES``.
    """

    terms: Mapping[str, float]
    usable_bytes: float
    rank: str = ""
    memory: str = ""
    shares: Mapping[str, float] = field(default_factory=lambda: _NONE)

    @property
    def needed_bytes(self) -> float:
        """Sum of all terms [B]."""
        return sum(self.terms.values())

    @property
    def spare_bytes(self) -> float:
        """Memory left free [B], below 0 where there is too little."""
        return self.usable_bytes - self.needed_bytes

    @property
    def doubts(self) -> dict[str, float]:
        """Standard deviations by key, as shares of ``needed_bytes``."""
        return with_sources(doubts_of(self.terms, self.shares), *_PEAK)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval of ``needed_bytes`` [B]."""
        return interval_bytes(self.terms, self.shares)

    @property
    def fits(self) -> bool:
        """True if the needed memory is available, which is likelier than not."""
        return self.fits_with(0.5)

    def fits_with(self, probability: float) -> bool:
        """True if the needed memory is available with a probability, or a larger one."""
        return bool(self.bytes_with(probability) <= self.usable_bytes)

    def bytes_with(self, probability: float) -> float:
        """Memory that is enough with a probability [B]."""
        return self.needed_bytes * (1.0 + _NORMAL.inv_cdf(probability) * spread(self.doubts))

    @property
    def probability(self) -> float:
        """Probability that the needed memory is available."""
        spread_bytes = self.needed_bytes * spread(self.doubts)
        return _NORMAL.cdf(self.spare_bytes / spread_bytes) if spread_bytes else float(self.fits)

    @property
    def words(self) -> str:
        """``fits``, ``probably fits (80 %)``, ``probably does not fit (20 % that it does)`` or ``does not fit``."""
        likely = self.probability
        if self.fits:
            return "fits" if likely >= _LIKELY else f"probably fits ({chance(likely)})"
        return "does not fit" if likely <= 1.0 - _LIKELY else f"probably does not fit ({chance(likely)} that it does)"

    def __str__(self) -> str:
        """The fit in one sentence."""
        low, high = self.interval
        who = f"the {self.rank} rank needs" if self.rank else "needs"
        left = f"{gib(self.spare_bytes)} to spare" if self.fits else f"{gib(-self.spare_bytes)} too much"
        needs = f"{gib(self.needed_bytes)} (90 %: {gib(low)} to {gib(high)}) of {gib(self.usable_bytes)}"
        needs += f" of {self.memory}" if self.memory else ""
        return f"{self.words}: {who} {needs}, {left}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: needs with the ends of their interval, as a whole and by term, and the probability of room."""
        low, high = self.interval
        terms = {name: interval_bytes({name: size}, self.shares) for name, size in self.terms.items()}
        return {
            "needed_bytes": self.needed_bytes,
            "needed_low_bytes": low,
            "needed_high_bytes": high,
            "usable_bytes": self.usable_bytes,
            "fits_probability": self.probability,
            "memory_intervals": {name: {"low_bytes": low, "high_bytes": high} for name, (low, high) in terms.items()},
        }
