"""One phase of a step by itself, as benchmarks of kernels time a backward pass apart from its forward pass."""

from __future__ import annotations

from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.transforms.unrolled import unroll
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
