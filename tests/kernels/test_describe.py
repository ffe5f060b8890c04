"""A kernel in a few words."""

from neusight.kernels import (
    KERNEL_CLASSES,
    Attention,
    Collective,
    Conv2d,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    Memory,
    Moe,
    Optimizer,
    RowReduction,
)
from neusight.kernels.describe import describe

MOVED = {"read_bytes": 1, "write_bytes": 1}
IMAGE = {"batch": 2, "in_channels": 3, "out_channels": 64, "height": 9, "width": 9, "stride": 2}
WORDS: dict[Kernel, str] = {
    Gemm(op="bmm", batch=12, m=8, n=16, k=32, layout="nn"): "bmm 12x8x16x32 nn",
    Gemm(m=8, n=16, k=32, bias=True): "linear 8x16x32 tn +bias",
    Conv2d(kernel_height=7, kernel_width=7, **IMAGE): "conv2d forward 2x3x9x9 to 64, 7x7/2",
    Conv2d(kernel_height=7, kernel_width=7, output_height=2, output_width=3, **IMAGE): (
        "conv2d forward 2x3x9x9 to 64x2x3, 7x7/2"
    ),
    Attention(batch=2, heads=8, kv_heads=4, q_len=16, kv_len=32, head_dim=64, causal=True): (
        "attention forward 2x8/4x16x32x64 causal"
    ),
    GroupedGemm(groups=8, tokens=64, n=16, k=32, largest=20): "grouped_gemm forward 64 in 8, 16x32 largest 20",
    Gemm(m=8, n=16, k=32, dtype="bfloat16", weight_dtype="int4"): "linear 8x16x32 tn weights int4",
    Gemm(m=8, n=16, k=32, dtype="float8", scaling="block", quantised=True): (
        "linear 8x16x32 tn scaled by block quantised"
    ),
    Gemm(m=8, n=16, k=32, layout="nt", accumulates=True): "linear 8x16x32 nt accumulated",
    Attention(batch=2, heads=8, kv_heads=1, q_len=1, kv_len=32, head_dim=576, value_dim=512, shared_kv=True): (
        "attention forward 2x8/1x1x32x576/512 shared kv"
    ),
    Attention(batch=2, heads=8, kv_heads=8, q_len=1, kv_len=32, head_dim=64, selected=4): (
        "attention forward 2x8x1x32x64 selected 4"
    ),
    Moe(tokens=64, hidden=128, ffn=32, experts=4, all_experts=16, top_k=2, gated=False, scaling="tensor"): (
        "moe forward 64 on 2 of 4/16, 128x32 balanced without gate scaled by tensor"
    ),
    Elementwise(op="add3", elements=1000, flops=1000, passes=2, **MOVED): "add3 1000 in 2 passes",
    RowReduction(op="softmax", rows=4, cols=8, flops=1, **MOVED): "softmax 4x8",
    Elementwise(op="relu", elements=1000, flops=1000, **MOVED): "relu 1000",
    Memory(op="copy", elements=7, **MOVED): "copy 7",
    Collective(ranks=8, bytes=4096): "all_reduce 4096 B over 8",
    Collective(ranks=16, per_node=8, bytes=4096): "all_reduce 4096 B over 16 of 8 a node",
    Optimizer(op="sgd_fused", elements=7, tensors=2, flops=1, **MOVED): "sgd_fused 7 in 2",
}


def test_every_family_has_words() -> None:
    assert {kernel: describe(kernel) for kernel in WORDS} == WORDS
    assert {kernel.family for kernel in WORDS} == set(KERNEL_CLASSES)
