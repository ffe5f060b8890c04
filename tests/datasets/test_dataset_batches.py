from __future__ import annotations

import numpy as np
import pytest

from neusight.datasets import load_kernels, to_batches
from neusight.datasets.clean import measured
from neusight.datasets.schema import KERNEL_TABLES
from neusight.errors import DataError
from neusight.kernels import Conv2d, Elementwise, Gemm, RowReduction
from neusight.kernels.operators import ELEMENTWISE


def only(frame):
    ((batch, positions),) = to_batches(frame)
    assert list(positions) == list(range(len(frame)))
    return batch.kernel(0)


def test_linear_has_bias_and_the_layout_of_forward(rows):
    kernel = only(rows({"op": "linear", "m": 3, "n": 5, "k": 7}))
    assert kernel == Gemm(op="linear", m=3, n=5, k=7, layout="tn", bias=True)


def test_bmm_is_batched_and_layout_is_no_matter_of_the_kernel_name(rows):
    named = {"op": "bmm", "batch": 2, "m": 3, "n": 5, "k": 7, "kernel_name": "volta_sgemm_128x64_tn"}
    assert only(rows(named)) == Gemm(op="bmm", batch=2, m=3, n=5, k=7, layout="nn")


def test_two_tensor_ops_read_two_and_write_one(rows):
    size = 6 * 10 * 4
    two = only(rows({"op": "add", "rows": 6, "cols": 10}))
    assert two == Elementwise(op="add", elements=60, read_bytes=2 * size, write_bytes=size, flops=60)
    one = only(rows({"op": "add", "rows": 6, "cols": 10}).assign(op="gelu"))
    assert (one.read_bytes, one.write_bytes) == (size, size)
    assert one.flops == 60 * ELEMENTWISE["gelu"].flops


def test_layer_norm_also_moves_parameters_and_statistics(rows):
    soft = only(rows({"op": "softmax", "rows": 6, "cols": 10}))
    assert (soft.read_bytes, soft.write_bytes) == (240, 240)
    norm = only(rows({"op": "softmax", "rows": 6, "cols": 10}).assign(op="layer_norm"))
    assert isinstance(norm, RowReduction)
    assert norm.read_bytes - soft.read_bytes == 2 * 10 * 4  # weight and bias
    assert norm.write_bytes - soft.write_bytes == 2 * 6 * 4  # mean and reciprocal deviation


def test_conv2d_is_square_and_counts_its_outputs(rows):
    row = {"op": "conv2d", "batch": 2, "in_channels": 3, "out_channels": 5, "kernel_size": 3, "input_size": 9}
    frame = rows(row | {"stride": 2, "padding": 1})
    kernel = only(frame)
    assert isinstance(kernel, Conv2d) and kernel.op == "forward"
    assert (kernel.height, kernel.width, kernel.kernel_height, kernel.kernel_width) == (9, 9, 3, 3)
    side = (9 + 2 - 3) // 2 + 1
    work = measured(frame)
    assert work.loc[0, "flops"] == 2 * 2 * 5 * side * side * 3 * 9
    assert work.loc[0, "bytes"] == 4 * (2 * 3 * 81 + 2 * 5 * side * side + 3 * 5 * 9)


def test_gemm_work_is_two_mnk(rows):
    work = measured(rows({"op": "bmm", "batch": 2, "m": 3, "n": 5, "k": 7}))
    assert work.loc[0, "flops"] == 2 * 2 * 3 * 5 * 7
    assert work.loc[0, "bytes"] == 4 * 2 * (3 * 7 + 7 * 5 + 3 * 5)


def test_every_row_lands_in_one_batch_at_its_position(rows):
    ops = ["conv2d", "linear", "add", "softmax", "bmm", "add", "linear"]
    frame = rows(*[{"op": op} for op in ops]).set_index(np.arange(7)[::-1])
    seen = {}
    for batch, positions in to_batches(frame):
        for i, position in enumerate(positions):
            assert position not in seen
            seen[position] = batch.kernel(i).op
    assert [seen[i] for i in range(7)] == ["forward", *ops[1:]]


def test_every_op_of_the_schema_becomes_a_kernel(rows):
    templates = {"gemm": "bmm", "row_reduction": "softmax", "conv2d": "conv2d", "elementwise": "add", "memory": "add"}
    for table, template in templates.items():
        for op in KERNEL_TABLES[table].ops:
            ((batch, _),) = to_batches(rows({"op": template}).assign(op=op).drop(columns="family"))
            assert batch.family == table


def test_a_shape_that_is_none_is_located(rows):
    with pytest.raises(DataError, match="row 1: k is 0, must be at least 1"):
        to_batches(rows({}, {"k": 0}))
    with pytest.raises(DataError, match="row 0: n is nan"):
        to_batches(rows({"n": np.nan}))


def test_an_unknown_dtype_and_a_family_without_kernel_are_refused(rows):
    with pytest.raises(DataError, match="dtype 'fp6'"):
        to_batches(rows({"dtype": "fp6"}))
    with pytest.raises(DataError, match="rows of 'fft' are no kernels"):
        to_batches(rows({}).assign(family="fft"))


def test_generation_attends_to_the_cache_and_itself(parquet, rows):
    frame = rows({}).assign(kernel="flash", framework="vllm", version="1", kv_cache_dtype="bfloat16", dtype="bfloat16")
    frame = frame.assign(num_heads=8, num_kv_heads=2, head_dim=64, window=0, kv_len=15).drop(columns=["op", "split"])
    kernel = only(load_kernels(parquet(frame)))
    assert (kernel.q_len, kernel.kv_len, kernel.heads, kernel.kv_heads) == (1, 16, 8, 2)
    assert kernel.kv_dtype == ""
    narrow = only(load_kernels(parquet(frame.assign(kv_cache_dtype="fp8"), "narrow.parquet")))
    assert (narrow.dtype, narrow.kv_dtype) == ("bfloat16", "float8")
    with pytest.raises(DataError, match="kv_cache_dtype 'int4_wo' is no kernel dtype"):
        to_batches(load_kernels(parquet(frame.assign(kv_cache_dtype="int4_wo"), "other.parquet")))
