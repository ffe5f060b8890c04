"""Products of weights in few bits or with zeros, as engines of inference run them: 8-bit integers whose scales were
calibrated before, all of a step in such integers, and two of four weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neusight.errors import CoverageError, InapplicableError
from neusight.kernels.families import Conv2d, Elementwise, Gemm, Kernel, KernelBatch, Memory, RowReduction
from neusight.kernels.precision import Precision, stored_bytes
from neusight.kernels.work import work_of
from neusight.transforms.partition import ValueGraph
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_MULTIPLE = 32
"""Divisor of rows and columns of weights in products of 8-bit integers and of 2:4 sparse matrices (cuBLASLt,
``CUBLASLT_ORDER_COL32``; cuSPARSELt, Data types and dimensions)."""


RIDGE_FLOPS_PER_BYTE = 200.0
"""Operations a byte from which on compute bounds a product of 16 bits on the first GPU that skips zeros: 312 TFLOP/s
over 1,555 GB/s (NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020)."""


def in_int8(workload: Workload, wide: bool) -> Workload:
    """The step with products of weights in int8, quantised and scaled back by the kernels around them.

    Args:
        workload: a step forward.
        wide: results leave products as sums of 32 bits, and what lies between layers keeps its dtype; else products
            scale their results themselves, and all that lies between them has 8 bits.
    """
    step = unroll(workload)
    places = [place for place, node in enumerate(step.nodes) if _is_of_weights(node, step.tensors)]
    if not places:
        raise InapplicableError("the step has no product of weights whose sides are multiples of 32")
    made = {w.tensor for place in places for w in step.nodes[place].writes}
    fed = {r.tensor for place in places for r in step.nodes[place].reads} - _others_read(step, places)
    sizes = _Sizes(step.tensors)
    between = {r.tensor for node in step.nodes for r in (*node.reads, *node.writes)}
    for at in made if wide else between:
        sizes.become("int32" if wide else "int8", at)
    for at in fed if wide else ():
        sizes.become("int8", at)
    chosen = set(places)
    nodes = [
        replace(node, kernels=(_in_int8(node.kernels[0]), *node.kernels[1:]))
        if place in chosen
        else replace(node, kernels=tuple(sizes.scale(kernel, node, made if wide else set()) for kernel in node.kernels))
        for place, node in enumerate(step.nodes)
    ]
    return replace(step, nodes=tuple(nodes), tensors=tuple(sizes.tensors()))


def _others_read(step: Workload, places: Sequence[int]) -> set[int]:
    """Tensors that kernels beside some products read, such as what is added to the residual stream."""
    mine = set(places)
    return {r.tensor for place, node in enumerate(step.nodes) if node.kernels and place not in mine for r in node.reads}


def _in_int8(kernel: Any) -> Kernel:
    return replace(kernel, dtype="int8")


@dataclass
class _Sizes:
    """Tensors whose elements take other bytes than they did."""

    before: Sequence[Tensor]
    factors: dict[int, float] = field(default_factory=dict)

    def become(self, dtype: str, at: int) -> None:
        """An intermediate of floating-point numbers gets another dtype."""
        tensor = self.before[at]
        if tensor.kind == "intermediate" and tensor.dtype in ("float16", "bfloat16", "float32"):
            self.factors[at] = stored_bytes(dtype) / stored_bytes(tensor.dtype)

    def tensors(self) -> Iterable[Tensor]:
        """Tensors with their new sizes."""
        for at, tensor in enumerate(self.before):
            f = self.factors.get(at, 1.0)
            yield replace(tensor, nbytes=round(f * tensor.nbytes), touched_bytes=round(f * tensor.touched_bytes))

    def scale(self, kernel: Kernel, node: Node, sums: set[int]) -> Kernel:
        """A kernel with the bytes that its operands have now; what reads sums of 32 bits also answers for the 16 of
        each that a product writes beyond what ``Gemm`` counts.
        """
        if not isinstance(kernel, Elementwise | RowReduction | Memory):
            return kernel
        surplus = {at: 2.0 / stored_bytes(self.before[at].dtype) for at in sums & self.factors.keys()}
        read = kernel.read_bytes * self._share(node.reads, surplus)
        return replace(
            kernel, read_bytes=round(read), write_bytes=round(kernel.write_bytes * self._share(node.writes, {}))
        )

    def _share(self, references: Sequence[Reference], surplus: Mapping[int, float]) -> float:
        """Bytes of some tensors over what they were."""
        old = {r.tensor: self.before[r.tensor].touched_bytes for r in references}
        new = sum(size * (self.factors.get(at, 1.0) + surplus.get(at, 0.0)) for at, size in old.items())
        return new / sum(old.values()) if sum(old.values()) else 1.0


_ACTIVATIONS = frozenset({"relu", "relu_", "relu6", "hardtanh", "clamp", "batch_norm"})
"""Operators that end a layer of integers: clamps of its results. Norms by constants change only weights and biases."""


def wholly_in_int8(workload: Workload, precision: Precision) -> Workload:
    """The step in integers alone, as converters write it for runtimes without floating point: tensors of 8 bits and
    biases of 32; biases, norms and clamps are part of the layer whose results they take (Jacob et al. 2018,
    Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, sections 2.4 and 3.2).
    Inputs lie in the arena of intermediate results, whose place is free after the last reader (David et al. 2021,
    TensorFlow Lite Micro, section 4.4.2).

    Args:
        workload: a step forward in float32.
        precision: that of integers, as it was asked for.

    Raises:
        InapplicableError: a step with a backward pass. CoverageError: a kernel that such runtimes do not have.
    """
    if workload.request.mode != "inference":
        raise InapplicableError("integers take no gradients: this is of inference")
    step = _layers_of(unroll(workload))
    last = {r.tensor: node.id for node in step.nodes for r in node.reads}
    biases = {
        r.tensor
        for node in step.nodes
        for r in node.reads
        if isinstance(node.kernels[0], Gemm | Conv2d) and len(step.tensors[r.tensor].shape) == 1
    }
    tensors = (
        replace(tensor, died=last.get(at, tensor.died)) if tensor.kind == "input" else tensor
        for at, tensor in enumerate(step.tensors)
    )
    return replace(
        step,
        request=replace(workload.request, precision=precision),
        nodes=tuple(replace(node, kernels=tuple(map(_as_integers, node.kernels))) for node in step.nodes),
        tensors=tuple(
            replace(tensor, dtype="int32") if at in biases else _in_bytes(tensor) for at, tensor in enumerate(tensors)
        ),
        inputs=tuple(text.replace(":float32", ":int8") for text in workload.inputs),
    )


def _layers_of(step: Workload) -> Workload:
    """An unrolled step without views, each layer one node of one kernel."""
    graph, nodes, made_by = ValueGraph(step), list(step.nodes), dict[int, int]()
    for place, node in enumerate(step.nodes):
        made_by[place] = place
        last = node.kernels[0] if node.kernels else None
        sources = [value for value in graph.sources[place].values() if value.place >= 0]
        ends = isinstance(last, Elementwise) and last.op in _ACTIVATIONS and len(sources) == 1
        if ends and graph.readers[sources[0]] == [place] and not graph.stays(sources[0]):
            made_by[place] = layer = made_by[sources[0].place]
            nodes[layer] = replace(nodes[layer], writes=node.writes[:1])
            nodes[place] = replace(node, kernels=())
    return rebuild(step, [replace(node, kernels=node.kernels[:1]) for node in nodes if node.kernels])


def _as_integers(kernel: Kernel) -> Kernel:
    if isinstance(kernel, Gemm | Conv2d):
        return replace(kernel, dtype="int8")
    if not isinstance(kernel, Elementwise | RowReduction | Memory):
        raise CoverageError(
            f"no runtime of integers has a kernel of {kernel.family}: write it out, as --attention eager does"
        )
    narrow = 1.0 / stored_bytes("float32")
    read, written = (round(size * narrow) for size in (kernel.read_bytes, kernel.write_bytes))
    return replace(kernel, dtype="int8", read_bytes=read, write_bytes=written)


def _in_bytes(tensor: Tensor) -> Tensor:
    if tensor.dtype != "float32":
        return tensor
    size = int(stored_bytes("float32"))
    return replace(tensor, dtype="int8", nbytes=tensor.nbytes // size, touched_bytes=tensor.touched_bytes // size)


def with_sparse_weights(workload: Workload, ridge_flops_per_byte: float = RIDGE_FLOPS_PER_BYTE) -> Workload:
    """The step with two of four weights zero in products that compute bounds: matrix units take half the steps over
    them (Mishra et al. 2021, Accelerating sparse deep neural networks, section 2). Others stay dense, which is faster.

    Args:
        workload: a step forward.
        ridge_flops_per_byte: operations a byte from which on compute bounds a dense product.
    """
    suited = [place for place, node in enumerate(workload.nodes) if _is_of_weights(node, workload.tensors)]
    nodes = list(workload.nodes)
    for place in suited:
        nodes[place] = _halve(nodes[place], ridge_flops_per_byte)
    if not suited:
        raise InapplicableError("the step has no product of weights whose sides are multiples of 32")
    return replace(workload, nodes=tuple(nodes))


def _halve(node: Node, ridge_flops_per_byte: float) -> Node:
    first: Any = node.kernels[0]
    work = work_of(KernelBatch.of([first]))
    if work.flops[0] < ridge_flops_per_byte * work.bytes[0]:
        return node
    return replace(node, kernels=(replace(first, k=first.k // 2), *node.kernels[1:]))


def _is_of_weights(node: Node, tensors: Sequence[Tensor]) -> bool:
    """True if a node multiplies by weights whose sides are multiples of ``_MULTIPLE``."""
    product = node.kernels[0] if node.kernels else None
    if not isinstance(product, Gemm) or product.batch != 1 or node.phase != "forward":
        return False
    weighed = any(tensors[r.tensor].kind == "weight" and len(tensors[r.tensor].shape) > 1 for r in node.reads)
    return weighed and product.n % _MULTIPLE == product.k % _MULTIPLE == 0
