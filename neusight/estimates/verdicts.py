"""What a reader must know before trusting an estimate, in one line each."""

from __future__ import annotations

from dataclasses import replace

from neusight.estimates.estimate import Estimate
from neusight.units import gib

_TIGHT = 0.9
"""Above this share of the capacity, fragmentation may decide."""


def warnings_of(estimate: Estimate, graph_warnings: tuple[str, ...] = ()) -> Estimate:
    """The estimate with the warnings that follow from its figures, after those of its graph."""
    texts = (_memory(estimate), _fallback(estimate), _transferred(estimate), _domain(estimate), _hypothetical(estimate))
    return replace(estimate, warnings=(*graph_warnings, *(text for text in texts if text)))


def _memory(estimate: Estimate) -> str:
    memory = estimate.memory
    reserve = f"{gib(memory.peak_bytes)} and about {gib(memory.reserve)} for context and allocator"
    needs = f"needs {reserve} of the {gib(memory.capacity_bytes)} on {estimate.gpu}"
    if not memory.fits:
        return f"does not fit: {needs}; the latency is that of a card with enough memory"
    return f"tight fit: {needs}" if memory.peak_bytes + memory.reserve > _TIGHT * memory.capacity_bytes else ""


def _fallback(estimate: Estimate) -> str:
    share = estimate.coverage["fallback"]
    if estimate.uncovered:
        named = ", ".join(estimate.uncovered)
        return f"no rule for {named}: priced as data movement, a lower bound that makes {share:.1%} of the latency"
    return f"{share:.1%} of the latency is a bare roofline, a lower bound: no tile model covers it" if share else ""


def _transferred(estimate: Estimate) -> str:
    share = estimate.coverage["transferred"]
    return (
        f"{share:.0%} of the latency is of operators or dtypes that no tile model was trained on" if share > 0.5 else ""
    )


def _domain(estimate: Estimate) -> str:
    outside = 1 - estimate.in_domain
    if outside <= 0.1:
        return ""
    reason = next(iter(estimate.outside))
    return f"{outside:.0%} of the latency is of kernels unlike those of the tile models' training, mostly: {reason}"


def _hypothetical(estimate: Estimate) -> str:
    changed = estimate.provenance.hypothetical
    return f"hypothetical device: {estimate.gpu} with {', '.join(changed)}" if changed else ""
