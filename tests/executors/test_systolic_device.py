"""Systolic accelerators: formulas of single kernels, and what more of a resource does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, load_device
from neusight.devices.slices import core_of
from neusight.devices.spec import SystolicSpec
from neusight.engines.torch import run_on, torch_engine
from neusight.errors import DeviceError, NeusightError
from neusight.executors import Options, load_executor
from neusight.executors.systolic.predictor import load
from neusight.executors.systolic.times import MatrixProduct, arrays_s, times_of, vector_ops_per_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.array_constants import PRIOR
from neusight.laws.fitted import FittedArrays, shipped

V4 = load_device("tpu-v4")
FIGURES = ("dram_bandwidth=2400 GB/s", "array_count=16", "clock=2100 MHz", "on_chip_capacity=320 MiB")


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


def test_rows_are_reduced_across_lanes_after_the_first_of_them_came() -> None:
    sizes = {"op": "layer_norm", "dtype": "bfloat16", "read_bytes": 2**24, "write_bytes": 2**24, "flops": 2**26}
    few, many, short = (
        times_of(KernelBatch.from_columns("row_reduction", rows=rows, cols=2**23 // rows, **sizes), array(), PRIOR)
        for rows in (2**10, 2**13, 2**22)
    )
    each_s = PRIOR.vectors.row_ops / 4.3e12
    assert many.vectors_s - few.vectors_s == pytest.approx((2**13 - 2**10) * each_s)
    # Rows of two elements lie side by side in 128 lanes.
    assert short.vectors_s - few.vectors_s == pytest.approx((2**23 / 128 - 2**10) * each_s)
    assert 0 < few.fill_s < few.dram_s
    assert few.execution_s == pytest.approx(few.start_s + np.maximum(few.vectors_s + few.fill_s, few.dram_s))


def test_formats_that_a_chip_lacks_are_converted_by_its_vector_units() -> None:
    native, foreign = (times_of(gemm(1024, 1024, 1024, dtype), array(), PRIOR) for dtype in ("bfloat16", "float16"))
    assert np.array_equal(native.arrays_s, foreign.arrays_s)
    converted = 3 * 1024**2 * PRIOR.vectors.conversion_ops / 4.3e12
    assert foreign.vectors_s - native.vectors_s == pytest.approx(converted)
    # Trainium computes in float16 itself.
    half = times_of(gemm(1024, 1024, 1024, "float16"), array("trainium1"), PRIOR)
    assert half.vectors_s == pytest.approx(PRIOR.vectors.result_ops * 1024**2 / 0.645e12)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("change", FIGURES)
def test_more_of_a_resource_is_never_slower(family: str, change: str) -> None:
    executor, batch = load_executor("systolic"), grid(family, n=12)
    before, after = (executor.cost(batch, device, Options()).latency_s for device in (V4, array("tpu-v4", change)))
    assert (after <= before * (1 + 1e-12)).all()


def test_convolutions_of_single_channels_run_on_vector_units() -> None:
    sizes = {"batch": 64, "height": 14, "width": 14, "kernel_height": 5, "kernel_width": 5, "padding": 2}
    channels = {"in_channels": 240, "out_channels": 240, "dtype": "bfloat16"}
    apart, together = (
        times_of(KernelBatch.from_columns("conv2d", groups=groups, **sizes, **channels), array(), PRIOR).arrays_s[0]
        for groups in (240, 1)
    )
    outputs = 64 * 240 * 14 * 14
    assert apart == pytest.approx(2 * 25 * outputs / PRIOR.vectors.share / 4.3e12)
    assert together == pytest.approx(2 * 25 * 240 * outputs / PRIOR.products.share / 275e12, rel=0.1)


def test_rates_follow_arrays_and_clock() -> None:
    twice = array("tpu-v4", "array_count=16")
    assert twice.matrix_flops_per_s["bfloat16"] == pytest.approx(2 * V4.matrix_flops_per_s["bfloat16"])
    assert any("array_count" in change for change in twice.hypothetical)
    with pytest.raises(DeviceError, match="unknown key 'sm_count'"):
        array("tpu-v4", "sm_count=4")


OWN_ARRAY = """
id = "mine"
name = "An array of my own"
vendor = "other"
kind = "systolic"
architecture = "Mine"
release_date = 2026-01-01
process = "7 nm"
dram_kind = "LPDDR5"
dram_bandwidth = "100 GB/s"
dram_capacity = "16 GiB"
clock = "1 GHz"
array_rows = 64
array_columns = 64
array_count = 4
on_chip_capacity = "8 MiB"
tdp = "15 W"
launch_overhead = "2 us"
vector_flops.float32 = "256 GFLOP/s"
"""


def test_an_array_of_ones_own_needs_no_documents_and_no_rates(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN_ARRAY)
    one, two = load_device(str(path)), load_device(str(path), ["array_count=8", "clock=500 MHz"])
    assert one.gemm_flops_per_s("bfloat16") == two.gemm_flops_per_s("bfloat16") == 2 * 4 * 64 * 64 * 1e9
    cost = load_executor("systolic").cost(gemm(1024, 1024, 1024), one, Options())
    assert 2 * 1024**3 / 32.8e12 < cost.latency_s[0] < 3 * 1024**3 / 32.8e12


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("array_count = 4", "array_counts = 4", "unknown key 'array_counts'; did you mean array_count"),
        ("array_count = 4\n", "", "array_count missing: add it"),
        ('clock = "1 GHz"', "clock = 1", "clock: '1' has no unit, expected hz"),
        ("array_rows = 64", "array_rows = 0", "array_rows = 0 is not above zero"),
        ('kind = "systolic"', 'kind = "sistolic"', "unknown kind 'sistolic'; did you mean systolic"),
        ('tdp = "15 W"', 'tdp = "15 W"\nmatrix_flops.bfloat16 = "328 TFLOP/s"', "above the 32.8 TFLOP/s of its arrays"),
    ],
)
def test_slips_in_a_file_of_arrays_are_one_line(line: str, instead: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN_ARRAY.replace(line, instead))
    with pytest.raises(NeusightError, match=message) as error:
        load_device(str(path))
    assert str(error.value).startswith("mine.toml: ")


GENERATIONS = (
    ("tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5p", "tpu-v7"),
    ("tpu-v5e", "tpu-v6e"),
    ("trainium1", "trainium2", "trainium3"),
    ("inferentia1", "inferentia2"),
    ("gaudi1", "gaudi2", "gaudi3"),
)


@pytest.mark.parametrize("line", GENERATIONS)
def test_newer_generations_are_not_slower_in_large_products(line: tuple[str, ...]) -> None:
    batch = gemm(8192, 8192, 8192)
    latencies = [load_executor("systolic").cost(batch, array(gpu), Options()).latency_s[0] for gpu in line]
    assert latencies == sorted(latencies, reverse=True)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("gpu", ["tpu-v4", "trainium2", "gaudi3", "inferentia1"])
def test_nothing_is_faster_than_its_bound(family: str, gpu: str) -> None:
    cost = load_executor("systolic").cost(grid(family, n=12), array(gpu), Options())
    assert (cost.latency_s > cost.bound_s).all()
    assert (cost.low_s >= cost.bound_s).all()


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
    eager, graph = (run_on(V4, torch_engine(launch=launch)) for launch in ("eager", "graph"))
    assert eager == graph
    assert eager.launch == "graph"
    assert eager.generated
    assert run_on(load_device("t4"), torch_engine()) == torch_engine()


def test_a_program_of_many_kernels_starts_once() -> None:
    device, batch = array("trainium1"), gemm(1, 4096, 4096)
    alone, among = (
        load().cost(batch, device, Options(), Conditions.of(1, timing="graph", launches=n)).overhead_s[0]
        for n in (1.0, 1000.0)
    )
    assert among == pytest.approx(alone / 1000)


def test_attention_of_single_queries_is_no_slower_than_on_vector_units() -> None:
    shape = {"heads": 32, "kv_heads": 32, "head_dim": 128, "q_len": 1, "kv_len": 192, "batch": 1000}
    batch = KernelBatch.from_columns("attention", causal=True, dtype="bfloat16", kv_dtype="", **shape)
    device = array("gaudi2")
    physics = shipped(FittedArrays).physics
    on_vectors_s = work_of(batch).flops / physics.vectors.share / vector_ops_per_s(device)
    assert times_of(batch, device, physics).arrays_s[0] <= on_vectors_s[0]


def test_a_core_has_its_share_of_a_chip() -> None:
    chip, core = array("trainium1"), core_of(array("trainium1"))
    assert (core.core_count, core.array_count) == (1, chip.array_count // chip.cores)
    assert core.gemm_flops_per_s("bfloat16") == chip.gemm_flops_per_s("bfloat16") / 2
    assert core.dram_bandwidth_bytes_per_s == chip.dram_bandwidth_bytes_per_s / 2
    assert core.links == chip.links
    assert core_of(core) == core
    l4 = load_device("l4")
    assert core_of(l4) is l4


def test_only_rows_that_lie_across_lanes_are_summed_across_them() -> None:
    rows = KernelBatch.from_columns(
        "row_reduction", op="softmax", dtype="bfloat16", rows=[4096], cols=[128], read_bytes=[2**20],
        write_bytes=[2**20], flops=[4096 * 128 * 5],
    )  # fmt: skip
    physics = shipped(FittedArrays).physics
    lanes = {n: times_of(rows, replace_lanes(n), physics).vectors_s[0] for n in (1, 16, 128)}
    steps = physics.vectors.row_ops * 4096 / vector_ops_per_s(V4)
    assert lanes[128] - lanes[1] == pytest.approx(steps)
    assert lanes[16] - lanes[1] == pytest.approx(steps * 4 / 7)


def replace_lanes(lanes: int) -> SystolicSpec:
    return array().model_copy(update={"row_lanes": lanes})
