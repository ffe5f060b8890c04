"""Which tensors a kernel multiplies, and how many zeros each holds: columns beside the kernel's own.

| kernel | first operand | second operand |
|---|---|---|
| forward | activations | weights |
| input gradient | gradients | weights |
| weight gradient | gradients | activations |

Batched products multiply two tensors that are no layer's input as it came: they count as dense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from neusight.kernels import KernelBatch
from neusight.kernels.work import conv_output, element_bytes
from neusight.schedule.serial import PreparedGraph
from neusight.transforms.sparsity import DENSE, LayerSparsity, OperandSparsity, SparsityProfile
from neusight.workloads.graph import FoldedGraph, FoldedKernel, Graph

MAPPED = ("conv2d", "gemm")
"""Families that run on the PEs; everything else runs at the dense machine's rate."""
SIDES = ("first", "second")
_DENSE = OperandSparsity(sparsity=0.0)
_DIRECTIONS: Mapping[str, tuple[str, str]] = {
    "forward": ("activations", "weights"),
    "input_grad": ("gradients", "weights"),
    "weight_grad": ("gradients", "activations"),
}


def by_layer(graph: Graph) -> tuple[FoldedGraph, tuple[str, ...]]:
    """A graph with its kernels folded by layer as well, and the layer of each of them."""
    counts: dict[tuple[FoldedKernel, str], int] = {}
    for node in graph.nodes:
        for kernel in node.kernels:
            key = FoldedKernel(kernel=kernel, operator=node.operator, phase=node.phase, count=1), node.layer
            counts[key] = counts.get(key, 0) + 1
    kernels = tuple(replace(kernel, count=count) for (kernel, _), count in counts.items())
    return replace(graph.fold(), kernels=kernels), tuple(layer for _, layer in counts)


def mapped_layers(graph: Graph) -> tuple[str, ...]:
    """Layers whose kernels run on the PEs and have weights, in order of first use."""
    found = (n.layer for n in graph.nodes for k in n.kernels if k.family in MAPPED and getattr(k, "op", "") != "bmm")
    return tuple(dict.fromkeys(layer for layer in found if layer))


def with_zeros(prepared: PreparedGraph, profile: SparsityProfile, layers: Sequence[str] | None = None) -> PreparedGraph:
    """The step with columns ``{first,second}_{sparsity,clustering,cluster}`` in every batch that runs on the PEs.

    Args:
        prepared: the step.
        profile: zeros of each layer's tensors.
        layers: of each of the graph's kernels; None takes the profile's default for all.
    """
    batches = []
    for batch, positions in prepared.batches:
        if batch.family in MAPPED:
            operands = [_operands(batch, row, prepared.graph.kernels[at].phase) for row, at in enumerate(positions)]
            known = [profile.default if layers is None else profile.of(layers[at]) for at in positions]
            batch = KernelBatch(batch.family, {**batch.columns, **_columns(operands, known)})
        batches.append((batch, positions))
    return replace(prepared, batches=tuple(batches))


def _operands(batch: KernelBatch, row: int, phase: str) -> tuple[str, str] | None:
    """Names of both operands, None where they are no layer's tensors."""
    op = str(batch["op"][row])
    if batch.family == "conv2d":
        return _DIRECTIONS[op]
    if op == "bmm":
        return None
    if phase != "backward":
        return _DIRECTIONS["forward"]
    return _DIRECTIONS["weight_grad" if batch["layout"][row] == "nt" else "input_grad"]


def _columns(operands: Sequence[tuple[str, str] | None], known: Sequence[LayerSparsity]) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for number, side in enumerate(SIDES):
        zeros = [
            _DENSE if names is None else getattr(layer, names[number])
            for names, layer in zip(operands, known, strict=True)
        ]
        for name in ("sparsity", "clustering", "cluster"):
            columns[f"{side}_{name}"] = np.array([getattr(z, name) for z in zeros])
    return columns


def without_zeros(batch: KernelBatch) -> KernelBatch:
    """A batch whose operands are dense."""
    if batch.family not in MAPPED:
        return batch
    nothing = _columns([None] * len(batch), [DENSE] * len(batch))
    return KernelBatch(batch.family, {**batch.columns, **nothing})


def operand_bytes(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the first and the second operand, each of shape (n,)."""
    size = element_bytes(batch)
    if batch.family == "gemm":
        b, m, n, k = (batch[name].astype(float) for name in ("batch", "m", "n", "k"))
        return b * m * k * size, b * k * n * size
    height, width = conv_output(batch)
    images, inputs, outputs = (batch[name].astype(float) for name in ("batch", "in_channels", "out_channels"))
    activations = images * inputs * batch["height"] * batch["width"]
    gradients = images * outputs * height * width
    weights = outputs * inputs / batch["groups"] * batch["kernel_height"] * batch["kernel_width"]
    named = {"activations": activations * size, "gradients": gradients * size, "weights": weights * size}
    first, second = (
        np.select([batch["op"] == op for op in _DIRECTIONS], [named[names[side]] for names in _DIRECTIONS.values()])
        for side in (0, 1)
    )
    return first, second
