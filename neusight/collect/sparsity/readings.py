"""Hooks that read the zeros of every layer's operands, and their means.

Needs torch at once: imported by what measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neusight.collect.sparsity.operands import (
    activation_streams,
    gradient_streams,
    measured_layers,
    weight_streams,
)
from neusight.errors import ModelError
from neusight.executors.tensordash.masks import clustering_of
from neusight.executors.tensordash.options import LANES
from neusight.transforms.sparsity import OPERANDS, LayerSparsity, OperandSparsity

STREAMS = 256
"""Streams of an operand whose clustering is read in a step, at most."""
_DIGITS = 4


@dataclass
class _Mean:
    """Of one operand: shares weigh by the values they are of, clustering by reading."""

    zeros: int = 0
    values: int = 0
    together: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: torch.Tensor, clustering: Mapping[str, float]) -> None:
        self.zeros += values.numel() - int(torch.count_nonzero(values))
        self.values += values.numel()
        for cluster, one in clustering.items():
            self.together.setdefault(cluster, []).append(one)

    def result(self) -> OperandSparsity:
        """With the kind of group whose zeros keep together most."""
        means = {cluster: sum(each) / len(each) for cluster, each in self.together.items()}
        cluster = max(means, key=lambda one: means[one])
        if (strongest := round(min(1.0, means[cluster]), _DIGITS)) <= 0:
            cluster, strongest = next(iter(means)), 0.0
        return OperandSparsity(round(self.zeros / self.values, _DIGITS), strongest, cluster)


class Readings:
    """Reads each layer of a module that runs while ``active``, until ``finish``."""

    def __init__(self, module: nn.Module, clusters: Sequence[str], seed: int) -> None:
        self.active = False
        self.clusters = clusters
        # Its own numbers: what is drawn here must not change what the network draws.
        self.generator = torch.Generator().manual_seed(seed)
        self.layers = measured_layers(module)
        if not self.layers:
            raise ModelError(f"{type(module).__name__} has no convolution and no linear layer: nothing to measure")
        self.means = {path: {name: _Mean() for name in OPERANDS} for path in self.layers}
        self.handles = [self._watch(path, layer) for path, layer in self.layers.items()]

    def finish(self) -> dict[str, LayerSparsity]:
        """Take the hooks off; means of every layer that ran forward and backward.

        Raises:
            ModelError: none did.
        """
        for handle in self.handles:
            handle.remove()
        ran = {path: means for path, means in self.means.items() if all(m.values for m in means.values())}
        if not ran:
            raise ModelError("no convolution and no linear layer ran forward and backward: nothing was measured")
        return {
            path: LayerSparsity(**{name: mean.result() for name, mean in means.items()}) for path, means in ran.items()
        }

    def _watch(self, path: str, layer: nn.Module) -> Any:
        def ran(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
            given = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            if not self.active or not given.numel():
                return
            self._read(path, "activations", given.detach())
            weights: Any = layer.weight
            self._read(path, "weights", weights.detach())
            if output.requires_grad:
                # A hook of the tensor and not of the layer: rectifiers may write into the output in place, and this
                # one still sees the gradient of what the layer put out.
                output.register_hook(lambda gradient: self._read(path, "gradients", gradient.detach()))

        return layer.register_forward_hook(ran, with_kwargs=True)

    def _read(self, path: str, operand: str, values: torch.Tensor) -> None:
        self.means[path][operand].add(values, self._clustering(self.layers[path], operand, values))

    def _clustering(self, layer: nn.Module, operand: str, values: torch.Tensor) -> dict[str, float]:
        if operand == "weights":
            streams = weight_streams(layer, STREAMS, self.generator)
        else:
            streams_of = activation_streams if operand == "activations" else gradient_streams
            streams = streams_of(layer, values, STREAMS, self.generator)
        mask = by_lanes(streams).numpy()
        return {cluster: clustering_of(mask, cluster) for cluster in self.clusters}


def by_lanes(streams: torch.Tensor) -> torch.Tensor:
    """Streams (n, taps, channels) as (n, steps, lanes), every tap beginning a step; what does not fill a step is left
    out, except of a tap with fewer channels than lanes.
    """
    channels = streams.shape[2]
    lanes = min(channels, LANES)
    whole = streams[:, :, : channels - channels % lanes]
    return whole.reshape(len(streams), -1, lanes)
