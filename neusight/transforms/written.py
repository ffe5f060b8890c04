"""Kernels written by hand for chains of operators of a model: norms, gates, rotary embeddings,
losses (Hsu et al. 2024, "Liger Kernel"; NVIDIA Apex, ``FusedRMSNorm``).

Nodes are grouped by the operators they run; ``fusion`` derives the bytes that are left and the values that are computed
again in the backward pass, as for a compiler's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from neusight.errors import InapplicableError
from neusight.kernels.families import Gemm
from neusight.transforms.fusion import fuse_among
from neusight.transforms.partition import COMPILED, ValueGraph
from neusight.transforms.reductions import in_one_loop
from neusight.transforms.unrolled import unroll
from neusight.workloads.dispatch import HAND_WRITTEN
from neusight.workloads.workload import Node, Workload

_ACTIVATIONS = ("silu", "gelu")
_WRITTEN_GATES = tuple(f"{HAND_WRITTEN}.{name}_mul" for name in _ACTIVATIONS)
_GATES = ("mul", "cat", "silu", "gelu", "silu_backward", "gelu_backward")
_ROTARY = ("neg", "cat", "mul", "add", "slice_backward", "clone")
_LOSSES = ("_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data")
Places = Callable[[ValueGraph], set[int]]


def fused_norms(workload: Workload, by: str = HAND_WRITTEN) -> Workload:
    """Each RMS norm that is written out as one kernel forward and one backward; ``by`` begins their names: ``aten``
    where PyTorch has them.

    Raises:
        InapplicableError: there is none.
    """
    return _fuse(workload, _norms, "the model has no RMS norm that is written out", by)


def fused_added_norms(workload: Workload) -> Workload:
    """Each RMS norm that is written out as one kernel together with the addition before it.

    Raises:
        InapplicableError: there is none.
    """
    return _fuse(workload, _added_norms, "no addition goes into an RMS norm that is written out")


def fused_gates(workload: Workload) -> Workload:
    """Each activation and its product with the gated operand as one kernel forward and one backward.

    Raises:
        InapplicableError: there is none.
    """
    return _fuse(workload, _gates, "no activation of the model gates another product")


def fused_rotary(workload: Workload) -> Workload:
    """Rotary embeddings of queries and keys as one kernel.

    Raises:
        InapplicableError: there is none.
    """
    return _fuse(workload, _rotary, "the model has no rotary embedding that is written out")


def fused_losses(workload: Workload) -> Workload:
    """Losses over a vocabulary as one kernel forward, and one backward which leaves no probabilities in between.

    Raises:
        InapplicableError: the step computes none.
    """
    return _fuse(workload, _losses, "the step computes no loss over a vocabulary")


def fused_chains(workload: Workload) -> Workload:
    """Every chain of pointwise operators and reductions as one kernel.

    Raises:
        InapplicableError: there is none.
    """
    return _fuse(workload, _chains, "the step has no pointwise operator")


def operator_name(node: Node) -> str:
    """``mul`` of ``aten.mul.Tensor``."""
    return node.operator.removeprefix("aten.").partition(".")[0]


def is_loss(node: Node) -> bool:
    """True if a node belongs to a loss over classes."""
    return any(name.strip("_") in node.operator for name in _LOSSES)


def is_plain(graph: ValueGraph, place: int) -> bool:
    """True if a node's kernel could be rewritten by hand: it is pointwise or a reduction, not made by a transform, and
    no addition of autograd to earlier gradients.
    """
    node = graph.nodes[place]
    adds = any(graph.tensors[w.tensor].kind == "gradient" for w in node.writes) and operator_name(node) == "add_"
    return graph.generated[place] is not None and not adds and not node.operator.startswith(HAND_WRITTEN)


def _fuse(workload: Workload, places: Places, why: str, by: str = HAND_WRITTEN) -> Workload:
    step = unroll(workload)
    graph = ValueGraph(replace(step, nodes=tuple(map(in_one_loop, step.nodes))))
    chosen = {place for place in places(graph) if is_plain(graph, place)}
    if not chosen:
        raise InapplicableError(why)
    nodes = (graph.nodes[place] if place in chosen else node for place, node in enumerate(step.nodes))
    return fuse_among(replace(step, nodes=tuple(nodes)), chosen, by)


def _in(graph: ValueGraph, layers: Iterable[str], names: Iterable[str] = ()) -> set[int]:
    """Places of nodes of modules, of some operators or all."""
    layers, names = set(layers), set(names)
    return {
        place
        for place, node in enumerate(graph.nodes)
        if node.phase in COMPILED and node.layer.name() in layers and (not names or operator_name(node) in names)
    }


def _norms(graph: ValueGraph) -> set[int]:
    layers = {node.layer.name() for node in graph.nodes if operator_name(node) == "rsqrt" and node.phase == "forward"}
    with_products = {n.layer.name() for n in graph.nodes if any(isinstance(k, Gemm) for k in n.kernels)}
    return _in(graph, layers - with_products)


def _added_norms(graph: ValueGraph) -> set[int]:
    norms = _norms(graph)
    sources = {value.place for place in norms for value in graph.sources[place].values() if value.place >= 0}
    readers = {reader for place in norms for value in graph.values(place) for reader in graph.readers[value]}
    added = {place for place in (sources | readers) - norms if operator_name(graph.nodes[place]) == "add"}
    return norms | added if any(graph.nodes[place].phase == "forward" for place in added) else set()


def gated_layers(graph: ValueGraph) -> dict[str, set[str]]:
    """Modules in which an activation is multiplied with the gated operand, with the modules of the activations."""
    activations: dict[str, set[str]] = {}
    for place, node in enumerate(graph.nodes):
        if node.phase == "forward" and operator_name(node) in _ACTIVATIONS:
            users = [graph.nodes[r] for value in graph.values(place) for r in graph.readers[value]]
            for user in users:
                if user.phase == "forward" and operator_name(user) == "mul":
                    activations.setdefault(user.layer.name(), set()).add(node.layer.name())
        if node.phase == "forward" and node.operator in _WRITTEN_GATES:
            activations.setdefault(node.layer.name(), set())
    return activations


def _gates(graph: ValueGraph) -> set[int]:
    gated = gated_layers(graph)
    return _in(graph, {*gated, *(layer for layers in gated.values() for layer in layers)}, _GATES)


def _rotary(graph: ValueGraph) -> set[int]:
    layers = {node.layer.name() for node in graph.nodes if operator_name(node) == "neg" and node.phase == "forward"}
    joined = {node.layer.name() for node in graph.nodes if operator_name(node) == "cat" and node.phase == "forward"}
    return _in(graph, layers & joined, _ROTARY)


def _chains(graph: ValueGraph) -> set[int]:
    """All places but those of a gradient through a softmax that was there before."""
    names = {operator_name(node) for node in graph.nodes}
    before = set() if "_log_softmax" in names else {"_log_softmax_backward_data"}
    return {place for place, node in enumerate(graph.nodes) if operator_name(node) not in before}


def _losses(graph: ValueGraph) -> set[int]:
    layers = {node.layer.name() for node in graph.nodes if operator_name(node) in _LOSSES}
    return _in(graph, layers, (*_LOSSES, "_to_copy"))
