"""The executor of systolic accelerators: kernels in, latencies with bound and interval out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from neusight.devices.spec import DeviceSpec, SystolicSpec
from neusight.errors import DeviceError
from neusight.executors.base import FittedExecutor, Options
from neusight.executors.costs import Costs, cause_of
from neusight.executors.systolic.times import launch_s, tile_counts, times_of
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import element_bytes, work_of
from neusight.laws.board_power import EnergyUse, array_energy
from neusight.laws.bounds import bound_of
from neusight.laws.doubts import NORMAL_90
from neusight.laws.fitted import FittedArrays, shipped, shipped_boards

UNKNOWN_SPREAD = 0.2
"""Of the log error that kernels share on a device of which none were measured (assumption: between what constants of
one generation of TPU err by on products and on streams of another; kernels of further generations would tell)."""
KNOWN_SPREAD = 0.03
"""The same on a device that was measured: what families err by together there, after the fit (fitted: ``neusight fit
arrays``)."""
UNKNOWN_SCATTER = 0.2
"""Of the log error of single kernels of a family that nobody measured (assumption: as families that were measured;
kernels of that family would tell)."""


@dataclass(frozen=True)
class ArrayPredictor(FittedExecutor):
    """Fitted constants of systolic accelerators."""

    source: ClassVar[str] = "arrays"
    fitted: FittedArrays

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, options: Options, conditions: Conditions | None = None
    ) -> Costs:
        """Costs of every kernel of a batch, each a program of its own; programs of many kernels pay the launch once.

        Raises:
            CoverageError: no law for such kernels. DeviceError: another kind of device, or a format that it lacks.
        """
        if not isinstance(device, SystolicSpec):
            raise DeviceError(f"{device.id} has no systolic arrays: it is of kind {device.kind}")
        bound = bound_of(batch, work_of(batch), device)
        times = times_of(batch, device, self.fitted.physics)
        execution_s = np.maximum(times.execution_s, bound.bound_s)
        known = Conditions.of(len(batch)) if conditions is None else conditions
        overhead_s = launch_s(device, known, self.fitted.physics)
        spread, scatter = self._spread(device, batch.family)
        factor = np.exp(NORMAL_90 * np.hypot(spread, scatter))
        tiles = tile_counts(batch, device)
        starts = times.start_s > np.maximum(times.arrays_s + times.vectors_s, times.dram_s)
        return Costs.of(
            *(bound.bound_s, execution_s, overhead_s, (1.0 / factor, factor)),
            limiter=np.where(starts, "launch", times.limiter),
            tile=np.full(len(batch), f"{device.array_rows}x{device.array_columns}"),
            tile_count=tiles,
            waves=tiles / device.array_count,
            outside=np.full(len(batch), "" if device.id in self.fitted.gpus else "no kernels of the device measured"),
            source=np.full(len(batch), self.source),
            spread=np.full(len(batch), spread),
            cause=np.full(len(batch), cause_of(device, batch.family)),
            energy=_energy(batch, device),
        )

    def _spread(self, device: DeviceSpec, family: str) -> tuple[float, float]:
        """Of what kernels of a family share on a device, and of each by itself."""
        measured = (device.original or device).measured_id in self.fitted.gpus
        return KNOWN_SPREAD if measured else UNKNOWN_SPREAD, self.fitted.scatter.get(family, UNKNOWN_SCATTER)


def _energy(batch: KernelBatch, device: SystolicSpec) -> EnergyUse:
    """What kernels add to what the chip draws all the time."""
    work, board = work_of(batch), shipped_boards().physics.systolic
    return array_energy(work.flops, work.bytes, element_bytes(batch), device, board)


def load(tile_models: Path | None = None, calibrations: Path | None = None) -> ArrayPredictor:
    """The executor of systolic accelerators with the constants beside the tile models; calibrations know none."""
    return ArrayPredictor(shipped(FittedArrays, tile_models))
