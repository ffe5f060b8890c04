"""The optimizer's step in one pass over all parameters, in place of one pass an operation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neusight.kernels.families import Optimizer
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.precision import stored_bytes
from neusight.workloads.workload import Reference, Workload

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
    last = replace(
        nodes[-1],
        operator=f"fused.{name.removesuffix('_fused')}",
        kernels=(kernel,),
        reads=_kept(workload, (r for node in nodes for r in node.reads), ("weight", "gradient", "state")),
        writes=_kept(workload, (w for node in nodes for w in node.writes), ("weight", "state")),
    )
    before = [replace(node, kernels=()) if node.phase == "optimizer" else node for node in workload.nodes]
    passing = {w.tensor for node in nodes for w in node.writes if workload.tensors[w.tensor].kind == "intermediate"}
    tensors = [replace(t, nbytes=0, touched_bytes=0) if i in passing else t for i, t in enumerate(workload.tensors)]
    at = workload.nodes.index(nodes[-1])
    return replace(workload, nodes=(*before[:at], last, *before[at + 1 :]), tensors=tuple(tensors))


def _kept(workload: Workload, references: Iterable[Reference], kinds: tuple[str, ...]) -> tuple[Reference, ...]:
    """References to what outlives the step's passes, each once."""
    return tuple(dict.fromkeys(r for r in references if workload.tensors[r.tensor].kind in kinds))


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
