"""TensorDash as a device: zeros find their operands, cycles add up, bounds hold, mistakes are one line."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.errors import DataError, DeviceError
from neusight.executors import Options
from neusight.executors.tensordash.device import NO_ZEROS, machine_predictor, operand_bytes
from neusight.executors.tensordash.machine import Machine, kernel_cycles, machine_of, simulated
from neusight.executors.tensordash.schedule import schedule_cycles
from neusight.kernels import Conv2d, Gemm, Kernel, KernelBatch
from neusight.kernels.sparsity import OperandSparsity, with_zeros

MACHINE, TWIN = Machine(), Machine(skips=False)
SIMULATED = Options(simulate=True)
LINEAR = Gemm(op="linear", batch=1, m=256, n=512, k=1024)
CONV = Conv2d(
    op="forward", batch=2, in_channels=64, out_channels=64, height=14, width=14, kernel_height=3, kernel_width=3,
    padding=1,
)  # fmt: skip


def zeros(kernel: Kernel, first: float, second: float = 0.0, clustering: float = 0.0) -> KernelBatch:
    pair = OperandSparsity(first, clustering), OperandSparsity(second)
    return with_zeros(KernelBatch.of([kernel]), [pair])


def test_dense_cycles_are_passes_times_steps_over_the_tiles() -> None:
    found = kernel_cycles(zeros(LINEAR, 0.9), TWIN, simulated)
    assert found.cycles == found.dense == (256 / 4) * (512 / 4) / 16 * (1024 / 16)
    # 15 passes leave one of 16 tiles idle, 17 keep one busy twice.
    for rows, fullest in ((60, 1), (68, 2)):
        small = kernel_cycles(zeros(replace(LINEAR, m=rows, n=4), 0.0), TWIN, simulated)
        assert small.cycles == fullest * 64
        assert small.passes == rows / 4


def test_a_machine_whose_values_are_all_effectual_is_its_dense_twin() -> None:
    found, twin = (kernel_cycles(zeros(CONV, 0.0), machine, simulated) for machine in (MACHINE, TWIN))
    # Padding alone may be skipped.
    assert 0.9 * twin.cycles < found.cycles <= twin.cycles
    assert kernel_cycles(zeros(LINEAR, 0.0), MACHINE, simulated).cycles == twin_cycles(LINEAR)


def twin_cycles(kernel: Kernel) -> np.ndarray:
    return kernel_cycles(zeros(kernel, 0.0), TWIN, simulated).cycles


def test_simulated_cycles_are_those_of_the_scheduler() -> None:
    found = kernel_cycles(zeros(replace(LINEAR, k=65536), 0.5), MACHINE, simulated)
    mask = np.random.default_rng(1).random((4, 4096, 16)) >= 0.5
    assert found.cycles / found.dense == pytest.approx(schedule_cycles(mask) / 4096, rel=0.01)


def test_more_zeros_never_cost_and_the_sparse_law_holds() -> None:
    for kernel in (LINEAR, CONV, replace(CONV, op="weight_grad", stride=2)):
        found = [kernel_cycles(zeros(kernel, s), MACHINE, simulated) for s in (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)]
        cycles = [float(f.cycles[0]) for f in found]
        assert cycles == sorted(cycles, reverse=True)
        assert all(f.bound <= f.cycles <= f.dense for f in found)
        assert found[-1].dense / found[-1].cycles <= 3.0


def test_either_operand_may_be_the_one_with_the_zeros() -> None:
    square = replace(LINEAR, m=512)
    first, second = (kernel_cycles(zeros(square, *s), MACHINE, simulated) for s in ((0.6, 0.1), (0.1, 0.6)))
    assert first.cycles == pytest.approx(second.cycles, rel=0.02)


def test_clustered_zeros_cost_more_than_scattered_ones() -> None:
    scattered, clustered = (
        kernel_cycles(zeros(LINEAR, 0.6, clustering=c), MACHINE, simulated).cycles for c in (0.0, 0.5)
    )
    assert clustered > 1.1 * scattered


def test_bytes_of_operands_by_hand() -> None:
    first, second = operand_bytes(KernelBatch.of([LINEAR]))
    assert (first, second) == (4 * 256 * 1024, 4 * 1024 * 512)
    first, second = operand_bytes(KernelBatch.of([replace(CONV, op="weight_grad", stride=2)]))
    assert (first, second) == (4 * 2 * 64 * 7 * 7, 4 * 2 * 64 * 14 * 14)


def test_compression_lightens_a_step_that_dram_bounds() -> None:
    device, thin = load_device("tensordash"), zeros(replace(LINEAR, m=4, k=65536), 0.0, 0.8)
    plain, packed = (
        machine_predictor(device, replace(SIMULATED, compression=c)).predict(thin, device) for c in (False, True)
    )
    assert plain.limiter == "dram"
    assert packed.latency_s < 0.5 * plain.latency_s
    assert packed.energy is not None and plain.energy is not None
    assert packed.energy.dram_j < 0.5 * plain.energy.dram_j


def test_energy_of_the_compute_follows_time_and_overhead() -> None:
    batch = zeros(LINEAR, 0.5)
    devices = load_device("tensordash"), load_device("tensordash-dense")
    ours, twins = (machine_predictor(device, SIMULATED).predict(batch, device).energy for device in devices)
    assert ours is not None and twins is not None
    saved = kernel_cycles(batch, TWIN, simulated).cycles / kernel_cycles(batch, MACHINE, simulated).cycles
    assert twins.compute_j / ours.compute_j == pytest.approx(saved / 1.02)
    assert ours.sram_j == twins.sram_j
    assert twins.compute_j == pytest.approx(10e-12 * 256 * 512 * 1024)


def test_estimates_compare_with_a_gpu_and_the_twin(predictor: Predictor) -> None:
    given: dict[str, Any] = {"mode": "training", "batch": 4, "sparsity": "activations=0.6,gradients=0.6"}
    ours, twin, gpu = (predictor.estimate("alexnet", g, **given) for g in ("tensordash", "tensordash-dense", "l4"))
    assert ours.bound_s <= ours.latency_s < twin.latency_s
    assert ours.energy_j["compute"] < twin.energy_j["compute"]
    assert sum(ours.energy_j.values()) == pytest.approx(ours.board_energy_j)
    assert 0 < sum(gpu.energy_j.values()) < gpu.board_energy_j
    assert ours.provenance.sparsity == "assumed: activations=0.6,gradients=0.6"
    assert 0 < ours.coverage["transferred"] < 1  # what runs beside the PEs
    assert (2 * ours).energy_j["dram"] == pytest.approx(2 * ours.energy_j["dram"])
    assert ours.interval[0] <= ours.latency_s <= ours.interval[1]


def test_without_a_word_on_zeros_none_are_skipped_and_it_says_so(predictor: Predictor) -> None:
    ours, twin = (predictor.estimate("alexnet", gpu, batch=2) for gpu in ("tensordash", "tensordash-dense"))
    assert ours.warnings[0] == NO_ZEROS
    assert NO_ZEROS not in twin.warnings
    assert ours.latency_s == pytest.approx(twin.latency_s, rel=0.03)  # padding is skipped


def test_mistakes_are_one_line(predictor: Predictor) -> None:
    with pytest.raises(DeviceError, match="does not compute in float16"):
        predictor.estimate("alexnet", "tensordash", dtype="float16")
    with pytest.raises(DataError, match="between 0 and 1"):
        predictor.estimate("alexnet", "tensordash", sparsity="activations=1.5")
    with pytest.raises(DeviceError, match="no TensorDash"):
        machine_of(load_device("l4"))
    with pytest.raises(DeviceError, match="correct one of them"):
        machine_of(load_device("tensordash").model_copy(update={"sm_count": 8}))
