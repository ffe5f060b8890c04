"""Reductions as Inductor runs them: a loss in one loop, a norm in two where statistics and results share none.

Statistics over batch and space lie across images in memory, and few long rows are shared by blocks, whose parts a
second kernel adds up (``torch/_inductor/ir.py``, ``Reduction.num_splits``). Either way, scale and shift are separate
pointwise work, which reads the operand again and joins the work that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from neusight.kernels.families import Elementwise, RowReduction
from neusight.kernels.operators import operator
from neusight.workloads.workload import Node, Reference, Tensor, Workload

STATISTICS = "statistics"
"""Suffix of operators that compute statistics in a loop separate from their results."""
_NORMS = ("batch_norm", "group_norm", "layer_norm", "rms_norm")
_ENOUGH_ROWS = 200
"""Rows from which on they are not shared: two for each SM of a large GPU, which compilation counts."""
_LONG = 8192
"""Columns up to which rows are not shared."""


def with_loops_apart(workload: Workload) -> Workload:
    """An unrolled step whose reductions are each of one loop: norms as one node or two, losses of several kernels as
    one.
    """
    return replace(workload, nodes=tuple(part for node in workload.nodes for part in _loops(node, workload.tensors)))


def _loops(node: Node, tensors: Sequence[Tensor]) -> Iterator[Node]:
    first = node.kernels[0] if node.kernels else None
    if isinstance(first, RowReduction) and len(node.kernels) == 1 and _is_split(first, node, tensors):
        yield from _two_loops(first, node, tensors)
    else:
        yield in_one_loop(node)


def in_one_loop(node: Node) -> Node:
    """A node whose pointwise kernel and reduction are one."""
    first = node.kernels[0] if node.kernels else None
    if not isinstance(first, Elementwise) or not isinstance(last := node.kernels[-1], RowReduction):
        return node
    flops = sum(getattr(kernel, "flops", 0) for kernel in node.kernels)
    return replace(node, kernels=(replace(last, read_bytes=first.read_bytes, flops=flops),))


def _is_split(norm: RowReduction, node: Node, tensors: Sequence[Tensor]) -> bool:
    if norm.op not in _NORMS or len(node.writes) < 2:
        return False
    across = norm.op == "batch_norm" and tensors[node.writes[0].tensor].shape[0] > 1
    return across or is_shared(norm)


def is_shared(reduction: RowReduction) -> bool:
    """True if blocks share the rows of a reduction, so that none of them has the result of a whole row."""
    return reduction.rows < _ENOUGH_ROWS and reduction.cols > _LONG


def _two_loops(norm: RowReduction, node: Node, tensors: Sequence[Tensor]) -> Iterator[Node]:
    (result, *figures), (operand, *affine) = node.writes, node.reads
    written, elements = sum(tensors[w.tensor].nbytes for w in figures), norm.rows * norm.cols
    name = node.operator.rpartition(".")[0]
    flops = operator("row_reduction", "var").flops * elements
    statistics = replace(norm, op="var", write_bytes=written, flops=flops)
    yield replace(node, operator=f"{name}.{STATISTICS}", kernels=(statistics,), reads=(operand,), writes=tuple(figures))
    scaling = Elementwise(
        op="batch_norm", elements=elements, read_bytes=norm.read_bytes + written,
        write_bytes=norm.write_bytes - written, flops=operator("elementwise", "batch_norm").flops * elements,
        dtype=norm.dtype,
    )  # fmt: skip
    reads = (operand, *(Reference(w.tensor) for w in figures), *affine)
    yield replace(node, operator=f"{name}.scale", kernels=(scaling,), reads=reads, writes=(result,))
