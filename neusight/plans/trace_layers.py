"""Structure of a traced step: its layers by their module paths, tensors between them, the core of attention."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from neusight.workloads.workload import Node, Workload

_LAYER = re.compile(r"^(?:[^.]+\.)*?\d+(?=\.|$)")
"""The path of a layer among equal ones: up to its first number."""


def attention_core(step: Workload) -> frozenset[int]:
    """Places of forward nodes of a step without series that are the core of attention: one kernel, or from a product of
    two activations over a softmax to the next such product, with copies of keys for many heads, and of its result.
    """
    core: set[int] = set()
    scores: dict[int, tuple[frozenset[int], bool]] = {}
    """For tensors made of scores, the nodes that made them and whether a softmax is among those."""
    outputs: set[int] = set()
    for place, node in enumerate(step.nodes):
        if node.phase != "forward" or not node.kernels:
            continue
        kernel: Any = next((k for k in node.kernels if k.family != "collective"), node.kernels[0])
        chains = [scores[r.tensor] for r in node.reads if r.tensor in scores]
        chain, weighted = frozenset().union(*(nodes for nodes, _ in chains)), any(soft for _, soft in chains)
        written = {w.tensor for w in node.writes}
        multiplies = kernel.family == "gemm" and kernel.op == "bmm"
        moved = kernel.family == "memory" and any(r.tensor in outputs for r in node.reads)
        if kernel.family == "attention" or moved or (multiplies and weighted):
            core |= {*chain, place}
            outputs |= set() if moved else written
        elif multiplies or (chains and kernel.family in ("elementwise", "memory", "row_reduction")):
            soft = weighted or "softmax" in getattr(kernel, "op", "")
            scores |= dict.fromkeys(written, (chain | {place}, soft))
    return frozenset(core | _repeated_keys(step, core))


def _repeated_keys(step: Workload, core: set[int]) -> set[int]:
    """Copies that are larger than their sources, and that only the core of attention reads."""
    readers: dict[int, set[int]] = {}
    for place, node in enumerate(step.nodes):
        for tensor in {r.tensor for r in node.reads} if node.phase == "forward" and node.kernels else ():
            readers.setdefault(tensor, set()).add(place)

    def repeats(node: Node) -> bool:
        read, written = (sum(step.tensors[r.tensor].nbytes for r in of) for of in (node.reads, node.writes))
        mine = set[int]().union(*(readers.get(w.tensor, set()) for w in node.writes))
        return written > read > 0 and bool(mine) and mine <= core

    copies = (at for at, node in enumerate(step.nodes) if node.phase == "forward" and _copies(node))
    return {at for at in copies if repeats(step.nodes[at])}


def _copies(node: Node) -> bool:
    return any(kernel.family == "memory" for kernel in node.kernels)


def crossing_bytes(step: Workload) -> dict[str, float]:
    """Bytes that cross from before each layer to it in the forward pass of a step without series, and from the last
    layer ("" by name). Tensors that depend on no weight, such as a mask, are made on each side.
    """
    names, made, last = layer_names(step), {}, {}  # type: ignore[var-annotated]
    for node, at in zip(step.nodes, blocks_of(step).tolist(), strict=True):
        if node.phase != "forward":
            continue
        inputs = {reference.tensor for reference in node.reads}
        for tensor in inputs & made.keys():
            last[tensor] = max(last.get(tensor, 0), at)
        if any(t in made or step.tensors[t].kind == "weight" for t in inputs):
            made |= {w.tensor: at for w in node.writes if w.tensor not in made}
    crossing = np.zeros(len(names) + 3)
    for tensor, end in last.items():
        crossing[made[tensor] + 1] += step.tensors[tensor].nbytes
        crossing[end + 1] -= step.tensors[tensor].nbytes
    return dict(zip((*names, ""), crossing.cumsum()[1:-1].tolist(), strict=True))


def layer_names(step: Workload) -> list[str]:
    """Paths of layers in the order in which the forward pass comes to them."""
    matches = (_LAYER.match(node.layer.name()) for node in step.nodes if node.phase == "forward")
    return list(dict.fromkeys(match.group() for match in matches if match))


def blocks_of(step: Workload) -> np.ndarray:
    """Place of each node of a step without series: 0 before the layers, 1 … depth in them, depth + 1 after them, and
    -1 in the update.

    Nodes between layers belong to the layer before; backward nodes to the block of their module's forward nodes,
    those of the model itself to the block of the backward node before them.
    """
    numbers: dict[str, int] = {}
    of_module: dict[str, int] = {}
    layers = [_LAYER.match(node.layer.name()) for node in step.nodes]
    blocks = np.full(len(step.nodes), -1)
    for place, (node, match) in enumerate(zip(step.nodes, layers, strict=True)):
        if node.phase == "forward":
            blocks[place] = numbers.setdefault(match.group(), len(numbers) + 1) if match else len(numbers)
    depth = len(numbers)
    for place, (node, match) in enumerate(zip(step.nodes, layers, strict=True)):
        if node.phase == "forward":
            if depth and not match and blocks[place] == depth:
                blocks[place] = depth + 1
            of_module.setdefault(node.layer.name(), int(blocks[place]))
    current = depth + 1 if depth else 0
    for place, (node, match) in enumerate(zip(step.nodes, layers, strict=True)):
        if node.phase == "backward":
            path = node.layer.name()
            if match and match.group() in numbers:
                current = numbers[match.group()]
            blocks[place] = of_module.get(path, current) if path and not match else current
    return blocks
