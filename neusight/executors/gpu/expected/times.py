"""What kernels ask of a device's resources, and how resources that work side by side add up."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.kernels.conditions import Conditions
from neusight.laws.bounds import overlapped_s
from neusight.laws.cache import reusable_l2_bytes
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times [s] for which kernels keep each resource busy at full clock; columns of shape (n,).

    ``serial_s`` is what a chain of dependent accesses takes however many resources there are; ``fixed_overhead_s`` what
    comes before or after all of that: the start of the kernel, further small kernels. ``switching_j`` is the energy of
    the arithmetic at boost clock [J], ``dram_bytes`` what DRAM moves [B]. ``same_bytes``: what DRAM brings passes L2 at
    once, so that the longer of both counts; else they join as other resources do.
    """

    compute_s: np.ndarray
    dram_s: np.ndarray
    l2_s: np.ndarray
    serial_s: np.ndarray
    fixed_overhead_s: np.ndarray
    switching_j: np.ndarray
    dram_bytes: np.ndarray
    overlap: float
    same_bytes: bool = False

    @property
    def clocked_s(self) -> np.ndarray:
        """Time of what runs at the core clock, but for ``ports_s`` [s]."""
        parts = (self.compute_s, self.serial_s) if self.same_bytes else (self.compute_s, self.serial_s, self.l2_s)
        return overlapped_s(parts, self.overlap)

    @property
    def ports_s(self) -> np.ndarray:
        """Time of the bytes of ``dram_s`` in L2 [s]: none where others pass it."""
        return self.l2_s if self.same_bytes else np.zeros_like(self.l2_s)

    @property
    def unlimited_s(self) -> np.ndarray:
        """Time at full clock without ``fixed_overhead_s`` [s]."""
        return overlapped_s((self.clocked_s, np.maximum(self.dram_s, self.ports_s)), self.overlap)


def hot_share(device: GpuSpec, since_bytes: np.ndarray, physics: Physics) -> np.ndarray:
    r"""Share [-] of an operand that an earlier use left in L2.

    .. math:: h = \frac{1}{1 + e^{a (\log_2(B / C) - c)}}

    Args:
        device: C, the L2 that all its SMs share [B].
        since_bytes: B, touched between the two uses [B].
        physics: a and c, ``residency.slope`` and ``residency.centre`` [-].

    Source: form fitted. Validity: operands that are used in turn, all of them each time.
    """
    ratio = np.log2(np.maximum(since_bytes, 1.0) / reusable_l2_bytes(device))
    place = physics.residency.slope * (ratio - physics.residency.centre)
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(place, -50.0, 50.0))))


def start_s(device: GpuSpec, conditions: Conditions, physics: Physics) -> np.ndarray:
    """Time [s] that a kernel takes at least, its own start and end: cycles at the core clock; as profilers see it, a
    little more.
    """
    profiled = np.where(conditions.timing == "profiler", physics.start.profiled, 1.0)
    return profiled * physics.start.cycles / device.boost_clock_hz


def further_kernel_s(device: GpuSpec, physics: Physics) -> float:
    """What one more small kernel adds behind another one [s]: its start."""
    return physics.start.cycles / device.boost_clock_hz


def launch_s(conditions: Conditions, physics: Physics) -> np.ndarray:
    """What a launch adds to a kernel's own time [s]: its share of a graph's launch, or what a lone launch of a stream
    takes on hosts that were measured; a profiler sees none.
    """
    graph = np.where(conditions.timing == "graph", physics.start.graph_s / conditions.launches, 0.0)
    return np.where(conditions.timing == "stream", physics.start.stream_s, graph)


def lone_s(floor_s: np.ndarray, execution_s: np.ndarray, fixed_overhead_s: np.ndarray, physics: Physics) -> np.ndarray:
    r"""Time [s] between two CUDA events around a lone launch.

    .. math:: t = (1 - s) F + \left((E - a)^4 + (s F)^4\right)^{1/4}

    The device waits for the launch, and then the kernel runs while the host records the second event: a kernel that
    takes longer than that hides it.

    Args:
        floor_s: F, of a kernel that does next to nothing, its start included [s].
        execution_s: E [s].
        fixed_overhead_s: a, start and end of it [s], which F holds already.
        physics: s ``start.hidden`` [-].

    Source: order of events in a stream; s fitted. Validity: PyTorch, launches one by one with a synchronisation.
    """
    hidden = physics.start.hidden
    work_s = np.maximum(execution_s - fixed_overhead_s, 0.0)
    return np.asarray((1.0 - hidden) * floor_s + (work_s**4 + (hidden * floor_s) ** 4) ** 0.25)
