"""Backward passes of recurrent layers as a scan over their steps: gradients of states are products of Jacobians, which
may be multiplied in any order (Wang, Bai and Pekhimenko 2020, "BPPSA", section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Elementwise, Gemm, Kernel
from neusight.kernels.precision import stored_bytes
from neusight.transforms.unrolled import unroll
from neusight.workloads.rules.recurrent import CELL_BACKWARD, STATES
from neusight.workloads.workload import Node, Workload


def with_scanned_gradients(workload: Workload) -> Workload:
    """The step with recurrent layers whose gradients of all steps are a Blelloch scan: one kernel of local derivatives,
    one that makes their Jacobians, then twice as many levels of products as the steps' logarithm.

    Raises:
        InapplicableError: the step has no backward pass of a recurrent layer.
    """
    step = unroll(workload)
    nodes = tuple(replace(node, kernels=tuple(_kernels(node))) for node in step.nodes)
    if nodes == step.nodes:
        raise InapplicableError("the step has no recurrent layer whose backward pass goes step by step")
    return replace(step, nodes=nodes)


def _kernels(node: Node) -> Iterator[Kernel]:
    """Kernels of a node, with each stretch of equal steps as a scan."""
    at = 0
    while at < len(node.kernels):
        pair = node.kernels[at : at + 2]
        steps = _repeats(node.kernels, at) if _is_step(pair) else 0
        if steps > 1:
            yield from scan(pair[0], pair[1], steps)
            at += 2 * steps
        else:
            yield node.kernels[at]
            at += 1


def _is_step(pair: Sequence[Kernel]) -> bool:
    """True if two kernels are the derivatives of a cell and the product that passes them to the step before."""
    kinds = len(pair) > 1 and isinstance(pair[0], Elementwise) and isinstance(pair[1], Gemm)
    return kinds and getattr(pair[0], "op", "") in {f"{cell}{CELL_BACKWARD}" for cell in STATES}


def _repeats(kernels: Sequence[Kernel], at: int) -> int:
    """Number of times that two kernels follow each other from a place on."""
    steps = 1
    while kernels[at + 2 * steps : at + 2 * steps + 2] == kernels[at : at + 2]:
        steps += 1
    return steps


def scan(cell: Any, product: Any, steps: int) -> Iterator[Kernel]:
    """Kernels of a scan over ``steps``: Jacobians of a sample's states, S x S each, are multiplied pair by pair on the
    way up, and gradients of S values with them on the way down.

    Args:
        cell: local derivatives of a step.
        product: product of a step, whose rows are samples and whose columns the state.
        steps: length of the sequence.
    """
    names = ("elements", "read_bytes", "write_bytes", "flops")
    yield replace(cell, **{name: steps * getattr(cell, name) for name in names})
    width = product.n * STATES[cell.op.removesuffix(CELL_BACKWARD)]
    elements, size = steps * product.m * width**2, stored_bytes(product.dtype)
    yield Elementwise(
        op="mul", elements=elements, read_bytes=round((steps * product.m * width + width**2) * size),
        write_bytes=round(elements * size), flops=elements, dtype=product.dtype,
    )  # fmt: skip
    pairs = [product.m * ceil(steps / 2**level) for level in range(1, ceil(log2(steps)) + 1)]
    for rows, counts in ((width, pairs), (1, pairs[::-1])):
        for count in counts:
            yield Gemm(op="bmm", batch=count, m=rows, n=width, k=width, layout="nn", dtype=product.dtype)
