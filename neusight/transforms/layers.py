"""A step's products as libraries and compilers other than Inductor run them: joined, with separate biases, or with
the work that follows them in their kernels; and reductions with separate loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Conv2d, Elementwise, Gemm, Kernel, Memory, RowReduction
from neusight.kernels.operators import operator
from neusight.kernels.precision import stored_bytes
from neusight.transforms.fusion import fuse_graph
from neusight.transforms.partition import Value, ValueGraph, count
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import KEPT, Node, Tensor, Workload

_LOOPS = 3
"""Loops of a norm or a softmax: two reductions over each row, and their use; each loop reads the operands."""
_ROWS = ("layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax")


def product_biases_apart(workload: Workload) -> Workload:
    """The step with biases of products added by pointwise nodes: ``torch.nn.functional.linear`` did so for batches of
    sequences before PyTorch 1.12 (``aten/src/ATen/native/Linear.cpp``), and XLA and TensorFlow do.
    """
    step = unroll(workload)
    nodes = [part for node in step.nodes for part in _split_bias(node, step.tensors)]
    return rebuild(step, nodes, range(len(step.tensors)))


def _split_bias(node: Node, tensors: Sequence[Tensor]) -> Iterator[Node]:
    product = node.kernels[0] if node.kernels else None
    if not isinstance(product, Gemm) or not product.bias or len(node.kernels) > 1:
        yield node
        return
    biases = tuple(r for r in node.reads if tensors[r.tensor].shape == (product.n,))
    yield replace(node, kernels=(replace(product, bias=False),))
    elements, size = product.batch * product.m * product.n, stored_bytes(product.dtype)
    addition = Elementwise(
        op="add", elements=elements, read_bytes=round((elements + product.n) * size),
        write_bytes=round(elements * size), flops=operator("elementwise", "add").flops * elements, dtype=product.dtype,
    )  # fmt: skip
    yield replace(node, operator="aten.add_.Tensor", kernels=(addition,), reads=(*node.writes, *biases))


def as_library_layers(workload: Workload) -> Workload:
    """The step with each layer of a stack as one operator of a library, whose kernels follow each other: products of
    one operand joined, what lies between products in one kernel, caches that grow where they lie.

    Raises:
        InapplicableError: the model has no numbered layers.
    """
    if not any(_layer(node) for node in workload.nodes):
        raise InapplicableError("the model has no stack of layers")
    step = joined_products(workload, among=_layer)
    step = replace(step, nodes=tuple(_in_place(node, step.tensors) if _layer(node) else node for node in step.nodes))
    nodes: list[Node] = []
    made = fuse_graph(step, ValueGraph(step, lambda node: bool(_layer(node))))
    for node in made.nodes:
        if nodes and _layer(node) and _layer(node) == _layer(nodes[-1]):
            nodes[-1] = _merge(nodes[-1], node)
        else:
            nodes.append(node)
    return rebuild(made, nodes, (at for at, t in enumerate(made.tensors) if t.born < 0 or t.died >= KEPT))


def _layer(node: Node) -> str:
    """The path of a forward node up to the first number, that of a layer in a stack; '' outside of any."""
    if node.phase != "forward" or not node.layer.numbers:
        return ""
    return f"{node.layer.pattern.partition('{}')[0]}{node.layer.numbers[0]}"


def _in_place(node: Node, tensors: Sequence[Tensor]) -> Node:
    """A node that appends to an input, such as a cache of keys, without a copy of that."""
    last = node.kernels[0] if len(node.kernels) == 1 else None
    inputs = [r.tensor for r in node.reads if tensors[r.tensor].kind == "input"]
    if not inputs or not isinstance(last, Memory) or last.op != "cat":
        return node
    size = sum(tensors[r.tensor].nbytes for r in node.reads if r.tensor not in inputs)
    added = replace(last, elements=round(size / stored_bytes(last.dtype)), read_bytes=size, write_bytes=size)
    return replace(node, kernels=(added,))


def with_search_of_one_kernel(workload: Workload) -> Workload:
    """The step with what follows the last product, the logits, as one kernel that reads them once, finds the best and
    names the beams that go on, whose caches stay where they lie (FasterTransformer, ``cache_indirection``).

    Raises:
        InapplicableError: no choice follows the last product.
    """
    step = unroll(workload)
    products = [place for place, node in enumerate(step.nodes) if any(isinstance(k, Gemm) for k in node.kernels)]
    last = products[-1] if products else len(step.nodes)
    after = step.nodes[last + 1 :]
    choice = next((k for node in after for k in node.kernels if getattr(k, "op", "") == "topk"), None)
    logits: Any = step.nodes[last].kernels[0] if choice is not None else None
    if not isinstance(choice, RowReduction):
        raise InapplicableError("no search follows the last product")
    read = round(logits.m * logits.n * stored_bytes(logits.dtype))
    search = replace(choice, rows=logits.m, cols=logits.n, read_bytes=read, dtype=logits.dtype)
    best = replace(
        after[-1], operator="library.search", kernels=(search,), reads=step.nodes[last].writes, writes=after[-1].writes
    )
    return rebuild(step, [*step.nodes[: last + 1], best], range(len(step.tensors)))


def _merge(node: Node, other: Node) -> Node:
    """One node with the kernels of two."""
    made = set(node.writes)
    return replace(
        node,
        operator="library.layer",
        kernels=node.kernels + other.kernels,
        reads=tuple(dict.fromkeys((*node.reads, *(r for r in other.reads if r not in made)))),
        writes=tuple(dict.fromkeys((*node.writes, *other.writes))),
    )


def joined_products(
    workload: Workload, kinds: tuple[type, ...] = (Gemm,), among: Callable[[Node], Any] = lambda node: True
) -> Workload:
    """The step with products of one operand and several weights as one product, such as query, key and value.

    Args:
        workload: the step.
        kinds: ``Gemm``, and ``Conv2d`` where convolutions with equal windows are joined as well.
        among: predicate of the nodes to join.
    """
    step = unroll(workload)
    graph = ValueGraph(step)
    alike: dict[Any, list[int]] = {}
    for place, node in enumerate(step.nodes):
        if among(node) and (key := _operand(graph, place, node, kinds)):
            alike.setdefault(key, []).append(place)
    nodes = list(step.nodes)
    for first, *others in alike.values():
        if others:
            nodes[first] = _join([step.nodes[place] for place in (first, *others)])
            for place in others:
                nodes[place] = replace(nodes[place], kernels=(), reads=(), writes=())
    return rebuild(step, nodes, range(len(step.tensors)))


def _width(product: Gemm | Conv2d) -> str:
    """The extent along which weights lie side by side."""
    return "out_channels" if isinstance(product, Conv2d) else "n"


def _operand(graph: ValueGraph, place: int, node: Node, kinds: tuple[type, ...]) -> Any:
    """Key that products have in common if they can be joined; None for other nodes."""
    product: Any = node.kernels[0] if len(node.kernels) == 1 else None
    if product is None or not issubclass(type(product), kinds) or node.phase != "forward":
        return None
    if (product.groups if isinstance(product, Conv2d) else product.batch) != 1:
        return None
    made = [value for value in graph.sources[place].values() if graph.tensors[value.tensor].kind != "weight"]
    return (made[0], replace(product, **{_width(product): 1})) if len(made) == 1 and len(node.reads) > 1 else None


def _join(nodes: Sequence[Node]) -> Node:
    products: list[Any] = [node.kernels[0] for node in nodes]
    width = _width(products[0])
    return replace(
        nodes[0],
        kernels=(replace(products[0], **{width: sum(getattr(product, width) for product in products)}),),
        reads=tuple(dict.fromkeys(r for node in nodes for r in node.reads)),
        writes=tuple(w for node in nodes for w in node.writes),
    )


def with_epilogues(workload: Workload) -> Workload:
    """A step without series with pointwise nodes that alone read the result of a product or convolution within its
    kernel, which then reads their other operands (CUTLASS, Epilogue).
    """
    graph = ValueGraph(workload)
    nodes = list(workload.nodes)
    for place, node in enumerate(workload.nodes):
        last = node.kernels[0] if len(node.kernels) == 1 else None
        source = _fused_into(graph, place, last) if isinstance(last, Elementwise) else None
        if source is None or not isinstance(last, Elementwise):
            continue
        more = max(0, last.read_bytes - graph.nbytes(source))
        reads = (*nodes[source.place].reads, *(r for r in node.reads if r.tensor != source.tensor))
        also = _operands(last, more, graph.nbytes(source))
        kernels = (*nodes[source.place].kernels, *also)
        nodes[source.place] = replace(nodes[source.place], kernels=kernels, reads=reads, writes=node.writes)
        nodes[place] = replace(node, kernels=(), reads=(), writes=())
    return rebuild(workload, [node for node in nodes if node.kernels], range(len(workload.tensors)))


_SMALL = 0.25
"""Share of the result's bytes below which further operands are vectors along it, read from caches."""


def _operands(last: Elementwise, more: int, size: int) -> tuple[Kernel, ...]:
    """Kernels that read the epilogue's operands other than the product's result."""
    if more < _SMALL * size:
        return ()
    return (replace(last, read_bytes=more, write_bytes=0),)


def _fused_into(graph: ValueGraph, place: int, last: Elementwise) -> Value | None:
    """The result that a pointwise node can be the epilogue of: the one made last."""
    node = graph.nodes[place]
    sources = [value for value in graph.sources[place].values() if value.place >= 0]
    if not sources or len({w.tensor for w in node.writes}) != 1:
        return None
    source = max(sources)
    made_by = graph.nodes[source.place]
    fits = bool(made_by.kernels) and isinstance(made_by.kernels[0], Gemm | Conv2d) and len(made_by.writes) == 1
    only_reader = graph.readers[source] == [place] and not graph.stays(source)
    return source if fits and only_reader and count(graph, source) == last.elements else None


def reductions_apart(workload: Workload) -> Workload:
    """The step with each sum over rows in a separate loop, which reads the operands again (XLA,
    ``InstructionFusion``: no consumer is fused into a reduction).
    """
    nodes = tuple(
        replace(node, kernels=(_split_loops(node.kernels[0]),)) if len(node.kernels) == 1 else node
        for node in workload.nodes
    )
    return replace(workload, nodes=nodes)


def _split_loops(kernel: Kernel) -> Kernel:
    if not isinstance(kernel, RowReduction) or kernel.op not in _ROWS or kernel.passes > 1:
        return kernel
    return replace(kernel, passes=_LOOPS, read_bytes=_LOOPS * kernel.read_bytes)
