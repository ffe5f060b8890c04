"""One phase of a step by itself, as benchmarks of kernels time a backward pass apart from its forward pass, and loops
of the host.
"""

from __future__ import annotations

from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.kernels.families import Gemm
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import KEPT, Phase, Reference, Tensor, Workload


def alone(workload: Workload, phase: Phase) -> Workload:
    """The nodes of a phase alone; tensors from before it and those that later phases read outlive the step.

    Raises:
        InapplicableError: the step has no such phase.
    """
    step = unroll(workload)
    nodes = [node for node in step.nodes if node.phase == phase]
    if not nodes:
        raise InapplicableError(f"the step has no {phase} pass")
    first, after = nodes[0].id, nodes[-1].id + 1
    live = {at: t for at, t in enumerate(step.tensors) if t.born < after and t.died >= first}
    number = {old: new for new, old in enumerate(live)}

    def renumber(references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        return tuple(Reference(number[r.tensor]) for r in references)

    placed = (
        replace(node, id=at, reads=renumber(node.reads), writes=renumber(node.writes)) for at, node in enumerate(nodes)
    )
    tensors = (_relative_to(tensor, first, after) for tensor in live.values())
    return replace(step, nodes=tuple(placed), tensors=tuple(tensors))


def _relative_to(tensor: Tensor, first: int, after: int) -> Tensor:
    """A tensor with lifetimes relative to the nodes from ``first`` to before ``after``; tensors saved for them stay,
    since they run again.
    """
    before, stays = tensor.born < first, tensor.born < first or tensor.died >= after
    return replace(tensor, born=-1 if before else tensor.born - first, died=KEPT if stays else tensor.died - first)


def with_saved_tensors(workload: Workload) -> Workload:
    """The step with all tensors saved for the backward pass still there after it (``retain_graph=True``).

    Raises:
        InapplicableError: the step has no backward pass.
    """
    step = unroll(workload)
    ends = [node.id for node in step.nodes if node.phase == "forward"][-1:]
    if not ends or len(step.nodes) == ends[0] + 1:
        raise InapplicableError("the step has no backward pass")
    tensors = (replace(t, died=KEPT) if 0 <= t.born <= ends[0] < t.died else t for t in step.tensors)
    return replace(step, tensors=tuple(tensors))


def without(workload: Workload, layer: str) -> Workload:
    """The step without the operators of a module and of those in it.

    Raises:
        InapplicableError: nothing runs in it.
    """
    step = unroll(workload)
    nodes = [node for node in step.nodes if not f"{node.layer.name()}.".startswith(f"{layer}.")]
    if len(nodes) == len(step.nodes):
        raise InapplicableError(f"nothing runs in {layer}")
    return rebuild(step, nodes)


def with_workspaces(workload: Workload, nbytes: int) -> Workload:
    """The step with ``nbytes`` of libraries' workspaces, which stay from the first product on."""
    step = unroll(workload)
    if not any(isinstance(kernel, Gemm) for node in step.nodes for kernel in node.kernels):
        return step
    workspace = Tensor(
        shape=(nbytes,), dtype="uint8", kind="intermediate", nbytes=nbytes, touched_bytes=0, born=-1, died=KEPT
    )
    return replace(step, tensors=(*step.tensors, workspace))


def repeat(workload: Workload, layer: str, times: int) -> Workload:
    """The operators of a module but its first, which makes the tensor that the others change, ``times`` in turn: an
    assignment to a cell, one call, whose views take as long as one by itself (a host's 1.4 of an addition that keeps a
    graph, timed on a CPU; PyTorch, ``python_variable_indexing.cpp``).

    Raises:
        InapplicableError: nothing runs in such a module.
    """
    step = unroll(workload)
    whole = [node for node in step.nodes if node.layer.name() == layer][1:]
    if not whole:
        raise InapplicableError(f"nothing runs in {layer}")
    views = sum(1 for node in whole if not node.kernels)
    series = whole[max(0, views - 1) :]
    last, more = series[-1].id, (times - 1) * len(series)
    inside = {node.id for node in series}

    def later(at: int) -> int:
        return at + more if last < at < KEPT else at

    nodes = (
        replace(node, copies=times, stride=len(series)) if node.id in inside else replace(node, id=later(node.id))
        for node in step.nodes
    )
    tensors = (
        replace(t, born=later(t.born), died=t.died + more if t.died in inside else later(t.died)) for t in step.tensors
    )
    return replace(step, nodes=tuple(nodes), tensors=tuple(tensors))
