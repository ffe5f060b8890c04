"""Systolic accelerators: formulas of single kernels, and what more of a resource does."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, load_device
from neusight.devices.spec import SystolicSpec
from neusight.engines import Engine
from neusight.errors import DeviceError
from neusight.executors import Options, load_executor
from neusight.executors.systolic.times import MatrixProduct, arrays_s, times_of
from neusight.kernels import KernelBatch
from neusight.laws.array_constants import PRIOR

V4 = load_device("tpu-v4")
FIGURES = ("dram_bandwidth=2400 GB/s", "array_count=16", "clock=2100 MHz")


def array(gpu: str = "tpu-v4", *changes: str) -> SystolicSpec:
    device = load_device(gpu, changes)
    assert isinstance(device, SystolicSpec)
    return device


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16") -> KernelBatch:
    return KernelBatch.from_columns("gemm", m=m, n=n, k=k, dtype=dtype)


def test_a_large_product_runs_at_the_rate_of_the_arrays() -> None:
    batch = gemm(8192, 8192, 8192)
    whole = [np.full(1, 8192.0)] * 3
    taken_s = arrays_s(MatrixProduct(np.ones(1), *whole), batch, array())[0]
    assert taken_s == pytest.approx(2 * 8192**3 / 275e12, rel=1e-3)


def test_formats_that_a_chip_lacks_are_converted_by_its_vector_units() -> None:
    native, foreign = (times_of(gemm(1024, 1024, 1024, dtype), array(), PRIOR) for dtype in ("bfloat16", "float16"))
    assert np.array_equal(native.arrays_s, foreign.arrays_s)
    converted = 3 * 1024**2 * PRIOR.vectors.conversion_ops / 4.3e12
    assert foreign.vectors_s - native.vectors_s == pytest.approx(converted)
    # Trainium computes in float16 itself.
    assert times_of(gemm(1024, 1024, 1024, "float16"), array("trainium1"), PRIOR).vectors_s == 0


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("change", FIGURES)
def test_more_of_a_resource_is_never_slower(family: str, change: str) -> None:
    executor, batch = load_executor("systolic"), grid(family, n=12)
    before, after = (executor.cost(batch, device, Options()).latency_s for device in (V4, array("tpu-v4", change)))
    assert (after <= before * (1 + 1e-12)).all()


def test_rates_follow_arrays_and_clock() -> None:
    twice = array("tpu-v4", "array_count=16")
    assert twice.matrix_flops_per_s["bfloat16"] == pytest.approx(2 * V4.matrix_flops_per_s["bfloat16"])
    assert any("array_count" in change for change in twice.hypothetical)
    with pytest.raises(DeviceError, match="unknown key 'sm_count'"):
        array("tpu-v4", "sm_count=4")


def test_arrays_refuse_other_devices() -> None:
    other: DeviceSpec = load_device("t4")
    with pytest.raises(DeviceError, match="no systolic arrays"):
        load_executor("systolic").cost(gemm(8, 8, 8), other, Options())


def test_a_unit_of_time_is_the_same_for_scaled_extents() -> None:
    one = MatrixProduct(np.ones(1), np.full(1, 512.0), np.full(1, 512.0), np.full(1, 512.0))
    four = replace(one, count=np.full(1, 4.0))
    fill_s = (128 + 128 - 2) * 2 * 128 * 128 * 8 / 275e12
    single_s, all_s = (arrays_s(each, gemm(512, 512, 512), array())[0] for each in (one, four))
    assert all_s - fill_s == pytest.approx(4 * (single_s - fill_s))


def test_a_step_is_one_program_that_the_host_starts_once() -> None:
    eager, graph = (Engine.torch(launch=launch).on(V4) for launch in ("eager", "graph"))
    assert eager == graph
    assert eager.launch == "graph"
    assert eager.generated
    assert Engine.torch().on(load_device("t4")) == Engine.torch()
