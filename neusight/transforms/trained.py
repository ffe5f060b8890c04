"""Products of a training step with narrow operands, or with weights of which two of four are zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.kernels.families import Gemm, Kernel, KernelBatch, Memory, RowReduction
from neusight.kernels.precision import stored_bytes
from neusight.kernels.work import work_of
from neusight.transforms.factored import LowRank, weights_of
from neusight.transforms.narrowed import RIDGE_FLOPS_PER_BYTE
from neusight.transforms.unrolled import unroll
from neusight.workloads.workload import Node, Workload

_MULTIPLE = 32
"""Divisor of the sides of products of 8-bit integers and of sparse matrices (cuBLASLt; cuSPARSELt, Data types)."""
_COMPRESSED = 0.5 + 1 / 16
"""Bytes of a 2:4 matrix of 16 bits over those that it had: half of its values, each with a place of two bits."""
Change = Callable[[Gemm, LowRank, Node], Iterator[Kernel]]


def int8_products(workload: Workload) -> Workload:
    """The step with the products of weights and for gradients in int8, of operands that are scaled by rows as they come
    (torchao, ``int8_mixed_precision_training``).

    Raises:
        InapplicableError: no product of 16 bits has sides that suit.
    """

    def narrow(product: Gemm, _: LowRank, __: Node) -> Iterator[Kernel]:
        yield from (_by_rows(rows, product.k, product.dtype) for rows in (product.m, product.n))
        yield replace(product, dtype="int8", scaling="row")

    return _with_products(workload, narrow)


def sparse_products(workload: Workload) -> Workload:
    """The step with two of four weights zero along both sides, in products forward and for gradients of activations
    that compute bounds; weights are pruned and packed in each step (Hubara et al. 2021, "Accelerated sparse neural
    training"; PyTorch 2024, Accelerating neural network training with semi-structured (2:4) sparsity).

    Raises:
        InapplicableError: no product of 16 bits has sides that suit.
    """

    def sparse(product: Gemm, weight: LowRank, node: Node) -> Iterator[Kernel]:
        work = work_of(KernelBatch.of([product]))
        dense = work.flops[0] < RIDGE_FLOPS_PER_BYTE * work.bytes[0]
        if dense or weight.makes_gradient(product, node):
            yield product
            return
        if node.phase == "forward":
            size = weight.elements * stored_bytes(product.dtype)
            # Packed along both sides at once.
            yield Memory(op="copy", elements=weight.elements, read_bytes=round(size),
                         write_bytes=round(2 * _COMPRESSED * size), dtype=product.dtype)  # fmt: skip
        yield replace(product, k=product.k // 2)

    return _with_products(workload, sparse)


def _with_products(workload: Workload, change: Change) -> Workload:
    if workload.request.mode != "training":
        raise InapplicableError("the step has no backward pass: this is of training")
    step = unroll(workload)
    weights = weights_of(step, Gemm)
    suited = {layer: w for layer, w in weights.items() if w.rows % _MULTIPLE == w.columns % _MULTIPLE == 0}

    def kernels(node: Node) -> Iterator[Kernel]:
        weight = suited.get(node.layer.name())
        for kernel in node.kernels:
            if weight and isinstance(kernel, Gemm) and weight.takes(kernel) and stored_bytes(kernel.dtype) == 2:
                yield from change(kernel, weight, node)
            else:
                yield kernel

    nodes = tuple(replace(node, kernels=tuple(kernels(node))) for node in step.nodes)
    if nodes == step.nodes:
        raise InapplicableError(
            f"no product of 16 bits that this speeds up has sides that are multiples of {_MULTIPLE}"
        )
    return replace(step, nodes=nodes)


def _by_rows(rows: int, columns: int, dtype: str) -> RowReduction:
    """Rows with a scale each, in 8 bits."""
    count = rows * columns
    return RowReduction(op="amax", rows=rows, cols=columns, read_bytes=round(count * stored_bytes(dtype)),
                        write_bytes=count + 4 * rows, flops=4 * count, dtype=dtype)  # fmt: skip
