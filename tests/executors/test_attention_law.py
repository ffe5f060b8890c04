"""The law of fused attention: formulas of its tiles, and what must hold of any prediction."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.attention import _AttentionBlocks, _Scores, attention_shape, attention_times
from neusight.kernels import Conditions, KernelBatch, work_of
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
    columns = (t.compute_s, t.dram_s, t.l2_s, t.serial_s, t.fixed_overhead_s, t.switching_j, t.traffic_j)
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


def blocks(gpu: str = "a100-sxm-80gb", **fixed: object) -> _AttentionBlocks:
    shape = {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1024, "kv_len": 1024, "head_dim": 128, "window": 0}
    batch = some(1, **{**shape, **fixed})
    return _AttentionBlocks.of(_Scores.of(batch, load_device(gpu), Conditions.of(1), PHYSICS))


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
