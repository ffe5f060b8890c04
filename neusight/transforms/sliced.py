"""A stretch of a step that runs once for each of several slices of its tokens, so that what lies between its
operators is there for one slice at a time: losses that never have all logits (Hsu et al. 2024, "Liger Kernel", section
3.2; torchtune, ``LinearCrossEntropyLoss``), and MLPs of long sequences (Bekman et al. 2025, "Arctic Long Sequence
Training", ``TiledMLP`` of DeepSpeed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Elementwise, Gemm, Kernel, Memory, RowReduction
from neusight.kernels.precision import stored_bytes
from neusight.transforms.fusion import fuse_among
from neusight.transforms.partition import ValueGraph
from neusight.transforms.unrolled import rebuild, unroll
from neusight.transforms.written import gated_layers, is_loss, is_plain, operator_name
from neusight.workloads.workload import Node, Phase, Reference, Tensor, TensorKind, Workload

_OF_WEIGHTS = "nt"
"""Layout of the product that makes a weight's gradient, whose inner extent are the tokens."""
SHARDS = 4


@dataclass
class _Slices:
    """Nodes of an unrolled step that run ``parts`` times, on separate tensors."""

    step: Workload
    parts: int

    def __post_init__(self) -> None:
        self.tensors: list[Tensor] = list(self.step.tensors)

    def new(self, like: int, parts: int = 1, kind: TensorKind = "intermediate") -> int:
        """A tensor like another, or like a slice of it."""
        whole = self.tensors[like]
        sizes = {name: ceil(getattr(whole, name) / parts) for name in ("nbytes", "touched_bytes")}
        self.tensors.append(replace(whole, kind=kind, born=0, died=0, **sizes))
        return len(self.tensors) - 1

    def pass_over(self, nodes: Sequence[Node], kept: Iterable[int], at: tuple[int, Phase]) -> Iterator[Node]:
        """The nodes once for each slice, at a place and in a phase; the tensors they make are new, except those
        ``kept``, and each is a slice, or the whole gradient of a weight.
        """
        inner = {w.tensor: makes_gradient(node) for node in nodes for w in node.writes if w.tensor not in set(kept)}
        for _ in range(self.parts):
            mine = {tensor: self.new(tensor, 1 if whole else self.parts) for tensor, whole in inner.items()}
            yield from (self._slice(node, mine, at) for node in nodes)

    def _slice(self, node: Node, mine: dict[int, int], at: tuple[int, Phase]) -> Node:
        reads, writes = (tuple(Reference(mine.get(r.tensor, r.tensor)) for r in of) for of in (node.reads, node.writes))
        kernels = node.kernels if adds_gradient(self.tensors, node) else tuple(self._part(k) for k in node.kernels)
        return replace(node, id=at[0], phase=at[1], kernels=kernels, reads=reads, writes=writes)

    def _part(self, kernel: Any) -> Kernel:
        """A kernel over one slice."""
        if isinstance(kernel, Gemm):
            extent = "k" if kernel.layout == _OF_WEIGHTS else "m"
            return replace(kernel, **{extent: ceil(getattr(kernel, extent) / self.parts)})
        names = {Elementwise: "elements", Memory: "elements", RowReduction: "rows"}
        sized = [names[type(kernel)]] if type(kernel) in names else []
        sized += [name for name in ("read_bytes", "write_bytes", "flops") if hasattr(kernel, name)]
        part: Kernel = replace(kernel, **{name: ceil(getattr(kernel, name) / self.parts) for name in sized})
        return part

    def add(self, summand: int, total: int, at: tuple[int, Phase]) -> Node:
        """A node that adds to a sum."""
        tensor = self.tensors[total]
        elements = round(tensor.nbytes / stored_bytes(tensor.dtype))
        kernel = Elementwise(op="add", elements=elements, read_bytes=2 * tensor.nbytes, write_bytes=tensor.nbytes,
                             flops=elements, dtype=tensor.dtype)  # fmt: skip
        return _node("aten.add_.Tensor", kernel, ((total, summand), (total,)), at)

    def move(self, op: str, source: int, target: int, at: tuple[int, Phase]) -> Node:
        """A node that fills a tensor, or puts it together from slices."""
        result = self.tensors[target]
        elements = round(result.nbytes / stored_bytes(result.dtype))
        read = 0 if op == "fill" else result.nbytes
        kernel = Memory(op=op, elements=elements, read_bytes=read, write_bytes=result.nbytes, dtype=result.dtype)
        return _node(f"aten.{op}.default", kernel, ((source,) if read else (), (target,)), at)

    def workload(self, nodes: Sequence[Node]) -> Workload:
        """The step with other nodes; views of tensors that no kernel touches any more are left out."""
        used = {r.tensor for node in nodes if node.kernels or node.writes for r in (*node.reads, *node.writes)}
        left = [node for node in nodes if node.kernels or node.writes or used.issuperset(r.tensor for r in node.reads)]
        return rebuild(replace(self.step, tensors=tuple(self.tensors)), left)


def _node(name: str, kernel: Kernel, touched: tuple[tuple[int, ...], tuple[int, ...]], at: tuple[int, Phase]) -> Node:
    reads, writes = (tuple(map(Reference, of)) for of in touched)
    return Node(id=at[0], operator=name, phase=at[1], kernels=(kernel,), reads=reads, writes=writes)


def makes_gradient(node: Node) -> bool:
    """True if a node sums over tokens, as the gradient of a weight does."""
    return any(isinstance(kernel, Gemm) and kernel.layout == _OF_WEIGHTS for kernel in node.kernels)


def adds_gradient(tensors: Sequence[Tensor], node: Node) -> bool:
    """True if a node adds to an earlier gradient."""
    return operator_name(node) == "add_" and any(tensors[w.tensor].kind == "gradient" for w in node.writes)


def _only_for(graph: ValueGraph, stretch: set[int]) -> set[int]:
    """Forward places up to products whose results are read only within a stretch, such as a teacher's logits."""
    places: set[int] = set()
    todo = list(stretch)
    while todo:
        sources = {value.place for value in graph.sources[todo.pop()].values()} - stretch - places - {-1}
        for place in sources:
            readers = {r for value in graph.values(place) for r in graph.readers[value]}
            if all(r in stretch | places or graph.nodes[r].phase != "forward" for r in readers):
                places.add(place)
                todo += [] if any(isinstance(k, Gemm) for k in graph.nodes[place].kernels) else [place]
    return places


def tiled_mlps(workload: Workload, parts: int = SHARDS) -> Workload:
    """Each gated MLP in slices of its tokens, forward, and in the backward pass forward again and backward.

    Raises:
        InapplicableError: the model has no such MLP.
    """
    step = unroll(workload)
    for layer in _mlps(step):
        step = _tile(step, layer, parts)
    return step


def _mlps(step: Workload) -> list[str]:
    layers = {node.layer.name() for node in step.nodes if any(isinstance(k, Gemm) for k in node.kernels)}
    gated = sorted(gated_layers(ValueGraph(step)))
    mlps = [layer for layer in gated if sum(name.startswith(f"{layer}.") for name in layers) >= 2]
    if not mlps:
        raise InapplicableError("the model has no gated MLP")
    return mlps


def _tile(step: Workload, layer: str, parts: int) -> Workload:
    inside = [node for node in step.nodes if node.layer.name() == layer or node.layer.name().startswith(f"{layer}.")]
    forward = [node for node in inside if node.phase == "forward" and node.kernels]
    backward = [node for node in inside if node.phase == "backward" and node.kernels]
    made = {w.tensor for node in backward for w in node.writes if makes_gradient(node)}
    backward += [n for n in step.nodes if adds_gradient(step.tensors, n) and any(r.tensor in made for r in n.reads)]
    backward.sort(key=lambda node: node.id)
    slices = _Slices(step, parts)
    result, begin = forward[-1].writes[0].tensor, forward[0].id
    apart = slices.new(result)
    shown = [replace(node, writes=tuple(Reference(apart if w.tensor == result else w.tensor) for w in node.writes))
             for node in forward]  # fmt: skip
    once = [*slices.pass_over(shown, (apart,), (begin, "forward")),
            slices.move("cat", apart, result, (begin, "forward"))]  # fmt: skip
    again: list[Node] = []
    if backward:
        gradient, start = backward_result(step, backward), backward[0].id
        at: tuple[int, Phase] = (start, "backward")
        results = (gradient, *_gradients(step, backward))
        again = [slices.move("fill", gradient, gradient, at), *slices.pass_over([*forward, *backward], results, at)]
    views = [node for node in inside if not node.kernels]
    return slices.workload(_replace_nodes(step, (forward, once), (backward, again), (views, ())))


def backward_result(step: Workload, backward: Sequence[Node]) -> int:
    """The tensor that a stretch of a backward pass makes last for what comes before it."""
    last = [node for node in backward if not adds_gradient(step.tensors, node) and not makes_gradient(node)][-1]
    return last.writes[0].tensor


def _gradients(step: Workload, nodes: Sequence[Node]) -> Iterator[int]:
    yield from (w.tensor for node in nodes for w in node.writes if adds_gradient(step.tensors, node))


def _replace_nodes(step: Workload, *changes: tuple[Sequence[Node], Sequence[Node]]) -> list[Node]:
    """The nodes of a step with some replaced by others, which run where the first of those ran."""
    starts = {old[0].id: new for old, new in changes if old}
    gone = {node.id for old, _ in changes for node in old}
    nodes: list[Node] = []
    for node in step.nodes:
        nodes += starts.get(node.id, ())
        if node.id not in gone:
            nodes.append(node)
    return nodes


def chunked_loss(workload: Workload, parts: int = 0) -> Workload:
    """A loss and the product that its logits come from, in slices of tokens, each of which makes its gradients at once:
    logits are never there for more than one, and gradients wait from the forward pass on.

    Args:
        workload: a step.
        parts: slices; 0: as many as the logits of a token have more values than their operand, which makes
            those of a slice as large as the whole operand (Hsu et al. 2024, section 3.2), of a power of two of tokens.

    Raises:
        InapplicableError: no loss of a product's result is part of the step, or its logits are no larger than their
            operand.
    """
    step = unroll(workload)
    graph = ValueGraph(step)
    heads = _heads(graph)
    parts = parts or _chunks(graph, heads)
    chosen = {place for place in _stretch(graph, step, heads) if is_plain(graph, place)}
    step = fuse_among(step, chosen)
    graph = ValueGraph(step)
    heads = _heads(graph)
    stretch = [step.nodes[place] for place in sorted(_stretch(graph, step, heads))]
    nodes = [node for node in stretch if node.kernels]
    slices = _Slices(step, parts)
    at: tuple[int, Phase] = (nodes[0].id, "forward")
    sums = {
        w.tensor: slices.new(w.tensor, kind="gradient") for node in nodes for w in node.writes if makes_gradient(node)
    }
    after = {r.tensor for node in step.nodes if node.kernels and node not in nodes for r in node.reads}
    outer = {w.tensor for node in nodes for w in node.writes if w.tensor in after} - sums.keys()
    summed = [part for node in nodes for part in _and_sum(slices, node, sums, at)]
    once = [*(slices.move("fill", total, total, at) for total in sums.values()),
            *slices.pass_over(summed, {*outer, *sums.values()}, at)]  # fmt: skip
    rest = [replace(node, reads=tuple(Reference(sums.get(r.tensor, r.tensor)) for r in node.reads))
            for node in _replace_nodes(step, (stretch, once))]  # fmt: skip
    return slices.workload(rest)


def _heads(graph: ValueGraph) -> set[int]:
    """Places of the forward products whose results enter a loss over classes: their backward products follow the
    backward pass of the loss.

    Raises:
        InapplicableError: there are none.
    """
    losses = [place for place, node in enumerate(graph.nodes) if node.phase == "backward" and is_loss(node)]
    layers, seen = set[str](), set[int]()
    while losses:
        place = losses.pop()
        readers = {r for value in graph.values(place) for r in graph.readers[value]} - seen
        seen |= readers
        products = {r for r in readers if any(isinstance(k, Gemm) for k in graph.nodes[r].kernels)}
        layers |= {graph.nodes[r].layer.name() for r in products}
        losses += readers - products
    heads = {
        place
        for place, node in enumerate(graph.nodes)
        if node.phase == "forward" and node.layer.name() in layers and any(isinstance(k, Gemm) for k in node.kernels)
    }
    if not heads:
        raise InapplicableError("no loss of a product's result is part of the step")
    return heads


def _stretch(graph: ValueGraph, step: Workload, heads: set[int]) -> set[int]:
    """Places of products with their loss, forward and backward."""
    todo, places = list(heads), set(heads)
    while todo:
        more = {r for value in graph.values(todo.pop()) for r in graph.readers[value]} - places
        more = {place for place in more if graph.nodes[place].phase == "forward"}
        places |= more
        todo += more
    places |= _only_for(graph, places)
    layers = {graph.nodes[place].layer.name() for place in places}
    layers |= {node.layer.name() for node in graph.nodes if node.phase == "backward" and is_loss(node)}
    backward = (
        place
        for place, node in enumerate(graph.nodes)
        if node.phase == "backward" and node.layer.name() in layers and not adds_gradient(step.tensors, node)
    )
    return places | set(backward)


def _and_sum(slices: _Slices, node: Node, sums: dict[int, int], at: tuple[int, Phase]) -> Iterator[Node]:
    yield node
    if makes_gradient(node):
        made = node.writes[0].tensor
        yield slices.add(made, sums[made], at)


def _chunks(graph: ValueGraph, heads: set[int]) -> int:
    product: Any = next(kernel for kernel in graph.nodes[max(heads)].kernels if isinstance(kernel, Gemm))
    tokens, classes, hidden = product.m, product.n, product.k
    if classes <= hidden:
        raise InapplicableError("logits are no larger than what they are made of: one slice would hold them all")
    rows = 2 ** (ceil(tokens / ceil(classes / hidden)) - 1).bit_length()
    return ceil(tokens / rows)
