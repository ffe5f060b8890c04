"""What ``torch.compile`` makes of a step: chains of pointwise operators and reductions run as one kernel each.

Inductor (PyTorch 2, Ansel et al. 2024, section 4.3) joins a producer and its consumer where both loop over the same
elements and no third kernel must run between them; products and everything that it does not generate itself stay
kernels of their own. Views and copies of layout that a chain takes along cost nothing. What remains of a chain's
traffic is each distinct tensor that enters it, once, and each that somebody outside reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neusight.kernels.families import Elementwise, Kernel, Memory, RowReduction
from neusight.transforms.plain import plain, rebuilt
from neusight.workloads.workload import KEPT, Node, Reference, Workload

_MOVES = frozenset({"copy", "fill", "cat", "embedding", "gather", "transpose"})
"""Data movement that Inductor writes as the load of whoever reads it."""
_SCANS = frozenset({"sort", "topk", "cumsum", "cumprod", "logcumsumexp", "cummax", "nonzero", "unique_dim", "bincount"})
"""Over rows, but no reductions that Inductor loops over."""
_MASKED = (["nll_loss_backward"], ["slice_backward"], ["select_backward"])
"""Gradients of a choice: values at some places and zero elsewhere."""
_COMPILED = ("forward", "backward")
"""Phases that are graphs; the optimizer's step is not compiled with the model."""


@dataclass
class _Group:
    """Nodes that become one kernel, by their places, and what they loop over: ``rows`` is 0 without a reduction.
    ``elements`` is 0 for what cannot be joined.
    """

    members: list[int]
    elements: int
    rows: int = 0
    joined: _Group | None = field(default=None, repr=False)

    @property
    def now(self) -> _Group:
        """The group that this one has become part of."""
        group = self
        while group.joined is not None:
            group = group.joined
        return group


class _Graph:
    """Who must run before whom among the nodes of a plain workload."""

    def __init__(self, workload: Workload) -> None:
        self.nodes = workload.nodes
        self.before: list[set[int]] = [set() for _ in workload.nodes]
        self.readers: dict[tuple[int, int], list[int]] = {}
        """Of what a node wrote to a tensor, by (node, tensor)."""
        self.groups = [_alone(node, place, workload.uncovered) for place, node in enumerate(workload.nodes)]
        writer: dict[int, int] = {}
        for place, node in enumerate(workload.nodes):
            for one in {r.tensor for r in node.reads}:
                if (source := writer.get(one)) is not None:
                    self.before[place].add(source)
                    self.readers[source, one].append(place)
            for one in {w.tensor for w in node.writes}:
                if (source := writer.get(one)) is not None:  # Written again: after all who read what was there.
                    self.before[place] |= {source, *self.readers[source, one]} - {place}
                writer[one] = place
                self.readers[place, one] = []

    def around(self, first: _Group, second: _Group) -> bool:
        """Whether the second depends on the first through a third."""
        begin = first.members[0]
        todo = [p for m in second.members for p in self.before[m] if self.groups[p].now not in (first, second)]
        seen: set[int] = set()
        while todo:
            group = self.groups[todo.pop()].now
            if group is first:
                return True
            if id(group) in seen or group.members[-1] < begin:
                continue
            seen.add(id(group))
            todo += [p for m in group.members for p in self.before[m]]
        return False

    def only_read_by(self, group: _Group, other: _Group) -> bool:
        """Whether all that a group writes is read by another group alone."""
        written = [(m, w.tensor) for m in group.members for w in self.nodes[m].writes]
        return all(self.groups[reader].now in (group, other) for key in written for reader in self.readers[key])


def fuse(workload: Workload) -> Workload:
    """The step as Inductor compiles it: fewer nodes, each of one kernel, without views.

    Forward and backward are fused each by itself. Operators without a rule stay apart.
    """
    before = plain(workload)
    graph = _Graph(before)
    for place in range(len(before.nodes)):
        _join_producers(graph, place)
    groups = list({id(g.now): g.now for g in graph.groups}.values())
    return _rebuilt(before, graph, [group for group in _in_order(graph, groups) if _runs(group, before.nodes)])


def _alone(node: Node, place: int, uncovered: Sequence[str]) -> _Group:
    """A node's group before it is joined with any."""
    apart = node.phase not in _COMPILED or node.operator.rpartition(".")[0] in uncovered or not node.kernels
    first: Any = None if apart else _generated(node)
    if isinstance(first, RowReduction):
        return _Group([place], first.rows * first.cols, first.rows)
    return _Group([place], 0 if first is None else first.elements)


def _generated(node: Node) -> Kernel | None:
    """The kernel that Inductor generates for a node, None where it calls a library."""
    first = node.kernels[0]
    if isinstance(first, RowReduction):
        return None if first.op in _SCANS else first
    if len(node.kernels) > 1 and not _is_masked(node):
        return None
    moves = isinstance(first, Memory) and (first.op in _MOVES or _is_masked(node))
    return first if isinstance(first, Elementwise) or moves else None


def _is_masked(node: Node) -> bool:
    """Whether a node fills and then scatters, which Inductor writes as a choice by position, element by element."""
    return node.operator.split(".")[1:2] in _MASKED


def _join_producers(graph: _Graph, place: int) -> None:
    """Join a node with the groups of what it reads, the latest first."""
    for source in sorted(graph.before[place], reverse=True):
        mine, other = graph.groups[place].now, graph.groups[source].now
        if mine is other or not _fits(graph, other, mine):
            continue
        if not graph.around(other, mine) and not graph.around(mine, other):
            mine.joined = other
            other.members = sorted(other.members + mine.members)
            other.elements, other.rows = max(other.elements, mine.elements), other.rows or mine.rows


def _fits(graph: _Graph, producer: _Group, consumer: _Group) -> bool:
    """Whether both loop over the same, or the producer can be computed anew in each iteration of the consumer."""
    phases = {graph.nodes[group.members[0]].phase for group in (producer, consumer)}
    if not producer.elements or not consumer.elements or len(phases) > 1:
        return False
    if producer.elements == consumer.elements:
        return not (producer.rows and consumer.rows) or producer.rows == consumer.rows
    if producer.rows:
        return consumer.elements == producer.rows and not consumer.rows
    return graph.only_read_by(producer, consumer)


def _in_order(graph: _Graph, groups: Iterable[_Group]) -> list[_Group]:
    """Groups so that each comes after all that it needs, else by their first node."""
    done: set[int] = set()
    order: list[_Group] = []
    todo = sorted(groups, key=lambda group: group.members[0], reverse=True)
    while todo:
        group = todo.pop()
        if id(group) in done:
            continue
        needed = {id(g): g for m in group.members for p in graph.before[m] if (g := graph.groups[p].now) is not group}
        if missing := [g for key, g in needed.items() if key not in done]:
            todo += [group, *missing]
        else:
            done.add(id(group))
            order.append(group)
    return order


def _runs(group: _Group, nodes: Sequence[Node]) -> bool:
    return any(nodes[member].kernels for member in group.members)


def _rebuilt(before: Workload, graph: _Graph, groups: Sequence[_Group]) -> Workload:
    """The workload of fused groups: a tensor that no kernel of theirs reads or writes is not there."""
    nodes = [replace(_fused(before, graph, group), id=group.members[0]) for group in groups]
    touched = {r.tensor for node in before.nodes for r in (*node.reads, *node.writes)}
    stays = (i for i, t in enumerate(before.tensors) if i not in touched or t.born < 0 or t.died >= KEPT)
    return rebuilt(before, nodes, stays)


def _fused(before: Workload, graph: _Graph, group: _Group) -> Node:
    """The node of a group, at its last member's phase and layer."""
    members = [before.nodes[m] for m in group.members if before.nodes[m].kernels]
    if len(members) == 1:
        return members[0]
    reads, writes = _inputs(before, graph, group), _outputs(before, graph, group)
    kernel = _kernel(group, members, (sum(reads.values()), sum(writes.values())))
    others = tuple(k for node in members if not _is_masked(node) for k in node.kernels[1:])
    names = dict.fromkeys(node.operator.removeprefix("aten.").partition(".")[0] for node in members)
    return replace(
        members[-1],
        operator=f"fused.{'_'.join(name.strip('_') for name in names)}",
        kernels=(kernel, *others),
        reads=tuple(map(Reference, reads)),
        writes=tuple(map(Reference, writes)),
    )


def _inputs(before: Workload, graph: _Graph, group: _Group) -> dict[int, int]:
    """Bytes that a group reads of each tensor that it does not make itself."""
    mine, found = set(group.members), dict[int, int]()
    for member in group.members:
        node = before.nodes[member]
        shares = _shares(before, node.reads, _bytes(node, "read_bytes"))
        own = {tensor for source, tensor in _made(graph, member) if source in mine}
        for tensor, size in shares.items():
            if tensor not in own:
                found[tensor] = max(found.get(tensor, 0), size)
    return found


def _made(graph: _Graph, member: int) -> list[tuple[int, int]]:
    """(writer, tensor) of what a node reads."""
    return [
        (source, tensor)
        for source in graph.before[member]
        for tensor in {w.tensor for w in graph.nodes[source].writes}
        if member in graph.readers[source, tensor]
    ]


def _outputs(before: Workload, graph: _Graph, group: _Group) -> dict[int, int]:
    """Bytes that a group writes of each tensor that somebody else reads, or that outlives the step."""
    mine, found = set(group.members), dict[int, int]()
    for member in group.members:
        node = before.nodes[member]
        for tensor, size in _shares(before, node.writes, _bytes(node, "write_bytes")).items():
            stays = before.tensors[tensor].died >= KEPT or before.tensors[tensor].born < 0
            if stays or set(graph.readers[member, tensor]) - mine:
                found[tensor] = max(found.get(tensor, 0), size)
    return found


def _bytes(node: Node, which: str) -> int:
    """Of the kernel that is generated for a node."""
    return max(
        (getattr(kernel, which) for kernel in (node.kernels if _is_masked(node) else node.kernels[:1])), default=0
    )


def _shares(before: Workload, references: Sequence[Reference], total: int) -> dict[int, int]:
    """A kernel's bytes by tensor, in proportion to the tensors' own."""
    tensors = {reference.tensor: before.tensors[reference.tensor] for reference in references}
    sizes = {number: tensor.touched_bytes or tensor.nbytes for number, tensor in tensors.items()}
    whole = sum(sizes.values())
    return {tensor: round(total * size / whole) if whole else 0 for tensor, size in sizes.items()}


def _kernel(group: _Group, members: Sequence[Node], moved: tuple[int, int]) -> Kernel:
    """One kernel that reads and writes what is left, and computes all that its members did; it is what the costliest
    of them is: a reduction before pointwise work, that before data movement.
    """
    kernels: list[Any] = [node.kernels[0] for node in members]
    read, written = moved
    flops = sum(getattr(kernel, "flops", 0) for kernel in kernels)
    for kind in (RowReduction, Elementwise):
        if alike := [kernel for kernel in kernels if isinstance(kernel, kind)]:
            leading: Any = max(alike, key=lambda kernel: kernel.flops)
            sized = {} if kind is RowReduction else {"elements": group.elements}
            return replace(leading, read_bytes=read, write_bytes=written, flops=flops, **sized)
    moved_only: Kernel = replace(kernels[-1], elements=group.elements, read_bytes=read, write_bytes=written)
    return moved_only
