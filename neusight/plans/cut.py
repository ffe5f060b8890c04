"""A traced step cut into pipeline stages: whole layers, so that the slowest stage is as fast as can be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from neusight.errors import ModelError
from neusight.kernels.families import Collective, Kernel
from neusight.plans.shard_graph import scaled
from neusight.transforms.plain import plain, rebuilt
from neusight.workloads.workload import Node, Workload

_BLOCK = re.compile(r"^(?:[^.]+\.)*?\d+(?=\.|$)")
"""The path of a layer among equal ones: up to its first number."""


def pipeline_stages(workload: Workload, pp: int, seconds: Callable[[Node], float]) -> list[Workload]:
    """What each of ``pp`` stages runs of a step; one stage is the same workload.

    A stage sends what later ones read to the next, and gets the gradient of as many bytes back. Weights that several
    stages use, such as a tied table of words, lie on each, and the gradients are summed.

    Args:
        workload: the step of one micro-batch.
        pp: stages.
        seconds: what a node takes, by which stages are balanced.

    Raises:
        ModelError: fewer layers than stages.
    """
    if pp == 1:
        return [workload]
    step = plain(workload)
    block = _blocks(step)
    layers = max(block) + 1
    if layers < pp:
        raise ModelError(f"pp {pp} is more than the {layers} layers of {workload.request.model}: at most {layers}")
    costs = np.zeros(layers)
    np.add.at(costs, block, [seconds(node) if node.phase != "optimizer" else 0.0 for node in step.nodes])
    stage_of = np.repeat(np.arange(pp), np.diff(balanced(costs, pp)))
    stage = stage_of[np.array(block)]
    return [_stage(step, stage, number) for number in range(pp)]


def balanced(costs: np.ndarray, parts: int) -> np.ndarray:
    """Bounds of ``parts`` stretches, none empty, whose largest sum is the least: shape (parts + 1,)."""
    total = np.concatenate(([0.0], np.cumsum(costs)))
    n = len(costs)
    best = np.full((parts + 1, n + 1), np.inf)
    cut = np.zeros((parts + 1, n + 1), dtype=int)
    best[0, 0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, n + 1):
            ends = np.maximum(best[part - 1, :end], total[end] - total[:end])
            cut[part, end] = int(ends.argmin())
            best[part, end] = ends[cut[part, end]]
    bounds = [n]
    for part in range(parts, 0, -1):
        bounds.append(int(cut[part, bounds[-1]]))
    return np.array(bounds[::-1])


def _blocks(step: Workload) -> list[int]:
    """Number of the layer that each node belongs to, in the order in which the forward pass meets them.

    What stands before the first layer goes with it, what stands between or after with the one before; backward nodes
    go where the forward nodes of their module are.
    """
    numbers: dict[str, int] = {}
    of_module: dict[str, int] = {}
    found: list[int] = []
    for node in step.nodes:
        path = node.layer.name()
        match = _BLOCK.match(path)
        if node.phase == "forward":
            last = max(0, len(numbers) - 1)
            current = numbers.setdefault(match.group(), len(numbers)) if match else last
            of_module.setdefault(path, current)
        elif match and match.group() in numbers:
            current = numbers[match.group()]
        else:
            current = of_module.get(path, max(0, len(numbers) - 1))
        found.append(current)
    return found


def _stage(step: Workload, stage: np.ndarray, number: int) -> Workload:
    weights = _weights(step, stage, number)
    held = sum(step.tensors[w].nbytes for w in weights)
    share = held / (sum(t.nbytes for t in step.tensors if t.kind == "weight") or 1)
    mine = [node for node, at in zip(step.nodes, stage, strict=True) if at == number and node.phase != "optimizer"]
    update = [_update(step, node, weights, share) for node in step.nodes if node.phase == "optimizer"]
    exchanged = _exchanged(step, stage, number)
    found = rebuilt(step, [*_exchanging(mine, exchanged), *update])
    tensors = tuple(replace(t, nbytes=ceil(t.nbytes * share)) if t.kind == "state" else t for t in found.tensors)
    return replace(found, parameters=round(step.parameters * share), tensors=tensors)


def _weights(step: Workload, stage: np.ndarray, number: int) -> set[int]:
    """Weights that a stage's forward pass reads."""
    return {
        r.tensor
        for node, at in zip(step.nodes, stage, strict=True)
        if at == number and node.phase == "forward"
        for r in node.reads
        if step.tensors[r.tensor].kind == "weight"
    }


def _update(step: Workload, node: Node, weights: set[int], share: float) -> Node:
    """The optimizer's update of the weights that a stage has: its moments are a share of all."""
    kernels = tuple(scaled(kernel, share) for kernel in node.kernels)
    reads, writes = (
        tuple(r for r in of if step.tensors[r.tensor].kind == "state" or r.tensor in weights)
        for of in (node.reads, node.writes)
    )
    return replace(node, kernels=kernels, reads=reads, writes=writes)


def _exchanged(step: Workload, stage: np.ndarray, number: int) -> dict[str, list[Kernel]]:
    """What a stage exchanges with the others in each phase: activations and their gradients with the next, gradients
    of the weights that it shares with another.
    """
    training = step.request.mode == "training"
    sent = _crossing(step, stage, number + 1)
    dtype = step.request.precision.activations
    forward = [Collective(op="send_recv", ranks=2, bytes=sent, dtype=dtype)] if sent else []
    tied = _tied_bytes(step, stage, number)
    both = [Collective(op="all_reduce", ranks=2, bytes=tied, dtype=dtype)] if tied else []
    return {"forward": [*forward], "backward": [*forward, *both] if training else []}


def _crossing(step: Workload, stage: np.ndarray, bound: int) -> int:
    """Bytes of activations that stages below ``bound`` make and others read; what no weight is in, such as a mask,
    is made on each.
    """
    made: dict[int, int] = {}
    read: set[int] = set()
    for node, at in zip(step.nodes, stage.tolist(), strict=True):
        if node.phase != "forward":
            continue
        inputs = {r.tensor for r in node.reads}
        if any(t in made or step.tensors[t].kind == "weight" for t in inputs):
            made |= {w.tensor: at for w in node.writes}
        read |= {t for t in inputs if made.get(t, bound) < bound <= at}
    return sum(step.tensors[t].nbytes for t in read)


def _tied_bytes(step: Workload, stage: np.ndarray, number: int) -> int:
    """Bytes of weights that another stage has as well, of whose gradients each has a part."""
    mine = _weights(step, stage, number)
    others = set().union(*(_weights(step, stage, n) for n in range(int(stage.max()) + 1) if n != number))
    return sum(step.tensors[t].nbytes for t in mine & others)


def _exchanging(nodes: Sequence[Node], exchanged: dict[str, list[Kernel]]) -> list[Node]:
    """Nodes of which the last of each phase also runs the exchanges after it."""
    out = list(nodes)
    for phase, kernels in exchanged.items():
        last = max((at for at, node in enumerate(out) if node.phase == phase and node.kernels), default=None)
        if last is not None and kernels:
            out[last] = replace(out[last], kernels=(*out[last].kernels, *kernels))
    return out
