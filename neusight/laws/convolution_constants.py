"""Constants of convolutions, see ``neusight.executors.gpu.features.convolution``."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.laws.constants import constant


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """How convolutions in float32 run: as implicit products or by minimal filtering, fused or in three steps."""

    implicit_share: float = constant(0.8, 0.3, "guess: implicit products reach somewhat less than plain ones")
    """Share of peak that implicit products sustain with tiles without end."""
    fused_share: float = constant(0.8, 0.3, "guess: transforms and products share the pipelines")
    """The same of fused Winograd with its own tiles."""
    steps_share: float = constant(0.8, 0.3, "guess: batched products of small tiles")
    """The same of the products of Winograd in three steps."""
    narrow: float = constant(4.0, 0.7, "guess, as for plain products")
    """By how much a tile of intensity 1 is slower than one without end."""
    fused_depth: float = constant(16.0, 0.7, "guess: fill of the pipeline and transform of the outputs")
    """Channels whose time a block of fused Winograd spends before and after its main loop."""
    idle_cost: float = constant(0.2, 0.5, "guess, as for plain products")
    """Slow-down of an SM whose resident blocks hold next to no accumulators."""
    ampere: float = constant(1.0, 0.15, "guess: kernels that were compiled anew rather than tuned by hand")
    """Factor on all shares for the library's kernels from Ampere on."""
    filter_passes: float = constant(1.0, 0.5, "read once, written once and read once are less than a pass over all")
    """Times that the kernel which transforms the filters of fused Winograd reads and writes them at sustained
    bandwidth."""
    transform_passes: float = constant(1.0, 0.5, "every value is read once and written once")
    """The same of the kernels that transform inputs and outputs of Winograd in three steps."""
    step_s: float = constant(3e-6, 0.5, "launch and start of a kernel after another one: 2 to 4 us")
    """What each kernel after the first one adds [s]."""
    overlap: float = constant(3.0, 0.4, "guess: resources overlap well, not perfectly")
    """Exponent of the norm that joins arithmetic and traffic of one kernel."""
