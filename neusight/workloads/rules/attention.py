"""Fused attention: one kernel forward, two backward (row sums of gradient times output, then the gradients)."""

from __future__ import annotations

from neusight.kernels import Attention, Kernel, RowReduction
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec


def _attention(op: str, q: TensorSpec, k: TensorSpec, causal: bool) -> Attention:
    """From [batch, heads, length, head_dim] queries and keys."""
    batch, heads, q_len, head_dim = q.shape
    return Attention(
        op=op, batch=batch, heads=heads, kv_heads=k.shape[1], q_len=q_len, kv_len=k.shape[2], head_dim=head_dim,
        causal=causal, dtype=q.dtype,
    )  # fmt: skip


@rule("_scaled_dot_product_flash_attention")
def flash(call: Call) -> tuple[Kernel, ...]:
    """Arguments: q, k, v, dropout_p, is_causal."""
    return (_attention("forward", call.args[0], call.args[1], bool(call.arg(4, "is_causal", False))),)


@rule("_scaled_dot_product_efficient_attention")
def efficient(call: Call) -> tuple[Kernel, ...]:
    """Arguments: q, k, v, bias, compute_log_sumexp, dropout_p, is_causal."""
    return (_attention("forward", call.args[0], call.args[1], bool(call.arg(6, "is_causal", False))),)


def _backward(grad: TensorSpec, q: TensorSpec, k: TensorSpec, causal: bool) -> tuple[Kernel, ...]:
    rows = grad.elements // grad.shape[-1]
    delta = RowReduction(
        op="sum", rows=rows, cols=grad.shape[-1], read_bytes=2 * grad.nbytes, write_bytes=4 * rows,
        flops=(ELEMENTWISE["mul"].flops + ROW_REDUCTION["sum"].flops) * grad.elements, dtype=grad.dtype,
    )  # fmt: skip
    return (delta, _attention("backward", q, k, causal))


@rule("_scaled_dot_product_flash_attention_backward")
def flash_backward(call: Call) -> tuple[Kernel, ...]:
    """Arguments: grad, q, k, v, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal."""
    return _backward(call.args[0], call.args[1], call.args[2], bool(call.arg(11, "is_causal", False)))


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(call: Call) -> tuple[Kernel, ...]:
    """Arguments: grad, q, k, v, bias, out, logsumexp, seed, offset, dropout_p, grad_input_mask, is_causal."""
    return _backward(call.args[0], call.args[1], call.args[2], bool(call.arg(11, "is_causal", False)))
