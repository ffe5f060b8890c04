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
    quantised = " quantised" if k.quantised else ""
    summed = " accumulated" if k.accumulates else ""
    bias = " +bias" if k.bias else ""
    return f"{k.op} {batch}{k.m}x{k.n}x{k.k} {k.layout}{bias}{_operand_formats(k)}{quantised}{summed}"


def _operand_formats(k: Any) -> str:
    """Words for the dtype of narrow weights and for the scaling of operands; '' where neither differs."""
    weights = f" weights {k.weight_dtype}" if k.weight_dtype else ""
    return weights + (f" scaled by {k.scaling}" if k.scaling else "")


def _conv2d(k: Any) -> str:
    shape = f"{k.batch}x{k.in_channels}x{k.height}x{k.width}"
    stride = f"/{k.stride}" if k.stride > 1 else ""
    groups = f" groups {k.groups}" if k.groups > 1 else ""
    output = f"x{k.output_height}x{k.output_width}" if k.output_height else ""
    return f"conv2d {k.op} {shape} to {k.out_channels}{output}, {k.kernel_height}x{k.kernel_width}{stride}{groups}"


def _attention(k: Any) -> str:
    heads = f"{k.heads}" if k.heads == k.kv_heads else f"{k.heads}/{k.kv_heads}"
    causal, window = " causal" if k.causal else "", f" window {k.window}" if k.window else ""
    cache = f" kv {k.kv_dtype}" if k.kv_dtype else ""
    values = f"/{k.value_dim}" if k.value_dim else ""
    shared, selected = " shared kv" if k.shared_kv else "", f" selected {k.selected}" if k.selected else ""
    shape = f"{k.batch}x{heads}x{k.q_len}x{k.kv_len}x{k.head_dim}{values}"
    return f"attention {k.op} {shape}{causal}{window}{cache}{shared}{selected}"


def _grouped_gemm(k: Any) -> str:
    largest = f" largest {k.largest}" if k.largest else ""
    return f"grouped_gemm {k.op} {k.tokens} in {k.groups}, {k.n}x{k.k}{largest}{_operand_formats(k)}"


def _moe(k: Any) -> str:
    experts = f"{k.top_k} of {k.experts}/{k.all_experts}"
    gated = "" if k.gated else " without gate"
    return f"moe {k.op} {k.tokens} on {experts}, {k.hidden}x{k.ffn} {k.distribution}{gated}{_operand_formats(k)}"


def _rows(k: Any) -> str:
    return f"{k.op} {k.rows}x{k.cols}{_passes(k)}"


def _elements(k: Any) -> str:
    return f"{k.op} {k.elements}"


def _pointwise(k: Any) -> str:
    return f"{k.op} {k.elements}{_passes(k)}"


def _passes(k: Any) -> str:
    return f" in {k.passes} passes" if k.passes > 1 else ""


def _optimizer(k: Any) -> str:
    return f"{k.op} {k.elements} in {k.tensors}"


def _collective(k: Any) -> str:
    nodes = f" of {k.per_node} a node" if 0 < k.per_node < k.ranks else ""
    algorithm = f" in {k.algorithm}" if k.algorithm else ""
    blocks = f" by {k.max_ctas} blocks" if k.max_ctas else ""
    return f"{k.op} {k.bytes} B over {k.ranks}{nodes}{algorithm}{blocks}"


_WORDS: dict[str, Callable[[Any], str]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
    "moe": _moe,
    "row_reduction": _rows,
    "elementwise": _pointwise,
    "memory": _elements,
    "optimizer": _optimizer,
    "collective": _collective,
}
