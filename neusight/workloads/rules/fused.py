"""Kernels of libraries for GPUs that fuse a recurrence, a convolution or attention; see ``trace.fused_kernels``.

Arguments are the operands, the shape of the result, and sizes; backward passes get the gradient before the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from neusight.kernels import Attention, Elementwise, Gemm, Kernel
from neusight.kernels.operators import ELEMENTWISE
from neusight.workloads.chunks import SCAN_FLOPS, Product, delta_rule_product, scan_product
from neusight.workloads.rules.gemm import gradient_row_sums
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.tensors import Call, TensorSpec

FUSED = "triton::"
"""Namespace of operators that are functions of autograd in Python, or in Triton, see ``workloads.dispatch``."""
BACKWARD = "_backward"
_PASSES = {"": 1, BACKWARD: 3}
"""Work of a pass over that of the forward pass: the backward pass computes states again, then gradients of two
operands of each product."""
_STEP_FLOPS = 6
"""FLOP of a step of a state: decayed, added to and read out."""
_WKV_FLOPS = 4 * ELEMENTWISE["exp"].flops + 19
"""FLOP of RWKV's attention for each channel and token: four exponentials, ten sums, six products, two maxima and a
quotient (BlinkDL/RWKV-LM, ``wkv_cuda.cu``)."""


def _both(name: str) -> Callable[[Callable[..., tuple[Kernel, ...]]], None]:
    """Register a function of a call and its passes as the rule of an operator and of its backward pass."""

    def register(function: Callable[..., tuple[Kernel, ...]]) -> None:
        for suffix, passes in _PASSES.items():
            rule(f"{FUSED}{name}{suffix}")(partial(function, passes=passes))

    return register


def _operands(call: Call) -> tuple[TensorSpec, ...]:
    operands: tuple[TensorSpec, ...] = next(value for value in call.args if isinstance(value, tuple))
    return operands


@_both("causal_conv1d")
def _convolution(call: Call, passes: int) -> tuple[Elementwise, ...]:
    """Depthwise convolution of [batch, channels, tokens] with its activation."""
    x, filters = _operands(call)[:2]
    flops = (ELEMENTWISE["silu"].flops + 2 * filters.shape[-1]) * x.elements
    return one_pass(call, "silu", x.elements, passes * flops)


@_both("selective_scan")
def _selective_scan(call: Call, passes: int) -> tuple[Elementwise, ...]:
    """Scan of [batch, channels, tokens] with a state of [channels, states] in registers (Gu and Dao 2023, section
    3.3.2).
    """
    x, states = _operands(call)[0], call.args[-1][0]
    return one_pass(call, "mul", x.elements, passes * SCAN_FLOPS * states * x.elements)


@_both("state_steps")
def _state_steps(call: Call, passes: int) -> tuple[Elementwise, ...]:
    """Token by token; sizes are the elements of a token's state over those of its values."""
    x, states = _operands(call)[0], call.args[-1][0]
    return one_pass(call, "mul", x.elements, passes * _STEP_FLOPS * states * x.elements)


@_both("wkv")
def _wkv(call: Call, passes: int) -> tuple[Elementwise, ...]:
    """RWKV's attention over [batch, tokens, channels]."""
    x = _operands(call)[0]
    return one_pass(call, "mul", x.elements, passes * _WKV_FLOPS * x.elements)


@_both("chunk_delta_rule")
def _delta_rule(call: Call, passes: int) -> tuple[Gemm, ...]:
    """Delta rule of values, queries and keys of [batch, tokens, heads, width]."""
    values, _, keys = _operands(call)[:3]
    return _in_chunks(values, delta_rule_product(keys.shape[-1], values.shape[-1])) * passes


@_both("chunk_scan")
def _chunk_scan(call: Call, passes: int) -> tuple[Gemm, ...]:
    """Scan in chunks of values of [batch, tokens, heads, width] and input matrices of [batch, tokens, groups,
    states].
    """
    values, inputs = _operands(call)[:2]
    share = inputs.shape[-2] * inputs.shape[-1] / (values.shape[-2] * values.shape[-1])
    return _in_chunks(values, scan_product(values.shape[-1], inputs.shape[-1], share, call.args[-1][0])) * passes


def _in_chunks(values: TensorSpec, product: Product) -> tuple[Gemm, ...]:
    """All products of all chunks and heads as one of the same FLOP."""
    batch, tokens, heads, _ = values.shape
    m, n, k = product
    return (Gemm(op="bmm", batch=batch * -(-tokens // m) * heads, m=m, n=n, k=k, layout="nn", dtype=values.dtype),)


@rule(f"{FUSED}flex_attention")
def _flex_attention(call: Call) -> tuple[Kernel, ...]:
    return (_attention("forward", call),)


@rule(f"{FUSED}flex_attention{BACKWARD}")
def _flex_attention_backward(call: Call) -> tuple[Kernel, ...]:
    return gradient_row_sums(call.args[0]), _attention("backward", call)


def _attention(op: str, call: Call) -> Attention:
    """Attention of queries, keys and values; sizes: whether causal, the window, and the keys of a query where a mask
    chooses.
    """
    query, key, value = _operands(call)
    causal, window, selected = call.args[-1]
    return Attention(
        op=op, batch=query.shape[0], heads=query.shape[1], kv_heads=key.shape[1], q_len=query.shape[2],
        kv_len=key.shape[2], head_dim=query.shape[3], causal=bool(causal), window=window, dtype=query.dtype,
        value_dim=value.shape[3] if value.shape[3] != query.shape[3] else 0, selected=selected,
    )  # fmt: skip
