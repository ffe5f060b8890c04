"""Plans of convolutions: algorithms by formula, and the directions in which times go."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.features.convolution import FUSED, IMPLICIT, STEPS, ConvPlan, plan_convolutions
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch, work_of
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import Physics

PHYSICS = shipped_physics().physics

GPUS = ("p4", "t4", "v100-pcie-32gb", "a100-pcie-40gb", "h100-sxm-80gb", "mi300x")


def convolutions(n: int = 200, **changes: Any) -> KernelBatch:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "batch": rng.integers(1, 65, n),
        "in_channels": rng.integers(3, 1024, n),
        "out_channels": rng.integers(3, 1024, n),
        "height": rng.integers(5, 60, n),
        "kernel_height": 3,
        "kernel_width": 3,
        "padding": 1,
    }
    columns["width"] = columns["height"]
    return KernelBatch.from_columns("conv2d", **columns | changes)


def plan(batch: KernelBatch, device: DeviceSpec, physics: Physics = PHYSICS) -> ConvPlan:
    return plan_convolutions(batch, work_of(batch), device, physics)


@pytest.mark.parametrize("gpu", GPUS)
def test_the_fastest_algorithm_runs(gpu: str) -> None:
    found = plan(convolutions(), load_device(gpu))
    assert found.applies.all()
    assert found.unlimited_s == pytest.approx(found.each_s.min(axis=0))
    assert (found.algorithm == found.each_s.argmin(axis=0)).all()
    assert (found.unlimited_s >= found.compute_s).all()


def test_multiplications_by_hand() -> None:
    # 8 images of 16x16 are 8 * 2 blocks of 8x16 outputs; 64 filters are 2 blocks of 32.
    one = convolutions(1, batch=8, in_channels=128, out_channels=64, height=16, width=16)
    device = load_device("v100-pcie-32gb")
    only = {name: replace(PHYSICS.convolution, **{f"{name}_share": 1e6}) for name in ("implicit", "fused", "steps")}
    found = {name: plan(one, device, replace(PHYSICS, convolution=law)) for name, law in only.items()}
    assert [int(p.algorithm[0]) for p in found.values()] == [IMPLICIT, FUSED, STEPS]
    assert found["implicit"].flops == pytest.approx(2 * 8 * 16 * 16 * 64 * 128 * 9)
    assert found["fused"].blocks == 8 * 2 * 2
    # F(2x2) needs 16 products for 4 outputs of 9, F(4x4) 36 for 16.
    assert found["fused"].flops == pytest.approx(found["implicit"].flops * 4 / 9)
    assert found["steps"].flops == pytest.approx(found["implicit"].flops / 4)


def test_a_gradient_of_the_input_is_a_convolution_with_channels_exchanged() -> None:
    device = load_device("t4")
    forward = convolutions()
    swapped = {"in_channels": forward["out_channels"], "out_channels": forward["in_channels"]}
    back = convolutions(op="input_grad", **swapped)
    for name in ("unlimited_s", "dram_bytes", "flops"):
        assert getattr(plan(back, device), name) == pytest.approx(getattr(plan(forward, device), name)), name


def test_gradients_of_weights_never_run_fused() -> None:
    assert np.isinf(plan(convolutions(op="weight_grad"), load_device("t4")).each_s[FUSED]).all()


def test_other_convolutions_are_products() -> None:
    device = load_device("t4")
    for changes in ({"stride": 2}, {"kernel_height": 1, "kernel_width": 1, "padding": 0}, {"groups": 2}):
        even = {"in_channels": 64, "out_channels": 64} if "groups" in changes else {}
        assert not plan(convolutions(**even, **changes), device).applies.any()


@pytest.mark.parametrize("gpu", GPUS)
def test_more_bandwidth_is_never_slower_and_more_work_never_faster(gpu: str) -> None:
    device, batch = load_device(gpu), convolutions()
    wide = device.model_copy(update={"dram_bandwidth_bytes_per_s": 2.0 * device.dram_bandwidth_bytes_per_s})
    before = plan(batch, device).unlimited_s
    assert (plan(batch, wide).unlimited_s <= before * (1 + 1e-9)).all()
    for name in ("batch", "in_channels", "out_channels"):
        more = convolutions(**{name: 2 * batch[name]})
        assert (plan(more, device).unlimited_s >= before * (1 - 1e-9)).all(), name


def test_expected_times_are_above_the_bound() -> None:
    # Matrix units that multiply in float32 have a law of their own.
    for gpu in set(GPUS) - {"mi300x"}:
        s = situate(convolutions(), load_device(gpu), shipped_choice(), physics=PHYSICS)
        assert (s.expected_s > s.bound_s).all()
        assert s.conv_plan is not None
        assert (s.expected_s >= s.conv_plan.unlimited_s).all()
