"""Values that nodes of a step read and write, and which of the forward pass's a compiled step keeps.

The partitioner of ``torch.compile`` saves the fewest bytes between forward and backward from which the rest can be
computed again pointwise (``torch/_functorch/partitioners.py``, ``min_cut_rematerialization_partition``; Ansel et al.
2024, PyTorch 2, section 4.2). Here what each value costs is decided one after the other, not by one cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neusight.kernels.families import Elementwise, Kernel, Memory, RowReduction
from neusight.kernels.precision import DTYPE_BYTES
from neusight.transforms.reductions import STATISTICS, is_shared
from neusight.workloads.workload import KEPT, Node, Workload

COMPILED = ("forward", "backward")
"""Phases that are graphs; the optimizer's step is not compiled with the model."""
_MOVES = frozenset({"copy", "fill", "cat", "embedding", "gather", "transpose"})
"""Data movement that Inductor writes as the load of its reader."""
_LOOKUPS = frozenset({"embedding", "gather"})
"""Of these, those that a backward pass does not do again."""
_SCANS = frozenset({"sort", "topk", "cumsum", "cumprod", "logcumsumexp", "cummax", "nonzero", "unique_dim", "bincount"})
"""Operators over rows that Inductor does not generate as reductions."""
_MASKED = (["nll_loss_backward"], ["slice_backward"], ["select_backward"])
"""Gradients of a choice: values at some places and zero elsewhere."""
SUMS = frozenset({"sum", "mean", "amax", "prod", "norm", "var"})
"""Reductions that write figures of rows alone."""
UNROLLED = {"avg_pool2d": "add", "max_pool2d": "maximum"}
"""Pooling that is generated with all loads of a window written out, and what it does with each of them."""
_WINDOW = 25
"""Values of a window beyond which it is not (``torch/_inductor/lowering.py``, ``fallback_max_pool2d``)."""
_SMALL = 4
"""A result this many times smaller than what it is made of, or than what reads it, is cheap to save."""


class Value(NamedTuple):
    """The contents of a tensor as the node at a place wrote them; place -1: as they were before the step."""

    place: int
    tensor: int


class ValueGraph:
    """Nodes of an unrolled workload with the values that they read and write; those of ``among`` may be generated.

    Kernels written ``by_hand`` hold whole rows, from which they reduce them again, and add up over rows while they
    write what comes of each.
    """

    def __init__(
        self, workload: Workload, among: Callable[[Node], bool] = lambda node: True, *, by_hand: bool = False
    ) -> None:
        self.nodes, self.tensors, self.by_hand = workload.nodes, workload.tensors, by_hand
        self._changed = {node.layer for node in workload.nodes if among(node)}
        self.generated = [_generate(node, workload.uncovered) if among(node) else None for node in workload.nodes]
        self.sources: list[dict[int, Value]] = []
        """Values that each node reads, by tensor."""
        self.before: list[set[int]] = [set() for _ in workload.nodes]
        """Nodes that must run before each node because they read or write the values that it overwrites."""
        self.readers: dict[Value, list[int]] = {}
        self._number_values()

    def _number_values(self) -> None:
        latest: dict[int, Value] = {}
        for place, node in enumerate(self.nodes):
            reads = {r.tensor: latest.get(r.tensor, Value(-1, r.tensor)) for r in node.reads} if node.kernels else {}
            self.sources.append(reads)
            for value in reads.values():
                self.readers.setdefault(value, []).append(place)
            for tensor in {w.tensor for w in node.writes}:
                if (over := latest.get(tensor)) is not None:
                    self.before[place] |= {over.place, *self.readers[over]} - {place}
                latest[tensor] = Value(place, tensor)
                self.readers[latest[tensor]] = []

    def stands(self, place: int) -> bool:
        """True if a node without a kernel stays: one that allocates, or a view in a module that is left as it is."""
        node = self.nodes[place]
        return bool(node.writes) or node.layer not in self._changed

    def elements(self, place: int) -> int:
        """Elements that a generated kernel loops over; 0 for others."""
        kernel: Any = self.generated[place]
        if kernel is None:
            return 0
        return kernel.rows * kernel.cols if isinstance(kernel, RowReduction) else kernel.elements

    def reduced_rows(self, place: int) -> int:
        """Rows of a generated reduction, 0 for others; negative for one that has no loop in common with what reads it
        row by row: statistics that stand apart, rows that blocks share, and sums across rows, whose result has the
        last extent of its operand.
        """
        kernel: Any = self.generated[place]
        if not isinstance(kernel, RowReduction):
            return 0
        last = {self.tensors[value.tensor].shape[-1:] for value in self.values(place)}
        read = {self.tensors[tensor].shape[-1:] for tensor in self.sources[place]}
        across = kernel.op in SUMS and bool(last & read) and last != {(1,)}
        apart = self.nodes[place].operator.endswith(STATISTICS)
        return -kernel.rows if across or apart or is_shared(kernel) else kernel.rows

    def phase(self, value: Value) -> str:
        """Phase in which a value is made; '' before the step."""
        return self.nodes[value.place].phase if value.place >= 0 else ""

    def values(self, place: int) -> Iterator[Value]:
        """Values that a node writes."""
        return (Value(place, tensor) for tensor in {w.tensor for w in self.nodes[place].writes})

    def nbytes(self, value: Value) -> int:
        """Size of a value's tensor [B]."""
        return self.tensors[value.tensor].nbytes

    def stays(self, value: Value) -> bool:
        """True if the value's tensor outlives the step, or was there before."""
        tensor = self.tensors[value.tensor]
        return tensor.died >= KEPT or tensor.born < 0

    def pointwise(self, value: Value) -> bool:
        """True if the value can be computed element by element where it is read."""
        return value.place >= 0 and isinstance(self.generated[value.place], Elementwise | Memory)

    def again(self, value: Value) -> bool:
        """True if a backward pass can compute the value again: pointwise, or a norm whose statistics are there."""
        kernel: Any = self.generated[value.place] if value.place >= 0 else None
        if isinstance(kernel, RowReduction) and self.by_hand:
            return True
        if isinstance(kernel, RowReduction):
            mine = [self.nbytes(other) for other in self.values(value.place)]
            return min(mine) * _SMALL < max(mine) == self.nbytes(value)
        random = getattr(kernel, "op", "") == "dropout" and self.nbytes(value) < max(
            self.nbytes(other) for other in self.values(value.place)
        )
        return kernel is not None and getattr(kernel, "op", "") not in _LOOKUPS and not random


def _generate(node: Node, uncovered: Sequence[str]) -> Kernel | None:
    """The kernel that Inductor generates for a node, None where it calls a library."""
    if node.phase not in COMPILED or node.operator.rpartition(".")[0] in uncovered or not node.kernels:
        return None
    first = node.kernels[0]
    if isinstance(first, RowReduction):
        reduces = all(isinstance(kernel, RowReduction) for kernel in node.kernels)
        return first if reduces and first.op not in _SCANS else None
    if len(node.kernels) > 1 and not is_masked(node):
        return None
    if getattr(first, "op", "") in UNROLLED and getattr(first, "flops", 0) > _WINDOW * getattr(first, "elements", 1):
        return None
    moves = isinstance(first, Memory) and (first.op in _MOVES or is_masked(node))
    return first if isinstance(first, Elementwise) or moves else None


def is_masked(node: Node) -> bool:
    """True if a node fills and then scatters, which Inductor writes as a choice by position, element by element."""
    return node.operator.split(".")[1:2] in _MASKED


def count(graph: ValueGraph, value: Value) -> int:
    """Elements of a tensor."""
    return graph.nbytes(value) // DTYPE_BYTES.get(graph.tensors[value.tensor].dtype, 1)


def saved_values(graph: ValueGraph) -> set[Value]:
    """Values of the forward pass that are kept for the backward pass: those that a library reads there or that are few
    for their readers, and for generated kernels the smaller of a value and its sources.
    """
    needed = {
        value: None
        for place, node in enumerate(graph.nodes)
        if node.phase != "forward"
        for value in graph.sources[place].values()
        if graph.phase(value) == "forward"
    }
    saved = {value for value in needed if any(_keeps(graph, value, reader) for reader in graph.readers[value])}
    partitioner = _Partitioner(graph, saved)
    for value in sorted(needed):
        partitioner.save(value)
    return saved


def _keeps(graph: ValueGraph, value: Value, reader: int) -> bool:
    if graph.nodes[reader].phase == "forward":
        return False
    return graph.generated[reader] is None or graph.elements(reader) >= _SMALL * count(graph, value)


@dataclass
class _Partitioner:
    """Adds to the values that are ``saved``."""

    graph: ValueGraph
    saved: set[Value]
    first_library: dict[Value, int] = field(default_factory=dict)
    """The first kernel that is not generated and needs a value, through generated ones."""

    def __post_init__(self) -> None:
        for place in reversed(range(len(self.graph.nodes))):
            for value in self.graph.values(place):
                self.first_library[value] = min(
                    (self._library(r) for r in self.graph.readers[value] if self.graph.nodes[r].phase == "forward"),
                    default=len(self.graph.nodes),
                )

    def _library(self, place: int) -> int:
        if self.graph.generated[place] is None:
            return place
        return min((self.first_library[value] for value in self.graph.values(place)), default=len(self.graph.nodes))

    def save(self, value: Value) -> None:
        """Save the fewest bytes from which a value can be computed."""
        costs: dict[Value, float] = {}
        todo = [value]
        while todo:
            candidate = todo.pop()
            if self.graph.phase(candidate) != "forward" or candidate in self.saved:
                continue
            inputs, bytes_to_save = self._inputs(candidate, costs), self._weight(candidate)
            if self.again(candidate) and (inputs < bytes_to_save or (self.graph.by_hand and inputs == bytes_to_save)):
                todo += [*set(self.graph.sources[candidate.place].values()), *statistics(self.graph, candidate)]
            else:
                self.saved.add(candidate)

    def again(self, value: Value) -> bool:
        """True if the value may be computed again: none of its sources comes from before a library's kernel."""
        sources = self.graph.sources[value.place].values()
        early = (self.first_library[u] < value.place for u in sources if u.place >= 0 and self.graph.again(u))
        return self.graph.again(value) and not any(early)

    def _inputs(self, value: Value, costs: dict[Value, float]) -> float:
        return sum(self._cost(source, costs) for source in set(self.graph.sources[value.place].values()))

    def _cost(self, value: Value, costs: dict[Value, float]) -> float:
        if self.graph.phase(value) != "forward" or value in self.saved:
            return 0.0
        if value not in costs:
            bytes_to_save = self._weight(value)
            costs[value] = min(bytes_to_save, self._inputs(value, costs)) if self.again(value) else bytes_to_save
        return costs[value]

    def _weight(self, value: Value) -> float:
        """Bytes to save; twice where the forward pass would not write them otherwise."""
        graph = self.graph
        written = any(graph.generated[r] is None for r in graph.readers[value]) or not graph.pointwise(value)
        return graph.nbytes(value) * (1.0 if written else 2.0)


def statistics(graph: ValueGraph, value: Value) -> Iterator[Value]:
    """Figures of rows from which a norm is computed again."""
    if isinstance(graph.generated[value.place], RowReduction):
        yield from (other for other in graph.values(value.place) if other != value)
