"""Launches of fused attention: flash in half precision, memory-efficient in float32, as PyTorch picks on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from neusight.collect.launches import Launch, Operands, Source, launcher, unmeasurable
from neusight.kernels import Attention


@launcher("attention")
def attention(kernel: Attention) -> Launch:
    """Queries, keys and values as [batch, heads, length, head_dim]; a decode step has one query.

    The backward pass includes its first stage, the row sums of output times gradient, which runs as a small kernel of
    its own.
    """
    if kernel.window or (kernel.causal and kernel.q_len != kernel.kv_len):
        raise unmeasurable(kernel)

    def tensors(source: Source) -> Operands:
        q = source.normal(kernel.batch, kernel.heads, kernel.q_len, kernel.head_dim, dtype=kernel.dtype)
        pair = (kernel.batch, kernel.kv_heads, kernel.kv_len, kernel.head_dim)
        return q, source.normal(*pair, dtype=kernel.dtype), source.normal(*pair, dtype=kernel.dtype)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = kernel.heads != kernel.kv_heads
        return functional.scaled_dot_product_attention(q, k, v, is_causal=kernel.causal, enable_gqa=shared)

    def setting() -> AbstractContextManager[Any]:
        fused = SDPBackend.FLASH_ATTENTION if kernel.dtype != "float32" else SDPBackend.EFFICIENT_ATTENTION
        return sdpa_kernel([fused]) if torch.cuda.is_available() else nullcontext()

    if kernel.op == "forward":
        return Launch(kernel=kernel, operands=tensors, run=forward, setting=setting)

    def graph(source: Source) -> Operands:
        with torch.enable_grad(), setting():
            inputs = [t.requires_grad_() for t in tensors(source)]
            out = forward(*inputs)
        return out, inputs, torch.randn_like(out)

    def backward(out: torch.Tensor, inputs: list[torch.Tensor], grad: torch.Tensor) -> Any:
        return torch.autograd.grad(out, inputs, grad, retain_graph=True)

    return Launch(kernel=kernel, operands=graph, run=backward, setting=setting)
