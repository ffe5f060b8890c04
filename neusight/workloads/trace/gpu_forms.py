"""Forms of operators on a GPU where the CPU's dispatcher would pick something else: fused dropout, attention, recurrent
layers.

Tensors of a trace are fake and on the CPU, because builds of PyTorch without CUDA cannot run autograd on fake CUDA
tensors. Operators that are composed differently on the two devices are therefore replaced before they dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from neusight.workloads.target import TargetReader
from neusight.workloads.trace.autocast import autocast_dtype
from neusight.workloads.trace.cuda_only import MODES, on_cudnn
from neusight.workloads.trace.fused_kernels import flex_forms
from neusight.workloads.trace.library_forms import Form, exchange_forms

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD_DIM = 256
"""Largest head dimension of the flash kernels that PyTorch ships."""


class _Forms(TorchFunctionMode):
    """Replaces calls from modules, however they imported the function."""

    def __init__(self, replacements: dict[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self.replacements = replacements

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.replacements.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def gpu_forms(form: str, target: TargetReader) -> Iterator[None]:
    """Replace dropout and scaled-dot-product attention by the operators that CUDA dispatches.

    Args:
        form: ``eager`` computes attention from matrix products and a softmax, ``sdpa`` takes the kernel that PyTorch
            picks on the target, ``flash`` the same but ignores masks, as padding-free flash attention does.
        target: reader of the device; its notes get lines on masks that are not known.
    """
    attend = partial(_attention, form, target)
    replacements = _REPLACEMENTS | {functional.scaled_dot_product_attention: attend}
    # A mode is off inside the functions it sees, so those that functional itself calls are exchanged as well.
    called: list[Form] = [(functional, name, replacements.get) for name in ("dropout", "scaled_dot_product_attention")]
    flexible = flex_forms(attend if form == "eager" else None, target.notes)
    with exchange_forms([*called, *flexible]), _Forms(replacements):
        yield


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0.0:
        return input
    return torch.native_dropout(input, p, True)[0]


@dataclass
class _Attention:
    """Arguments of ``torch.nn.functional.scaled_dot_product_attention``, by its names and in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def gqa(self) -> bool:
        """Tell whether several heads of queries share one of keys."""
        return self.enable_gqa and self.query.shape[-3] != self.key.shape[-3]

    @property
    def fits_flash(self) -> bool:
        """Tell whether PyTorch's flash kernel supports the call."""
        width = self.query.shape[-1]
        fits = self.query.dim() == 4 and width <= _FLASH_HEAD_DIM and width == self.value.shape[-1]
        return fits and self.attn_mask is None and self.query.dtype in _HALF

    @property
    def fits_efficient(self) -> bool:
        """Tell whether PyTorch's memory-efficient kernel supports the call: matrix units want rows of 16 bytes
        (``sdp_utils.cpp``, ``minimum_gemm_alignment``).
        """
        width = self.query.shape[-1] | self.value.shape[-1]
        return self.query.dim() == 4 and not self.gqa and (self.query.dtype not in _HALF or width % 8 == 0)

    def cast(self) -> _Attention:
        """The same under autocast, which casts queries, keys, values and a floating mask before a kernel is chosen."""
        if (dtype := autocast_dtype()) is None:
            return self
        mask = self.attn_mask
        mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
        query, key, value = (tensor.to(dtype) for tensor in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, attn_mask=mask)

    def without_mask(self) -> _Attention:
        """The same of a batch with nothing padded, whose mask can only be causal."""
        square = self.query.shape[-2] == self.key.shape[-2]
        return replace(self, attn_mask=None, is_causal=self.is_causal or (self.attn_mask is not None and square))


def _attention(form: str, target: TargetReader, *args: Any, **kwargs: Any) -> torch.Tensor:
    call = _Attention(*args, **kwargs).cast()
    call = call.without_mask() if form == "flash" else call
    if form != "eager" and call.fits_flash and target.read("flash"):
        return _attend(aten._scaled_dot_product_flash_attention, call)
    if form != "eager" and call.fits_efficient:
        grad = torch.is_grad_enabled() and call.query.requires_grad
        return _attend(aten._scaled_dot_product_efficient_attention, call, _as_bias(call.attn_mask, call.query), grad)
    return _eager(call)


def _attend(operator: Any, call: _Attention, *more: Any) -> torch.Tensor:
    tensors = call.query, call.key, call.value
    return operator(*tensors, *more, call.dropout_p, call.is_causal, scale=call.scale)[0]


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask becomes 0 or minus infinity, as PyTorch does before it calls a fused kernel."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype)
        mask = torch.where(mask, zero, -math.inf)
    return mask.expand(*query.shape[:-1], mask.shape[-1])


def _eager(call: _Attention) -> torch.Tensor:
    """Scores by matrix product, scale, mask, softmax, dropout, weighted sum."""
    query, key, value, mask = call.query, call.key, call.value, call.attn_mask
    if call.gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (call.scale or 1 / math.sqrt(query.shape[-1]))
    if call.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = functional.dropout(torch.softmax(scores, -1), call.dropout_p)
    return torch.matmul(weights, value)


def _ctc(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, **how: Any) -> Any:
    """Lengths as tensors: numbers would be copied into a tensor by its address, which a fake one has not."""
    inputs, outputs = (torch.as_tensor(length, dtype=torch.long) for length in (input_lengths, target_lengths))
    return functional.ctc_loss(log_probs, targets, inputs, outputs, **how)


def _learns(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _singular_values(x: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    """Without vectors unless a gradient needs them; of fake tensors, PyTorch assumes that one might."""
    return aten._linalg_svd(x, False, _learns(x), driver=driver)[1]


def _eigenvalues(x: torch.Tensor, UPLO: str = "L") -> torch.Tensor:  # noqa: N803 (PyTorch's name)
    return aten._linalg_eigh(x, UPLO, _learns(x))[0]


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.ctc_loss: _ctc,
    torch.linalg.svdvals: _singular_values,
    torch.linalg.eigvalsh: _eigenvalues,
    **{getattr(torch, name): partial(on_cudnn, name) for name in MODES},
}
