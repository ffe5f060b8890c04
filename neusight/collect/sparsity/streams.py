"""Operands of a layer as TensorDash streams them, and hooks that read their zeros in steps that run.

A stream holds the values that run through one reduction, channels innermost:

| operand | a stream |
|---|---|
| activations (forward) | a window of the kernel: its taps, the input channels of a group at each |
| gradients (input gradient) | a window of the taps that a pixel meets: of stride s, every s-th; output channels |
| weights (forward) | a filter: its taps, the input channels of a group at each |
| of a linear layer | a row: a position's features; a filter's inputs |

Windows lie within the tensor: zeros of the padding are no zeros of the operand. Where the tensor is smaller than the
window, the window has the taps that fit. The weight gradient's streams, which run over pixels, are not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import nn

from neusight.errors import ModelError
from neusight.executors.tensordash.masks import CLUSTERS, clustering_of
from neusight.executors.tensordash.schedule import LANES
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import OPERANDS

Taps = tuple[int, int, int]
"""Along one axis of an image a window's taps, the distance between two taps, and between two windows."""
STREAMS = 256
"""Streams of an operand whose clustering is read in a step, at most."""
_DIGITS = 4


def measured_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Convolutions and linear layers by module path, and what transformers has in their place."""
    parts = dict(module.named_modules()).items()
    return {path: part for path, part in parts if isinstance(part, nn.Conv2d | nn.Linear) or _is_transposed(part)}


def _is_transposed(part: nn.Module) -> bool:
    """The linear layer of GPT-2, whose weight has shape (in, out); transformers need not be loaded to know it."""
    return type(part).__name__ == "Conv1D" and type(part).__module__.startswith("transformers.")


def as_filters(layer: nn.Module) -> torch.Tensor:
    """A view of the weights with the reduction's channels last: (filters, height, width, channels) or (out, in)."""
    weight: Any = layer.weight
    if isinstance(layer, nn.Conv2d):
        return weight.permute(0, 2, 3, 1)
    return weight.T if _is_transposed(layer) else weight


def operand_streams(
    layer: nn.Module, operand: str, values: torch.Tensor, most: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Mask of effectual values, shape (streams, taps, channels), of at most ``most`` streams drawn: filters of
    ``weights``, windows or rows of ``activations`` and ``gradients``.
    """
    if operand == "weights":  # Those of the layer.
        filters = as_filters(layer).detach()
        chosen = filters[drawn(len(filters), most, generator)] != 0
        return chosen.reshape(len(chosen), -1, chosen.shape[-1])
    if not isinstance(layer, nn.Conv2d):
        rows = values.reshape(-1, 1, values.shape[-1])
        return rows[drawn(len(rows), most, generator)] != 0
    taps = _forward_taps(layer) if operand == "activations" else _backward_taps(layer)
    return _windows(values, taps, layer.groups, most, generator)


def _forward_taps(layer: nn.Conv2d) -> list[Taps]:
    return list(zip(layer.kernel_size, layer.dilation, layer.stride, strict=True))


def _backward_taps(layer: nn.Conv2d) -> list[Taps]:
    """Taps ``dilation·k`` that agree modulo the stride lie stride / gcd apart, on outputs dilation / gcd apart."""
    taps = []
    for kernel, dilation, stride in _forward_taps(layer):
        shared = gcd(dilation, stride)
        taps.append((-(-kernel * shared // stride), dilation // shared, 1))
    return taps


def _windows(
    values: torch.Tensor, taps: list[Taps], groups: int, most: int, generator: torch.Generator | None
) -> torch.Tensor:
    """Windows of (images, channels, height, width); each group of channels is a separate stream."""
    images = values if values.dim() == 4 else values[None]
    for axis, (count, apart, step) in zip((2, 3), taps, strict=True):
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


class _Reading(NamedTuple):
    """Zeros of one operand in one step."""

    zeros: int
    values: int
    clustering: dict[str, float]


def _mean(readings: Sequence[_Reading]) -> OperandSparsity:
    """Shares weighed by values and clusterings by step, of the kind of group whose zeros keep together most."""
    means = {name: sum(r.clustering[name] for r in readings) / len(readings) for name in CLUSTERS}
    cluster = max(means, key=lambda name: means[name])
    if (strongest := round(min(1.0, means[cluster]), _DIGITS)) <= 0:
        cluster, strongest = next(iter(means)), 0.0
    share = sum(r.zeros for r in readings) / sum(r.values for r in readings)
    return OperandSparsity(round(share, _DIGITS), strongest, cluster)


class Readings:
    """Reads each layer of a module that runs while ``active``; ``take`` gives what it read since the last time."""

    def __init__(self, module: nn.Module, seed: int) -> None:
        self.active = False
        # Separate numbers: what is drawn here must not change what the network draws.
        self.generator = torch.Generator().manual_seed(seed)
        self.layers = measured_layers(module)
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no convolution and no linear layer: nothing to measure")
        self.readings: defaultdict[tuple[str, str], list[_Reading]] = defaultdict(list)
        for path, layer in self.layers.items():
            self._watch(path, layer)

    def take(self) -> dict[str, LayerSparsity]:
        """Means of every layer that ran forward and backward; the next ones begin anew.

        Raises:
            ModelError: none did.
        """
        readings, self.readings = self.readings, defaultdict(list)
        ran = [path for path in self.layers if all((path, operand) in readings for operand in OPERANDS)]
        if not ran:
            raise ModelError("no convolution and no linear layer ran forward and backward: nothing was measured")
        return {path: LayerSparsity(*(_mean(readings[path, operand]) for operand in OPERANDS)) for path in ran}

    def _watch(self, path: str, layer: nn.Module) -> None:
        def ran(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
            operand_value = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            if not self.active or not operand_value.numel():
                return
            self._read(path, "activations", operand_value.detach())
            weights: Any = layer.weight
            self._read(path, "weights", weights.detach())
            if output.requires_grad:
                # A hook of the tensor and not of the layer: rectifiers may write into the output in place, and this
                # one still sees the gradient of what the layer put out.
                output.register_hook(lambda gradient: self._read(path, "gradients", gradient.detach()))

        layer.register_forward_hook(ran, with_kwargs=True)

    def _read(self, path: str, operand: str, values: torch.Tensor) -> None:
        mask = by_lanes(operand_streams(self.layers[path], operand, values, STREAMS, self.generator)).numpy()
        zeros = values.numel() - int(torch.count_nonzero(values))
        clustering = {cluster: clustering_of(mask, cluster) for cluster in CLUSTERS}
        self.readings[path, operand].append(_Reading(zeros, values.numel(), clustering))


def by_lanes(streams: torch.Tensor) -> torch.Tensor:
    """Streams (n, taps, channels) as (n, steps, lanes), every tap beginning a step; what does not fill a step is left
    out, except of a tap with fewer channels than lanes.
    """
    channels = streams.shape[2]
    lanes = min(channels, LANES)
    whole = streams[:, :, : channels - channels % lanes]
    return whole.reshape(len(streams), -1, lanes)
