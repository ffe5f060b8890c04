"""Kernels in words: short enough for a column, exact enough to tell two apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neusight.kernels.families import Kernel


def describe(kernel: Kernel) -> str:
    """A kernel's operator and shape: ``linear 1024x1280x5120 tn`` is m x n x k, as C[m,n] = A[m,k] B[k,n]."""
    return _WORDS[kernel.family](kernel)


def _gemm(k: Any) -> str:
    batch = f"{k.batch}x" if k.batch > 1 else ""
    return f"{k.op} {batch}{k.m}x{k.n}x{k.k} {k.layout}{' +bias' if k.bias else ''}"


def _conv2d(k: Any) -> str:
    shape = f"{k.batch}x{k.in_channels}x{k.height}x{k.width}"
    stride = f"/{k.stride}" if k.stride > 1 else ""
    groups = f" groups {k.groups}" if k.groups > 1 else ""
    return f"conv2d {k.op} {shape} to {k.out_channels}, {k.kernel_height}x{k.kernel_width}{stride}{groups}"


def _attention(k: Any) -> str:
    heads = f"{k.heads}" if k.heads == k.kv_heads else f"{k.heads}/{k.kv_heads}"
    causal, window = " causal" if k.causal else "", f" window {k.window}" if k.window else ""
    cache = f" kv {k.kv_dtype}" if k.kv_dtype else ""
    return f"attention {k.op} {k.batch}x{heads}x{k.q_len}x{k.kv_len}x{k.head_dim}{causal}{window}{cache}"


def _grouped_gemm(k: Any) -> str:
    largest = f" largest {k.largest}" if k.largest else ""
    return f"grouped_gemm {k.op} {k.tokens} in {k.groups}, {k.n}x{k.k}{largest}"


def _rows(k: Any) -> str:
    return f"{k.op} {k.rows}x{k.cols}"


def _elements(k: Any) -> str:
    return f"{k.op} {k.elements}"


def _optimizer(k: Any) -> str:
    return f"{k.op} {k.elements} in {k.tensors}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
    "row_reduction": _rows,
    "elementwise": _elements,
    "memory": _elements,
    "optimizer": _optimizer,
}
