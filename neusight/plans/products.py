"""Choice of the products of a traced model that ranks share by columns and by rows, derived from its structure.

A product whose input is whole can be shared by columns (each rank computes some of its outputs), one whose input is
shared so already by rows (each rank adds up some of its inputs, and an all-reduce sums over ranks): Shoeybi et al.
2019, section 3. Columns are chosen only where all readers of the outputs can work on a part of them until a product
by rows, or the loss over a shared vocabulary, reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from neusight.errors import ModelError, nearest
from neusight.workloads.workload import Node, Reference, Workload

COLUMNS, ROWS, VOCABULARY, WHOLE = "colwise", "rowwise", "vocabulary", "replicated"
STYLES = {
    **dict.fromkeys(("colwise", "colwise_rep", "local_colwise"), COLUMNS),
    **dict.fromkeys(("rowwise", "rowwise_rep", "local_rowwise"), ROWS),
    **dict.fromkeys(("replicated", "replicated_with_grad_allreduce", "sequence_parallel", "gather"), WHOLE),
}
"""Words of ``torch.distributed.tensor.parallel`` plans and of Hugging Face's ``base_model_tp_plan``."""
_SHOWN = 4
"""Modules that a message names."""


@dataclass
class Shared:
    """Style in which each weight is shared, by the place of its tensor, and the forward tensors that are parts.

    ``layers`` has the same by the pattern of a module path; ``left`` are the paths of products that stay whole.
    """

    weights: dict[int, str] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    parts: set[int] = field(default_factory=set)
    left: list[str] = field(default_factory=list)


def operands(node: Node) -> tuple[Reference | None, Reference | None]:
    """A and B of a node's product; None where the node has none, or multiplies a tensor with itself."""
    kernel: Any = node.kernels[0] if node.kernels else None
    if kernel is None or kernel.family != "gemm" or len(node.reads) < 2:
        return None, None
    return node.reads[-2], node.reads[-1]


def weight_of(workload: Workload, node: Node) -> int | None:
    """The weight that a node multiplies with."""
    _, second = operands(node)
    if second is None or node.kernels[0].op == "bmm":
        return None
    return second.tensor if workload.tensors[second.tensor].kind == "weight" else None


def shared_products(workload: Workload, tp: int, stated: Mapping[str, str] | None = None) -> Shared:
    """Styles in which ``tp`` ranks share a model's products.

    Args:
        workload: a step of any mode; its forward pass decides.
        tp: ranks.
        stated: module path, with ``*``, to ``colwise``, ``rowwise`` or ``replicated``; products left out stay whole.

    Raises:
        ModelError: an unknown style, a pattern that no product has, a size that the ranks do not divide, or no
            product that they could share.
    """
    return _Choice(workload, tp, _check(workload, stated)).choose()


def _check(workload: Workload, stated: Mapping[str, str] | None) -> Mapping[str, str] | None:
    products = [n.layer.name() for n in workload.nodes if weight_of(workload, n) is not None or is_embedding(n)]
    names = list(dict.fromkeys(products))
    for pattern, style in (stated or {}).items():
        if style not in STYLES:
            raise ModelError(
                f"unknown style '{style}' of {pattern}{nearest(style, STYLES)}: one of {', '.join(STYLES)}"
            )
        if STYLES[style] != WHOLE and not any(_matches(name, pattern) for name in names):
            raise ModelError(
                f"no product of {workload.request.model} is named '{pattern}'{nearest(pattern, names)}: "
                f"such as {', '.join(names[:_SHOWN])}"
            )
    return stated


def _matches(name: str, pattern: str) -> bool:
    """True if a module path matches a pattern, which may leave out the model's prefix."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def is_embedding(node: Node) -> bool:
    """True if a node of the forward pass looks up rows of a table."""
    kernel: Any = node.kernels[0] if node.kernels else None
    return node.phase == "forward" and kernel is not None and kernel.family == "memory" and kernel.op == "embedding"


class _Choice:
    """Goes through the forward pass once, looking ahead from each product whose input is whole."""

    def __init__(self, workload: Workload, tp: int, stated: Mapping[str, str] | None) -> None:
        self.workload, self.tp, self.stated = workload, tp, stated
        self.forward = [node for node in workload.nodes if node.phase == "forward" and node.kernels]
        self.shared = Shared()
        self.known: set[int] = set()
        """Tensors that have been computed so far."""
        self.readers: dict[int, list[Node]] = {}
        for node in self.forward:
            for tensor in {t for r in node.reads for t in tensors_of(r)}:
                self.readers.setdefault(tensor, []).append(node)
        self.tables = {t: workload.tensors[t].shape[0] for n in self.forward if is_embedding(n) for t in (_table(n),)}

    def choose(self) -> Shared:
        for node in self.forward:
            self._decide(node)
            self.known |= {w.tensor for w in node.writes}
        if not any(style in (COLUMNS, ROWS) for style in self.shared.weights.values()):
            raise ModelError(
                f"no product of {self.workload.request.model} can be shared by {self.tp} ranks: what it runs are "
                f"convolutions, or products that norms follow; leave out tp, and use dp"
            )
        return self.shared

    def _decide(self, node: Node) -> None:
        weight = weight_of(self.workload, node)
        if weight is not None:
            self._product(node, weight)
        elif is_embedding(node):
            self._embedding(node)
        elif any(self._is_part(r) for r in node.reads):
            self._check_heads_divisible(node)
            self.shared.parts |= {w.tensor for w in node.writes}

    def _product(self, node: Node, weight: int) -> None:
        kernel: Any = node.kernels[0]
        first = operands(node)[0]
        assert first is not None
        style = self._style(node, weight, self._is_part(first))
        if style == ROWS:
            self._check_divides(node, kernel.k, "inputs")
        if style == COLUMNS:
            self._check_divides(node, kernel.n, "outputs")
        if style in (COLUMNS, VOCABULARY):
            self.shared.parts |= {w.tensor for w in node.writes}
        if style == WHOLE:
            self.shared.left.append(node.layer.name())
        self.shared.weights[weight] = self.shared.layers[node.layer.pattern] = style
        if kernel.bias and style == COLUMNS:
            self.shared.weights[node.reads[0].tensor] = style

    def _style(self, node: Node, weight: int, part: bool) -> str:
        if self.stated is not None:
            style = _style_of(node, self.stated)
            if style == ROWS and not part:
                raise ModelError(f"{node.layer.name()} is stated rowwise, but what it reads is whole: state colwise "
                                 "for the products that feed it")  # fmt: skip
            return style
        if part:
            return ROWS
        if self._is_head(node, weight):
            return VOCABULARY
        return COLUMNS if all(self._ends_in_rows(node)) else WHOLE

    def _is_head(self, node: Node, weight: int) -> bool:
        """True if a product's outputs are the vocabulary's, and only the loss reads them."""
        kernel: Any = node.kernels[0]
        words = weight in self.tables or kernel.n in self.tables.values()
        return words and not any(self.readers.get(w.tensor) for w in node.writes)

    def _ends_in_rows(self, start: Node) -> Iterator[bool]:
        """Yield for each direct or indirect reader of a product's outputs whether it can work on a part."""
        width: int = start.kernels[0].n  # type: ignore[union-attr]
        todo, seen = [(w.tensor, False) for w in start.writes], set()
        yield bool(todo) and any(self.readers.get(w.tensor) for w in start.writes)
        while todo:
            tensor, heads = todo.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            for node in self.readers.get(tensor, ()):
                kernel: Any = node.kernels[0]
                if weight_of(self.workload, node) is not None:
                    continue
                yield self._takes_part(node, kernel, (tensor, heads, width))
                inner = kernel.family == "attention" or getattr(kernel, "op", "") == "bmm"
                todo += [(w.tensor, heads or inner) for w in node.writes]

    def _takes_part(self, node: Node, kernel: Any, given: tuple[int, bool, int]) -> bool:
        """True if a node can work on a part of a tensor, which has whole heads once attention has begun."""
        tensor, heads, width = given
        if kernel.family == "row_reduction":
            return (heads and "softmax" in kernel.op) or (width // self.tp) % kernel.cols == 0
        if kernel.family == "elementwise" and not heads:
            size = self.workload.tensors[tensor].nbytes
            others = [t for r in node.reads for t in tensors_of(r) if t != tensor and t in self.known]
            alike = [t for t in others if t not in self.shared.parts and self.workload.tensors[t].nbytes == size]
            return not alike
        return kernel.family in ("elementwise", "memory", "attention", "gemm")

    def _embedding(self, node: Node) -> None:
        """Share the table of words by rows where the head is shared, or where it is the largest of several."""
        table, width = _table(node), max(self.tables.values())
        if self.stated is not None:
            style = VOCABULARY if _style_of(node, self.stated) != WHOLE else WHOLE
        else:
            style = VOCABULARY if self.tables[table] == width and width > self.tp else WHOLE
        self.shared.weights[table] = self.shared.layers[node.layer.pattern] = style

    def _check_heads_divisible(self, node: Node) -> None:
        kernel: Any = node.kernels[0]
        heads = getattr(kernel, "heads", 0) if kernel.family == "attention" else 0
        if getattr(kernel, "op", "") == "bmm":
            heads = kernel.batch // self.workload.request.batch
        if heads:
            self._check_divides(node, heads, "heads")

    def _check_divides(self, node: Node, size: int, what: str) -> None:
        if size % self.tp:
            fit = [n for n in range(2, min(size, 2 * self.tp) + 1) if size % n == 0] or [1]
            raise ModelError(
                f"tp {self.tp} does not divide the {size} {what} of {node.layer.name()}: "
                f"tp {', '.join(map(str, fit))} would"
            )

    def _is_part(self, reference: Reference) -> bool:
        return any(t in self.shared.parts for t in tensors_of(reference))


def _table(node: Node) -> int:
    return node.reads[0].tensor


def tensors_of(reference: Reference) -> list[int]:
    """Tensors that the copies of a node read in one place."""
    return [reference.tensor, *(tensor for _, tensor, _ in reference.edges)]


def _style_of(node: Node, stated: Mapping[str, str]) -> str:
    name = node.layer.name()
    return next((STYLES[style] for pattern, style in stated.items() if _matches(name, pattern)), WHOLE)
