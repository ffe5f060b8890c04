"""A batch of kernels on a device with everything physics says about it: work, bound, tiles, traffic, expected time.

The expected time is the prior of every tile model: resources work at typical sustained rates, overlap imperfectly
within the power budget. It holds global constants (``Physics``) and nothing of any single device, so that it
transfers; the tile models learn what remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.laws import LAWS, law_names
from neusight.executors.gpu.expected.times import Times, hot_share
from neusight.executors.gpu.features.convolution import ConvPlan, plan_convolutions
from neusight.executors.gpu.tiling import TileChoice, Tiling, tile
from neusight.executors.gpu.tiling.library import arithmetic_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import Work, conv_gemm, element_bytes, work_of
from neusight.laws.bounds import Bound, bound_of, flops_per_s
from neusight.laws.cache import Panels, gemm_dram_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.power import PowerDemand, budget_w, clock_w, flop_energy_j, slow_down, traffic_pj_per_byte
from neusight.quick_dataclasses import dataclass

LEAST_GAP = 1.02
"""Expected time over bound, at least (assumption: no kernel was seen closer; one that is would tell), so that its logit
stays finite."""


@dataclass(frozen=True)
class Situation:
    """Kernels of one family on one device. All columns have shape (n,).

    As it stands, products and convolutions on the ordinary pipelines of an SM.
    """

    batch: KernelBatch
    device: GpuSpec
    work: Work
    bound: Bound
    tiling: Tiling
    conditions: Conditions
    physics: Physics

    @cached_property
    def bound_s(self) -> np.ndarray:
        """The roofline's lower bound [s]."""
        return self.bound.bound_s

    @cached_property
    def panels(self) -> Panels:
        """What a wave of blocks reads together."""
        return _panels(self)

    @cached_property
    def conv_plan(self) -> ConvPlan | None:
        """Algorithms of convolutions; None for other families."""
        if self.batch.family != "conv2d":
            return None
        return plan_convolutions(self.batch, self.work, self.device, self.physics)

    @cached_property
    def times(self) -> Times:
        """What they ask of each resource: products by their tiles, convolutions as planned. What comes before and after
        the work is part of the launch, as lone ones were measured.
        """
        device, physics, none = self.device, self.physics, np.zeros(len(self.batch))
        tiled = gemm_dram_bytes(self.work.bytes, self.panels, self.tiling.waves, device, physics)
        dram_bytes, l2_bytes = (self._planned("dram_bytes", moved) for moved in (tiled, self.panels.unshared))
        return Times(
            compute_s=self._planned("compute_s", _product_compute_s(self)),
            dram_s=dram_bytes / sustained_dram_bytes_per_s(device, physics),
            l2_s=l2_bytes / (device.sustained_l2_bytes_per_s * physics.memory.l2_share),
            serial_s=none,
            fixed_overhead_s=none,
            switching_j=flop_energy_j(device, physics) * self._planned("flops", self.work.flops),
            dram_bytes=dram_bytes,
            overlap=physics.cuda_cores.overlap,
        )

    @property
    def fixed_overhead_s(self) -> np.ndarray:
        """What comes before and after the work [s]: start, end, further small kernels."""
        return self.times.fixed_overhead_s

    @cached_property
    def unlimited_s(self) -> np.ndarray:
        """Expected time at full clock [s]; convolutions as planned."""
        return self._planned("unlimited_s", self.power_demand.time_s(1.0))

    @cached_property
    def throttle(self) -> np.ndarray:
        """Factor, at least 1, that the power limit adds."""
        return slow_down(self.power_demand, self.physics.power.burst_s, self.conditions.burst)

    @cached_property
    def power_demand(self) -> PowerDemand:
        """Times and energies at full clock, under the device's power budget."""
        core_pj, memory_pj = traffic_pj_per_byte(self.device, self.physics)
        times = self.times
        return PowerDemand(
            clocked_s=times.clocked_s,
            ports_s=times.ports_s,
            dram_s=times.dram_s,
            overlap=np.full(len(self.batch), times.overlap),
            compute_j=times.switching_j,
            sram_j=1e-12 * core_pj * times.dram_bytes,
            dram_j=1e-12 * memory_pj * times.dram_bytes,
            lone=np.ones(len(self.batch)),
            clock_w=clock_w(self.device, self.physics),
            budget_w=budget_w(self.device, self.physics),
            speed_exponent=self.physics.power.speed_exponent,
        )

    @cached_property
    def expected_s(self) -> np.ndarray:
        """Expected execution time without launch [s], always above the bound."""
        return np.maximum(self.unlimited_s * self.throttle + self.fixed_overhead_s, LEAST_GAP * self.bound_s)

    @cached_property
    def prior(self) -> np.ndarray:
        """logit of the expected utilisation ``bound / expected``: the offset that tile models correct."""
        share = np.maximum(self.bound_s / self.expected_s, 1e-6)
        return np.log(share / (1.0 - share))

    def _planned(self, name: str, otherwise: np.ndarray) -> np.ndarray:
        """A column of the convolutions' plan where it applies."""
        plan = self.conv_plan
        return otherwise if plan is None else np.where(plan.applies, getattr(plan, name), otherwise)


@dataclass(frozen=True)
class LawfulSituation(Situation):
    """Kernels with a law of their own, under the conditions in which they run."""

    law: str = ""

    @cached_property
    def times(self) -> Times:
        """What they ask of each resource."""
        return LAWS[self.law].times(self.batch, self.device, self.conditions, self.physics, self.tiling)

    @cached_property
    def unlimited_s(self) -> np.ndarray:
        """Time at full clock without what comes before and after [s]: a law has no other algorithm."""
        return self.power_demand.time_s(1.0)

    @cached_property
    def shape(self) -> Mapping[str, np.ndarray]:
        """How they lie on the device, as the law describes it."""
        return LAWS[self.law].shape(self.batch, self.device, self.conditions, self.physics)

    @cached_property
    def hot(self) -> np.ndarray:
        """Share of operands that an earlier use left in L2 [-]."""
        return hot_share(self.device, self.conditions.cycled_bytes, self.physics)


def situate(
    batch: KernelBatch,
    device: GpuSpec,
    choice: TileChoice,
    tiling: Tiling | None = None,
    *,
    physics: Physics,
    conditions: Conditions | None = None,
) -> Situation:
    """Work, bound and tiles of kernels on a device; ``tiling`` replaces the tiles that would be chosen.

    The kernels are all of one law: a caller with several takes them apart by ``law_names``.

    Raises:
        CoverageError: a family without formula or tiling. DeviceError: a dtype that the device lacks.
    """
    work = work_of(batch)
    bound, law = bound_of(batch, work, device), str(law_names(batch, device)[0])
    known = Conditions.of(len(batch)) if conditions is None else conditions
    if not law:
        return Situation(batch, device, work, bound, tiling or tile(batch, device, choice, physics), known, physics)
    tiles = tiling or LAWS[law].tile(batch, device, known, choice, physics)
    return LawfulSituation(batch, device, work, bound, tiles, known, physics, law)


def _panels(s: Situation) -> Panels:
    """Blocks that run together cover a nearly square patch of C and share the rows of A and columns of B under it."""
    t, size = s.tiling, element_bytes(s.batch)
    running = np.minimum(t.tile_count, t.resident * t.sm_count)
    rows, cols, products = t.patch(running)
    panel = products * (rows * t.tile_m + cols * t.tile_n) * t.depth * size
    waves = np.ceil(t.tile_count / running)
    m, n = conv_gemm(s.batch)[1:3] if s.batch.family == "conv2d" else (s.batch[name].astype(float) for name in "mn")
    # Partial results are read again to be summed.
    written = t.batch * m * n * size * np.where(t.parts > 1.0, 2.0, 1.0)
    every = t.tile_count * (t.tile_m + t.tile_n) * t.depth * size
    return Panels(panel=panel, shared=waves * panel + written, unshared=every + written)


def _product_compute_s(s: Situation) -> np.ndarray:
    """Time of a product's arithmetic [s], longer where rows begin anywhere; see ``arithmetic_s``."""
    t, device, physics = s.tiling, s.device, s.physics
    rates, tiles = flops_per_s(s.batch, device), (t.tile_m, t.tile_n)
    time_s = arithmetic_s(tiles, t.tile_count, t.depth, rates, device=device, physics=physics)
    return time_s * (1.0 + physics.cuda_cores.misaligned_cost * ~aligned(s.batch))


def aligned(batch: KernelBatch) -> np.ndarray:
    """Whether m, n and k of a product are all multiples of four: rows start on 16-byte boundaries in float32."""
    if batch.family != "gemm":
        return np.ones(len(batch), dtype=bool)
    return (np.stack([batch[name] for name in ("m", "n", "k")]) % 4 == 0).all(axis=0)
