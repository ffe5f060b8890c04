"""Layers of a transformer that keep less for their backward pass: GELU and layer norm take back what they gave instead
of what they were given, and what dropout leaves of attention's probabilities is computed again (Andoorveedu et al.
2022, "Tempo: Accelerating Transformer-Based Model Training through Memory Footprint Reduction", section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Elementwise
from neusight.kernels.precision import stored_bytes
from neusight.transforms.unrolled import rebuilt, unrolled
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_COPIES = ("_to_copy", "clone")


def tempo(workload: Workload) -> Workload:
    """The step with GELUs and layer norms in place, and attention's dropout done again.

    Raises:
        InapplicableError: inference, or the model has none of these layers.
    """
    if workload.request.mode != "training":
        raise InapplicableError("inference keeps nothing for a backward pass")
    found = _Layers(unrolled(workload))
    if not (found.masks or found.given or found.dropped):
        raise InapplicableError("the model has neither GELU nor layer norm, nor dropout of attention's probabilities")
    return found.rebuilt()


@dataclass
class _Layers:
    """What stands for what in the backward pass of an unrolled step.

    Attributes:
        step: the step.
        given: what layers were given, by what their backward nodes take instead: (operator, tensor) to tensor.
        masks: by GELU's input the tensor that says on which side of its minimum each value lies, one byte each.
        dropped: of tensors that hold what dropout left of probabilities, these and its mask.
        again: of these tensors, those that the backward pass makes.
    """

    step: Workload
    given: dict[tuple[str, int], int] = field(default_factory=dict)
    masks: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, tuple[int, int]] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors: list[Tensor] = list(self.step.tensors)
        probabilities: set[int] = set()
        for node in self.step.nodes:
            name = node.operator.split(".")[1] if node.phase == "forward" and node.kernels and node.writes else ""
            read, *_ = (*(r.tensor for r in node.reads), -1)
            if name == "_softmax":
                probabilities.add(node.writes[0].tensor)
            elif name == "gelu":
                self.masks[read] = self._bytes_of(read)
                self.given["gelu_backward", read] = node.writes[0].tensor
            elif name == "native_layer_norm":
                self.given["native_layer_norm_backward", read] = node.writes[0].tensor
            elif name == "native_dropout" and read in probabilities:
                self.dropped[node.writes[0].tensor] = read, node.writes[1].tensor
            elif name in _COPIES and read in self.dropped:
                self.dropped[node.writes[0].tensor] = self.dropped[read]

    def _bytes_of(self, at: int) -> int:
        """A tensor of a byte for each value of another."""
        one = self.tensors[at]
        return self._new(replace(one, dtype="bool", nbytes=round(one.nbytes / stored_bytes(one.dtype))))

    def _new(self, tensor: Tensor) -> int:
        self.tensors.append(replace(tensor, born=0, died=0, touched_bytes=tensor.nbytes))
        return len(self.tensors) - 1

    def rebuilt(self) -> Workload:
        """The step as its layers are now."""
        nodes = [one for node in self.step.nodes for one in self._of(node)]
        return rebuilt(replace(self.step, tensors=tuple(self.tensors)), nodes)

    def _of(self, node: Node) -> Iterator[Node]:
        name, read = node.operator.split(".")[1], [r.tensor for r in node.reads]
        if node.phase == "forward":
            mask = self.masks.get(read[0]) if name == "gelu" and node.kernels else None
            yield node if mask is None else self._with_mask(node, [], mask)
        elif node.phase == "backward":
            for at in dict.fromkeys(at for at in read if at in self.dropped and at not in self.again):
                yield self._again(node, at)
            read = [self.again.get(at, at) for at in read]
            masks = [self.masks[at] for at in read if name == "gelu_backward" and at in self.masks]
            taken = replace(node, reads=tuple(Reference(self.given.get((name, at), at)) for at in read))
            yield self._with_mask(taken, masks) if masks else taken
        else:
            yield node

    def _with_mask(self, node: Node, read: Sequence[int], written: int | None = None) -> Node:
        """An activation that also reads, or writes, the mask."""
        kernel: Any = node.kernels[0]
        more = {"read_bytes": sum(self.tensors[at].nbytes for at in read),
                "write_bytes": 0 if written is None else self.tensors[written].nbytes}  # fmt: skip
        kernel = replace(kernel, **{name: getattr(kernel, name) + size for name, size in more.items()})
        writes = node.writes if written is None else (*node.writes, Reference(written))
        return replace(
            node, kernels=(kernel, *node.kernels[1:]), reads=(*node.reads, *map(Reference, read)), writes=writes
        )

    def _again(self, node: Node, at: int) -> Node:
        """The dropout once more before a node that takes what it left."""
        (kept, mask), one = self.dropped[at], self.tensors[at]
        elements = round(one.nbytes / stored_bytes(one.dtype))
        self.again[at] = self._new(one)
        kernel = Elementwise(
            op="dropout_backward", elements=elements, read_bytes=self.tensors[kept].nbytes + self.tensors[mask].nbytes,
            write_bytes=one.nbytes, flops=2 * elements, dtype=one.dtype,
        )  # fmt: skip
        reads, writes = (Reference(kept), Reference(mask)), (Reference(self.again[at]),)
        return Node(id=node.id, operator="aten.native_dropout_backward.default", phase="backward", kernels=(kernel,),
                     reads=reads, writes=writes, layer=node.layer)  # fmt: skip
