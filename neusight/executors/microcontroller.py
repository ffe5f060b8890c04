"""The executor of microcontrollers: one core, kernels one after another, tensors in SRAM and weights in flash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from neusight.devices.spec import DeviceSpec, MicrocontrollerSpec
from neusight.engines import Libraries
from neusight.errors import DeviceError
from neusight.executors.base import FittedExecutor, Options
from neusight.executors.costs import Costs, EnergyUse, cause_of
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.bounds import GEMM_FAMILIES, TINY_S
from neusight.laws.doubts import NORMAL_90
from neusight.laws.fitted import FittedMicrocontrollers, shipped
from neusight.laws.integer_kernels import active_power_w, kernel_cycles

NOT_INTEGERS = "kernels of int8 alone were measured: others run in plain loops"
KERNEL_SPREAD = 0.3
"""Standard deviation of the logarithm of a single layer's time (assumption: models alone were measured, and kinds of
layers differ by so much from one library to the next; layers timed one by one would tell)."""


@dataclass(frozen=True, kw_only=True)
class MicrocontrollerPredictor(FittedExecutor):
    """Fitted constants of microcontrollers."""

    source: ClassVar[str] = "integer kernels"
    fitted: FittedMicrocontrollers

    @property
    def libraries(self) -> Libraries:
        """Those that are not told: of the middle of all, which lie far apart."""
        return Libraries(spread=self.fitted.spread["library"])

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, options: Options, conditions: Conditions | None = None
    ) -> Costs:
        """Costs of every kernel of a batch, by the middle of libraries.

        Raises:
            DeviceError: no microcontroller, or a dtype that it lacks.
        """
        if not isinstance(device, MicrocontrollerSpec):
            raise DeviceError(f"{device.id} is no microcontroller: it is of kind {device.kind}")
        n, work = len(batch), work_of(batch)
        dram_s = work.bytes / device.dram_bandwidth_bytes_per_s
        arithmetic_s = np.full(n, TINY_S)
        if batch.family in GEMM_FAMILIES:
            arithmetic_s = work.flops / np.array([device.gemm_flops_per_s(str(dtype)) for dtype in batch["dtype"]])
        bound_s = np.maximum(np.maximum(arithmetic_s, dram_s), TINY_S)
        cycles = kernel_cycles(batch, device, self.fitted.physics)
        mean, spread = self.fitted.devices.of("latency", device)
        execution_s = np.maximum(np.exp(mean) * cycles / device.clock_hz, bound_s)
        doubt = np.exp(NORMAL_90 * np.hypot(spread, KERNEL_SPREAD))
        power_w = active_power_w(device, self.fitted.physics) * np.exp(self.fitted.devices.of("power", device).mean)
        zeros, overhead_s = np.zeros(n), np.full(n, device.launch_overhead_s)
        return Costs.of(
            *(bound_s, execution_s, overhead_s, (1.0 / doubt, doubt)),
            limiter=np.where(arithmetic_s >= dram_s, "compute", "dram"),
            tile=np.full(n, ""),
            tile_count=zeros,
            waves=zeros,
            outside=np.where(np.isin(batch["dtype"], ("int8", "uint8")), "", NOT_INTEGERS),
            source=np.full(n, self.source),
            spread=np.full(n, spread),
            cause=np.full(n, cause_of(device, self.source)),
            energy=EnergyUse(compute_j=power_w * execution_s, sram_j=zeros, dram_j=zeros),
        )


def load(tile_models: Path | None = None, calibrations: Path | None = None) -> MicrocontrollerPredictor:
    """The executor of microcontrollers with the constants beside the tile models; calibrations know none."""
    return MicrocontrollerPredictor(fitted=shipped(FittedMicrocontrollers, tile_models))
