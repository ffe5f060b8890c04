"""The law of fused attention: formulas of its tiles, and what must hold of any prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.attention import attention_shape, attention_times
from neusight.executors.gpu.expected.attention_blocks import AttentionBlocks
from neusight.executors.gpu.expected.attention_scores import Scores, padding
from neusight.executors.gpu.expected.matrix import MatrixUnit
from neusight.executors.gpu.expected.times import Times, further_kernel_s
from neusight.kernels import Conditions, KernelBatch, work_of
from neusight.laws.constants import with_values
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "l40s", "rtx-3090", "v100-pcie-32gb")
LIBRARIES = (("torch", ""), ("vllm", "fa2"), ("vllm", "fa3"), ("sglang", "triton"), ("trtllm", "trtllm"), ("x", ""))


def some(n: int = 200, seed: int = 0, **fixed: object) -> KernelBatch:
    rng = np.random.default_rng(seed)
    kv_heads = 2 ** rng.integers(0, 5, n)
    q_len = np.where(rng.random(n) < 0.5, 1, 2 ** rng.integers(0, 13, n))
    columns = {
        "batch": 2 ** rng.integers(0, 8, n),
        "heads": kv_heads * rng.integers(1, 9, n),
        "kv_heads": kv_heads,
        "q_len": q_len,
        "kv_len": q_len + rng.integers(0, 9000, n),
        "head_dim": rng.choice([64, 128, 192, 256], n),
        "window": rng.choice([0, 128], n),
        "causal": True,
        "dtype": "float16",
    }
    return KernelBatch.from_columns("attention", **{**columns, **fixed})


def total_s(
    batch: KernelBatch, gpu: str, device_changes: dict[str, float] | None = None, **conditions: object
) -> np.ndarray:
    device = load_device(gpu).model_copy(update=device_changes or {})
    t = attention_times(batch, device, Conditions.of(len(batch), **conditions), PHYSICS)
    return t.unlimited_s + t.fixed_overhead_s


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("engine", "variant"), LIBRARIES)
def test_times_are_finite_and_above_the_bound(gpu: str, engine: str, variant: str) -> None:
    batch, device = some(), load_device(gpu)
    conditions = Conditions.of(len(batch), engine=engine, variant=variant)
    t = attention_times(batch, device, conditions, PHYSICS)
    columns = (t.compute_s, t.dram_s, t.l2_s, t.serial_s, t.fixed_overhead_s, t.switching_j, t.dram_bytes)
    assert all(np.isfinite(column).all() and (column >= 0).all() for column in columns)
    work = work_of(batch)
    assert (t.unlimited_s >= 0.999 * work.bytes / device.dram_bandwidth_bytes_per_s).all()
    assert (t.unlimited_s >= 0.9 * work.flops / device.gemm_flops_per_s("float16")).all()


@pytest.mark.parametrize("gpu", ["mi100", "p4", "b200-sxm-180gb", "rtx-4090", "t4"])
@pytest.mark.parametrize("op", ["forward", "backward", "indexer"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_device_direction_and_dtype(gpu: str, op: str, dtype: str) -> None:
    time_s = total_s(some(op=op, dtype=dtype, causal=False, window=0), gpu)
    assert (np.isfinite(time_s) & (time_s > 0)).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_more_bandwidth_is_never_slower(gpu: str) -> None:
    batch, bandwidth = some(), load_device(gpu).dram_bandwidth_bytes_per_s
    faster = total_s(batch, gpu, {"dram_bandwidth_bytes_per_s": 2 * bandwidth})
    assert (faster <= total_s(batch, gpu) * (1 + 1e-9)).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_cached_operands_are_never_slower(gpu: str) -> None:
    batch = some()
    assert (total_s(batch, gpu, cycled_bytes=work_of(batch).bytes) <= total_s(batch, gpu) * (1 + 1e-9)).all()


@pytest.mark.parametrize("field", ["batch", "kv_len"])
def test_more_work_is_never_faster(field: str) -> None:
    batch = some(window=0)
    more = KernelBatch("attention", {**batch.columns, field: 2 * batch[field]})
    # Choosing parts anew may save a little where a round was filled badly.
    assert (total_s(more, "h100-sxm-80gb") >= 0.97 * total_s(batch, "h100-sxm-80gb")).all()


def test_an_8_bit_cache_halves_what_a_long_decode_waits_for() -> None:
    long = {"q_len": 1, "kv_len": 65536, "batch": 32, "window": 0, "head_dim": 128, "heads": 32, "kv_heads": 8}
    wide, narrow = (some(1, dtype="bfloat16", kv_dtype=kind, **long) for kind in ("", "float8"))
    times = [total_s(b, "h100-sxm-80gb", engine="sglang", variant="fa3")[0] for b in (narrow, wide)]
    assert 0.45 < times[0] / times[1] < 0.7


def prompt(tokens: int = 8192, **fixed: object) -> KernelBatch:
    columns = {"batch": 2, "heads": 32, "kv_heads": 4, "q_len": tokens, "kv_len": tokens, "head_dim": 128}
    return KernelBatch.from_columns("attention", **{**columns, "causal": True, "dtype": "bfloat16", **fixed})


def blocks(gpu: str = "a100-sxm-80gb", **fixed: object) -> AttentionBlocks:
    shape = {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1024, "kv_len": 1024, "head_dim": 128, "window": 0}
    batch = some(1, **{**shape, **fixed})
    return AttentionBlocks.of(Scores(batch, load_device(gpu), Conditions.of(1), PHYSICS))


def test_tiles_of_a_causal_prefill() -> None:
    """PyTorch's FlashAttention-2: 128x64; a block sees half of the keys before it, and its own."""
    b = blocks()
    assert (b.rows[0], b.keys[0], b.count[0]) == (128, 64, 32 * 8)
    mean = (np.arange(8) * 128 + 64.5).mean() + 63.5
    assert b.tiles[0] == pytest.approx(mean / 64 + 0.5)
    assert b.longest[0] == 16


def test_a_window_bounds_the_tiles() -> None:
    assert 4 <= blocks(window=128).longest[0] <= 5
    assert blocks(window=128, q_len=1).tiles[0] == 2


def test_selected_keys_are_all_that_a_query_walks_over() -> None:
    b = blocks(heads=128, kv_heads=1, head_dim=576, value_dim=512, shared_kv=True, selected=256, q_len=1, kv_len=4096)
    assert b.tiles[0] == 4


def test_inputs_of_a_correction() -> None:
    batch = some()
    shape = attention_shape(batch, load_device("h100-sxm-80gb"), Conditions.of(len(batch)), PHYSICS)
    assert 8 <= len(shape) <= 15
    assert all(np.isfinite(column).all() and column.shape == (len(batch),) for column in shape.values())
    assert (shape["tile_fill"] <= 1.0 + 1e-9).all()


@pytest.mark.parametrize(
    ("gpu", "kind", "head_dim", "rows", "keys"),
    [
        ("h100-sxm-80gb", ("sglang", "fa3"), 128, 128, 128),
        ("b200-sxm-180gb", ("sglang", "trtllm_gen"), 128, 256, 128),  # two tiles of tcgen05's 128 rows
        ("a100-sxm-80gb", ("torch", "fa2"), 128, 128, 64),  # flash_fwd_launch_template.h, run_mha_fwd_hdim128
        ("rtx-3090", ("torch", "fa2"), 128, 64, 64),
        ("h100-sxm-80gb", ("sglang", "triton"), 256, 128, 64),  # extend_attention.py
        ("h100-sxm-80gb", ("sglang", "triton"), 512, 32, 64),
        ("l40s", ("sglang", "triton"), 192, 64, 64),
        ("b200-sxm-180gb", ("vllm", "triton"), 192, 16, 32),  # triton_unified_attention.py
    ],
)
def test_tiles_are_those_of_the_sources(
    gpu: str, kind: tuple[str, str], head_dim: int, rows: float, keys: float
) -> None:
    conditions = Conditions.of(1, engine=kind[0], variant=kind[1])
    cut = AttentionBlocks.of(Scores(prompt(head_dim=head_dim), load_device(gpu), conditions, PHYSICS))
    assert (cut.rows[0], cut.keys[0]) == (rows, keys)


def test_warps_own_instructions_are_no_faster_on_units_that_read_shared_memory() -> None:
    """As many FLOP a clock on Blackwell as on Hopper; all of the peak where there are no other instructions."""
    product = Scores(prompt(), load_device("a100-sxm-80gb"), Conditions.of(1), PHYSICS).product
    assert MatrixUnit(load_device("a100-sxm-80gb"), PHYSICS).synchronous_share(product) == 1.0
    flops = []
    for gpu in ("h100-sxm-80gb", "b200-sxm-180gb"):
        device = load_device(gpu)
        scores = Scores(prompt(), device, Conditions.of(1), PHYSICS)
        share = MatrixUnit(device, PHYSICS).synchronous_share(scores.product)
        assert share[0] < 1.0
        flops.append(share[0] * device.gemm_flops_per_s("bfloat16") / device.sm_count / device.boost_clock_hz)
    np.testing.assert_allclose(flops[0], flops[1], rtol=1e-6)


def test_long_prompts_run_at_the_rates_that_are_published() -> None:
    """FlashAttention-2 (Dao 2023, figure 4) up to 230 TFLOP/s on A100, FlashAttention-3 (Shah et al. 2024) up to 740 on
    H100, FlashAttention-4 1,605 on B200: predictions are below and within reach of them, each above the one before.
    """
    kinds = (
        ("a100-sxm-80gb", "torch", "fa2"),
        ("h100-sxm-80gb", "sglang", "fa3"),
        ("b200-sxm-180gb", "x", "trtllm_gen"),
    )
    batch = prompt(16384, causal=False)
    rates = [work_of(batch).flops / total_s(batch, gpu, engine=e, variant=v) for gpu, e, v in kinds]
    shares = np.array([rate[0] for rate in rates]) / np.array([230e12, 740e12, 1605e12])
    assert ((shares > 0.65) & (shares < 1.0)).all()
    assert rates[0] < rates[1] < rates[2]


def test_faster_exponentials_shorten_a_prompt_beside_its_products() -> None:
    """A B300 and a B200 multiply alike in 16 bit, a clock and SM; its softmax takes half as long."""
    cycles = []
    for gpu in ("b200-sxm-180gb", "b300-sxm-288gb"):
        device = load_device(gpu)
        seconds = attention_times(prompt(16384), device, Conditions.of(1, variant="trtllm_gen"), PHYSICS).compute_s
        cycles.append(seconds[0] * device.boost_clock_hz * device.sm_count)
    assert 0.7 < cycles[1] / cycles[0] < 0.97


def test_engines_start_kernels_of_their_own_for_an_8_bit_cache() -> None:
    """SGLang casts queries, keys and values for TensorRT-LLM's kernels; vLLM's do it on the way."""
    narrow, wide = prompt(64, kv_dtype="float8", batch=1), prompt(64, batch=1)
    more_s = {e: total_s(narrow, "b200-sxm-180gb", engine=e, variant="trtllm_gen") for e in ("sglang", "vllm")}
    less_s = {e: total_s(wide, "b200-sxm-180gb", engine=e, variant="trtllm_gen") for e in ("sglang", "vllm")}
    start_s = PHYSICS.start.cycles / load_device("b200-sxm-180gb").boost_clock_hz
    assert more_s["sglang"] - less_s["sglang"] > 2.5 * start_s
    assert abs(more_s["vllm"] - less_s["vllm"]) < 0.5 * start_s


def test_a_prompt_of_one_token_is_decoded_by_some() -> None:
    batch, device = prompt(1), load_device("h100-sxm-80gb")
    decode = {e: Scores(batch, device, Conditions.of(1, engine=e), PHYSICS).decode[0] for e in ("vllm", "sglang")}
    assert decode == {"vllm": True, "sglang": False}


def times(batch: KernelBatch, gpu: str, engine: str, variant: str) -> Times:
    return attention_times(batch, load_device(gpu), Conditions.of(len(batch), engine=engine, variant=variant), PHYSICS)


def test_without_a_pipeline_every_tile_waits_for_memory_and_those_outside_of_a_window_twice() -> None:
    """SGLang's extend kernel, one head: the last block passes over all tiles of 64 keys before it."""
    trip_s = PHYSICS.stream.latency_s
    single = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 256}
    for window, trips in ((0, 3.0), (128, PHYSICS.attention.passing_trips)):
        short, long = (
            times(prompt(n, window=window, **single), "b200-sxm-180gb", "sglang", "triton") for n in (4096, 8192)
        )
        waited_s = (long.compute_s - short.compute_s)[0]
        assert waited_s >= 64 * trips * trip_s
        assert (short.serial_s == 0.0).all()
        if window:
            assert waited_s == pytest.approx(64 * trips * trip_s, rel=0.01)


def test_a_kernel_that_starts_while_another_one_ends_hides_one_start_and_a_merge_adds_one() -> None:
    few = prompt(1, batch=1, kv_len=64, head_dim=64, kv_dtype="bfloat16")
    start_s = further_kernel_s(load_device("b200-sxm-180gb"), PHYSICS)
    usual, overlapped, merged = (
        times(few, "b200-sxm-180gb", "vllm", variant).fixed_overhead_s[0]
        for variant in ("", "trtllm_gen", "flashinfer")
    )
    assert usual - overlapped == pytest.approx(start_s)
    assert merged - usual == pytest.approx(start_s)


def test_before_hopper_tensorrt_llm_widens_8_bit_heads_of_most_widths() -> None:
    for gpu, widened in (("l40s", True), ("rtx-pro-6000-server", True), ("h100-sxm-80gb", False)):
        device, conditions = load_device(gpu), Conditions.of(1, engine="trtllm", variant="trtllm")
        narrow, wide = device.matrix_flops_per_s["float8"], device.matrix_flops_per_s["float16"]
        rates = {
            head_dim: Scores(prompt(head_dim=head_dim, dtype="float8"), device, conditions, PHYSICS).flops_per_s[0]
            for head_dim in (128, 256)
        }
        assert rates == {128: narrow, 256: wide if widened else narrow}


def test_tall_tiles_of_flashinfer_hold_the_queries_of_one_head() -> None:
    conditions = Conditions.of(1, engine="sglang", variant="flashinfer")
    counts = {
        gpu: AttentionBlocks.of(Scores(prompt(32), load_device(gpu), conditions, PHYSICS)).count[0]
        for gpu in ("h100-sxm-80gb", "b200-sxm-180gb")
    }
    assert counts == {"h100-sxm-80gb": 2 * 4 * 2, "b200-sxm-180gb": 2 * 32}


@pytest.mark.parametrize(("width", "computed"), [(72, 96), (80, 96), (112, 128), (144, 192), (152, 192), (200, 256)])
@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb", "l40s"])
def test_heads_are_computed_with_the_columns_of_a_compiled_kernel(gpu: str, width: int, computed: int) -> None:
    device = load_device(gpu)
    odd, whole = (
        attention_times(prompt(head_dim=d), device, Conditions.of(1, engine="torch"), PHYSICS).compute_s
        for d in (width, computed)
    )
    assert odd == pytest.approx(whole)


def test_heads_beyond_all_compiled_widths_are_computed_as_they_are() -> None:
    assert padding(np.array([288, 96, 65, 72]), np.array(["32 64 96 256"] * 3 + [""])) == pytest.approx(
        [1, 1, 96 / 65, 1]
    )


@pytest.mark.parametrize(("gpu", "longer"), [("a100-sxm-80gb", 1.0), ("h100-sxm-80gb", PHYSICS.attention.backward)])
def test_backward_passes_take_longer_a_flop_where_units_read_shared_memory(gpu: str, longer: float) -> None:
    device = load_device(gpu)
    plain = replace(PHYSICS, attention=replace(PHYSICS.attention, backward=1.0))
    batch = prompt(op="backward", q_len=65536, kv_len=65536, heads=1, kv_heads=1)
    slow, fast = (attention_times(batch, device, Conditions.of(1), p).compute_s for p in (PHYSICS, plain))
    assert slow / fast == pytest.approx(longer, rel=0.02)


def cut(gpu: str, engine: str, variant: str, **shape: object) -> AttentionBlocks:
    s = Scores(prompt(**shape), load_device(gpu), Conditions.of(1, engine=engine, variant=variant), PHYSICS)
    return AttentionBlocks.of(s)


LATENT = {"kv_heads": 1, "head_dim": 576, "value_dim": 512, "shared_kv": True}


@pytest.mark.parametrize(("gpu", "heads", "count"), [("h200-sxm-141gb", 64, 1), ("h200-sxm-141gb", 128, 2)])
@pytest.mark.parametrize("engine", ["trtllm", "vllm", "sglang"])
def test_all_heads_of_a_latent_cache_share_its_blocks(gpu: str, heads: int, count: int, engine: str) -> None:
    """FlashMLA: 64 rows, whatever number of heads shares one latent key."""
    variant = "trtllm" if engine == "trtllm" else "fa3"
    b = cut(gpu, engine, variant, batch=1, heads=heads, q_len=1, kv_len=8192, **LATENT)
    assert (b.count[0], b.rows[0]) == (count, 64)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "l40s", "rtx-pro-6000-server"])
@pytest.mark.parametrize("heads", [8, 64])
def test_before_hopper_tensorrt_llm_decodes_a_latent_request_in_one_block(gpu: str, heads: int) -> None:
    few, many = (cut(gpu, "trtllm", "trtllm", batch=n, heads=heads, q_len=1, kv_len=8192, **LATENT) for n in (1, 8))
    assert (few.count[0], few.rows[0], bool(few.divisible[0])) == (1, 64, False)
    batches = [prompt(batch=n, heads=heads, q_len=1, kv_len=131072, **LATENT) for n in (1, 8)]
    times = [total_s(b, gpu, engine="trtllm", variant="trtllm")[0] for b in batches]
    assert times[1] == pytest.approx(times[0], rel=0.1) and many.count[0] == 8
    assert times[0] > 3 * total_s(batches[0], gpu, engine="vllm", variant="fa2")[0]


@pytest.mark.parametrize(("gpu", "rows"), [("h200-sxm-141gb", 64), ("b200-sxm-180gb", 128)])
@pytest.mark.parametrize("variant", ["fa3", "trtllm_gen", "trtllm"])
def test_heads_of_a_query_share_the_latent_keys_that_it_chose(gpu: str, rows: int, variant: str) -> None:
    """FlashMLA, flash_mla_sparse_fwd: a query's heads fill the rows of matrix units, and a block its keys."""
    shape = {"batch": 1, "q_len": 4096, "kv_len": 8192, "selected": 2048, **LATENT}
    few, all_heads = (cut(gpu, "vllm", variant, heads=heads, **shape) for heads in (16, 128))
    assert few.count[0] * few.rows[0] == 4096 * rows
    assert all_heads.count[0] * all_heads.rows[0] == 4096 * 128
    assert not few.divisible[0] and not all_heads.divisible[0]


@pytest.mark.parametrize("gpu", ["h200-sxm-141gb", "b200-sxm-180gb"])
def test_scores_of_few_queries_take_as_long_as_those_of_a_round(gpu: str) -> None:
    """DeepGEMM, fp8_mqa_logits: blocks of 128 rows walk over all keys, however few there are."""
    shape = {"op": "indexer", "dtype": "float8", "batch": 1, "heads": 32, "kv_heads": 1, "kv_len": 65536}
    one, full = (total_s(prompt(q_len=n, **shape), gpu, engine="deepgemm")[0] for n in (4, 512))
    assert full < one < 1.4 * full  # keys of the first queries come from DRAM


def test_keys_made_of_a_latent_cache_are_not_copied_before_a_prompt() -> None:
    """TensorRT-LLM turns the 64 rotated columns of a query and a key, which leaves 128 of 192."""
    made = prompt(heads=128, kv_heads=128, head_dim=192, value_dim=128)
    given = prompt(heads=128, kv_heads=128, head_dim=192)
    times = [total_s(batch, "h200-sxm-141gb", engine="trtllm", variant="trtllm")[0] for batch in (made, given)]
    assert times[0] < 0.83 * times[1]  # 5 / 6 of the arithmetic, and less than that of the rest


def test_no_cache_holds_the_keys_of_an_encoder() -> None:
    """One kernel writes keys and values into vLLM's cache before attention; a vision tower has no cache."""
    device = load_device("h100-sxm-80gb")
    for causal, kernels in ((True, 1.0), (False, 0.0)):
        batch = prompt(64, kv_heads=32, head_dim=64, causal=causal)
        times = [
            attention_times(batch, device, Conditions.of(1, engine=engine, variant="fa3"), PHYSICS)
            for engine in ("vllm", "x")
        ]
        longer_s = times[0].fixed_overhead_s[0] - times[1].fixed_overhead_s[0]
        assert (
            kernels * further_kernel_s(device, PHYSICS) <= longer_s <= 1.4 * kernels * further_kernel_s(device, PHYSICS)
        )


@pytest.mark.parametrize(("gpu", "least", "most"), [("b200-sxm-180gb", 2.0, 6.0), ("h100-sxm-80gb", 0.8, 1.1)])
def test_heads_without_a_kernel_for_tall_tiles_run_on_older_instructions(gpu: str, least: float, most: float) -> None:
    batches = [prompt(16384, kv_heads=32, head_dim=width, causal=False) for width in (72, 80)]
    times = [total_s(batch, gpu, engine="trtllm", variant="trtllm")[0] for batch in batches]
    assert least < times[0] / times[1] < most


@pytest.mark.parametrize(
    ("engine", "variant", "longer"), [("sglang", "triton", 1.5), ("vllm", "triton", 1.9), ("x", "", 1)]
)
def test_heads_whose_stride_16_does_not_divide_are_loaded_one_by_one(engine: str, variant: str, longer: float) -> None:
    device, conditions = load_device("rtx-pro-6000-server"), Conditions.of(1, engine=engine, variant=variant)
    physics = with_values(PHYSICS, {"attention.scalar_loads": 2.0})
    times = [
        attention_times(prompt(kv_heads=32, head_dim=width, causal=False), device, conditions, physics).compute_s[0]
        for width in (72, 80)
    ]
    assert times[0] / times[1] == pytest.approx(longer, rel=0.15)


def test_flash_attention_2_has_larger_blocks_without_pages() -> None:
    paged, plain = (cut("l40s", "vllm", "fa2", kv_heads=32, head_dim=64, causal=causal) for causal in (True, False))
    assert (paged.rows[0], plain.rows[0]) == (64, 128)


def test_one_kernel_quantises_for_a_latent_cache() -> None:
    """SGLang starts three kernels for an 8-bit cache of keys and values, and one for a latent one."""
    device, conditions = load_device("b200-sxm-180gb"), Conditions.of(1, engine="sglang", variant="trtllm_gen")
    kernels = {}
    for name, shape in (("given", {}), ("latent", LATENT)):
        wide, narrow = (
            attention_times(
                prompt(batch=1, q_len=1, kv_len=64, dtype=dtype, **shape), device, conditions, PHYSICS
            ).fixed_overhead_s[0]
            for dtype in ("bfloat16", "float8")
        )
        kernels[name] = (narrow - wide) / further_kernel_s(device, PHYSICS)
    assert kernels == pytest.approx({"given": 3, "latent": 1}, abs=0.1)


def test_grid_for_a_latent_cache_holds_blocks_without_keys() -> None:
    """SGLang's Triton kernel launches parts for 256 of 142 SMs, of which 4 keys fill one: the others end at once."""
    latent = {"heads": 16, "kv_heads": 1, "head_dim": 576, "value_dim": 512, "shared_kv": True, "kv_len": 4}
    few, many = (
        times(prompt(1, batch=batch, **latent), "l40s", "sglang", "triton").serial_s[0] for batch in (128, 256)
    )
    vain_s = 128 * 255 / (142 * PHYSICS.matrix.blocks_of_sm) * PHYSICS.stream.latency_s
    assert 0.999 * vain_s < many - few < 1.2 * vain_s


def test_parts_of_a_prompt_are_put_together_row_by_row() -> None:
    """FlashInfer cuts the keys of few queries where products are synchronous; PrefillSM90Plan does not."""
    shape = {"batch": 1, "heads": 32, "kv_heads": 32, "kv_len": 4096}
    cut, whole = (
        times(prompt(256, **shape), gpu, "flashinfer", "flashinfer").fixed_overhead_s[0]
        for gpu in ("a800-sxm-80gb", "h800-sxm-80gb")
    )
    rows_s = 256 * 32 / (108 * PHYSICS.matrix.blocks_of_sm) * PHYSICS.stream.latency_s
    assert whole < rows_s < cut < 2.0 * rows_s


def test_queries_of_an_indexer_follow_each_other_without_a_prologue() -> None:
    """DeepGEMM's kernel is persistent: twice as many requests of one tile take twice as long."""
    shape = {"heads": 32, "kv_heads": 1, "op": "indexer", "dtype": "float8"}
    few, many = (times(prompt(64, batch=n, **shape), "h100-sxm-80gb", "deepgemm", "") for n in (4096, 8192))
    assert many.compute_s[0] == pytest.approx(2.0 * few.compute_s[0], rel=0.02)
    assert many.serial_s[0] == pytest.approx(2.0 * few.serial_s[0], rel=0.02)
