"""Mixtures of experts: invariants of the law over shapes, engines and devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.moe import grouped_times, moe_shape, moe_times
from neusight.executors.gpu.expected.times import Times, start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.constants import priors
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

TOKENS = np.array([1, 4, 16, 64, 256, 1024, 4096, 16384])
KINDS = [("sglang", "triton"), ("sglang", "cutlass"), ("vllm", "triton"), ("vllm", "cutlass"), ("aiter", "ck")]
GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s")


def layers(
    dtype: str = "bfloat16", distribution: str = "balanced", scaling: str = "", weight_dtype: str = ""
) -> KernelBatch:
    return KernelBatch.from_columns(
        "moe", tokens=TOKENS, hidden=4096, ffn=1536, experts=64, all_experts=128, top_k=8, dtype=dtype,
        distribution=distribution, scaling=scaling, weight_dtype=weight_dtype,
    )  # fmt: skip


def taken(kind: tuple[str, str], n: int = len(TOKENS), **columns: object) -> Conditions:
    return Conditions.of(n, timing="graph", engine=kind[0], variant=kind[1], **columns)


def total_s(times: Times) -> np.ndarray:
    return times.unlimited_s + times.fixed_overhead_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gpu", GPUS)
def test_more_tokens_are_never_faster(gpu: str, kind: tuple[str, str]) -> None:
    for distribution in ("balanced", "uniform"):
        found = total_s(moe_times(layers(distribution=distribution), load_device(gpu), taken(kind), PHYSICS))
        # Between two tiles a fuller last one may win back a little.
        assert (np.diff(found) > -0.02 * found[:-1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_more_bandwidth_is_never_slower_and_hot_weights_never_later(kind: tuple[str, str]) -> None:
    device = load_device("h100-sxm-80gb")
    faster = device.model_copy(update={"dram_bandwidth_bytes_per_s": 2 * device.dram_bandwidth_bytes_per_s})
    cold, hot = (taken(kind, cycled_bytes=b) for b in (np.inf, 1e6))
    usual = total_s(moe_times(layers(), device, cold, PHYSICS))
    assert (total_s(moe_times(layers(), faster, cold, PHYSICS)) <= usual).all()
    assert (total_s(moe_times(layers(), device, hot, PHYSICS)) <= usual).all()


def test_cold_layers_take_no_less_than_their_weights_and_their_arithmetic() -> None:
    for gpu in GPUS:
        device, batch = load_device(gpu), layers()
        found = moe_times(batch, device, taken(("trtllm", "cutlass")), PHYSICS)
        assert (found.compute_s >= work_of(batch).flops / device.gemm_flops_per_s("bfloat16")).all()
        weights = 3 * 4096 * 1536 * 2 * np.minimum(64, TOKENS * 8 / 2)
        assert (found.dram_s >= weights / device.dram_bandwidth_bytes_per_s).all()


def test_one_group_is_one_product() -> None:
    """A single group costs as many tiles as the product has: the same arithmetic, whole tiles of 256x128."""
    batch = KernelBatch.from_columns("grouped_gemm", groups=1, tokens=2048, n=4096, k=8192, dtype="bfloat16")
    device = load_device("a100-sxm-80gb")
    physics = replace(
        PHYSICS,
        moe=replace(PHYSICS.moe, cutlass_rate=1.0, tail_share=0.0),
        matrix=replace(PHYSICS.matrix, half=1e-9, prologue_depth=1e-9, share=1.0),
    )
    found = grouped_times(batch, device, taken(("deepgemm", "masked"), 1), physics)
    tiles_a_sm = 2048 * 4096 / (256 * 128) / 108
    assert tiles_a_sm > 1
    assert found.compute_s[0] == pytest.approx(2 * 2048 * 4096 * 8192 / device.gemm_flops_per_s("bfloat16"), rel=1e-6)


def test_scattered_groups_fill_more_tiles_than_even_ones() -> None:
    device, kind = load_device("h100-sxm-80gb"), taken(("trtllm", "cutlass"))
    even, drawn = (moe_shape(layers(distribution=d), device, kind, PHYSICS) for d in ("balanced", "uniform"))
    assert (even["row_fill"][-2:] > drawn["row_fill"][-2:]).all()
    assert (even["row_fill"] <= 1.0 + 1e-9).all()


def test_products_that_do_the_rest_on_their_way_start_twice_and_read_the_sums() -> None:
    device = load_device("mi300x")
    own, apart = (moe_times(layers(), device, taken(kind), PHYSICS) for kind in (("aiter", "asm"), ("torch", "")))
    np.testing.assert_allclose(own.fixed_overhead_s, 2 * start_s(device, taken(("aiter", "asm")), PHYSICS))
    assert (own.fixed_overhead_s < apart.fixed_overhead_s).all()
    summed_bytes = (own.dram_s - apart.dram_s) * sustained_dram_bytes_per_s(device, PHYSICS)
    np.testing.assert_allclose(summed_bytes, 4 * TOKENS * 8 / 2 * 4096)


def test_shape_is_finite_for_every_kind() -> None:
    for kind in KINDS:
        for batch in (layers(), layers("float8", "power_law_1.2", "block")):
            found = moe_shape(batch, load_device("l40s"), taken(kind), PHYSICS)
            assert all(np.isfinite(column).all() and column.shape == TOKENS.shape for column in found.values())


def test_constants_say_where_their_prior_comes_from() -> None:
    stated = {name: prior for name, prior in priors(PHYSICS).items() if name.startswith("moe.")}
    assert len(stated) == 21
    assert all(prior.why and prior.spread > 0 for prior in stated.values())


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_weights_are_read_faster_and_computed_alike(kind: tuple[str, str]) -> None:
    """Of few tokens nearly all bytes are weights."""
    device, conditions = load_device("h100-sxm-80gb"), taken(kind)
    wide, same, narrow = (
        moe_times(layers(weight_dtype=dtype), device, conditions, PHYSICS) for dtype in ("", "bfloat16", "int4")
    )
    assert same.dram_s.tolist() == wide.dram_s.tolist()
    assert (narrow.dram_s < wide.dram_s).all()
    assert narrow.dram_s[0] == pytest.approx(wide.dram_s[0] / 4.0, rel=0.02)
    assert (narrow.compute_s > 0.9 * wide.compute_s).all()


def test_kernels_that_nobody_tuned_are_slow_on_some_architectures_alone() -> None:
    """FlashInfer's first kernel stalls on Hopper; elsewhere it takes what a tuned one takes."""
    for gpu, slower in (("h100-sxm-80gb", True), ("b200-sxm-180gb", False), ("rtx-pro-6000-server", False)):
        sglang, vllm = (
            moe_times(layers(), load_device(gpu), taken((engine, "cutlass")), PHYSICS).compute_s
            for engine in ("sglang", "vllm")
        )
        assert (sglang > vllm).all() if slower else np.array_equal(sglang, vllm)


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "rtx-pro-6000-server"])
def test_marlin_has_warps_own_instructions(gpu: str) -> None:
    """mma.sync, which is the slower one where matrix units read shared memory."""
    device = load_device(gpu)
    marlin, other = (
        moe_times(layers(weight_dtype="int4"), device, taken(("vllm", variant)), PHYSICS).compute_s[-1]
        for variant in ("marlin", "cutlass")
    )
    assert marlin > 2.0 * other if device.facts.reads_shared_memory else marlin == other


def test_moe_times_fused_launch_starts_fewer_kernels() -> None:
    """A routed launch of few tokens against a chain, on the device that has both."""
    device = load_device("b200-sxm-180gb")
    for scaling, dtype in (("micro", "float4"), ("tensor", "float8"), ("", "bfloat16")):
        batch = layers(dtype, scaling=scaling)
        fused, chain = (
            moe_times(batch, device, taken(("trtllm", variant)), PHYSICS).fixed_overhead_s[0]
            for variant in ("trtllm_gen", "cutlass")
        )
        assert fused < 0.7 * chain


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "rtx-pro-6000-server"])
@pytest.mark.parametrize(("scaling", "dtype", "weights"), [("micro", "float4", ""), ("block", "float8", "mxfp4")])
def test_moe_shape_tiles_of_few_scaled_values_have_128_rows(gpu: str, scaling: str, dtype: str, weights: str) -> None:
    """One token gives eight experts a row each: an eighth of a tile of 16 rows, or 1 of 128."""
    batch = layers(dtype, scaling=scaling, weight_dtype=weights)
    chain, fused = (
        moe_shape(batch, load_device(gpu), taken(("vllm", variant)), PHYSICS)["row_fill"][0]
        for variant in ("cutlass", "trtllm_gen")
    )
    assert chain <= 1.0 / 128.0 + 1e-9
    assert fused > chain


def test_moe_times_units_with_tensor_memory_promote_sums_of_blocks_slowly() -> None:
    batch = layers("float8", scaling="block")
    for gpu, slower in (("b200-sxm-180gb", True), ("h100-sxm-80gb", False), ("rtx-pro-6000-server", False)):
        promoted, applied = (
            moe_times(batch, load_device(gpu), taken(("trtllm", variant)), PHYSICS).compute_s[-1]
            for variant in ("cutlass", "deepgemm")
        )
        assert promoted > 1.5 * applied if slower else promoted == applied


def test_moe_times_widened_weights_leave_a_share_of_the_rate() -> None:
    device, kind = load_device("b200-sxm-180gb"), taken(("vllm", "trtllm_gen"))
    wide, narrow = (moe_times(layers(weight_dtype=dtype), device, kind, PHYSICS) for dtype in ("", "mxfp4"))
    assert narrow.compute_s[-1] == pytest.approx(wide.compute_s[-1] / PHYSICS.moe.widened_rate)
