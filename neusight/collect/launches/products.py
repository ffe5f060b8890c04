"""Launches of matrix products, convolutions and fused attention: what runs on matrix units."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from neusight.collect.launches.launch import Operands, OperandSource, Recipe, fused_attention, parts, unmeasurable
from neusight.kernels import Attention, Conv2d, Gemm, GroupedGemm, KernelBatch
from neusight.kernels.work import conv_output

aten = torch.ops.aten


def gemm(kernel: Gemm) -> Recipe:
    """A product, with the bias in its epilogue where there is one. The layout names the order of B, then of A."""
    if kernel.dtype == "float8":
        return _scaled_product(kernel)
    lead = (kernel.batch,) if kernel.op == "bmm" else ()
    if kernel.bias and kernel.op == "bmm":
        raise unmeasurable(kernel)

    def operands(source: OperandSource) -> Operands:
        b = _matrix(source, (*lead, kernel.k, kernel.n), kernel.layout[0], kernel.dtype)
        a = _matrix(source, (*lead, kernel.m, kernel.k), kernel.layout[1], kernel.dtype)
        return (source.normal(kernel.n, dtype=kernel.dtype), a, b) if kernel.bias else (a, b)

    run = torch.addmm if kernel.bias else torch.bmm if kernel.op == "bmm" else torch.mm
    return operands, run


def _matrix(source: OperandSource, shape: tuple[int, ...], order: str, dtype: str) -> torch.Tensor:
    """Row-major for ``n``, column-major for ``t``."""
    if order == "n":
        return source.normal(*shape, dtype=dtype)
    return source.normal(*shape[:-2], shape[-1], shape[-2], dtype=dtype).transpose(-1, -2)


def _scaled_product(kernel: Gemm) -> Recipe:
    """cuBLASLt's product of 8-bit floats with one scale a tensor, into bfloat16; it takes row-major by column-major.

    Partial sums stay in the unit's own precision, as serving engines run it.
    """
    if kernel.op != "linear" or kernel.layout != "tn" or kernel.k % 16 or kernel.n % 16:
        raise unmeasurable(kernel)

    def operands(source: OperandSource) -> Operands:
        unit_scale = torch.ones((), device=source.device)
        a = _matrix(source, (kernel.m, kernel.k), "n", kernel.dtype)
        return a, _matrix(source, (kernel.k, kernel.n), "t", kernel.dtype), unit_scale, unit_scale

    options: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    return operands, lambda *given: torch._scaled_mm(*given, **options)


def grouped_gemm(kernel: GroupedGemm) -> Recipe:
    """One launch for all experts of a mixture; PyTorch has it for bfloat16."""
    if kernel.dtype != "bfloat16" or kernel.k % 8 or kernel.n % 8:
        raise unmeasurable(kernel)
    counts = parts(kernel.tokens, kernel.groups, kernel.largest)

    def operands(source: OperandSource) -> Operands:
        ends = torch.tensor(counts.cumsum(), dtype=torch.int32, device=source.device)
        weights = source.normal(kernel.groups, kernel.n, kernel.k, dtype=kernel.dtype).transpose(-1, -2)
        return source.normal(kernel.tokens, kernel.k, dtype=kernel.dtype), weights, ends

    return operands, lambda tokens, weights, ends: torch._grouped_mm(tokens, weights, offs=ends)


def conv2d(kernel: Conv2d) -> Recipe:
    """cuDNN's forward, or one of its two gradients alone."""
    geometry = ([kernel.stride] * 2, [kernel.padding] * 2, [kernel.dilation] * 2, False, [0, 0], kernel.groups)
    image = (kernel.batch, kernel.in_channels, kernel.height, kernel.width)
    filters = (kernel.out_channels, kernel.in_channels // kernel.groups, kernel.kernel_height, kernel.kernel_width)

    output = tuple(int(extent[0]) for extent in conv_output(KernelBatch.of([kernel])))
    gradient = () if kernel.op == "forward" else ((kernel.batch, kernel.out_channels, *output),)

    def operands(source: OperandSource) -> Operands:
        return tuple(source.normal(*shape, dtype=kernel.dtype) for shape in (*gradient, image, filters))

    if kernel.op == "forward":
        return operands, lambda x, weight: aten.convolution(x, weight, None, *geometry)
    outputs = [kernel.op == "input_grad", kernel.op == "weight_grad", False]
    return operands, lambda *given: aten.convolution_backward(*given, None, *geometry, outputs)


def attention(kernel: Attention) -> Recipe:
    """Flash in half precision, memory-efficient in float32, as PyTorch picks on a GPU; a decode step has one query.

    The backward pass includes its first stage, the row sums of output times gradient, which runs as a small kernel of
    its own.
    """
    if kernel.window or (kernel.causal and kernel.q_len != kernel.kv_len):
        raise unmeasurable(kernel)

    def tensors(source: OperandSource) -> Operands:
        q = source.normal(kernel.batch, kernel.heads, kernel.q_len, kernel.head_dim, dtype=kernel.dtype)
        pair = (kernel.batch, kernel.kv_heads, kernel.kv_len, kernel.head_dim)
        return q, source.normal(*pair, dtype=kernel.dtype), source.normal(*pair, dtype=kernel.dtype)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = kernel.heads != kernel.kv_heads
        return functional.scaled_dot_product_attention(q, k, v, is_causal=kernel.causal, enable_gqa=shared)

    if kernel.op == "forward":
        return tensors, forward

    def graph(source: OperandSource) -> Operands:
        with torch.enable_grad(), fused_attention(kernel.dtype):
            inputs = [t.requires_grad_() for t in tensors(source)]
            out = forward(*inputs)
        return out, inputs, torch.randn_like(out)

    return graph, lambda out, inputs, grad: torch.autograd.grad(out, inputs, grad, retain_graph=True)
