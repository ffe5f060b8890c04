"""Steps as ``torch.compile`` runs them: chains of pointwise operators and reductions run as one kernel each.

Three of its decisions say what such kernels read and write. The *partitioner* chooses what the forward pass keeps for
the backward pass, see ``partition``. *Lowering* puts a pointwise result into everything that reads it, unless that asks
for a buffer (``torch/_inductor/ir.py``, ``StorageBox.mark_reuse``; pooling does, of what is made of several operands:
``realize_hint``). The *scheduler* joins kernels that loop over the same elements, one after the other or side by side
on the same operands, where no third must run between them (``torch/_inductor/scheduler.py``; Ansel et al. 2024,
PyTorch 2, section 4.3). Products and everything that is not
generated stay separate kernels; views cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from neusight.kernels.families import Elementwise, Kernel, RowReduction
from neusight.transforms.channels_last import channels_last, with_biases_apart
from neusight.transforms.partition import (
    COMPILED,
    SUMS,
    UNROLLED,
    Value,
    ValueGraph,
    count,
    is_masked,
    saved_values,
    statistics,
)
from neusight.transforms.reductions import with_loops_apart
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.dispatch import HAND_WRITTEN
from neusight.workloads.workload import KEPT, Node, Reference, Workload

_KEPT = 1024
"""Values of a row up to which a block keeps them, and reads them once for their sum and for its uses
(``torch/_inductor/choices.py``, ``should_use_persistent_reduction``)."""
_FAR = 64
"""Nodes between two of which none needs the other beyond which they are not joined (``are_long_distant_nodes``)."""
_MOST_READS = 4
"""Operands of a pointwise result above which it becomes a buffer when several read it (``realize_reads_threshold``)."""


@dataclass
class _Group:
    """Nodes that become one kernel, by their places, with the extents of its loop: ``rows`` is 0 without a reduction,
    and negative where reduced values are stored across rows in memory. ``elements`` is 0 for nodes that cannot be
    joined.
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


def fuse(workload: Workload) -> Workload:
    """The step as Inductor compiles it: fewer nodes, each of one kernel, without views.

    Forward and backward are fused each by itself. Operators without a rule stay apart.
    """
    before = with_loops_apart(channels_last(with_biases_apart(with_collectives_apart(unroll(workload)))))
    return fuse_graph(before, ValueGraph(before))


def fuse_among(workload: Workload, places: Iterable[int], by: str = HAND_WRITTEN) -> Workload:
    """A step without series in which chains of some nodes become one kernel each, as written by hand, and all other
    nodes stay as they are; ``by`` begins the new names.
    """
    chosen = {workload.nodes[place].id for place in places}
    return fuse_graph(workload, ValueGraph(workload, lambda node: node.id in chosen, by_hand=True), by)


def fuse_graph(before: Workload, graph: ValueGraph, by: str = "fused") -> Workload:
    """A step without series whose generated nodes are joined; ``by`` begins the new names."""
    lowered = _Lowered(graph, saved_values(graph))
    groups = _schedule(graph, lowered)
    nodes = [replace(_fused_node(graph, lowered, group, by), id=graph.nodes[group.members[0]].id) for group in groups]
    touched = {r.tensor for node in before.nodes for r in (*node.reads, *node.writes)}
    stays = (i for i, t in enumerate(before.tensors) if i not in touched or t.born < 0 or t.died >= KEPT)
    return rebuild(before, nodes, stays)


class _Lowered:
    """Which values are buffers, and which of them a node reads once the others are put into it."""

    def __init__(self, graph: ValueGraph, saved: set[Value]) -> None:
        self.graph, self.saved = graph, saved
        self.losses = _of_the_loss(graph) if any(graph.generated) else {}
        self.reads: list[dict[Value, int]] = []
        """Bytes of buffers by node."""
        self.inlined: list[set[int]] = []
        """Places of nodes that are computed in it."""
        self.buffers: set[Value] = set()
        self._users: dict[Value, set[int]] = {}
        for place in range(len(graph.nodes)):
            bytes_read, within = self._lower(place)
            self.reads.append(bytes_read)
            self.inlined.append(within)
            self.buffers |= {v for v in graph.values(place) if self._is_buffer(v, bytes_read)}

        for place in filter(self.runs, range(len(graph.nodes))):
            for value in self.reads[place]:
                self._users.setdefault(value, set()).add(place)

    def users(self, value: Value) -> set[int]:
        """Places of nodes that run and read a buffer."""
        return self._users.get(value, set())

    def runs(self, place: int) -> bool:
        """True if a node is a kernel, or begins one."""
        node = self.graph.nodes[place]
        if not node.kernels:
            return self.graph.by_hand and self.graph.stands(place)
        return self.graph.generated[place] is None or any(v in self.buffers for v in self.graph.values(place))

    def _lower(self, place: int) -> tuple[dict[Value, int], set[int]]:
        node, bytes_read, within = self.graph.nodes[place], dict[Value, int](), set[int]()
        sizes = _shares(self.graph, {r.tensor for r in node.reads}, _bytes(node, "read_bytes"))
        todo = [(value, sizes.get(tensor, 0)) for tensor, value in self.graph.sources[place].items()]
        while todo:
            value, size = todo.pop()
            value, size = self.losses.get(value, (value, size))
            if self._leaf(value, node.phase):
                bytes_read[value] = _joint_bytes(self.graph, value, bytes_read.get(value, 0), size)
            elif self.graph.phase(value) == node.phase:
                within |= {value.place, *self.inlined[value.place]}
                todo += self.reads[value.place].items()
            elif value.place not in within:
                within.add(value.place)
                again = self.graph.nodes[value.place]
                shares = _shares(self.graph, {r.tensor for r in again.reads}, _bytes(again, "read_bytes"))
                todo += [(source, shares.get(tensor, 0)) for tensor, source in self.graph.sources[value.place].items()]
                todo += [(statistic, self.graph.nbytes(statistic)) for statistic in statistics(self.graph, value)]
        return bytes_read, within

    def _leaf(self, value: Value, phase: str) -> bool:
        """True if a node of a phase reads a value from a buffer."""
        made = self.graph.phase(value)
        if not made:
            return True
        if made == phase:
            return value in self.buffers
        return made != "forward" or phase not in COMPILED or value in self.saved or not self.graph.again(value)

    def _is_buffer(self, value: Value, reads: dict[Value, int]) -> bool:
        graph = self.graph
        readers = [r for r in graph.readers[value] if graph.nodes[r].phase == graph.nodes[value.place].phase]
        if graph.stays(value) or value in self.saved or (graph.phase(value) != "forward" and self._later(value)):
            return True
        if not graph.pointwise(value):
            return bool(readers) or graph.generated[value.place] is None
        if any(graph.generated[r] is None for r in readers):
            return True
        spread = any(self._spreads(value, reader) for reader in readers)
        pooled = len(reads) > 1 and any("pool" in getattr(graph.generated[r], "op", "") for r in readers)
        many = len(readers) > 1 and sum(map(self._operands, reads)) > _MOST_READS
        return bool(reads) and (spread or pooled or many)

    def _operands(self, value: Value) -> int:
        """Buffers that a result is made of where it is read: a norm's is pointwise once its statistics are there."""
        normed = value.place >= 0 and isinstance(self.graph.generated[value.place], RowReduction)
        return len(self.reads[value.place]) if normed and self.graph.phase(value) in COMPILED else 1

    def _later(self, value: Value) -> bool:
        """True if a later phase reads the value."""
        return any(self.graph.nodes[r].phase != self.graph.phase(value) for r in self.graph.readers[value])

    def _spreads(self, value: Value, reader: int) -> bool:
        """True if a reader uses each element many times, and not as one part of a concatenation or a masked choice."""
        kernel: Any = self.graph.generated[reader]
        parts = getattr(kernel, "op", "") == "cat" or is_masked(self.graph.nodes[reader])
        return not parts and self.graph.elements(reader) > self.graph.elements(value.place)


def with_collectives_apart(workload: Workload) -> Workload:
    """A step without series whose collectives are separate nodes, before the readers and after the writers of the
    tensors that they change in place.
    """
    return replace(workload, nodes=tuple(part for node in workload.nodes for part in _split(workload, node)))


def _split(workload: Workload, node: Node) -> Iterator[Node]:
    kernels = tuple(kernel for kernel in node.kernels if kernel.family != "collective")
    if len(kernels) == len(node.kernels):
        yield node
        return
    leading = next((at for at, kernel in enumerate(node.kernels) if kernel.family != "collective"), len(node.kernels))
    for at, kernel in enumerate(node.kernels):
        if kernel.family == "collective" and at < leading:
            yield from _collective(workload, node, kernel, node.reads)
    yield replace(node, kernels=kernels)
    for kernel in node.kernels[leading:]:
        if kernel.family == "collective":
            yield from _collective(workload, node, kernel, node.writes)


def _collective(workload: Workload, node: Node, kernel: Any, of: Sequence[Reference]) -> Iterator[Node]:
    """The node of a collective, on tensors of its size or of a rank's share of that."""
    sizes = kernel.bytes, ceil(kernel.bytes / kernel.ranks)
    alike = tuple(r for r in of if workload.tensors[r.tensor].nbytes in sizes) or tuple(of)
    yield replace(node, operator=kernel.op, kernels=(kernel,), reads=alike[:1], writes=alike[:1])


def _of_the_loss(graph: ValueGraph) -> dict[Value, tuple[Value, int]]:
    """Logits and their bytes by the values that a loss outside of the step made of them: a compiled step computes those
    from the logits again.
    """
    logits: dict[int, Value] = {}
    for place, node in enumerate(graph.nodes):
        if node.phase == "forward" and node.kernels and graph.generated[place] is None:
            logits |= {count(graph, value): value for value in graph.values(place)}
    logits_of = {}
    for value, readers in graph.readers.items():
        made_before = value.place < 0 and graph.tensors[value.tensor].born >= 0
        if made_before and graph.nodes[readers[0]].phase == "backward" and (of := logits.get(count(graph, value))):
            logits_of[value] = of, graph.nbytes(of)
    return logits_of


def _schedule(graph: ValueGraph, lowered: _Lowered) -> list[_Group]:
    """Kernels in the order in which they run."""
    groups = {place: _single_group(graph, place) for place in range(len(graph.nodes)) if lowered.runs(place)}
    needs: dict[int, set[int]] = {}
    readers: dict[Value, list[int]] = {}
    for place in groups:
        sources = {value.place for value in lowered.reads[place]} | graph.before[place]
        needs[place] = {source for source in sources if source in groups}
        alike = {r for value in lowered.reads[place] if value.place >= 0 for r in readers.get(value, ())}
        near = (other for other in alike - needs[place] if place - other <= _FAR)
        for source in (*sorted(needs[place], reverse=True), *sorted(near, reverse=True)):
            _join(groups, needs, graph, (source, place))
        for value in lowered.reads[place]:
            readers.setdefault(value, []).append(place)
    return _in_order(list({id(g.now): g.now for g in groups.values()}.values()), groups, needs)


def _single_group(graph: ValueGraph, place: int) -> _Group:
    """A node's group before it is joined with any."""
    return _Group([place], graph.elements(place), graph.reduced_rows(place))


def _join(groups: dict[int, _Group], needs: dict[int, set[int]], graph: ValueGraph, places: tuple[int, int]) -> None:
    """Join the groups of two nodes, where both loop over the same elements and no third group runs between."""
    other, mine = (groups[place].now for place in places)
    if mine is other or not _fits(graph, other, mine):
        return
    if not _around(groups, needs, (other, mine)) and not _around(groups, needs, (mine, other)):
        mine.joined = other
        other.members = sorted(other.members + mine.members)
        rows = max(other.rows, mine.rows) if graph.by_hand else other.rows or mine.rows
        other.elements, other.rows = max(other.elements, mine.elements), rows


def _fits(graph: ValueGraph, producer: _Group, consumer: _Group) -> bool:
    """True if both loop over the same elements, or one over the other's rows."""
    phases = {graph.nodes[group.members[0]].phase for group in (producer, consumer)}
    if not producer.elements or not consumer.elements or len(phases) > 1:
        return False
    if graph.by_hand and consumer.elements in (producer.elements, abs(producer.rows)):
        return True
    if producer.elements == consumer.elements and producer.rows < 0:
        # What follows walks over values in another order.
        return producer.rows == consumer.rows
    if producer.elements == consumer.elements:
        return not (producer.rows and consumer.rows) or producer.rows == consumer.rows
    return bool(producer.rows) and consumer.elements == abs(producer.rows) and not consumer.rows


def _around(groups: dict[int, _Group], needs: dict[int, set[int]], pair: tuple[_Group, _Group]) -> bool:
    """True if the second group depends on the first through a third."""
    first, second = pair
    begin = first.members[0]
    todo = [p for m in second.members for p in needs.get(m, ()) if groups[p].now not in pair]
    seen: set[int] = set()
    while todo:
        group = groups[todo.pop()].now
        if group is first:
            return True
        if id(group) in seen or group.members[-1] < begin:
            continue
        seen.add(id(group))
        todo += [p for m in group.members for p in needs.get(m, ())]
    return False


def _in_order(all_groups: Iterable[_Group], groups: dict[int, _Group], needs: dict[int, set[int]]) -> list[_Group]:
    """Groups in an order in which each follows all those it needs, else by their first node."""
    done: set[int] = set()
    order: list[_Group] = []
    todo = sorted(all_groups, key=lambda group: group.members[0], reverse=True)
    while todo:
        group = todo.pop()
        if id(group) in done:
            continue
        needed = {id(g): g for m in group.members for p in needs[m] if (g := groups[p].now) is not group}
        if missing := [g for key, g in needed.items() if key not in done]:
            todo += [group, *missing]
        else:
            done.add(id(group))
            order.append(group)
    return order


def _fused_node(graph: ValueGraph, lowered: _Lowered, group: _Group, by: str) -> Node:
    """The node of a group, at its last member's phase and layer; ``by`` begins its name."""
    places = sorted({*group.members, *(inlined for member in group.members for inlined in lowered.inlined[member])})
    members = [graph.nodes[place] for place in places]
    reads, writes = _inputs(lowered, group), _outputs(graph, lowered, group)
    last = graph.nodes[group.members[-1]]
    if not last.kernels:
        return last
    if len(members) == 1:
        kernels = last.kernels if graph.generated[places[0]] is None else tuple(map(_without_window, last.kernels))
        buffers = tuple(Reference(value.tensor) for value in reads), tuple(map(Reference, writes))
        mine = graph.by_hand and graph.generated[places[0]] is not None
        name = f"{by}.{_name(last)}" if mine else last.operator
        return replace(last, operator=name, kernels=kernels, reads=buffers[0], writes=buffers[1])
    kernel = _kernel(group, members, (sum(reads.values()), sum(writes.values())), graph.by_hand)
    others = tuple(k for m in group.members for k in _further_kernels(graph.nodes[m], sum(lowered.reads[m].values())))
    names = dict.fromkeys(map(_name, members))
    return replace(
        last,
        operator=f"{by}.{'_'.join(names)}",
        kernels=(_without_window(kernel), *others),
        reads=tuple(Reference(value.tensor) for value in reads),
        writes=tuple(map(Reference, writes)),
    )


def _name(node: Node) -> str:
    return node.operator.removeprefix("aten.").partition(".")[0].strip("_")


def _without_window(kernel: Kernel) -> Kernel:
    """A generated kernel, which has no loop over a window."""
    if isinstance(kernel, Elementwise) and kernel.op in UNROLLED:
        return replace(kernel, op=UNROLLED[kernel.op])
    return kernel


def _further_kernels(node: Node, read: int) -> Iterator[Kernel]:
    """Further kernels of a node, such as gradients of a norm's weights, which read the first one's operands."""
    if is_masked(node):
        return
    for kernel in node.kernels[1:]:
        more = max(0, read - node.kernels[0].read_bytes) if isinstance(kernel, RowReduction) else 0  # type: ignore
        yield replace(kernel, read_bytes=kernel.read_bytes + more) if more else kernel  # type: ignore


def _inputs(lowered: _Lowered, group: _Group) -> dict[Value, int]:
    """Bytes that a group reads of each buffer that it does not make itself."""
    mine, bytes_read = set(group.members), dict[Value, int]()
    for member in group.members:
        for value, size in lowered.reads[member].items():
            if value.place not in mine:
                bytes_read[value] = _joint_bytes(lowered.graph, value, bytes_read.get(value, 0), size)
    return bytes_read


def _joint_bytes(graph: ValueGraph, value: Value, first: int, second: int) -> int:
    """Bytes of a buffer that two nodes read in one kernel; halves of a tensor, where a kernel was written for both."""
    whole = graph.nbytes(value)
    return min(whole, first + second) if graph.by_hand and max(first, second) < whole else max(first, second)


def _outputs(graph: ValueGraph, lowered: _Lowered, group: _Group) -> dict[int, int]:
    """Bytes that a group writes of each tensor that another node reads, or that outlives the step."""
    mine, bytes_written = set(group.members), dict[int, int]()
    for member in group.members:
        node = graph.nodes[member]
        sizes = _shares(graph, {w.tensor for w in node.writes}, _bytes(node, "write_bytes"))
        for value in graph.values(member):
            if value in lowered.buffers and (graph.stays(value) or lowered.users(value) - mine):
                bytes_written[value.tensor] = max(bytes_written.get(value.tensor, 0), sizes[value.tensor])
    return bytes_written


def _bytes(node: Node, which: str) -> int:
    """Bytes that the kernel generated for a node reads or writes."""
    return max(
        (getattr(kernel, which, 0) for kernel in (node.kernels if is_masked(node) else node.kernels[:1])), default=0
    )


def _shares(graph: ValueGraph, tensors: Iterable[int], total: int) -> dict[int, int]:
    """A kernel's bytes by tensor, in proportion to the sizes of the tensors."""
    sizes = {number: graph.tensors[number].touched_bytes or graph.tensors[number].nbytes for number in tensors}
    whole = sum(sizes.values())
    return {tensor: round(total * size / whole) if whole else 0 for tensor, size in sizes.items()}


def _kernel(group: _Group, members: Sequence[Node], moved: tuple[int, int], by_hand: bool) -> Kernel:
    """One kernel that reads and writes ``moved`` bytes, and computes all that its members did; its kind is that of the
    costliest of them: a reduction before pointwise work, that before data movement.
    """
    kernels: list[Any] = [node.kernels[0] for node in members]
    read, written = moved
    flops = sum(getattr(kernel, "flops", 0) for kernel in kernels)
    for kind in (RowReduction, Elementwise):
        if alike := [kernel for kernel in kernels if isinstance(kernel, kind)]:
            leading: Any = max(alike, key=lambda kernel: kernel.flops)
            sized: dict[str, Any] = {} if kind is RowReduction else {"elements": group.elements}
            twice = not by_hand and written > read / 2
            if twice and kind is RowReduction and leading.op in SUMS and leading.cols > _KEPT:
                # Long rows are read for their sum and again for what is made of it, as a norm does.
                sized = {"op": "group_norm"}
            return replace(leading, read_bytes=read, write_bytes=written, flops=flops, **sized)
    moved_only: Kernel = replace(kernels[-1], elements=group.elements, read_bytes=read, write_bytes=written)
    return moved_only
