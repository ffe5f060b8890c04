"""Which devices are siblings: what was learned on one tells of the other what their datasheets cannot."""

from __future__ import annotations

from collections.abc import Sequence

from neusight.devices.architectures import architecture_name
from neusight.devices.spec import GpuSpec
from neusight.quick_dataclasses import dataclass

NEAR = 1.5
"""Largest ratio of figures of an SM between siblings: boards of one die with another memory do by up to 1.44
(H100 and H200), cuts of a die by 2 and more (H20, GeForce)."""


@dataclass(frozen=True)
class Silicon:
    """Properties of an SM that kernels depend on: ``architecture`` by ``architecture_name``, with its family and
    memory; ``figures`` are FLOP a clock of 16-bit products and of float32, bytes a clock of DRAM, and bytes of L2, each
    of one SM.
    """

    architecture: str
    figures: Sequence[float]

    @classmethod
    def of(cls, device: GpuSpec) -> Silicon:
        """The silicon of a device."""
        clocks = device.sm_count * device.boost_clock_hz
        halves = device.matrix_flops_per_s.get("float16", device.vector_flops_per_s["float32"])
        figures = (
            halves / clocks,
            device.vector_flops_per_s["float32"] / clocks,
            device.dram_bandwidth_bytes_per_s / clocks,
            device.l2_capacity_bytes / device.sm_count,
        )
        name = architecture_name(device.vendor, device.compute_capability, device.name)
        return cls(
            f"{name} {device.architecture.split()[0]} {device.dram_family}",
            [float(f"{figure:.5g}") for figure in figures],
        )

    def is_sibling_of(self, other: Silicon) -> bool:
        """True if both have one architecture and near-equal figures: the same kernels then have the same limits."""
        pairs = zip(self.figures, other.figures, strict=True)
        return self.architecture == other.architecture and all(max(a, b) <= NEAR * min(a, b) for a, b in pairs)
