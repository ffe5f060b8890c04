"""A name and a shape become the same kernel that a trace or a data set would hold."""

import pytest

from neusight.errors import CoverageError
from neusight.kernels import Attention, Conv2d, Elementwise, Gemm, GroupedGemm, Memory, Optimizer, RowReduction
from neusight.kernels.describe import describe
from neusight.kernels.named import kernel_named


def test_shape_says_the_rest(subtests: pytest.Subtests) -> None:
    for name, given, kernel in [
        ("gemm", {"m": 8, "n": 16, "k": 32}, Gemm(m=8, n=16, k=32)),
        ("linear", {"m": "8", "n": "16", "k": "32", "bias": "true"}, Gemm(m=8, n=16, k=32, bias=True)),
        ("bmm", {"batch": 4, "m": 8, "n": 16, "k": 32}, Gemm(op="bmm", batch=4, m=8, n=16, k=32, layout="nn")),
        # two operands in, one result out, 4 bytes each, one FLOP an element
        ("add", {"elements": 100}, Elementwise(op="add", elements=100, read_bytes=800, write_bytes=400, flops=100)),
        (
            "relu",
            {"rows": 10, "cols": 10, "dtype": "float16"},
            Elementwise(op="relu", elements=100, read_bytes=200, write_bytes=200, flops=100, dtype="float16"),
        ),
        # a sum reads everything and writes a value a row
        (
            "sum",
            {"rows": 4, "cols": 8},
            RowReduction(op="sum", rows=4, cols=8, read_bytes=128, write_bytes=16, flops=32),
        ),
        ("copy", {"elements": 7}, Memory(op="copy", elements=7, read_bytes=28, write_bytes=28)),
        ("fill", {"elements": 7}, Memory(op="fill", elements=7, read_bytes=0, write_bytes=28)),
        (
            "adamw_fused",
            {"elements": 10},
            Optimizer(op="adamw_fused", elements=10, tensors=1, read_bytes=160, write_bytes=120, flops=290),
        ),
        (
            "conv2d",
            {"batch": 1, "in_channels": 3, "out_channels": 8, "size": 9, "kernel": 3, "padding": 0},
            Conv2d(batch=1, in_channels=3, out_channels=8, height=9, width=9, kernel_height=3, kernel_width=3),
        ),
        (
            "attention",
            {"batch": 1, "heads": 2, "kv_heads": 2, "seq_len": 16, "head_dim": 64},
            Attention(batch=1, heads=2, kv_heads=2, q_len=16, kv_len=16, head_dim=64),
        ),
        (
            "attention",
            {
                "batch": 1,
                "heads": 8,
                "kv_heads": 2,
                "q_len": 1,
                "kv_len": 16,
                "head_dim": 64,
                "dtype": "bf16",
                "kv_dtype": "fp8",
            },
            Attention(
                batch=1, heads=8, kv_heads=2, q_len=1, kv_len=16, head_dim=64, dtype="bfloat16", kv_dtype="float8"
            ),
        ),
        (
            "grouped_gemm",
            {"groups": 8, "tokens": 4096, "n": 14336, "k": "4096", "dtype": "bfloat16"},
            GroupedGemm(groups=8, tokens=4096, n=14336, k=4096, dtype="bfloat16"),
        ),
        (
            "grouped_gemm",
            {"groups": 8, "tokens": 9, "n": 1, "k": 1, "largest": 2},
            GroupedGemm(groups=8, tokens=9, n=1, k=1, largest=2),
        ),
    ]:
        with subtests.test(name=name, given=given, kernel=kernel):
            batch = kernel_named(name, given)
            assert len(batch) == 1
            assert batch.kernel(0) == kernel


def test_layer_norm_is_the_kernel_of_the_data_set() -> None:
    """Scale and shift are read, two statistics a row are written."""
    kernel = kernel_named("layer_norm", {"rows": 6, "cols": 10}).kernel(0)
    assert (kernel.read_bytes, kernel.write_bytes) == ((60 + 20) * 4, (60 + 12) * 4)


def test_given_bytes_win() -> None:
    assert kernel_named("gelu", {"elements": 10, "read_bytes": 1}).kernel(0).read_bytes == 1


def test_what_is_wrong_is_said(subtests: pytest.Subtests) -> None:
    for name, given, message in [
        ("gem", {}, "unknown kernel 'gem'; did you mean gemm"),
        ("gemm", {"m": 1, "n": 1}, "gemm needs k"),
        ("gemm", {"m": 1, "n": 1, "q": 1}, "gemm has no field 'q'"),
        ("gemm", {"m": 0, "n": 1, "k": 1}, "m=0: must be at least 1"),
        ("gemm", {"m": "x", "n": 1, "k": 1}, "m=x: not a whole number"),
        ("gemm", {"m": 1, "n": 1, "k": 1, "bias": "maybe"}, "bias=maybe: not a truth value"),
        ("gemm", {"m": 1, "n": 1, "k": 1, "dtype": "floot32"}, "unknown dtype 'floot32'; did you mean float32"),
        ("elementwise", {"elements": 1}, "elementwise needs op"),
        ("grouped_gemm", {"groups": 8, "tokens": 9, "k": 1}, "grouped_gemm needs n"),
        ("grouped_gemm", {"groups": 8, "tokens": 9, "n": 1, "k": 1, "largest": 1}, "largest=1: 9 tokens in 8 groups"),
        ("grouped_gemm", {"groups": 8, "tokens": 9, "n": 1, "k": 1, "largest": 10}, "largest=10: 9 tokens in 8"),
        ("elementwise", {"op": "gleu", "elements": 1}, "unknown operator 'gleu'; did you mean glu, gelu"),
        ("softmax", {"rows": 1}, "row_reduction needs cols"),
        ("gemm", {"m": 1, "n": 1, "k": 1, "layout": "xy"}, "layout=xy: must be one of tn, nn, nt, tt"),
        ("gemm", {"m": 10**30, "n": 1, "k": 1}, f"m={10**30}: must be at most"),
        ("sum", {"rows": 2**40, "cols": 2**40}, "row_reduction would have flops of 1.21 trillion trillion"),
        (
            "conv2d",
            {"in_channels": 3, "out_channels": 3, "size": 3, "kernel": 7},
            "a filter of height 7 is larger than its padded input of 3",
        ),
        (
            "conv2d",
            {"in_channels": 8, "out_channels": 9, "size": 3, "kernel": 3, "groups": 4},
            "groups=4 does not divide out_channels=9",
        ),
        ("attention", {"heads": 8, "kv_heads": 3, "q_len": 8, "head_dim": 64}, "kv_heads=3 does not divide heads=8"),
        ("polar", {"elements": 4}, "elementwise needs read_bytes, write_bytes"),
        ("optimizer", {"op": "foreach_add", "elements": 4}, "optimizer needs tensors, read_bytes"),
    ]:
        with subtests.test(name=name, given=given, message=message):
            with pytest.raises(CoverageError) as caught:
                kernel_named(name, given)
            assert message in str(caught.value)


def test_a_kernel_in_words_tells_its_window_and_its_cache() -> None:
    shape = {"batch": 1, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 16, "head_dim": 64}
    assert describe(Attention(**shape)) == "attention forward 1x8/2x1x16x64"
    narrow = Attention(**shape, causal=True, window=4, kv_dtype="float8")
    assert describe(narrow) == "attention forward 1x8/2x1x16x64 causal window 4 kv float8"
