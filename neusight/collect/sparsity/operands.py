"""Operands of a layer as TensorDash streams them: which values run through one reduction, channels innermost.

| operand | a stream |
|---|---|
| activations (forward) | a window of the kernel: its taps, the input channels of a group at each |
| gradients (input gradient) | a window of the taps that a pixel meets: of stride s, every s-th; output channels |
| weights (forward) | a filter: its taps, the input channels of a group at each |
| of a linear layer | a row: a position's features; a filter's inputs |

Windows lie within the tensor: zeros of the padding are no zeros of the operand. Where the tensor is smaller than the
window, the window has the taps that fit. The weight gradient's streams, which run over pixels, are not looked at.

Needs torch at once: imported by what measures.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
from torch import nn

Taps = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""A window's taps, the distance between two taps, and between two windows; each of (height, width)."""


def measured_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Convolutions and linear layers by module path, and what transformers has in their place."""
    return {path: part for path, part in module.named_modules() if isinstance(part, nn.Conv2d) or _is_linear(part)}


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or _is_transposed(part)


def _is_transposed(part: nn.Module) -> bool:
    """The linear layer of GPT-2, whose weight has shape (in, out); transformers need not be loaded to know it."""
    return type(part).__name__ == "Conv1D" and type(part).__module__.startswith("transformers.")


def as_filters(layer: nn.Module) -> torch.Tensor:
    """Weights with the reduction's channels last: (filters, height, width, channels) or (out, in)."""
    weight: Any = layer.weight
    if isinstance(layer, nn.Conv2d):
        return weight.permute(0, 2, 3, 1)
    return weight.T if _is_transposed(layer) else weight


def from_filters(layer: nn.Module, filters: torch.Tensor) -> torch.Tensor:
    """The way back from ``as_filters``, for a mask."""
    if isinstance(layer, nn.Conv2d):
        return filters.permute(0, 3, 1, 2)
    return filters.T if _is_transposed(layer) else filters


def weight_streams(layer: nn.Module, most: int, generator: torch.Generator | None) -> torch.Tensor:
    """Whether each weight is effectual, shape (streams, taps, channels), at most ``most`` filters drawn."""
    filters = as_filters(layer).detach()
    chosen = filters[drawn(len(filters), most, generator)] != 0
    return chosen.reshape(len(chosen), -1, chosen.shape[-1])


def activation_streams(
    layer: nn.Module, values: torch.Tensor, most: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Whether each activation is effectual, shape (streams, taps, channels), at most ``most`` windows drawn."""
    if not isinstance(layer, nn.Conv2d):
        return _rows(values, most, generator)
    return _windows(values, _forward_taps(layer), layer.groups, most, generator)


def gradient_streams(
    layer: nn.Module, values: torch.Tensor, most: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Whether each gradient is effectual, shape (streams, taps, channels), at most ``most`` windows drawn."""
    if not isinstance(layer, nn.Conv2d):
        return _rows(values, most, generator)
    return _windows(values, _backward_taps(layer), layer.groups, most, generator)


def _forward_taps(layer: nn.Conv2d) -> Taps:
    return _pair(layer.kernel_size), _pair(layer.dilation), _pair(layer.stride)


def _backward_taps(layer: nn.Conv2d) -> Taps:
    """Taps ``dilation·k`` that agree modulo the stride lie stride / gcd apart, on outputs dilation / gcd apart."""
    kernel, dilation, stride = _forward_taps(layer)
    shared = [gcd(d, s) for d, s in zip(dilation, stride, strict=True)]
    taps = [-(-k * g // s) for k, s, g in zip(kernel, stride, shared, strict=True)]
    apart = [d // g for d, g in zip(dilation, shared, strict=True)]
    return (taps[0], taps[1]), (apart[0], apart[1]), (1, 1)


def _pair(sizes: Any) -> tuple[int, int]:
    return int(sizes[0]), int(sizes[1])


def _rows(values: torch.Tensor, most: int, generator: torch.Generator | None) -> torch.Tensor:
    rows = values.reshape(-1, 1, values.shape[-1])
    return rows[drawn(len(rows), most, generator)] != 0


def _windows(
    values: torch.Tensor, taps: Taps, groups: int, most: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Windows of (images, channels, height, width); each group of channels is a stream of its own."""
    images = values if values.dim() == 4 else values[None]
    for axis, count, apart, step in zip((2, 3), *taps, strict=True):
        fitting = min(count, (images.shape[axis] - 1) // apart + 1)
        # A view of shape (…, windows, span) in place of the axis: the span moves to the end.
        images = images.unfold(axis, apart * (fitting - 1) + 1, step)[..., ::apart]
    by_place = images.permute(0, 2, 3, 4, 5, 1)
    places = drawn(by_place[..., 0, 0, 0].numel(), most, generator)
    where = torch.unravel_index(places, by_place.shape[:3])
    chosen = by_place[where] != 0
    channels = chosen.shape[-1] // groups
    grouped = chosen.reshape(len(chosen), -1, groups, channels).transpose(1, 2)
    return grouped.reshape(-1, grouped.shape[2], channels)


def drawn(count: int, most: int, generator: torch.Generator | None) -> torch.Tensor:
    """All of ``count`` places, or ``most`` of them drawn without repetition, in order."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:most].sort().values
