"""Work of what serving engines run: narrow weights, scaled 8-bit operands, latent and sparse attention, experts."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_grids import moes

from neusight.kernels import KernelBatch, Work, work_of
from neusight.kernels.moe import products_of, routings
from neusight.kernels.named import kernel_named


def gemm(**columns: object) -> Work:
    return work_of(KernelBatch.from_columns("gemm", **{"m": 256, "n": 512, "k": 384} | columns))


def attention(**columns: object) -> Work:
    shape = {"batch": 2, "heads": 8, "kv_heads": 8, "q_len": 1, "kv_len": 100, "head_dim": 64, "dtype": "bfloat16"}
    return work_of(KernelBatch.from_columns("attention", **shape | columns))


def test_weights_lie_in_memory_in_their_own_dtype(subtests: pytest.Subtests) -> None:
    for weight_dtype, size in [("", 2.0), ("int8", 1.0), ("int4", 0.5)]:
        with subtests.test(weight_dtype=weight_dtype):
            work = gemm(dtype="float16", weight_dtype=weight_dtype)
            assert work.read_bytes == 2 * 256 * 384 + size * 384 * 512
            assert work.write_bytes == 2 * 256 * 512
            assert work.flops == 2 * 256 * 512 * 384


def test_scales_are_read_with_their_operands(subtests: pytest.Subtests) -> None:
    operands = 256 * 384 + 384 * 512
    # Four bytes each: a row of A and a column of B; 128 values of a row of A and 128x128 of B.
    for scaling, scales in [("", 0), ("tensor", 0), ("row", 256 + 512), ("block", 256 * 3 + 3 * 4)]:
        with subtests.test(scaling=scaling):
            assert gemm(dtype="float8", scaling=scaling).read_bytes == operands + 4 * scales


def test_quantising_reads_16_bits_and_writes_8() -> None:
    made, given = gemm(dtype="float8", quantised=True), gemm(dtype="float8")
    assert made.read_bytes - given.read_bytes == 2 * 256 * 384
    assert made.write_bytes - given.write_bytes == 256 * 384
    assert made.flops == given.flops


def test_what_is_accumulated_to_has_float32_and_is_read_too() -> None:
    plain, summed = gemm(dtype="bfloat16"), gemm(dtype="bfloat16", accumulates=True)
    assert summed.read_bytes - plain.read_bytes == 4 * 256 * 512
    assert summed.write_bytes - plain.write_bytes == (4 - 2) * 256 * 512
    assert summed.flops == plain.flops


def test_latent_attention_reads_its_cache_once() -> None:
    # DeepSeek's decoding: 512 latent values and 64 of rope are the keys, the 512 are the values too.
    shape = {"heads": 128, "kv_heads": 1, "head_dim": 576, "value_dim": 512}
    work = attention(**shape, shared_kv=True)
    assert work.flops == 2 * (576 + 512) * 2 * 128 * 100
    assert work.read_bytes == 2 * (2 * 128 * 576 + 2 * 100 * 576)
    assert work.write_bytes == 2 * (2 * 128 * 512) + 4 * 2 * 128
    assert attention(**shape).read_bytes - work.read_bytes == 2 * 2 * 100 * 512


def test_values_as_wide_as_keys_need_not_be_told() -> None:
    for op in ("forward", "backward"):
        assert attention(op=op, value_dim=64) == attention(op=op)


def test_sparse_attention_takes_what_it_selected() -> None:
    shape = {"kv_heads": 1, "q_len": 3, "kv_len": 1000, "causal": True}
    work = attention(**shape, selected=20)
    assert work.flops == 4 * 64 * 2 * 8 * 3 * 20
    # Three queries cannot touch more than sixty keys, nor more than there are.
    assert work.read_bytes == 2 * (2 * 8 * 3 * 64 + 2 * 60 * 2 * 64)
    assert attention(**shape, selected=5000).read_bytes == attention(**shape).read_bytes
    assert attention(**shape, selected=5000).flops == attention(**shape).flops


def test_selected_keys_are_at_most_those_that_a_query_sees() -> None:
    # Of queries that see one to six keys, each takes four at most.
    work = attention(q_len=6, kv_len=6, causal=True, selected=4)
    assert work.flops == 4 * 64 * 2 * 8 * (1 + 2 + 3 + 4 + 4 + 4)


def test_an_indexer_makes_scores_alone() -> None:
    work = attention(op="indexer", heads=64, kv_heads=1, q_len=4, kv_len=10, head_dim=128, causal=True, dtype="float8")
    pairs = 7 + 8 + 9 + 10
    assert work.flops == (2 * 128 + 2) * 2 * 64 * pairs
    assert work.read_bytes == 2 * 64 * 4 * 128 + 2 * 10 * 128
    assert work.write_bytes == 4 * 2 * pairs


def test_eight_bit_attention_writes_16_bits() -> None:
    assert attention(dtype="float8").write_bytes == attention().write_bytes
    assert 2 * attention(dtype="float8").read_bytes == attention().read_bytes


def test_a_prefix_is_keys_that_all_queries_see() -> None:
    work = attention(q_len=16, kv_len=116, causal=True)
    assert work.flops == 4 * 64 * 2 * 8 * sum(range(101, 117))


def moe(**columns: object) -> KernelBatch:
    shape = {"tokens": 64, "hidden": 256, "ffn": 128, "experts": 8, "all_experts": 8, "top_k": 2, "dtype": "bfloat16"}
    return KernelBatch.from_columns("moe", **shape | columns)


def test_a_layer_of_experts_is_two_products_and_the_passes_beside_them(subtests: pytest.Subtests) -> None:
    pairs, hidden, ffn, tokens = 128, 256, 128, 64
    for gated, gates in [(True, 2), (False, 1)]:
        with subtests.test(gated=gated):
            work = work_of(moe(gated=gated))
            assert work.flops == 2 * pairs * hidden * ffn * (gates + 1)
            weights = 8 * hidden * ffn * (gates + 1)
            # Each token once; the activation and the product down read what is between; then the sum.
            read = tokens * hidden + weights + pairs * (gates * ffn + ffn + hidden)
            written = pairs * (gates * ffn + ffn + hidden) + tokens * hidden
            assert work.read_bytes == 2 * read
            assert work.write_bytes == 2 * written


def test_eight_bit_experts_keep_16_bits_between() -> None:
    pairs, hidden, ffn, tokens = 128, 256, 128, 64
    work = work_of(moe(dtype="float8"))
    weights = 8 * hidden * ffn * 3
    read = 2 * tokens * hidden + tokens * hidden + weights + 2 * pairs * 2 * ffn + pairs * ffn + 2 * pairs * hidden
    assert work.read_bytes == read
    assert work.write_bytes == tokens * hidden + pairs * (2 * 2 * ffn + ffn + 2 * hidden) + 2 * tokens * hidden


def test_one_token_reads_the_weights_of_its_experts() -> None:
    work = work_of(moe(tokens=1))
    assert work.read_bytes == 2 * (256 + 2 * 3 * 256 * 128 + 2 * (2 * 128 + 128 + 256))


def test_devices_share_the_pairs() -> None:
    whole, share = moe(tokens=4096), moe(tokens=4096, experts=2)
    assert routings(whole)[:, 0] == 4 * routings(share)[:, 0] == 8192
    assert work_of(whole).flops == 4 * work_of(share).flops
    assert (routings(whole)[:, 1], routings(share)[:, 1]) == (8, 2)


def test_operators_of_engines_move_what_their_passes_do(subtests: pytest.Subtests) -> None:
    rows, cols = 10, 1024
    for op, read, written, passes in [
        # Sixteen bits an element; angles of a head of 128 and a position's number a row.
        ("rope", 2 * (cols + 128) + 8, 2 * cols, 1),
        ("silu_and_mul", 2 * 2 * cols, 2 * cols, 1),
        ("silu_mul_eager", 2 * 3 * cols, 2 * 2 * cols, 2),
        ("add3", 2 * 4 * cols, 2 * 2 * cols, 2),
        # q·cos, -half, both halves, ·sin, the sum of two: 5.5 elements in, 4.5 out, and what gathers the angles.
        ("rope_eager", 11 * cols + 2 * 256 + 16, 9 * cols + 2 * 256, 12),
    ]:
        with subtests.test(op=op):
            kernel = kernel_named(op, {"rows": rows, "cols": cols, "dtype": "bfloat16"}).kernel(0)
            assert (kernel.read_bytes, kernel.write_bytes, kernel.passes) == (rows * read, rows * written, passes)
            assert kernel.elements == rows * cols


def test_operators_of_training_frameworks_move_what_their_passes_do(subtests: pytest.Subtests) -> None:
    rows, cols = 10, 1024
    for op, read, written, passes in [
        # Sixteen bits an element, a bias a column for all rows, a byte of a mask.
        ("swiglu", 2 * 2 * cols, 2 * cols, 1),
        ("swiglu_backward", 3 * 2 * cols, 2 * 2 * cols, 1),
        ("bias_gelu", 2 * cols + 2 * cols / rows, 2 * cols, 1),
        ("bias_dropout_add", 2 * 2 * cols + 2 * cols / rows, 3 * cols, 1),
        # To complex float32, the product, and back.
        ("rotary_complex", (2 + 4 + 4) * cols, (4 + 4 + 2) * cols, 3),
        ("quantise", 2 * cols, 2 * cols, 1),
        ("accumulate", (2 + 4) * cols, 4 * cols, 1),
        # To float32, and the sum of two.
        ("accumulate_widened", (2 + 4 + 4) * cols, (4 + 4) * cols, 2),
    ]:
        with subtests.test(op=op):
            kernel = kernel_named(op, {"rows": rows, "cols": cols, "dtype": "bfloat16"}).kernel(0)
            assert (kernel.read_bytes, kernel.write_bytes, kernel.passes) == (rows * read, rows * written, passes)


def test_norms_of_engines_move_what_their_passes_do() -> None:
    rows, cols = 10, 1024
    shape = {"rows": rows, "cols": cols, "dtype": "float16"}
    fused = kernel_named("add_rms_norm", shape).kernel(0)
    assert (fused.read_bytes, fused.write_bytes, fused.passes) == (2 * (2 * rows + 1) * cols, 2 * 2 * rows * cols, 1)
    eager = kernel_named("rms_norm_eager", shape).kernel(0)
    # 16 bits in, then 32: to float32, square, mean, product, back and the weight, with three values a row between.
    reads = rows * (cols * (2 + 4 + 4 + 4 + 4 + 2) + 12) + 2 * cols
    writes = rows * (cols * (4 + 4 + 4 + 2 + 2) + 12)
    assert (eager.read_bytes, eager.write_bytes, eager.passes) == (reads, writes, 8)


def test_work_of_a_column_is_that_of_its_rows() -> None:
    tokens = np.array([1, 64, 4096])
    together = work_of(moe(tokens=tokens, distribution="power_law_1.2"))
    alone = [work_of(moe(tokens=int(n), distribution="power_law_1.2")).bytes[0] for n in tokens]
    assert together.bytes.tolist() == alone


def test_experts_of_any_layer_do_what_their_products_do() -> None:
    batch = moes(np.random.default_rng(0), 200, "bfloat16")
    work, products = work_of(batch), [work_of(product) for product in products_of(batch)]
    assert (work.flops == products[0].flops + products[1].flops).all()
    assert (work.read_bytes > batch["tokens"].clip(max=routings(batch)[:, 0]) * batch["hidden"] * 2).all()
    assert (work.write_bytes >= 2 * batch["tokens"] * batch["hidden"]).all()
    assert (routings(batch)[:, 1] <= batch["experts"]).all()
