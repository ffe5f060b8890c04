"""One phase of a step by itself, as benchmarks of kernels time a backward pass apart from its forward pass, and loops
of the host.
"""

from __future__ import annotations

from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.kernels.families import Gemm
from neusight.transforms.unrolled import rebuilt, unrolled
from neusight.workloads.workload import KEPT, Phase, Reference, Tensor, Workload


def alone(workload: Workload, phase: Phase) -> Workload:
    """The nodes of a phase; what was there before it stays, and so does what it leaves to later ones.

    Raises:
        InapplicableError: the step has no such phase.
    """
    step = unrolled(workload)
    nodes = [node for node in step.nodes if node.phase == phase]
    if not nodes:
        raise InapplicableError(f"the step has no {phase} pass")
    first, after = nodes[0].id, nodes[-1].id + 1
    kept = {at: t for at, t in enumerate(step.tensors) if t.born < after and t.died >= first}
    number = {old: new for new, old in enumerate(kept)}

    def renumbered(references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        return tuple(Reference(number[r.tensor]) for r in references)

    placed = (
        replace(node, id=at, reads=renumbered(node.reads), writes=renumbered(node.writes))
        for at, node in enumerate(nodes)
    )
    tensors = (_seen(tensor, first, after) for tensor in kept.values())
    return replace(step, nodes=tuple(placed), tensors=tuple(tensors))


def _seen(tensor: Tensor, first: int, after: int) -> Tensor:
    """As nodes from ``first`` to before ``after`` see it: what was saved for them stays, since they run again."""
    before, stays = tensor.born < first, tensor.born < first or tensor.died >= after
    return replace(tensor, born=-1 if before else tensor.born - first, died=KEPT if stays else tensor.died - first)


def retained(workload: Workload) -> Workload:
    """With all that was saved for the backward pass still there after it (``retain_graph=True``).

    Raises:
        InapplicableError: the step has no backward pass.
    """
    step = unrolled(workload)
    ends = [node.id for node in step.nodes if node.phase == "forward"][-1:]
    if not ends or len(step.nodes) == ends[0] + 1:
        raise InapplicableError("the step has no backward pass")
    tensors = (replace(t, died=KEPT) if 0 <= t.born <= ends[0] < t.died else t for t in step.tensors)
    return replace(step, tensors=tuple(tensors))


def without(workload: Workload, layer: str) -> Workload:
    """Without what a module and those in it run.

    Raises:
        InapplicableError: nothing runs in it.
    """
    step = unrolled(workload)
    nodes = [node for node in step.nodes if not f"{node.layer.name()}.".startswith(f"{layer}.")]
    if len(nodes) == len(step.nodes):
        raise InapplicableError(f"nothing runs in {layer}")
    return rebuilt(step, nodes)


def with_workspaces(workload: Workload, nbytes: int) -> Workload:
    """With so many bytes of libraries' workspaces, which stay from the first product on."""
    step = unrolled(workload)
    if not any(isinstance(kernel, Gemm) for node in step.nodes for kernel in node.kernels):
        return step
    workspace = Tensor(
        shape=(nbytes,), dtype="uint8", kind="intermediate", nbytes=nbytes, touched_bytes=0, born=-1, died=KEPT
    )
    return replace(step, tensors=(*step.tensors, workspace))


def looped(workload: Workload, layer: str, times: int) -> Workload:
    """All that a module runs but its first operator, which makes what the others change, so many times in turn: an
    assignment to a cell, one call, whose views take as long as one by itself (a host's 1.4 of an addition that keeps a
    graph, timed on a CPU; PyTorch, ``python_variable_indexing.cpp``).

    Raises:
        InapplicableError: nothing runs in such a module.
    """
    step = unrolled(workload)
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
