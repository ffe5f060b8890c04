"""What a GPU runs where the CPU's dispatcher would pick something else: fused dropout and fused attention.

Tensors of a trace are fake and on the CPU, because builds of PyTorch without CUDA cannot run autograd on fake CUDA
tensors. Operators that are composed differently on the two devices are therefore replaced before they dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD_DIM = 256
"""Largest head dimension of the flash kernels that PyTorch ships."""


class _Forms(TorchFunctionMode):
    """Replaces calls from modules, however they imported the function."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.attention = attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = _REPLACEMENTS.get(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        return replacement(self.attention, *args, **(kwargs or {}))


@contextmanager
def gpu_forms(attention: str) -> Iterator[None]:
    """Replace dropout and scaled-dot-product attention by the operators that CUDA dispatches.

    Args:
        attention: ``eager`` computes attention from matrix products and a softmax, ``sdpa`` takes the kernel that
            PyTorch picks on CUDA, ``flash`` the same but ignores masks, as padding-free flash attention does.
    """
    names = ("dropout", "scaled_dot_product_attention")
    originals = {name: getattr(functional, name) for name in names}
    try:
        # A mode is off inside the functions it sees, so those that functional itself calls are exchanged as well.
        for name, original in originals.items():
            setattr(functional, name, partial(_REPLACEMENTS[original], attention))
        with _Forms(attention):
            yield
    finally:
        for name, original in originals.items():
            setattr(functional, name, original)


def _dropout(attention: str, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0.0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _attention(
    attention: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    mask = None if attention == "flash" else attn_mask
    causal = is_causal or (attention == "flash" and attn_mask is not None and query.shape[-2] == key.shape[-2])
    gqa = enable_gqa and query.shape[-3] != key.shape[-3]
    fits = query.dim() == 4 and query.shape[-1] <= _FLASH_HEAD_DIM and query.shape[-1] == value.shape[-1]
    if attention != "eager" and fits and mask is None and query.dtype in _HALF:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, causal, scale=scale)[0]
    if attention != "eager" and query.dim() == 4 and not gqa:
        grad = torch.is_grad_enabled() and query.requires_grad
        bias = _as_bias(mask, query)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, grad, dropout_p, causal, scale=scale
        )[0]
    return _eager(query, key, value, mask, dropout_p, causal, scale, gqa)


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes 0 or minus infinity, as PyTorch does before it calls a fused kernel."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype)
        mask = torch.where(mask, zero, -math.inf)
    return mask.expand(*query.shape[:-1], mask.shape[-1])


def _eager(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
    causal: bool, scale: float | None, gqa: bool,
) -> torch.Tensor:  # fmt: skip
    """Scores by matrix product, scale, mask, softmax, dropout, weighted sum."""
    if gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = functional.dropout(torch.softmax(scores, -1), dropout_p)
    return torch.matmul(weights, value)


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.dropout: _dropout,
    torch.dropout: lambda attention, input, p, train: _dropout(attention, input, p, train),
    functional.scaled_dot_product_attention: _attention,
}
