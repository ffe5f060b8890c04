"""A step of diffusion that reuses deep features of the step before it, and runs only the outermost layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import KEPT, Node, Workload

_LAYER = re.compile(r"(down|up)_blocks\.(\d+)\.(?:resnets|attentions)\.(\d+)")
_OUTERMOST = 2
"""Layers of the last block up that a step runs: those whose skips come from the input and from the first layer down."""


def with_cached_features(workload: Workload) -> Workload:
    """A step of a U-Net between two whole ones: its first layer down and its last ones up, whose inner input is the
    feature map of the last whole step. All weights stay, as whole steps need them.

    Source: Ma, Fang and Wang 2024, DeepCache: Accelerating Diffusion Models for Free, section 3.3, first skip branch.

    Raises:
        InapplicableError: the model is no U-Net of diffusers, or is trained.
    """
    if workload.request.mode != "inference":
        raise InapplicableError("features of another step have no backward pass")
    step = unroll(workload)
    down, up = _ends(step.nodes)
    nodes = [node for node in step.nodes if node.id <= down or node.id > up]
    made = {w.tensor for node in nodes for w in node.writes}
    taken = {r.tensor for node in nodes for r in node.reads} - made
    tensors = tuple(
        replace(tensor, born=-1, died=KEPT) if at in taken and tensor.kind == "intermediate" else tensor
        for at, tensor in enumerate(step.tensors)
    )
    weights = [at for at, tensor in enumerate(tensors) if tensor.kind == "weight"]
    return rebuild(replace(step, tensors=tensors), nodes, weights)


def _ends(nodes: Sequence[Node]) -> tuple[int, int]:
    """The last node of the first layer down, and of the last layer up that is left out."""
    last: dict[tuple[str, int, int], int] = {}
    for node in nodes:
        if match := _LAYER.match(node.layer.name()):
            last[match[1], int(match[2]), int(match[3])] = node.id
    blocks = [block for way, block, _ in last if way == "up"]
    layers = [layer for way, block, layer in last if way == "up" and block == max(blocks)]
    kept_out = ("up", max(blocks, default=0), max(layers, default=0) - _OUTERMOST)
    if ("down", 0, 0) not in last or kept_out not in last:
        raise InapplicableError("the model is no U-Net with layers in blocks down and up, whose features could be kept")
    return last["down", 0, 0], last[kept_out]
