"""Kernels that fill the feature space: a low-discrepancy sequence for each kind of kernel.

A Sobol sequence (Owen-scrambled, by the seed) covers a box evenly with any number of points, so that every beginning of
it is a balanced sample. Extents are logarithmic; a coordinate of its own says how they are aligned, because libraries
have other kernels for odd extents than for multiples of 8, 64 or 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from neusight.kernels import (
    DTYPE_BYTES,
    Attention,
    Conv2d,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    Memory,
    Optimizer,
    RowReduction,
)
from neusight.kernels.operators import OPERATORS, operator_bytes

Point = np.ndarray
FLOATS = ("bfloat16", "float16", "float32")
_ALIGNMENTS = (1, 8, 64, 128)
_ALIGNED = (0.15, 0.40, 0.70, 1.0)
"""Share of points up to each alignment: most extents in models are multiples of 64 or more."""


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """One kind of kernel; ``weight`` is its share of a set, ``make`` turns a point of [0,1)^``axes`` into one."""

    name: str
    family: str
    weight: float
    dtypes: tuple[str, ...]
    axes: int
    make: Callable[[Point, str], Kernel | None]


def stratum_of(kernel: Kernel) -> str:
    """Name of the kind of a kernel: its family, and what runs it."""
    if isinstance(kernel, Attention) and kernel.q_len == 1:
        return "attention/decode"
    if isinstance(kernel, Conv2d):
        return "conv2d/forward" if kernel.op == "forward" else "conv2d/gradient"
    return f"{kernel.family}/{kernel.op}" if kernel.family in ("gemm", "attention") else kernel.family


def points(axes: int, seed: int) -> Iterator[Point]:
    """The points of a scrambled Sobol sequence, without end."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(axes, scramble=True, rng=np.random.default_rng(seed))
    while True:
        yield from sequence.random(256)


def between(u: float, low: int, high: int, multiple: int = 1) -> int:
    """A whole number from low to high, even on a logarithmic scale, rounded to a multiple (which it is at least)."""
    value = float(low) * (high / low) ** u
    return max(multiple, round(value / multiple) * multiple)


def alignment(u: float) -> int:
    """1, 8, 64 or 128."""
    return _ALIGNMENTS[int(np.searchsorted(_ALIGNED, u, side="right"))]


def pick(u: float, options: tuple[str, ...]) -> str:
    """One of the options, each as often as another."""
    return options[min(int(u * len(options)), len(options) - 1)]


def _linear(u: Point, dtype: str) -> Kernel:
    step = max(alignment(u[3]), 16 if dtype == "float8" else 1)
    layout = pick(u[4], ("tn", "tn", "nn", "nt")) if dtype != "float8" else "tn"
    bias = bool(layout == "tn" and u[5] < 0.4 and dtype != "float8")
    # Tokens come in any number; the width of a layer is what is aligned.
    m = between(u[0], 1, 65536, 1 if u[5] > 0.7 else step)
    n, k = between(u[1], 16, 65536, step), between(u[2], 16, 32768, step)
    return Gemm(op="linear", m=m, n=n, k=k, layout=_stored_layout(layout, m), bias=bias, dtype=dtype)


def _stored_layout(layout: str, m: int) -> str:
    """Layout in which a matrix is stored; a single row is row-major in any case."""
    return f"{layout[0]}n" if m == 1 else layout


def _bmm(u: Point, dtype: str) -> Kernel:
    step = alignment(u[4])
    b, (m, n) = between(u[0], 2, 2048), (between(x, 1, 4096, step) for x in u[1:3])
    layout = _stored_layout(pick(u[5], ("nn", "tn", "nt")), m)
    return Gemm(op="bmm", batch=b, m=m, n=n, k=between(u[3], 16, 4096, min(step, 64)), layout=layout, dtype=dtype)


def _grouped_product(u: Point, dtype: str) -> Kernel:
    groups = 2 ** int(1 + 7 * u[0])
    tokens = between(u[1], groups, 65536, 8)
    largest = 0 if u[4] < 0.5 else min(tokens, ceil(tokens / groups * (1 + 7 * (2 * u[4] - 1))))
    n, k = between(u[2], 256, 16384, 128), between(u[3], 256, 16384, 128)
    return GroupedGemm(groups=groups, tokens=tokens, largest=largest, n=n, k=k, dtype=dtype)


def _conv(u: Point, dtype: str, ops: tuple[str, ...]) -> Kernel | None:
    side, window = between(u[0], 4, 256), (1, 3, 3, 3, 5, 7)[int(6 * u[1])]
    channels, filters = (between(x, 3, 2048, 1 if x < 0.1 else 8) for x in u[2:4])
    stride = 1 if u[5] < 0.7 else 2
    depthwise = u[6] > 0.93 and window > 1
    if side < window:
        return None
    return Conv2d(
        op=pick(u[7], ops), batch=between(u[4], 1, 128), in_channels=channels,
        out_channels=channels if depthwise else filters, height=side, width=side, kernel_height=window,
        kernel_width=window, stride=stride, padding=window // 2, groups=channels if depthwise else 1, dtype=dtype,
    )  # fmt: skip


def _attention(u: Point, dtype: str, op: str) -> Kernel:
    heads, length = (between(u[1], 1, 128), between(u[2], 16, 32768, alignment(u[5])))
    causal = bool(u[4] < 0.6)
    keys = length if causal or u[4] < 0.9 else between(u[2] * u[6], 16, 32768)
    return Attention(
        op=op, batch=between(u[0], 1, 256), heads=heads, kv_heads=_kv_heads(heads, u[6], dtype), q_len=length,
        kv_len=keys, head_dim=(64, 128, 128, 80, 96, 256)[int(6 * u[3])], causal=causal, dtype=dtype,
    )  # fmt: skip


def _kv_heads(heads: int, u: float, dtype: str) -> int:
    """Number of key heads: in half of the cases that of heads, else a divisor, so that queries in groups share keys."""
    return heads if u < 0.5 or dtype == "float32" else next(d for d in (8, 4, 2, 1) if heads % d == 0)


def _decode(u: Point, dtype: str) -> Kernel:
    heads = between(u[1], 1, 128)
    return Attention(
        op="forward", batch=between(u[0], 1, 512), heads=heads, kv_heads=_kv_heads(heads, u[4], dtype), q_len=1,
        kv_len=between(u[2], 16, 131072), head_dim=(64, 128, 128, 256)[int(4 * u[3])], dtype=dtype,
    )  # fmt: skip


_POINTWISE = (
    *("add", "mul", "add", "mul", "div", "sub", "add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "relu"),
    *("relu_backward", "gelu", "gelu_backward", "tanh", "tanh_backward", "silu", "silu_backward", "sigmoid"),
    *("dropout", "dropout_backward", "exp", "rsqrt", "sqrt", "neg", "masked_fill"),
)


def _elementwise(u: Point, dtype: str) -> Kernel:
    op, size = pick(u[0], _POINTWISE), DTYPE_BYTES[dtype]
    cols = between(u[1], 64, 16384, alignment(u[3]))
    elements = cols * between(u[2], 1, 2**20)
    words = _work("elementwise", op, (elements, elements // cols, cols), dtype)
    # One in five adds a row to every row, as a bias does; a mask of masked elements is the same for every row.
    words["read_bytes"] -= (elements - cols) * size if op in ("add", "mul") and u[3] < 0.2 else 0
    words["read_bytes"] -= elements - cols if op == "masked_fill" else 0
    return Elementwise(elements=elements, **words)


def _work(family: str, op: str, extents: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    """Operator, bytes, FLOP and dtype of a kernel of some elements, rows and columns."""
    form = OPERATORS[family][op]
    read, written = operator_bytes(form, extents, DTYPE_BYTES[dtype])
    return {"op": op, "read_bytes": read, "write_bytes": written, "flops": form.flops * extents[0], "dtype": dtype}


_ROW_OPS = (
    *("softmax", "softmax_backward", "log_softmax", "log_softmax_backward", "layer_norm", "layer_norm_backward"),
    *("layer_norm_weight_backward", "batch_norm", "batch_norm_backward", "sum", "mean", "max", "cumsum"),
)


def _rows(u: Point, dtype: str) -> Kernel:
    op = pick(u[0], _ROW_OPS)
    rows, cols = between(u[1], 1, 2**20), between(u[2], 8, 65536, alignment(u[3]))
    if op.startswith("batch_norm") or op.endswith("weight_backward"):
        rows, cols = between(u[1], 8, 8192, 8), between(u[2], 64, 2**20, 8)
    return RowReduction(rows=rows, cols=cols, **_work("row_reduction", op, (rows * cols, rows, cols), dtype))


_MOVES = ("copy", "copy", "cat", "fill", "embedding", "embedding_backward", "gather", "scatter")


def _memory(u: Point, dtype: str) -> Kernel:
    op, width, rows = pick(u[0], _MOVES), between(u[1], 64, 16384, alignment(u[3])), between(u[2], 1, 2**20)
    words = _work("memory", op, (width * rows, rows, width), dtype)
    del words["flops"]
    return Memory(elements=width * rows, **words)


LISTS = {
    "adamw_fused": (4, 3), "sgd_fused": (3, 2), "foreach_add": (1, 1), "foreach_mul": (1, 1), "foreach_lerp": (2, 1),
    "foreach_addcmul": (2, 1), "foreach_addcdiv": (3, 1), "foreach_sqrt": (1, 1), "foreach_div": (1, 1),
}  # fmt: skip
"""Lists read and written, in the forms that optimizers run."""
_STEPS = tuple(op for op in LISTS if op != "foreach_div")
"""Steps that are sampled."""


def _optimizer(u: Point, dtype: str) -> Kernel:
    op, tensors = pick(u[0], _STEPS), between(u[1], 1, 512)
    elements = max(tensors, between(u[2], 2**14, 2**30))
    read, written = LISTS[op]
    size = elements * DTYPE_BYTES[dtype]
    return Optimizer(
        op=op, elements=elements, tensors=tensors, read_bytes=read * size, write_bytes=written * size,
        flops=OPERATORS["optimizer"][op].flops * elements, dtype=dtype,
    )  # fmt: skip


_TF32 = (*FLOATS, "tf32")
STRATA = tuple(
    Stratum(name=name, family=name.partition("/")[0], weight=weight, dtypes=dtypes, axes=axes, make=make)
    for name, weight, dtypes, axes, make in (
        ("gemm/linear", 6, (*_TF32, "float8"), 6, _linear),
        ("gemm/bmm", 2, _TF32, 6, _bmm),
        ("attention/forward", 2, FLOATS, 7, partial(_attention, op="forward")),
        ("attention/backward", 1, FLOATS, 7, partial(_attention, op="backward")),
        ("attention/decode", 1, FLOATS, 5, _decode),
        ("conv2d/forward", 1.2, _TF32, 8, partial(_conv, ops=("forward",))),
        ("conv2d/gradient", 1.2, _TF32, 8, partial(_conv, ops=("input_grad", "weight_grad"))),
        ("elementwise", 2, FLOATS, 4, _elementwise),
        ("row_reduction", 2, FLOATS, 4, _rows),
        ("memory", 1.2, FLOATS, 4, _memory),
        ("optimizer", 0.6, FLOATS, 3, _optimizer),
        ("grouped_gemm", 0.8, ("bfloat16",), 5, _grouped_product),
    )
)
