"""The optimizer's step in one pass over all parameters, by another optimizer, or with moments on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Gemm, Kernel, Optimizer
from neusight.kernels.operators import operator, operator_bytes
from neusight.kernels.optimizers import ITERATED_DTYPE, NEWTON_SCHULZ, READS_ONLY, Algorithm, optimizer_named
from neusight.kernels.precision import stored_bytes
from neusight.transforms.recompute import is_product
from neusight.workloads.decoders.optimizer import orthogonalising_products
from neusight.workloads.workload import Node, Reference, Workload

_SIDES = 2
"""Dimensions of a matrix."""


def fuse_optimizer(workload: Workload) -> Workload:
    """The step with the fused form of its optimizer (``fused=True`` of PyTorch, ``FusedAdam`` of Apex); without an
    optimizer, or where it is fused already, the same step.

    Reads parameter, gradient and states once and writes all but the gradient.
    """
    nodes = [node for node in workload.nodes if node.phase == "optimizer"]
    steps: list[Any] = [kernel for node in nodes for kernel in node.kernels if isinstance(kernel, Optimizer)]
    name = optimizer_named(workload.request.optimizer).fused
    if not steps or not name or any(kernel.op == name for kernel in steps):
        return workload
    largest = max(steps, key=lambda kernel: kernel.elements)
    kernel = fused_step(name, largest.elements, largest.tensors, largest.dtype)
    last = replace(
        nodes[-1],
        operator=f"fused.{name.removesuffix('_fused')}",
        kernels=(*(product for node in nodes for product in node.kernels if isinstance(product, Gemm)), kernel),
        reads=_of_kinds(workload, (r for node in nodes for r in node.reads), ("weight", "gradient", "state")),
        writes=_of_kinds(workload, (w for node in nodes for w in node.writes), ("weight", "state")),
    )
    before = [replace(node, kernels=()) if node.phase == "optimizer" else node for node in workload.nodes]
    passing = {w.tensor for node in nodes for w in node.writes if workload.tensors[w.tensor].kind == "intermediate"}
    tensors = [replace(t, nbytes=0, touched_bytes=0) if i in passing else t for i, t in enumerate(workload.tensors)]
    at = workload.nodes.index(nodes[-1])
    return replace(workload, nodes=(*before[:at], last, *before[at + 1 :]), tensors=tuple(tensors))


def _of_kinds(workload: Workload, references: Iterable[Reference], kinds: tuple[str, ...]) -> tuple[Reference, ...]:
    """References to tensors of some kinds, each once."""
    return tuple(dict.fromkeys(r for r in references if workload.tensors[r.tensor].kind in kinds))


def fused_step(name: str, elements: int, tensors: int, dtype: str) -> Optimizer:
    """A fused optimizer over ``elements`` parameters in ``tensors`` tensors."""
    algorithm = operator("optimizer", name)
    read, written = operator_bytes(algorithm, (elements, 0, 0), int(stored_bytes(dtype)))
    return Optimizer(
        op=name,
        elements=elements,
        tensors=tensors,
        read_bytes=read,
        write_bytes=written,
        flops=algorithm.flops * elements,
        dtype=dtype,
    )


def stepped_by(workload: Workload, name: str) -> Workload:
    """The step with another optimizer than the one that it was traced with, which has moments."""
    algorithm, (fused, (last, kernel)) = optimizer_named(name), _fused_optimizer(workload)
    size, matrices = stored_bytes(kernel.dtype), _matrices(workload) if algorithm.orthogonalises else Counter()
    in_matrices = sum(count * short * long for (short, long), count in matrices.items())
    state = (algorithm.moment_bytes or size) * algorithm.states(kernel.elements, in_matrices)
    products = tuple(orthogonalising_products(matrices, ITERATED_DTYPE)) * NEWTON_SCHULZ
    share = state / (optimizer_named(workload.request.optimizer).moments * kernel.elements * size)
    return _with_step(fused, last, (*products, *passes_of(kernel, algorithm)), share, name)


def passes_of(kernel: Optimizer, algorithm: Algorithm) -> tuple[Optimizer, ...]:
    """Kernels that step the parameters of a fused one: passes over them, or one with moments of another size."""
    size = int(stored_bytes(kernel.dtype))
    if not algorithm.passes:
        saved = round(algorithm.moments * kernel.elements * (size - algorithm.moment_bytes))
        return (replace(kernel, read_bytes=kernel.read_bytes - saved, write_bytes=kernel.write_bytes - saved),)
    size_of_list = kernel.elements * size
    return tuple(
        replace(
            kernel,
            op=f"foreach_{op}",
            read_bytes=lists * size_of_list,
            write_bytes=0 if op == READS_ONLY else size_of_list,
            flops=operator("optimizer", f"foreach_{op}").flops * kernel.elements,
        )
        for op, lists in algorithm.passes
    )


def _matrices(workload: Workload) -> Counter[tuple[int, int]]:
    """Trained matrices that forward products multiply by, by their sides, the shorter first; the last one is a head."""
    numbers: dict[tuple[int, int], tuple[int, int]] = {}
    for node in workload.nodes:
        if node.phase == "forward" and any(map(is_product, node.kernels)):
            for reference in node.reads:
                tensor = workload.tensors[reference.tensor]
                if tensor.kind == "weight" and len(tensor.shape) == _SIDES:
                    short, long = sorted(tensor.shape)
                    for copy in range(tensor.copies):
                        numbers[reference.tensor, copy] = (short, long)
    return Counter(list(numbers.values())[:-1])


def paged_moments(workload: Workload) -> Workload:
    """Adam's step fused, with moments in the host's memory, whose pages come to the device to be updated and go back
    (Dettmers et al. 2023, QLoRA, section 3: paged optimizers, where none fits beside the rest).

    Raises:
        InapplicableError: another optimizer, whose moments are not kept so.
    """
    if workload.request.optimizer not in ("adam", "adamw"):
        raise InapplicableError(f"this is of Adam, and the step's optimizer is {workload.request.optimizer}")
    fused, (last, kernel) = _fused_optimizer(workload)
    moments = round(2 * kernel.elements * stored_bytes(kernel.dtype))
    copy = Collective(op="host_copy", ranks=2, bytes=moments, dtype=kernel.dtype)
    return _with_step(fused, last, (copy, kernel, copy), 0.0, workload.request.optimizer)


def _fused_optimizer(workload: Workload) -> tuple[Workload, tuple[Node, Optimizer]]:
    """The step with its optimizer fused, and the node and kernel that does it."""
    fused = fuse_optimizer(workload)
    steps = [(node, k) for node in fused.nodes for k in node.kernels if isinstance(k, Optimizer) and "_fused" in k.op]
    return fused, steps[-1]


def _with_step(workload: Workload, last: Node, kernels: tuple[Kernel, ...], share: float, name: str) -> Workload:
    """The step with other kernels in the optimizer's node, a share of its states, and another optimizer's name."""
    nodes = tuple(replace(node, kernels=kernels) if node is last else node for node in workload.nodes)
    tensors = tuple(
        replace(t, nbytes=round(share * t.nbytes), touched_bytes=round(share * t.touched_bytes))
        if t.kind == "state"
        else t
        for t in workload.tensors
    )
    request = replace(workload.request, optimizer=name)
    return replace(workload, nodes=nodes, tensors=tensors, request=request)
