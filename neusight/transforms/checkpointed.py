"""A traced step whose blocks keep what comes into them alone, and run forward again before their backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from neusight.errors import InapplicableError
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_DEPTHS = (1, 2, 3)
"""Numbers in the path of a module up to which it may be a block: ``stages.2`` or ``stages.2.layers.0``."""


def checkpoint_blocks(workload: Workload) -> Workload:
    """The step with the blocks checkpointed that leave the smallest peak (Chen et al. 2016, section 4.3: neither a few
    large ones nor many small ones).

    As ``torch.utils.checkpoint`` without reentrance does, a block runs forward again up to the last value that its
    backward pass takes.

    Raises:
        InapplicableError: the model has no blocks that keep much, or the step no backward pass.
    """
    if workload.request.mode != "training":
        raise InapplicableError("inference keeps nothing for a backward pass")
    step = unroll(workload)
    candidates = [made for depth in _DEPTHS if (made := _Recomputation(step, depth)).blocks]
    if not candidates:
        raise InapplicableError("no module of the model is a block among others, such as layers.0")
    best = min((made.rebuild() for made in candidates), key=lambda one: one.memory.peak)
    if best.memory.peak > step.memory.peak:
        raise InapplicableError("checkpoints of its blocks would raise the peak of the step")
    return best


def _block(node: Node, depth: int) -> str:
    words = node.layer.name().split(".")
    numbers = [at for at, word in enumerate(words) if word.isdigit()]
    return ".".join(words[: numbers[depth - 1] + 1]) if len(numbers) >= depth else ""


@dataclass
class _Recomputation:
    """Blocks of a step, and the tensors that their second pass makes."""

    step: Workload
    depth: int

    def __post_init__(self) -> None:
        self.tensors: list[Tensor] = list(self.step.tensors)
        self._again: dict[int, int] = {}
        self._block_of: dict[int, str] = {}
        self._nodes_of: dict[str, list[Node]] = {}
        for node in self.step.nodes:
            block = _block(node, self.depth)
            if node.phase != "forward" or not block:
                continue
            self._nodes_of.setdefault(block, []).append(node)
            for write in node.writes:
                if self.step.tensors[write.tensor].kind == "intermediate":
                    self._block_of.setdefault(write.tensor, block)
        self._kept = {tensor for node in self.step.nodes if node.phase == "forward" for tensor in self._passed_on(node)}

    def _passed_on(self, node: Node) -> Iterator[int]:
        """Tensors of another block that a node reads, which are kept."""
        block = _block(node, self.depth)
        yield from (r.tensor for r in node.reads if self._block_of.get(r.tensor, block) != block)

    @property
    def blocks(self) -> bool:
        """True if there are at least two blocks to choose from."""
        return len(self._nodes_of) > 1

    def rebuild(self) -> Workload:
        """The step with the blocks' second passes."""
        nodes = list(self._nodes())
        return rebuild(replace(self.step, tensors=tuple(self.tensors)), nodes)

    def _nodes(self) -> Iterator[Node]:
        """Nodes in their new order: each block again before the first backward node that reads a tensor of it."""
        missing = self._missing()
        done: set[str] = set()
        for node in self.step.nodes:
            if node.phase == "forward":
                yield node
                continue
            for block in dict.fromkeys(self._block_of[r.tensor] for r in node.reads if r.tensor in missing):
                if block not in done:
                    done.add(block)
                    yield from self._second(block, missing, node.id)
            yield replace(node, reads=self._replace_references(node.reads))

    def _missing(self) -> set[int]:
        """Tensors of blocks that backward nodes read and no other block keeps."""
        later = (node for node in self.step.nodes if node.phase != "forward")
        read = {r.tensor for node in later for r in node.reads if r.tensor in self._block_of}
        return read - self._kept

    def _second(self, block: str, missing: set[int], place: int) -> Iterator[Node]:
        """The nodes of a block up to the last that makes a missing tensor, on separate tensors."""
        nodes = self._nodes_of[block]
        last = max(at for at, node in enumerate(nodes) if any(w.tensor in missing for w in node.writes))
        for node in nodes[: last + 1]:
            reads = self._replace_references(node.reads)
            for write in node.writes:
                if self._block_of.get(write.tensor) == block and write.tensor not in self._again:
                    self._again[write.tensor] = len(self.tensors)
                    self.tensors.append(self.step.tensors[write.tensor])
            writes = tuple(w for w in self._replace_references(node.writes) if w.tensor >= len(self.step.tensors))
            yield replace(node, id=place, phase="backward", reads=reads, writes=writes)

    def _replace_references(self, references: Iterable[Reference]) -> tuple[Reference, ...]:
        return tuple(Reference(self._again.get(r.tensor, r.tensor)) for r in references)
