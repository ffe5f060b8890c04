"""The optimizer's step in one pass over all parameters, in place of one pass an operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neusight.kernels.families import Optimizer
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.precision import stored_bytes
from neusight.workloads.workload import Node, Workload

_FUSED = {"sgd": "sgd_fused", "adam": "adam_fused", "adamw": "adamw_fused"}


def fuse_optimizer(workload: Workload) -> Workload:
    """The step with the fused form of its optimizer (``fused=True`` of PyTorch, ``FusedAdam`` of Apex); without an
    optimizer, or where it is fused already, the same step.

    Reads parameter, gradient and states once and writes all but the gradient.
    """
    nodes = [node for node in workload.nodes if node.phase == "optimizer"]
    steps: list[Any] = [kernel for node in nodes for kernel in node.kernels if isinstance(kernel, Optimizer)]
    name = _FUSED.get(workload.request.optimizer, "")
    if not steps or any(kernel.op == name for kernel in steps):
        return workload
    largest = max(steps, key=lambda kernel: kernel.elements)
    kernel = fused_step(name, largest.elements, largest.tensors, largest.dtype)
    return replace(workload, nodes=tuple(_carrying(node, nodes[-1], kernel) for node in workload.nodes))


def fused_step(name: str, elements: int, tensors: int, dtype: str) -> Optimizer:
    """A fused optimizer over ``elements`` parameters in ``tensors`` tensors."""
    known = operator("optimizer", name)
    read, written = operator_bytes(known, (elements, 0, 0), int(stored_bytes(dtype)))
    return Optimizer(
        op=name,
        elements=elements,
        tensors=tensors,
        read_bytes=read,
        write_bytes=written,
        flops=known.flops * elements,
        dtype=dtype,
    )


def _carrying(node: Node, last: Node, kernel: Optimizer) -> Node:
    """The last node of the optimizer runs all of it; the others run nothing."""
    if node.phase != "optimizer":
        return node
    if node is last:
        return replace(node, operator=f"fused.{kernel.op.removesuffix('_fused')}", kernels=(kernel,))
    return replace(node, kernels=())
