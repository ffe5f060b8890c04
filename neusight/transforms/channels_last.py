"""Convolutions as Inductor runs them: their bias is separate pointwise work, and their images are stored in NHWC.

Layout is chosen for a whole graph (``torch/_inductor/graph.py``, ``GraphLowering.decide_layout_opt``); what comes into
it and what goes out keep theirs, so that convolutions at its ends need copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from neusight.kernels.families import Conv2d, Elementwise, KernelBatch, Memory, RowReduction
from neusight.kernels.precision import stored_bytes
from neusight.kernels.work import work_of
from neusight.transforms.precision import OF_CHANNELS
from neusight.workloads.workload import KEPT, Node, Reference, Tensor, Workload

_FEW = 300
"""Operators a convolution from which on layouts stay as they are."""
_SMALL = 64
"""Channels up to which a convolution is small."""
_SLOWER = {"grouped": 1.358, "small": 0.783, "in_out": 0.725, "other": 0.823}
"""Time of convolutions in NHWC over that in NCHW, which Inductor assumes for inference on every GPU: weights of its
decision."""
_IMAGE = 4
"""Extents of a batch of images: others keep their layout."""


def with_biases_apart(workload: Workload) -> Workload:
    """An unrolled step whose convolutions add their bias in a separate node, in place, as a compiler sees them."""
    return replace(workload, nodes=tuple(part for node in workload.nodes for part in _split_bias(node)))


def _split_bias(node: Node) -> Iterator[Node]:
    first, *rest = node.kernels or (None,)
    if not isinstance(first, Conv2d) or first.op == "weight_grad" or len(rest) != 1:
        yield node
        return
    bias = rest[0]
    if not isinstance(bias, Elementwise) or bias.op != "add":
        yield node
        return
    yield replace(node, kernels=(first,), reads=node.reads[:2])
    yield replace(node, operator="aten.add_.Tensor", kernels=(bias,), reads=(*node.writes, *node.reads[2:]))


def channels_last(workload: Workload) -> Workload:
    """A step without series with convolutions of images, and norms of their channels, in NHWC where Inductor chooses
    that, with the copies of inputs, weights and results that need another layout than they have.
    """
    if not _prefers_nhwc(workload):
        return workload
    copies = _Copies(list(workload.tensors))
    nodes = [part for node in workload.nodes for part in _in_nhwc(node, copies)]
    return replace(workload, nodes=tuple(nodes), tensors=tuple(copies.tensors))


def _prefers_nhwc(workload: Workload) -> bool:
    """True if Inductor takes NHWC for the graph: for inference where its weights promise a gain, for training unless a
    convolution has groups of several channels or few outputs for its inputs, or all are small.
    """
    convolutions = [
        (kind, flops) for node in workload.nodes if (kind := _kind(node, workload.tensors)) for flops in _flops(node)
    ]
    if not convolutions or workload.length >= _FEW * len(convolutions):
        return False
    if workload.request.mode == "inference":
        return sum(_SLOWER[kind] * flops for kind, flops in convolutions) <= sum(flops for _, flops in convolutions)
    kinds = {kind for kind, _ in convolutions}
    return not kinds & {"grouped", "in_out"} and kinds != {"small"}


def _flops(node: Node) -> list[float]:
    return [float(work_of(KernelBatch.of([k])).flops[0]) for k in node.kernels if isinstance(k, Conv2d)]


def _kind(node: Node, tensors: Sequence[Tensor]) -> str:
    """Class of a forward convolution by its weight, a key of ``_SLOWER``; '' for other nodes."""
    kernel = node.kernels[0] if node.kernels else None
    if not isinstance(kernel, Conv2d) or node.phase != "forward" or len(node.reads) < 2:
        return ""
    first, second, *extents = tensors[node.reads[1].tensor].shape
    if kernel.groups > 1 and second > 1:
        return "grouped"
    if first <= _SMALL and second <= _SMALL:
        return "small"
    return "in_out" if 2 * first <= second and extents[0] > 1 else "other"


@dataclass
class _Copies:
    """Tensors of a step, with those that are the same in NHWC, by the one they are made of."""

    tensors: list[Tensor]
    of: dict[int, int] = field(default_factory=dict)

    def needs_copy(self, at: int) -> bool:
        """True if a convolution reads the tensor as it came into the graph; one-pixel filters are the same in both."""
        tensor = self.tensors[at]
        external = tensor.born < 0 or tensor.kind == "input"
        return external and len(tensor.shape) == _IMAGE and tensor.shape[2:] != (1, 1)

    def new(self, at: int, place: int) -> int:
        """A tensor like another, that is made at a place."""
        tensor = replace(self.tensors[at], kind="intermediate", born=place, died=place)
        self.tensors.append(replace(tensor, nbytes=tensor.touched_bytes, touched_bytes=tensor.touched_bytes))
        return len(self.tensors) - 1


def _in_nhwc(node: Node, copies: _Copies) -> Iterator[Node]:
    """A node with its kernels in NHWC, and the copies before and after it."""
    kernels = tuple(
        replace(k, image_layout="nhwc")
        if isinstance(k, Conv2d) or (isinstance(k, RowReduction) and k.op in OF_CHANNELS)
        else k
        for k in node.kernels
    )
    # A gradient that is one number for all places is no batch of images.
    images = any(len(copies.tensors[r.tensor].shape) == _IMAGE for r in node.reads)
    if kernels == node.kernels or not images:
        yield node
        return
    if not any(isinstance(kernel, Conv2d) for kernel in kernels):
        yield replace(node, kernels=kernels)
        return
    for at in dict.fromkeys(reference.tensor for reference in node.reads):
        if at not in copies.of and copies.needs_copy(at):
            copies.of[at] = copies.new(at, node.id)
            yield _copy(node, copies.tensors[at], at, copies.of[at])
    reads = tuple(Reference(copies.of.get(reference.tensor, reference.tensor)) for reference in node.reads)
    leaves = [w.tensor for w in node.writes if copies.tensors[w.tensor].died >= KEPT]
    made = {at: copies.new(at, node.id) for at in leaves}
    writes = tuple(Reference(made.get(reference.tensor, reference.tensor)) for reference in node.writes)
    yield replace(node, kernels=kernels, reads=reads, writes=writes)
    for at, copy in made.items():
        yield _copy(node, copies.tensors[at], copy, at)


def _copy(node: Node, tensor: Tensor, source: int, target: int) -> Node:
    size = tensor.touched_bytes
    elements = round(size / stored_bytes(tensor.dtype))
    kernel = Memory(op="copy", elements=elements, read_bytes=size, write_bytes=size, dtype=tensor.dtype)
    return replace(
        node,
        operator="aten.clone.default",
        kernels=(kernel,),
        reads=(Reference(source),),
        writes=(Reference(target),),
    )
