"""Products of 8 and 4 bits: how scales lie in memory, who applies them, and what narrowing activations costs."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.matrix import MatrixUnit, matrix_times, product_tiling
from neusight.executors.gpu.expected.products import product_of
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.constants import with_values
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics


def products(m: int, k: int = 4096, n: int = 4096, **fields: object) -> KernelBatch:
    return KernelBatch.from_columns("gemm", m=np.array([m]), n=np.array([n]), k=np.array([k]), **fields)


def conditions(engine: str, variant: str) -> Conditions:
    return Conditions.of(1, timing="graph", engine=engine, variant=variant)


def times(batch: KernelBatch, gpu: str, engine: str = "torch", variant: str = ""):
    device, known = load_device(gpu), conditions(engine, variant)
    return matrix_times(batch, device, known, PHYSICS, product_tiling(batch, device, known, PHYSICS))


def test_four_bit_operands_are_half_a_byte_with_a_byte_of_scale_for_sixteen() -> None:
    m, n, k = 256, 512, 1024
    work = work_of(products(m, k, n, dtype="float4", scaling="micro"))
    assert work.read_bytes[0] == pytest.approx((m + n) * k * (0.5 + 1 / 16))
    assert work.write_bytes[0] == pytest.approx(2.0 * m * n)


def test_matrix_units_that_apply_scales_do_not_wait_for_lanes() -> None:
    plain, scaled = (products(4096, dtype="float8", scaling=scaling) for scaling in ("tensor", "block"))
    assert times(scaled, "b200-sxm-180gb").compute_s == pytest.approx(times(plain, "b200-sxm-180gb").compute_s)
    assert times(scaled, "h100-sxm-80gb").compute_s[0] > 1.05 * times(plain, "h100-sxm-80gb").compute_s[0]


def test_adding_partial_sums_is_a_smaller_share_where_matrix_units_are_slow() -> None:
    plain, scaled = (products(4096, dtype="float8", scaling=scaling) for scaling in ("tensor", "block"))
    fast, slow = (
        float(times(scaled, gpu).compute_s[0] / times(plain, gpu).compute_s[0]) for gpu in ("h100-sxm-80gb", "h20")
    )
    assert 1.0 < slow < 1.0 + 0.5 * (fast - 1.0)


def test_rows_with_a_block_each_take_long_where_many_are_short() -> None:
    short, long = (
        products(m, k, dtype="float8", scaling="tensor", quantised=True) for m, k in ((8192, 256), (256, 8192))
    )
    by_row, by_rows = (
        times(short, "h100-sxm-80gb", engine, "cutlass").fixed_overhead_s for engine in ("vllm", "sglang")
    )
    assert by_row[0] > 2.0 * by_rows[0]
    assert times(long, "h100-sxm-80gb", "vllm", "cutlass").fixed_overhead_s[0] < by_row[0]


@pytest.mark.parametrize("gpu", ["h200-sxm-141gb", "b200-sxm-180gb"])
@pytest.mark.parametrize(("scaling", "passes"), [("tensor", 5.0 / 3.0), ("block", 1.0)])
def test_rows_of_heads_take_a_block_each_whatever_their_length(gpu: str, scaling: str, passes: float) -> None:
    """Four warps a row: 16 blocks share an SM; a search reads two of the five bytes that both passes move."""

    def added_s(m: int, k: int) -> float:
        given, made = (
            products(m, k, 128, batch=16, dtype="float8", scaling=scaling, quantised=q) for q in (False, True)
        )
        own, other = (times(batch, gpu, "sglang", "torch").fixed_overhead_s[0] for batch in (made, given))
        return float(own - other)

    device = load_device(gpu)
    row_s = passes * PHYSICS.matrix.quantise_row_cycles / device.boost_clock_hz / (16 * device.sm_count)
    assert added_s(8192, 128) - added_s(4096, 128) == pytest.approx(16 * 4096 * row_s)
    assert added_s(4096, 512) == pytest.approx(added_s(4096, 128))
    assert added_s(1, 128) < 1.1 * PHYSICS.matrix.quantise_start * PHYSICS.start.cycles / device.boost_clock_hz


def test_steps_around_quantisation_cost_the_same_on_any_gpu() -> None:
    batch = products(1, dtype="float8", scaling="tensor", quantised=True)
    bare = products(1, dtype="float8", scaling="tensor")
    for gpu in ("h100-sxm-80gb", "l40s", "b200-sxm-180gb"):
        added = times(batch, gpu, "trtllm", "trtllm").fixed_overhead_s - times(bare, gpu, "trtllm").fixed_overhead_s
        assert added[0] > PHYSICS.matrix.search_s


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "rtx-pro-6000-server"])
def test_narrower_operands_are_never_slower_in_large_products(gpu: str) -> None:
    wide = times(products(8192, 8192, 8192, dtype="bfloat16"), gpu).unlimited_s
    eight = times(products(8192, 8192, 8192, dtype="float8", scaling="tensor"), gpu).unlimited_s
    four = times(products(8192, 8192, 8192, dtype="float4", scaling="micro"), gpu).unlimited_s
    assert four[0] < eight[0] < wide[0]


def test_only_libraries_with_such_kernels_cut_narrow_products() -> None:
    deep, device = {"m": 8, "n": 256, "k": 32768, "dtype": "float8"}, load_device("l40s")

    def parts(scaling: str, *who: str) -> float:
        return product_tiling(products(**deep, scaling=scaling), device, conditions(*who), PHYSICS).parts[0]

    assert parts("tensor", "torch", "") > 1.0
    assert parts("tensor", "vllm", "cutlass") == 1.0
    assert parts("block", "torch", "") > 1.0
    assert parts("block", "trtllm", "trtllm") == 1.0


@pytest.mark.parametrize(("gpu", "shares"), [("b200-sxm-180gb", True), ("h100-sxm-80gb", False), ("l40s", False)])
def test_small_clusters_fetch_panels_more_often_where_large_ones_could_share_them(gpu: str, shares: bool) -> None:
    batch = products(8192, dtype="float8", scaling="tensor")
    few, many = (times(batch, gpu, "vllm", variant).l2_s[0] for variant in ("cutlass", "torch"))
    # Panels of a patch of blocks: each doubling of a cluster fetches them once for so many.
    gain = PHYSICS.matrix.cluster_gain
    assert 1.2 < gain < 1.7
    assert few == pytest.approx(many * (gain**2 if shares else 1.0))


def test_stages_hold_more_elements_of_narrow_operands_and_of_kernels_that_fill_shared_memory() -> None:
    def chain(gpu: str, **fields: object) -> float:
        return float(times(products(16, n=128, k=1024, **fields), gpu, "vllm", "cutlass").serial_s[0])

    wide, narrow = {"dtype": "bfloat16"}, {"dtype": "float8", "scaling": "tensor"}
    least = max(1.0, PHYSICS.matrix.least_stage_bytes)
    assert chain("l40s", **narrow) == pytest.approx(chain("l40s", **wide) * least / 2.0)
    factor = PHYSICS.matrix.step_asynchronous
    assert chain("h100-sxm-80gb", **wide) == pytest.approx(factor * chain("a100-sxm-80gb", **wide))


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "rtx-pro-6000-server"])
def test_tiles_hold_whole_blocks_of_the_scales_of_few_values(gpu: str) -> None:
    def tile(**fields: object) -> tuple[float, float]:
        tiling = product_tiling(products(16, **fields), load_device(gpu), conditions("vllm", "cutlass"), PHYSICS)
        return float(tiling.tile_m[0]), float(tiling.tile_n[0])

    assert min(tile(dtype="float4", scaling="micro")) >= 128.0
    assert tile(dtype="float8", scaling="tensor")[0] < 128.0


def test_short_rows_share_an_sm_while_they_become_four_bits_wide() -> None:
    def added_s(k: int, dtype: str, scaling: str) -> float:
        kind = {"dtype": dtype, "scaling": scaling}
        given, made = (products(65536, k, quantised=quantised, **kind) for quantised in (False, True))
        own, other = (times(batch, "b200-sxm-180gb", "vllm", "cutlass").fixed_overhead_s[0] for batch in (made, given))
        return float(own - other - PHYSICS.matrix.quantise_start * start_s)

    start_s = PHYSICS.start.cycles / load_device("b200-sxm-180gb").boost_clock_hz
    # 256 threads of eight elements instead of 1,024: four times the rows at once.
    assert added_s(2048, "float4", "micro") == pytest.approx(added_s(2048, "float8", "row") / 4.0)


def test_products_are_cut_only_where_ports_carry_the_sums_of_parts() -> None:
    batch, device = products(1024, 5120, 3584, dtype="bfloat16"), load_device("a100-sxm-80gb")

    def parts(l2_share: float) -> float:
        physics = with_values(PHYSICS, {"matrix.l2_share": l2_share})
        return float(product_tiling(batch, device, conditions("torch", ""), physics).parts[0])

    assert parts(PHYSICS.matrix.l2_share) > 1.0
    assert parts(0.01) == 1.0


def test_the_prologue_is_as_deep_as_stages_hold_bytes() -> None:
    def prologue(**fields: object) -> float:
        device = load_device("h100-sxm-80gb")
        unit = MatrixUnit(device, PHYSICS)
        return float(unit.prologue_depth(product_of(products(128, **fields), device, PHYSICS))[0])

    assert prologue(dtype="float8") == pytest.approx(2.0 * prologue(dtype="bfloat16"))
