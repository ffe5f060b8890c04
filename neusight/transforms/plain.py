"""A workload with every operator and every storage by itself, for transforms that tell equal layers apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from neusight.workloads.workload import KEPT, Layer, Reference, Tensor, Workload


def plain(workload: Workload) -> Workload:
    """The same step without series: ``nodes`` in the order of execution, each with its place as ``id``, and
    ``tensors`` of one copy each.
    """
    copies = np.array([tensor.copies for tensor in workload.tensors], dtype=np.int64)
    starts = (copies.cumsum() - copies).tolist()
    tensors = tuple(one for tensor in workload.tensors for one in _each_tensor(tensor))
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


def _lone(layer: Layer, copy: int) -> Layer:
    if not layer.steps:
        return layer
    return Layer(layer.pattern, tuple(n + copy * s for n, s in zip(layer.numbers, layer.steps, strict=True)))


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
    """References of one copy of a node; one to all copies of a tensor becomes as many."""
    copy, copies = place
    for reference in references:
        if reference.first < 0 and copies == 1:
            first = starts[reference.tensor]
            yield from (Reference(first + i) for i in range(tensors[reference.tensor].copies))
        else:
            one = reference.at(copy, copies)
            yield Reference(starts[one.tensor] + one.first)
