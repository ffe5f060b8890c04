"""Layers of a transformer that keep less for their backward pass: GELU and layer norm read their result instead of
their input, and the dropout of attention's probabilities is computed again (Andoorveedu et al.
2022, "Tempo: Accelerating Transformer-Based Model Training through Memory Footprint Reduction", section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Elementwise
from neusight.kernels.precision import stored_bytes
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_COPIES = ("_to_copy", "clone")


def tempo(workload: Workload) -> Workload:
    """The step with GELUs and layer norms in place, and attention's dropout done again.

    Raises:
        InapplicableError: inference, or the model has none of these layers.
    """
    if workload.request.mode != "training":
        raise InapplicableError("inference keeps nothing for a backward pass")
    layers = _Layers(unroll(workload))
    if not (layers.masks or layers.given or layers.dropped):
        raise InapplicableError("the model has neither GELU nor layer norm, nor dropout of attention's probabilities")
    return layers.rebuild()


@dataclass
class _Layers:
    """Replacements of tensors in the backward pass of an unrolled step.

    Attributes:
        step: the step.
        given: result of a layer that its backward node reads instead of its input: (operator, input) to result.
        masks: by GELU's input the tensor that records on which side of its minimum each value is, one byte each.
        dropped: probabilities and mask, by the tensor of their dropout.
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
        source = self.tensors[at]
        return self._new(replace(source, dtype="bool", nbytes=round(source.nbytes / stored_bytes(source.dtype))))

    def _new(self, tensor: Tensor) -> int:
        self.tensors.append(replace(tensor, born=0, died=0, touched_bytes=tensor.nbytes))
        return len(self.tensors) - 1

    def rebuild(self) -> Workload:
        """The step with the replacements."""
        nodes = [part for node in self.step.nodes for part in self._of(node)]
        return rebuild(replace(self.step, tensors=tuple(self.tensors)), nodes)

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
        """The dropout once more before a node that reads its result."""
        (probs, mask), dropout = self.dropped[at], self.tensors[at]
        elements = round(dropout.nbytes / stored_bytes(dropout.dtype))
        self.again[at] = self._new(dropout)
        kernel = Elementwise(
            op="dropout_backward", elements=elements, read_bytes=self.tensors[probs].nbytes + self.tensors[mask].nbytes,
            write_bytes=dropout.nbytes, flops=2 * elements, dtype=dropout.dtype,
        )  # fmt: skip
        reads, writes = (Reference(probs), Reference(mask)), (Reference(self.again[at]),)
        return Node(id=node.id, operator="aten.native_dropout_backward.default", phase="backward", kernels=(kernel,),
                     reads=reads, writes=writes, layer=node.layer)  # fmt: skip
