"""A workload with every operator and every storage listed separately, for transforms that distinguish equal layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from neusight.workloads.workload import KEPT, ModulePath, Node, Reference, Tensor, Workload


def unroll(workload: Workload) -> Workload:
    """The same step without series: ``nodes`` in the order of execution, each with its place as ``id``, and
    ``tensors`` of one copy each.
    """
    if _is_unrolled(workload):
        return workload
    copies = np.array([tensor.copies for tensor in workload.tensors], dtype=np.int64)
    starts = (copies.cumsum() - copies).tolist()
    tensors = tuple(copy for tensor in workload.tensors for copy in _each_tensor(tensor))
    nodes = tuple(
        replace(
            node,
            id=node.id + copy * node.stride,
            layer=_lone(node.layer, copy),
            reads=tuple(_each_reference(node.reads, (copy, node.copies), starts, workload.tensors)),
            writes=tuple(_each_reference(node.writes, (copy, node.copies), starts, workload.tensors)),
            copies=1,
            stride=0,
        )
        for node, copy in workload.expanded()
    )
    return replace(workload, nodes=nodes, tensors=tensors)


def _is_unrolled(workload: Workload) -> bool:
    lone = all(node.copies == 1 and node.id == place for place, node in enumerate(workload.nodes))
    return lone and all(tensor.copies == 1 for tensor in workload.tensors)


def each_copy(node: Node) -> Iterator[Node]:
    """A series as lone nodes, whose references are still to series of tensors."""
    for copy in range(node.copies):
        reads, writes = (tuple(r.at(copy, node.copies) for r in of) for of in (node.reads, node.writes))
        place, layer = node.id + copy * node.stride, _lone(node.layer, copy)
        yield replace(node, id=place, layer=layer, reads=reads, writes=writes, copies=1, stride=0)


def _lone(layer: ModulePath, copy: int) -> ModulePath:
    if not layer.steps:
        return layer
    return ModulePath(layer.pattern, tuple(n + copy * s for n, s in zip(layer.numbers, layer.steps, strict=True)))


def _each_tensor(tensor: Tensor) -> Iterator[Tensor]:
    for copy in range(tensor.copies):
        yield replace(
            tensor,
            layer=_lone(tensor.layer, copy),
            born=tensor.born + copy * tensor.born_step,
            died=tensor.died if tensor.died == KEPT else tensor.died + copy * tensor.died_step,
            copies=1,
            born_step=0,
            died_step=0,
        )


def _each_reference(
    references: Sequence[Reference], place: tuple[int, int], starts: Sequence[int], tensors: Sequence[Tensor]
) -> Iterator[Reference]:
    """References of one copy of a node; a reference to all copies of a tensor becomes one for each copy."""
    copy, copies = place
    for reference in references:
        if reference.first < 0 and copies == 1:
            first = starts[reference.tensor]
            yield from (Reference(first + i) for i in range(tensors[reference.tensor].copies))
        else:
            source = reference.at(copy, copies)
            yield Reference(starts[source.tensor] + source.first)


def rebuild(workload: Workload, nodes: Sequence[Node], stays: Iterable[int] = (), held: bool = False) -> Workload:
    """An unrolled workload with other nodes.

    Tensors that nodes make and drop live from the first node that touches them to the last; untouched tensors are left
    out unless they are in ``stays``.

    Args:
        workload: an unrolled workload.
        nodes: the nodes in their new order, with the place in ``workload`` where each begins as its ``id``.
        stays: tensors that are kept even if no node touches them.
        held: callers of the nodes are the same, and keep references for as long as before.
    """
    used = {reference.tensor for node in nodes for reference in (*node.reads, *node.writes)} | set(stays)
    number = {old: new for new, old in enumerate(sorted(used))}
    placed = tuple(
        replace(node, id=at, reads=_renumber(node.reads, number), writes=_renumber(node.writes, number))
        for at, node in enumerate(nodes)
    )
    moved = _places(workload.length, sorted(node.id for node in nodes))
    first, last = _touches(placed)
    tensors = []
    for old, at in number.items():
        tensor = workload.tensors[old]
        born = tensor.born if tensor.born < 0 else first.get(at, moved[tensor.born])
        died = tensor.died
        if 0 <= died < KEPT:
            died = moved[min(died, len(moved) - 1)]
            died = max(died, last.get(at, died)) if held else last.get(at, died)
        tensors.append(replace(tensor, born=born, died=max(born, died)))
    return replace(workload, nodes=placed, tensors=tuple(tensors))


def _renumber(references: Iterable[Reference], number: dict[int, int]) -> tuple[Reference, ...]:
    return tuple(Reference(number[r.tensor]) for r in references)


def _places(length: int, begins: Sequence[int]) -> list[int]:
    """New place for each old one: that of the last node that has begun by then."""
    return np.maximum(np.searchsorted(begins, np.arange(length), side="right") - 1, 0).tolist()


def _touches(nodes: Sequence[Node]) -> tuple[dict[int, int], dict[int, int]]:
    """First and last node that touches each tensor."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for node in nodes:
        for reference in (*node.reads, *node.writes):
            first.setdefault(reference.tensor, node.id)
            last[reference.tensor] = node.id
    return first, last
