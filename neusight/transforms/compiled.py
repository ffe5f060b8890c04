"""A step as its engine launches it."""

from __future__ import annotations

from dataclasses import replace

from neusight.kernels.families import Memory
from neusight.kernels.precision import stored_bytes
from neusight.transforms.layers import joined_products, product_biases_apart, reductions_apart, with_epilogues
from neusight.transforms.unrolled import unroll
from neusight.workloads.workload import KEPT, Node, Reference, Tensor, Workload


def compiled(workload: Workload) -> Workload:
    """The workload with products joined, operators fused and inputs copied as its engine does, or unchanged."""
    engine = workload.request.engine
    if "bias" in engine.written_out:
        workload = product_biases_apart(workload)
    if engine.launch == "static" and engine.joined_projections:
        workload = joined_products(workload)
    if engine.generated:
        from neusight.transforms.fusion import fuse

        workload = fuse(workload)
    if engine.epilogues:
        workload = with_epilogues(workload)
    if "reductions" in engine.written_out:
        workload = reductions_apart(workload)
    return with_copied_inputs(workload) if engine.copies_inputs else workload


def with_copied_inputs(workload: Workload) -> Workload:
    """The step with a kernel before it for each of its inputs, which is copied from where the caller has it to where a
    graph reads it.
    """
    step = unroll(workload)
    inputs = [place for place, tensor in enumerate(step.tensors) if tensor.kind == "input"]
    moved, first_caller = len(inputs), len(step.tensors)
    copies = tuple(
        Node(
            id=place,
            operator="aten.copy_.default",
            phase="forward",
            kernels=(_copy(step.tensors[at]),),
            reads=(Reference(first_caller + place),),
            writes=(Reference(at),),
        )
        for place, at in enumerate(inputs)
    )
    callers = tuple(replace(step.tensors[at], born=-1, died=KEPT) for at in inputs)
    return replace(
        step,
        nodes=(*copies, *(replace(node, id=node.id + moved) for node in step.nodes)),
        tensors=(*(_later(tensor, moved) for tensor in step.tensors), *callers),
    )


def _copy(tensor: Tensor) -> Memory:
    elements = round(tensor.nbytes / stored_bytes(tensor.dtype))
    return Memory(op="copy", elements=elements, read_bytes=tensor.nbytes, write_bytes=tensor.nbytes, dtype=tensor.dtype)


def _later(tensor: Tensor, places: int) -> Tensor:
    born, died = (at + places if 0 <= at < KEPT else at for at in (tensor.born, tensor.died))
    return replace(tensor, born=born, died=died)
