"""The optimizer's step in one pass over all parameters, with moments in few bits, or with those of rows and columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Kernel, Optimizer
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.precision import stored_bytes
from neusight.workloads.decoders.optimizer import STATE_BYTES
from neusight.workloads.workload import Node, Reference, Workload

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


ADAFACTOR = (
    ("mul", 1), ("add", 1), ("norm", 1), ("norm", 1), ("mul", 0), ("mul", 2), ("norm", 1), ("div", 1), ("mul", 1),
    ("add", 2),
)  # fmt: skip
"""Passes of transformers' ``Adafactor.step`` over a tensor, with how many each reads: the gradient squared and moved
from 0, means of rows and of columns, the inverse root that those make, its product with the gradient, that one's norm,
clipped, times the rate, and the step."""
_READS_ONLY = "norm"


def narrow_moments(workload: Workload, name: str) -> Workload:
    """Adam's step fused, with moments of ``name`` in ``STATE_BYTES``.

    Raises:
        InapplicableError: another optimizer, whose moments are not kept so.
    """
    fused, (last, kernel) = _stepped(workload)
    size, state = stored_bytes(kernel.dtype), STATE_BYTES[name]
    saved = round(2 * kernel.elements * (size - state))
    narrow = replace(kernel, read_bytes=kernel.read_bytes - saved, write_bytes=kernel.write_bytes - saved)
    return _with_step(fused, last, (narrow,), state / size)


def paged_moments(workload: Workload) -> Workload:
    """Adam's step fused, with moments in the host's memory, whose pages come to the device to be updated and go back
    (Dettmers et al. 2023, QLoRA, section 3: paged optimizers, where none fits beside the rest).

    Raises:
        InapplicableError: another optimizer, whose moments are not kept so.
    """
    fused, (last, kernel) = _stepped(workload)
    moments = round(2 * kernel.elements * stored_bytes(kernel.dtype))
    copy = Collective(op="host_copy", ranks=2, bytes=moments, dtype=kernel.dtype)
    return _with_step(fused, last, (copy, kernel, copy), 0.0)


def factored_moments(workload: Workload) -> Workload:
    """Adafactor in place of Adam: sums of rows and of columns stand for the second moment, and there is no first
    (Shazeer & Stern 2018, algorithm 4).

    Raises:
        InapplicableError: another optimizer.
    """
    fused, (last, kernel) = _stepped(workload)
    size = kernel.elements * int(stored_bytes(kernel.dtype))
    passes = tuple(
        replace(
            kernel,
            op=f"foreach_{op}",
            read_bytes=tensors * size,
            write_bytes=0 if op == _READS_ONLY else size,
            flops=operator("optimizer", f"foreach_{op}").flops * kernel.elements,
        )
        for op, tensors in ADAFACTOR
    )
    return _with_step(fused, last, passes, 0.0)


def _stepped(workload: Workload) -> tuple[Workload, tuple[Node, Optimizer]]:
    """The step with its optimizer fused, and the node and kernel that does it."""
    if workload.request.optimizer not in ("adam", "adamw"):
        raise InapplicableError(f"this is of Adam, and the step's optimizer is {workload.request.optimizer}")
    fused = fuse_optimizer(workload)
    steps = [(node, k) for node in fused.nodes for k in node.kernels if isinstance(k, Optimizer) and "_fused" in k.op]
    return fused, steps[-1]


def _with_step(workload: Workload, last: Node, kernels: tuple[Kernel, ...], share: float) -> Workload:
    """With other kernels in the optimizer's node, and so much of its states."""
    nodes = tuple(replace(node, kernels=kernels) if node is last else node for node in workload.nodes)
    tensors = tuple(
        replace(t, nbytes=round(share * t.nbytes), touched_bytes=round(share * t.touched_bytes))
        if t.kind == "state"
        else t
        for t in workload.tensors
    )
    return replace(workload, nodes=nodes, tensors=tensors)
