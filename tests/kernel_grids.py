"""Seeded kernels of every family, in shapes from a handful of numbers to whole layers, for tests of invariants."""

from __future__ import annotations

from typing import Any

import numpy as np

from neusight.kernels import DTYPE_BYTES, KernelBatch


def sizes(rng: np.random.Generator, n: int, low: int, high: int) -> np.ndarray:
    """Log-uniform integers; half of them multiples of eight where the range allows."""
    drawn = np.exp(rng.uniform(np.log(low), np.log(high + 1), n)).astype(int)
    return np.where((np.arange(n) % 2 == 0) & (drawn >= 8), drawn // 8 * 8, drawn)


def gemms(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    bmm = np.arange(n) % 2 == 1
    columns: dict[str, Any] = {name: sizes(rng, n, 1, 8192) for name in ("m", "n", "k")}
    batch = np.where(bmm, sizes(rng, n, 1, 128), 1)
    op = np.where(bmm, "bmm", "linear")
    return KernelBatch.from_columns("gemm", op=op, batch=batch, bias=~bmm, dtype=dtype, **columns)


def convolutions(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    kernel = rng.choice([1, 3, 5, 7], n)
    groups = rng.choice([1, 1, 1, 4], n)
    return KernelBatch.from_columns(
        "conv2d",
        op=rng.choice(["forward", "input_grad", "weight_grad"], n),
        batch=sizes(rng, n, 1, 64),
        in_channels=groups * sizes(rng, n, 1, 256),
        out_channels=groups * sizes(rng, n, 1, 256),
        height=sizes(rng, n, 7, 224),
        width=sizes(rng, n, 7, 224),
        kernel_height=kernel,
        kernel_width=kernel,
        stride=rng.choice([1, 1, 2], n),
        padding=kernel // 2,
        groups=groups,
        dtype=dtype,
    )


def attentions(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    queries = sizes(rng, n, 1, 4096)
    kv_heads = rng.choice([1, 2, 8], n)
    return KernelBatch.from_columns(
        "attention",
        op=rng.choice(["forward", "backward"], n),
        batch=sizes(rng, n, 1, 32),
        heads=kv_heads * rng.choice([1, 4], n),
        kv_heads=kv_heads,
        q_len=queries,
        kv_len=queries + sizes(rng, n, 1, 4096),
        head_dim=rng.choice([32, 64, 128], n),
        causal=rng.random(n) < 0.5,
        window=rng.choice([0, 0, 128, 4096], n),
        dtype=dtype,
    )


def grouped_gemms(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    """Tokens spread evenly, fallen on one group, or with a fullest group in between."""
    groups, tokens = sizes(rng, n, 1, 128), sizes(rng, n, 1, 32768)
    even = -(-tokens // groups)
    largest = np.choose(np.arange(n) % 3, [0, tokens, (even + tokens) // 2])
    extents = {name: sizes(rng, n, 1, 8192) for name in ("n", "k")}
    return KernelBatch.from_columns(
        "grouped_gemm", groups=groups, tokens=tokens, largest=largest, dtype=dtype, **extents
    )


def moes(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    """From a token or two to a long prompt, on one device or its share of up to eight."""
    everyone = rng.choice([8, 64, 128], n)
    return KernelBatch.from_columns(
        "moe",
        tokens=sizes(rng, n, 1, 16384),
        hidden=sizes(rng, n, 64, 8192),
        ffn=sizes(rng, n, 64, 4096),
        experts=everyone // rng.choice([1, 2, 8], n),
        all_experts=everyone,
        top_k=rng.choice([1, 2, 8], n),
        gated=rng.random(n) < 0.7,
        distribution=rng.choice(["balanced", "uniform", "power_law_1.01", "power_law_1.2"], n),
        dtype=dtype,
    )


def elementwise(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    op, elements = rng.choice(["add", "mul", "gelu", "relu", "tanh"], n), sizes(rng, n, 1, 2**28)
    size = DTYPE_BYTES[dtype]
    reads = size * elements * np.where(np.isin(op, ["add", "mul"]), 2, 1)
    return KernelBatch.from_columns(
        "elementwise", op=op, elements=elements, read_bytes=reads, write_bytes=size * elements, flops=elements,
        dtype=dtype,
    )  # fmt: skip


def row_reductions(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    rows, cols = sizes(rng, n, 1, 65536), sizes(rng, n, 1, 8192)
    moved = DTYPE_BYTES[dtype] * rows * cols
    op = rng.choice(["softmax", "log_softmax", "layer_norm", "layer_norm_backward", "sum", "batch_norm"], n)
    return KernelBatch.from_columns(
        "row_reduction", op=op, rows=rows, cols=cols, read_bytes=moved, write_bytes=moved, flops=5 * rows * cols,
        dtype=dtype,
    )  # fmt: skip


def moves(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    elements = sizes(rng, n, 1, 2**27)
    moved = DTYPE_BYTES[dtype] * elements
    return KernelBatch.from_columns(
        "memory", op=rng.choice(["copy", "fill", "embedding"], n), elements=elements, read_bytes=moved,
        write_bytes=moved, dtype=dtype,
    )  # fmt: skip


def optimizers(rng: np.random.Generator, n: int = 40, dtype: str = "float32") -> KernelBatch:
    elements = sizes(rng, n, 1, 2**27)
    moved = DTYPE_BYTES[dtype] * elements
    return KernelBatch.from_columns(
        "optimizer", op=rng.choice(["adamw_fused", "foreach_add"], n), elements=elements, tensors=12,
        read_bytes=4 * moved, write_bytes=3 * moved, flops=12 * elements, dtype=dtype,
    )  # fmt: skip


MAKERS = {
    "gemm": gemms,
    "conv2d": convolutions,
    "attention": attentions,
    "grouped_gemm": grouped_gemms,
    "elementwise": elementwise,
    "row_reduction": row_reductions,
    "memory": moves,
    "optimizer": optimizers,
}
"""Families of single kernels."""
EVERY = {**MAKERS, "moe": moes}
"""With layers of several kernels."""


def grid(family: str, n: int = 40, dtype: str = "float32", seed: int = 0) -> KernelBatch:
    """``n`` kernels of a family, the same ones for the same seed."""
    return EVERY[family](np.random.default_rng(seed), n, dtype)
