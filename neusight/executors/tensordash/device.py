"""A TensorDash machine as a device like any other: kernels in, latencies with their bound and energies out.

Convolutions and matrix products run on the PEs, in the cycles that their zeros leave; everything else runs at the
dense machine's rate, and estimates say how much that is. The DRAM is a bound of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from neusight.devices.load import gpu_of
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.executors.base import Options
from neusight.executors.costs import Costs, EnergyUse, cause_of
from neusight.executors.tensordash.machine import (
    DRAM_J_PER_BYTE,
    DRAM_SHARE,
    MAC_J,
    SRAM_J_PER_BYTE,
    Cycles,
    Machine,
    PassCycles,
    kernel_cycles,
    machine_of,
    simulated,
)
from neusight.executors.tensordash.tile_model import load_tile_model, modelled
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.sparsity import DIRECTIONS, MAPPED, has_zeros, with_zeros
from neusight.kernels.work import by_distinct, conv_output, element_bytes, work_of
from neusight.laws.bounds import flops_per_s
from neusight.laws.doubts import NORMAL_90


def operand_bytes(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the first and the second operand, each of shape (n,)."""
    size = element_bytes(batch)
    if batch.family == "gemm":
        b, m, n, k = (batch[name].astype(float) for name in ("batch", "m", "n", "k"))
        return b * m * k * size, b * k * n * size
    height, width = conv_output(batch)
    images, inputs, outputs = (batch[name].astype(float) for name in ("batch", "in_channels", "out_channels"))
    activations = images * inputs * batch["height"] * batch["width"]
    gradients = images * outputs * height * width
    weights = outputs * inputs / batch["groups"] * batch["kernel_height"] * batch["kernel_width"]
    named = {"activations": activations * size, "gradients": gradients * size, "weights": weights * size}
    first, second = (
        np.select([batch["op"] == op for op in DIRECTIONS], [named[names[side]] for names in DIRECTIONS.values()])
        for side in (0, 1)
    )
    return first, second


SOURCE = "tensordash"
DENSE_SOURCE = "dense rate (transferred)"
NO_ZEROS = "no sparsity given: nothing is skipped and the machine runs like its dense twin; give --sparsity"
DENSE_DOUBT = 1.5
"""Times as long as its bound that a kernel off the PEs may take (assumption: two thirds of peak; times off the PEs
would tell)."""


@dataclass(frozen=True, kw_only=True)
class MachinePredictor:
    """Estimates of kernels on one machine.

    Args:
        machine: whose cycles.
        pass_cycles: the tile model or the simulator.
        interval: factors on cycles that enclose 90 % of what the scheduler does where ``pass_cycles`` predicts it.
        compression: whether operands travel to and from DRAM without their zeros, with a bit a value to say where.
    """

    machine: Machine
    pass_cycles: PassCycles
    interval: Sequence[float] = (1.0, 1.0)
    compression: bool = False

    def predict(self, batch: KernelBatch, device: GpuSpec) -> Costs:
        """Single launches of a batch of one family; what says nothing of zeros has none.

        Raises:
            DeviceError: a dtype that the machine lacks.
        """
        if batch.family not in MAPPED:
            return self._beside(batch, device)
        zeroed = batch if has_zeros(batch) else with_zeros(batch, [None] * len(batch))
        return self._on_pes(zeroed, device)

    def _on_pes(self, batch: KernelBatch, device: GpuSpec) -> Costs:
        machine, counted = self.machine, kernel_cycles(batch, self.machine, self.pass_cycles)
        moved = self._dram_bytes(batch)
        dram_s = moved / device.dram_bandwidth_bytes_per_s
        compute_s, bound_s = counted.cycles / machine.clock_hz, np.maximum(counted.bound / machine.clock_hz, dram_s)
        execution_s = np.maximum(compute_s, dram_s / DRAM_SHARE)
        doubt = self.interval if machine.skips else (1.0, 1.0)
        low_s, high_s = (np.maximum(np.maximum(compute_s * factor, dram_s / DRAM_SHARE), bound_s) for factor in doubt)
        limiter = np.where(compute_s >= dram_s / DRAM_SHARE, "compute", "dram")
        energy = EnergyUse(
            compute_j=self._compute_w(batch) * compute_s,
            sram_j=SRAM_J_PER_BYTE * self._sram_bytes(batch, counted),
            dram_j=DRAM_J_PER_BYTE * moved,
        )
        return self._estimates(batch, device, (execution_s, low_s, high_s, bound_s), limiter, energy, counted=counted)

    def _beside(self, batch: KernelBatch, device: GpuSpec) -> Costs:
        work = work_of(batch)
        compute_s, dram_s = work.flops / flops_per_s(batch, device), work.bytes / device.dram_bandwidth_bytes_per_s
        bound_s = np.maximum(compute_s, dram_s)
        execution_s = np.maximum(compute_s, dram_s / DRAM_SHARE)
        limiter = np.where(compute_s >= dram_s / DRAM_SHARE, "compute", "dram")
        energy = EnergyUse(
            compute_j=work.flops / 2.0 * by_distinct(batch["dtype"], lambda dtype: MAC_J.get(dtype, MAC_J["float32"])),
            sram_j=2.0 * SRAM_J_PER_BYTE * work.bytes,
            dram_j=DRAM_J_PER_BYTE * work.bytes,
        )
        times = execution_s, bound_s, execution_s * DENSE_DOUBT, bound_s
        return self._estimates(batch, device, times, limiter, energy)

    def _estimates(
        self,
        batch: KernelBatch,
        device: GpuSpec,
        times_s: tuple[np.ndarray, ...],
        limiter: np.ndarray,
        energy: EnergyUse,
        *,
        counted: Cycles | None = None,
    ) -> Costs:
        n, machine = len(batch), self.machine
        (execution_s, low_s, high_s, bound_s), overhead_s = times_s, np.full(n, device.launch_overhead_s)
        passes = np.zeros(n) if counted is None else counted.passes
        tile = "" if counted is None else f"{machine.rows}x{machine.columns}x{machine.lanes}"
        doubt = np.log(np.maximum(high_s / np.maximum(execution_s, 1e-15), 1.0)) / NORMAL_90
        return Costs(
            latency_s=overhead_s + execution_s,
            low_s=overhead_s + low_s,
            high_s=overhead_s + high_s,
            bound_s=bound_s,
            overhead_s=overhead_s,
            utilisation=bound_s / np.maximum(execution_s, 1e-15),
            limiter=limiter,
            tile=np.full(n, tile),
            tile_count=passes,
            waves=passes / machine.tiles,
            outside=np.full(n, "" if counted is not None else "kernels off the PEs"),
            source=np.full(n, DENSE_SOURCE if counted is None else SOURCE),
            spread=doubt,
            cause=np.full(n, cause_of(device, batch.family)),
            energy=energy,
        )

    def _compute_w(self, batch: KernelBatch) -> np.ndarray:
        return by_distinct(batch["dtype"], self.machine.compute_w)

    def _dram_bytes(self, batch: KernelBatch) -> np.ndarray:
        """Compulsory traffic: the on-chip memories hold what is read again (assumption)."""
        whole = work_of(batch).bytes
        if not self.compression:
            return whole
        map_share = 1.0 / (8.0 * element_bytes(batch))
        saved = [
            size * np.maximum(batch[f"{side}_sparsity"] - map_share, 0.0)
            for side, size in zip(("first", "second"), operand_bytes(batch), strict=True)
        ]
        return np.maximum(whole - saved[0] - saved[1], 0.0)

    def _sram_bytes(self, batch: KernelBatch, counted: Cycles) -> np.ndarray:
        """Rows of both operands that PEs read, each once whatever is skipped: as many as there are dense cycles."""
        machine = self.machine
        row_bytes = (machine.rows + machine.columns) * machine.lanes * machine.tiles * element_bytes(batch)
        return counted.dense * row_bytes


class TensorDash:
    """The executor of TensorDash machines and their dense twins."""

    takes: ClassVar[frozenset[str]] = frozenset({"sparsity", "simulate", "compression"})
    libraries: ClassVar[None] = None

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, options: Options, conditions: Conditions | None = None
    ) -> Costs:
        """Costs of a batch with the zeros that it tells, dense where it tells none.

        Raises:
            DeviceError: no such machine, or a dtype that it lacks. ArtifactError: the tile model does not load.
        """
        return machine_predictor(gpu_of(device), options).predict(batch, gpu_of(device))

    def provenance(self, device: DeviceSpec) -> dict[str, Any]:
        """The tile model of the machine's passes."""
        if not machine_of(gpu_of(device)).skips:
            return {}
        manifest = load_tile_model().manifest
        return {"tile_models": {manifest.name: f"{manifest.backend}, {manifest.weights_sha256[:12]}"}}

    def advice(self, device: DeviceSpec, has_zeros: bool) -> tuple[str, ...]:
        """Without zeros there is nothing to skip."""
        return (NO_ZEROS,) if machine_of(gpu_of(device)).skips and not has_zeros else ()


def machine_predictor(device: GpuSpec, options: Options) -> MachinePredictor:
    """The predictor of a device's kernels: by the tile model, or by the simulator itself.

    Raises:
        DeviceError: no such machine. ArtifactError: the tile model does not load.
    """
    machine = machine_of(device)
    by_model = machine.skips and not options.simulate
    return MachinePredictor(
        machine=machine,
        pass_cycles=modelled if by_model else simulated,
        interval=load_tile_model().manifest.interval if by_model else (1.0, 1.0),
        compression=options.compression,
    )


def load(tile_models: Path | None = None, calibrations: Path | None = None) -> TensorDash:
    """The executor of the machines; their tile model ships and is loaded when it is needed."""
    return TensorDash()
